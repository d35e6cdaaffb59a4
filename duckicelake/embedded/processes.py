"""Child processes: start one so that it dies with its parent, find it again after a crash, restart it, stop it.

`stack` runs a `Supervisor` for each child, which has a thread of its own. It writes pid files and logs into the home. `commands`
uses only `find_process` and `read_log_tail`.
"""

import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen

from duckicelake.embedded.home import PRIVATE_FILE, EmbeddedError, read_json, write_json

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
STAT_START_TIME = 19
"""Index of `starttime` behind the command name in /proc/PID/stat (field 22 of proc(5))."""
LOG_LIMIT_BYTES = 16 * 1024 * 1024
LOG_TAIL_BYTES = 1500


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in `folder`. `mark`: a part of its arguments that no other program's command line contains.

    `leftovers`: files outside the home that the program creates and does not remove.
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
class ProcessIdentity:
    """The identity of a process; the kernel may reuse a pid alone for another process."""

    pid: int
    start_time: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of a pid file: the child, and how to stop it after its parent was killed."""

    running: ProcessIdentity
    mark: str
    stop_signal: int
    stop_seconds: float


def start_process(command: Command) -> subprocess.Popen[bytes]:
    """Start the child in its own session; write its output to its log and its identity to its pid file.

    The kernel sends it `stop_signal` when the calling *thread* ends, so call this from a thread that outlives the child.
    Raises: EmbeddedError: the program cannot be started
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
        raise EmbeddedError(f"{command.name} cannot be started: {error}") from error
    running = find_process(process.pid)
    if running is not None:
        write_json(command.pid_path, asdict(PidFile(running, command.mark, command.stop_signal, command.stop_seconds)))
    return process


def stop_process(command: Command, process: subprocess.Popen[bytes]) -> None:
    """Send the child its stop signal, kill it after `stop_seconds`, and wait for its end."""
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
    """End the children that a killed server left running on this home, and return the names of those.

    A process is ended only if its pid, start time, boot id and mark are those of the pid file.
    """
    reaped: list[str] = []
    for path in sorted(folder.glob("*.json")):
        found = read_json(path)
        if found is None:
            continue
        left = PidFile(ProcessIdentity(**found.pop("running")), **found)
        if find_process(left.running.pid) == left.running and left.mark in _read_command_line(left.running.pid):
            _end(left)
            reaped.append(path.stem)
        path.unlink(missing_ok=True)
    return reaped


def find_process(pid: int) -> ProcessIdentity | None:
    """Return the identity of the process with this pid, None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    after_name = stat.rpartition(")")[2].split()
    return ProcessIdentity(pid, int(after_name[STAT_START_TIME]), BOOT_ID.read_text().strip())


def read_log_tail(path: Path) -> str:
    """Return the last lines of a child's log, for an error message."""
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


FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0
STEADY_SECONDS = 30.0
"""A child that ran at least this long is restarted with the shortest pause."""
PROBE_SECONDS, WATCH_SECONDS = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Service:
    """A child and its readiness check, which never raises and returns soon."""

    command: Command
    is_ready: Callable[[], bool]


class Supervisor:
    """Runs one child: starts it, waits until it is ready, restarts it when it dies, stops it.

    Its thread starts the child, so that the child dies with the thread and so with this process.
    """

    def __init__(self, job: Service, report: Callable[[str], None]) -> None:
        self._job = job
        self._report = report
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._supervise, name=f"keeper-{job.command.name}", daemon=True)

    def start(self) -> None:
        """Start the child in the background."""
        self._thread.start()

    def wait_ready(self, timeout_seconds: float) -> None:
        """Wait until the child is ready.

        Raises: EmbeddedError: it ended or did not get ready in time; contains the last lines of its log
        """
        answered = self._ready.wait(timeout_seconds)
        if self._failure is None and answered:
            return
        name, log_path = self._job.command.name, self._job.command.log_path
        reason = self._failure or f"it did not answer within {timeout_seconds:.0f} s"
        raise EmbeddedError(f"{name} does not start: {reason}. Its log {log_path} ends with:\n{read_log_tail(log_path)}")

    def stop(self) -> None:
        """Stop the child and wait for its end; does nothing if it never ran."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _supervise(self) -> None:
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            ended = self._run_once()
            if self._stopping.is_set():
                self._report(f"{self._job.command.name} is stopped")
                return
            if not self._ready.is_set():
                self._failure = ended
                self._ready.set()
                return
            if time.monotonic() - started > STEADY_SECONDS:
                pause_seconds = FIRST_PAUSE_SECONDS
            self._report(f"{self._job.command.name}: {ended}; starting it again in {pause_seconds:.1f} s")
            self._stopping.wait(pause_seconds)
            pause_seconds = min(pause_seconds * 2, LONGEST_PAUSE_SECONDS)

    def _run_once(self) -> str:
        try:
            process = start_process(self._job.command)
        except EmbeddedError as error:
            return error.message
        try:
            self._watch(process)
        finally:
            stop_process(self._job.command, process)
        return f"it ended with status {process.returncode}"

    def _watch(self, process: Popen[bytes]) -> None:
        answered = False
        while process.poll() is None and not self._stopping.is_set():
            if not answered and self._job.is_ready():
                answered = True
                self._report(f"{self._job.command.name} is ready")
                self._ready.set()
            self._stopping.wait(PROBE_SECONDS if not answered else WATCH_SECONDS)
