"""What a run leaves on disk when it is killed."""

import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from duckicelake.commands.jobs import session
from duckicelake.commands.jobs.session import SparkSettings, opening_spark
from duckicelake.pipeline.common.spark_session import SparkPlan
from tests.support.commands import environment

RUNS = """
import sys
from duckicelake.commands.jobs.session import opening_scratch_folder
with opening_scratch_folder() as folder:
    (folder / "local").mkdir()
    (folder / "local" / "block").write_text("rows of a database")
    print(folder, flush=True)
    sys.stdin.read()
"""


def begin(folder: Path, stack: ExitStack) -> tuple["subprocess.Popen[str]", Path]:
    """A run that is at work, and where it has its rows."""
    run = subprocess.Popen(
        [sys.executable, "-c", RUNS], env=environment({"TMPDIR": str(folder)}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    stack.enter_context(run)
    assert run.stdout is not None
    return run, Path(run.stdout.readline().strip())


@pytest.mark.long
def test_rows_of_a_killed_run_go_with_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one that is at work stay, and so does what is not known to be a run's."""
    none: Any = None

    @contextmanager
    def start(plan: SparkPlan, *_: object) -> Generator[Any]:
        assert plan.scratch.is_relative_to(tmp_path)
        found.extend(sorted(tmp_path.glob("duckicelake-*")))
        yield none

    found = list[Path]()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, "spark_session", start)
    monkeypatch.setattr(session, "add_catalog", lambda *_: None)
    (tmp_path / "duckicelake-other").mkdir()
    with ExitStack() as stack:
        (dead, ours), (_, theirs) = (begin(tmp_path, stack) for _ in range(2))
        dead.kill()
        dead.wait()
        assert (ours / "local" / "block").exists()
        with opening_spark(SparkSettings(), none, none):
            pass
        assert len(found) == 3
        assert (ours.exists(), theirs.exists()) == (False, True)
    assert list(tmp_path.glob("duckicelake-*")) == [tmp_path / "duckicelake-other"]
