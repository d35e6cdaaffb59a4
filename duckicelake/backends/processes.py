"""One child process: started so that it dies with its parent, known again after a crash, stopped in time."""

import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from duckicelake.backends.home import PRIVATE_FILE, BackendError, read_json, write_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STAT_START_TIME = 19
"""Index of `starttime` behind the command name in /proc/PID/stat (field 22 of proc(5))."""
LOG_LIMIT_BYTES = 16 * 1024 * 1024
LOG_TAIL_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Command:
    """What to run: `mark` is a string of its arguments that no other program's command line has.

    It runs in `folder`; `leftovers` are files outside the home that the program makes and does not remove.
    """

    name: str
    argv: tuple[str, ...]
    mark: str
    log_path: Path
    pid_path: Path
    stop_signal: signal.Signals
    stop_seconds: float
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    launcher: tuple[str, ...] = ()
    leftovers: tuple[Path, ...] = ()
    folder: Path = Path("/")


@dataclass(frozen=True, slots=True)
class Running:
    """A process as it can be known again: the number alone may be given to a stranger later."""

    pid: int
    start_time: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class PidFile:
    """What a pid file keeps: who was started, and how to end it when its parent could not."""

    running: Running
    mark: str
    stop_signal: int
    stop_seconds: float


def start_process(command: Command) -> subprocess.Popen[bytes]:
    """Start the child in a session of its own, its output in its log, its identity in its pid file.

    The kernel sends it `stop_signal` when the calling *thread* ends, so call this from one that lives as long.
    Raises: BackendError: the program cannot be started
    """
    _rotate(command.log_path)
    try:
        with open(command.log_path, "ab", opener=_open_private) as log:
            process = subprocess.Popen(
                (*_die_with_parent(command), *command.argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(command.environment),
                cwd=command.folder,
                start_new_session=True,
                umask=0o077,
            )
    except OSError as error:
        raise BackendError(f"{command.name} cannot be started: {error}") from error
    running = find_running(process.pid)
    if running is not None:
        write_json(command.pid_path, asdict(PidFile(running, command.mark, command.stop_signal, command.stop_seconds)))
    return process


def stop_process(command: Command, process: subprocess.Popen[bytes]) -> None:
    """Ask the child to end, kill it after `stop_seconds`; it is gone when this returns."""
    if process.poll() is None:
        process.send_signal(command.stop_signal)
        try:
            process.wait(command.stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for path in (command.pid_path, *command.leftovers):
        path.unlink(missing_ok=True)


def reap_stale(folder: Path) -> list[str]:
    """End the processes that a server killed on this home left behind; return the names of those that still ran.

    Only a process with the same number, start time, boot and mark is ours; anything else is left alone.
    """
    reaped: list[str] = []
    for path in sorted(folder.glob("*.json")):
        found = read_json(path)
        if found is None:
            continue
        left = PidFile(Running(**found.pop("running")), **found)
        if find_running(left.running.pid) == left.running and left.mark in _read_command_line(left.running.pid):
            _end(left)
            reaped.append(path.stem)
        path.unlink(missing_ok=True)
    return reaped


def find_running(pid: int) -> Running | None:
    """Return the identity of the process with that number, or None when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    return Running(pid, int(after_name[STAT_START_TIME]), BOOT_ID.read_text().strip())


def read_log_tail(path: Path) -> str:
    """Return the last lines a child wrote, for an error message."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""


def _die_with_parent(command: Command) -> tuple[str, ...]:
    if command.launcher:
        return command.launcher
    setpriv = shutil.which("setpriv")
    return () if setpriv is None else (setpriv, "--pdeathsig", _short_name(command.stop_signal))


def _short_name(number: signal.Signals) -> str:
    return number.name.removeprefix("SIG")


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "TZ") if name in os.environ}
    return kept | {"LC_ALL": "C"} | dict(extra)


def _read_command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _end(left: PidFile) -> None:
    try:
        fd = os.pidfd_open(left.running.pid)
    except ProcessLookupError:
        return
    try:
        for number in (signal.Signals(left.stop_signal), signal.SIGKILL):
            signal.pidfd_send_signal(fd, number)
            ended, _, _ = select.select([fd], [], [], left.stop_seconds)
            if ended:
                return
    except ProcessLookupError:
        return
    finally:
        os.close(fd)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)


def _rotate(path: Path) -> None:
    if path.exists() and path.stat().st_size > LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.1"))
