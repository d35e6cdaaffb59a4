"""The older releases of Postgres: what the ordinary run asks of the lake, the catalog and readers' roles holds on each."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres_releases import RELEASES, install_postgres
from tests.support.shared_stack import ROOT, SharedStack

ASKED = "TESTED_POSTGRES"
NEWEST = 18
TESTED = ("tests/lake", "tests/catalog", "tests/concurrency", "tests/rest/auth/ducklake", "tests/rest/writing")


def test_the_release_is_the_one_that_was_asked_for(stack: SharedStack) -> None:
    """The newest one, where nobody asked."""
    with psycopg.connect(stack.admin_dsn) as conn:
        assert conn.info.server_version // 10000 == int(os.environ.get(ASKED, NEWEST))


@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_the_lake_lives_in_an_older_release(release: str, tmp_path: Path) -> None:
    """With a stack of its own, because others use the newest one meanwhile."""
    path = os.pathsep.join(map(str, (ROOT, install_postgres(release))))
    environ = os.environ | {"PYTHONPATH": path, "TMPDIR": str(tmp_path), ASKED: release}
    this = f"{Path(__file__).relative_to(ROOT)}::{test_the_release_is_the_one_that_was_asked_for.__name__}"
    asked = [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", "-m", "not long", this, *TESTED]
    done = subprocess.run(asked, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=5400, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    assert "passed" in done.stdout.splitlines()[-1]
