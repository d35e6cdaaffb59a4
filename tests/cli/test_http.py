"""The process that serves: how it treats its memory."""

import subprocess
import sys

import pytest

from duckicelake.commands.serve import GC_THRESHOLDS
from tests.support.shared_stack import ROOT

PROGRAM = """
import gc
from duckicelake.commands.serve import tune_garbage_collector
tune_garbage_collector()
print(*gc.get_threshold(), gc.get_freeze_count() > 10_000)
"""


@pytest.mark.whole
def test_python_looks_for_cycles_rarely() -> None:
    """What was imported is never looked at again, what is made only after many more objects."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*map(str, GC_THRESHOLDS), "True"]
