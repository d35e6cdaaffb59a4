"""Keeps one child alive: starts it, waits until it answers, starts it again when it dies, stops it once."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from subprocess import Popen

from duckicelake.backends.home import BackendError
from duckicelake.backends.processes import Command, read_log_tail, start_process, stop_process

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 15.0
STEADY_SECONDS = 30.0
"""A child that ran this long before it died is started again at once."""
ASK_SECONDS, WATCH_SECONDS = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Job:
    """A child and the question that tells whether it works: `answers` never raises and never waits long."""

    command: Command
    answers: Callable[[], bool]


class Keeper:
    """One thread per child: the thread starts it, so the child's life is tied to the thread's, and so to ours."""

    def __init__(self, job: Job, report: Callable[[str], None]) -> None:
        self._job = job
        self._report = report
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._keep, name=f"keeper-{job.command.name}", daemon=True)

    def start(self) -> None:
        """Start the child; returns at once."""
        self._thread.start()

    def wait_ready(self, timeout_seconds: float) -> None:
        """Return when the child answers.

        Raises: BackendError: it ended instead, or did not answer in time; with the last lines of its log
        """
        answered = self._ready.wait(timeout_seconds)
        if self._failure is None and answered:
            return
        name, log_path = self._job.command.name, self._job.command.log_path
        reason = self._failure or f"it did not answer within {timeout_seconds:.0f} s"
        raise BackendError(f"{name} does not start: {reason}. Its log {log_path} ends with:\n{read_log_tail(log_path)}")

    def stop(self) -> None:
        """Stop the child and stop keeping it; it is gone when this returns. Harmless when it never ran."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
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
        except BackendError as error:
            return error.message
        try:
            self._watch(process)
        finally:
            stop_process(self._job.command, process)
        return f"it ended with status {process.returncode}"

    def _watch(self, process: Popen[bytes]) -> None:
        answered = False
        while process.poll() is None and not self._stopping.is_set():
            if not answered and self._job.answers():
                answered = True
                self._report(f"{self._job.command.name} is ready")
                self._ready.set()
            self._stopping.wait(ASK_SECONDS if not answered else WATCH_SECONDS)
