"""The record beside what is done: lines of what was denied, written without anybody waiting, and old lines removed."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Full, Queue
from threading import Event, Thread

from duckicelake.errors import CatalogError
from duckicelake.lake.audit.lines import forget_old, tell, write_denied
from duckicelake.lake.audit.rows import DENIED, HIDDEN, UNPROVEN, Asker, AuditLine
from duckicelake.lake.connect import Lake, writing

__all__ = ["DENIED", "HIDDEN", "UNPROVEN", "Asker", "AuditLine", "Trail", "tell"]

MOST_WAITING = 10_000
MOST_AT_ONCE = 100
"""Lines written at one go, and in a second: whoever asks again and again for what is denied fills no disk."""
PAUSE_S = 1.0
FORGET_EVERY_S = 3600.0
MOST_FORGOTTEN = 1000
STOP_SECONDS = 5.0

Told = tuple[float, AuditLine]


@dataclass(slots=True)
class Trail:
    """Writes down what is denied, in a thread of its own, and removes lines that are older than `days`."""

    lake: Lake
    days: int
    dropped_count: int = 0
    _waiting: Queue[Told] = field(default_factory=lambda: Queue(MOST_WAITING))
    _log: logging.Logger = field(default_factory=lambda: logging.getLogger("duckicelake.audit"))
    _stopping: Event = field(default_factory=Event)
    _thread: Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within seconds, with what is waiting written if Postgres lets it."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def note(self, line: AuditLine) -> None:
        """Have a line written soon; when too many are waiting already, it is counted and lost."""
        try:
            self._waiting.put_nowait((time.time(), line))
        except Full:
            self.dropped_count += 1

    def _run(self) -> None:
        forget_at = time.monotonic()
        lines: list[Told] = []
        while not self._stopping.is_set():
            if time.monotonic() >= forget_at:
                self._try(self._forget)
                forget_at = time.monotonic() + FORGET_EVERY_S
            lines += self._take(MOST_AT_ONCE - len(lines), PAUSE_S)
            if lines and self._try(partial(self._write, lines)):
                lines = []
                self._stopping.wait(PAUSE_S)
        while lines := lines + self._take(MOST_AT_ONCE - len(lines), 0):
            if not self._try(partial(self._write, lines)):
                self.dropped_count += len(lines) + self._waiting.qsize()
                return
            lines = []

    def _take(self, most: int, wait_s: float) -> list[Told]:
        """Return what is waiting; when nothing is, what comes first."""
        found: list[Told] = []
        try:
            while len(found) < most:
                found.append(self._waiting.get(block=wait_s > 0 and not found, timeout=wait_s or None))
        except Empty:
            pass
        return found

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except CatalogError as error:
            self._log.warning("The record could not be kept, and is tried again: %s", error.message)
            self._stopping.wait(PAUSE_S)
            return False
        except Exception:  # noqa: BLE001  the outermost door of this thread: one odd line must not end it for all
            self._log.exception("Lines of the record are lost")
        return True

    def _write(self, lines: Sequence[Told]) -> None:
        with writing(self.lake) as conn:
            write_denied(conn, lines)

    def _forget(self) -> None:
        """Remove old lines, a batch in a transaction."""
        found = MOST_FORGOTTEN
        while found == MOST_FORGOTTEN and not self._stopping.is_set():
            with writing(self.lake) as conn:
                found = forget_old(conn, self.days, MOST_FORGOTTEN)
