"""Spark with an Iceberg that is older than the one the jobs fetch."""

import subprocess
import sys

import pytest

from tests.support.shared_stack import ROOT
from tests.support.spark import OLDER_ICEBERG


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("version", OLDER_ICEBERG)
def test_spark_reads_and_writes_with_an_older_iceberg(version: str) -> None:
    """All that the ordinary run asks of Spark as a client holds there."""
    asked = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-m", "spark and not long", "--iceberg", version]
    done = subprocess.run([*asked, "tests/interop"], cwd=ROOT, capture_output=True, text=True, timeout=5400, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout.splitlines()[-1]
