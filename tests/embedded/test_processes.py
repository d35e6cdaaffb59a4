"""Children: private, known again, ended with their parent, and never mistaken for a stranger's."""

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from duckicelake.embedded.home import EmbeddedError, read_json, write_json
from duckicelake.embedded.processes import Command, find_process, read_log_tail, reap_stale, start_process, stop_process
from tests.support.waiting import wait_for

PATIENT = "import signal, time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


def command_for(folder: Path, script: str, stop_seconds: float = 10.0) -> Command:
    """Return a command that runs a Python script with its files in the folder."""
    return Command(
        name="child",
        argv=(sys.executable, "-c", script, str(folder)),
        mark=str(folder),
        log_path=folder / "child.log",
        pid_path=folder / "child.json",
        stop_signal=signal.SIGTERM,
        stop_seconds=stop_seconds,
    )


def is_up(command: Command) -> bool:
    """Say whether the child has written its first line."""
    return "up" in read_log_tail(command.log_path)


@pytest.fixture
def strays() -> Iterator[list[int]]:
    """Process ids to end when a test fails before it could."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if find_process(pid) is not None:
            os.kill(pid, signal.SIGKILL)


def test_a_child_is_stopped_and_its_files_are_private(tmp_path: Path) -> None:
    """Log and pid file are 0600; the pid file goes with the child."""
    command = command_for(tmp_path, PATIENT)
    process = start_process(command)
    wait_for(lambda: is_up(command), "the child")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (command.log_path, command.pid_path)] == [0o600, 0o600]
    stop_process(command, process)
    assert process.returncode == -signal.SIGTERM
    assert not command.pid_path.exists()


def test_a_child_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    """After its time a child is ended the hard way."""
    command = command_for(tmp_path, STUBBORN, stop_seconds=0.2)
    process = start_process(command)
    wait_for(lambda: is_up(command), "the child")
    stop_process(command, process)
    assert process.returncode == -signal.SIGKILL


def test_a_child_sees_no_setting_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets of our environment do not reach the servers we start."""
    monkeypatch.setenv("DUCKICELAKE_S3_SECRET_ACCESS_KEY", "geheim")
    command = command_for(tmp_path, "import os; print(sorted(os.environ), 'up', flush=True)")
    process = start_process(command)
    process.wait(10)
    text = read_log_tail(command.log_path)
    assert "up" in text
    assert "DUCKICELAKE" not in text
    stop_process(command, process)


def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    """A missing launcher is a message."""
    command = command_for(tmp_path, PATIENT)
    broken = replace(command, launcher=("/nowhere/setpriv",))
    with pytest.raises(EmbeddedError, match="child cannot be started"):
        start_process(broken)


def test_what_a_killed_server_left_is_ended(tmp_path: Path) -> None:
    """The pid file is enough to find and end a child whose parent is gone."""
    command = command_for(tmp_path, PATIENT)
    process = start_process(command)
    wait_for(lambda: is_up(command), "the child")
    assert reap_stale(tmp_path) == ["child"]
    assert process.wait(10) == -signal.SIGTERM
    assert not command.pid_path.exists()
    assert reap_stale(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"start_time": 1}, id="another start time"),
        pytest.param({"boot_id": "before the reboot"}, id="another boot"),
    ],
)
def test_a_stranger_with_the_same_number_is_left_alone(tmp_path: Path, change: dict[str, object]) -> None:
    """A pid alone proves nothing: numbers are given out again."""
    command = command_for(tmp_path, PATIENT)
    process = start_process(command)
    found = read_json(command.pid_path)
    assert found is not None
    write_json(command.pid_path, found | {"running": found["running"] | change})
    assert reap_stale(tmp_path) == []
    assert process.poll() is None
    assert not command.pid_path.exists()
    stop_process(command, process)


def test_a_process_without_our_mark_is_left_alone(tmp_path: Path) -> None:
    """Its command line must name our home."""
    command = command_for(tmp_path, PATIENT)
    process = start_process(command)
    found = read_json(command.pid_path)
    assert found is not None
    write_json(command.pid_path, found | {"mark": "/another/home"})
    assert reap_stale(tmp_path) == []
    assert process.poll() is None
    stop_process(command, process)


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path, strays: list[int]) -> None:
    """kill -9 of the server leaves nothing running."""
    script = textwrap.dedent("""
        import os, signal, sys
        from pathlib import Path
        from tests.embedded.test_processes import PATIENT, command_for
        from duckicelake.embedded.processes import start_process
        print(start_process(command_for(Path(sys.argv[1]), PATIENT)).pid, flush=True)
        signal.pause()
    """)
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        strays.append(pid)
        assert find_process(pid) is not None
        parent.kill()
    wait_for(lambda: find_process(pid) is None, "the child's end")


def test_a_long_log_is_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs do not grow without end."""
    monkeypatch.setattr("duckicelake.embedded.processes.LOG_LIMIT_BYTES", 10)
    command = command_for(tmp_path, PATIENT)
    command.log_path.write_text("x" * 100)
    process = start_process(command)
    assert (tmp_path / "child.log.1").read_text() == "x" * 100
    stop_process(command, process)
