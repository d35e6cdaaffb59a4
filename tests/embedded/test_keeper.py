"""The keeper: a child that dies comes back, one that never starts is explained."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckicelake.embedded.home import EmbeddedError, read_json
from duckicelake.embedded.processes import Command, Service, Supervisor, find_process
from tests.support.waiting import wait_for


class Child:
    """A child that makes a file when it is up, and what its keeper reported."""

    def __init__(self, folder: Path, script: str) -> None:
        self.up_path = folder / "up"
        self.reports: list[str] = []
        self.command = Command(
            name="child",
            argv=(sys.executable, "-c", script, str(self.up_path)),
            mark=str(folder),
            log_path=folder / "child.log",
            pid_path=folder / "child.json",
            stop_signal=signal.SIGTERM,
            stop_seconds=5.0,
        )
        self.keeper = Supervisor(Service(self.command, self.up_path.exists), self.reports.append)

    def pid(self) -> int | None:
        """Return the child's process id while it runs."""
        found = read_json(self.command.pid_path)
        return None if found is None else found["running"]["pid"]


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A child that comes up at once and stays."""
    made = Child(tmp_path, "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)")
    yield made
    made.keeper.stop()


def test_a_killed_child_comes_back(child: Child) -> None:
    """kill -9 of a child is reported, and a new one answers."""
    child.keeper.start()
    child.keeper.wait_ready(20)
    first = child.pid()
    assert first is not None
    child.up_path.unlink()
    os.kill(first, signal.SIGKILL)
    wait_for(child.up_path.exists, "the new child")
    assert child.pid() != first
    wait_for(lambda: child.reports.count("child is ready") == 2, "the second report")
    assert any("ended with status -9; starting it again" in report for report in child.reports)


def test_stopping_ends_the_child_for_good(child: Child) -> None:
    """After stop nothing runs and nothing starts again; stopping twice is harmless."""
    child.keeper.start()
    child.keeper.wait_ready(20)
    pid = child.pid()
    assert pid is not None
    child.keeper.stop()
    child.keeper.stop()
    assert find_process(pid) is None
    assert child.pid() is None
    assert child.reports[-1] == "child is stopped"


def test_a_child_that_ends_before_it_answers_is_explained(tmp_path: Path) -> None:
    """The message holds its status and the last lines of its log."""
    child = Child(tmp_path, "import sys; print('no space left'); sys.exit(3)")
    child.keeper.start()
    with pytest.raises(EmbeddedError, match=r"(?s)child does not start: it ended with status 3.*no space left"):
        child.keeper.wait_ready(20)
    child.keeper.stop()


def test_a_child_that_never_answers_is_explained(tmp_path: Path) -> None:
    """After its time the wait ends with a message; stop still ends the child."""
    child = Child(tmp_path, "import time; time.sleep(600)")
    child.keeper.start()
    with pytest.raises(EmbeddedError, match="did not answer within 0 s"):
        child.keeper.wait_ready(0.2)
    child.keeper.stop()
    assert child.pid() is None


def test_a_keeper_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    """Stopping after a failed start goes through every keeper."""
    child = Child(tmp_path, "")
    child.keeper.stop()
    assert child.pid() is None
