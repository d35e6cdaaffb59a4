"""The thread that writes denied requests, changes in catalogs behind routes, reads and reports to Postgres, and deletes old ones.

It also deletes old copies of expired lake snapshots. `app` starts one for each lake, and for each branch, tag or snapshot while it is
open. `rest` queues lines and counts reads on the event loop alone, reports on worker threads, and never waits. The thread uses connections
of its own.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Full, Queue
from threading import Event, Thread

from duckicelake.catalog.records.client_reports import ReportQueue
from duckicelake.catalog.records.reads import ReadCounter
from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.lake.audit_log import (
    DENIED,
    DONE,
    HIDDEN,
    UNKNOWN,
    UNPROVEN,
    AuditContext,
    AuditLine,
    ClientReport,
    CountedRead,
    delete_old_lines,
    delete_old_reads,
    delete_old_reports,
    log_line,
    write_denied_lines,
    write_reads,
    write_reports,
)
from duckicelake.lake.connect import Lake, writing_on_new_connection
from duckicelake.lake.events import delete_old_events

__all__ = ["DENIED", "DONE", "HIDDEN", "UNKNOWN", "UNPROVEN", "AuditContext", "AuditLine", "AuditLog", "log_line"]

MAX_WAITING = 10_000
BATCH_LINES = 100
"""Lines written at one go, and in a second: so many are some gigabytes a day at most, for `days`."""
UNPROVEN_AT_ONCE, UNPROVEN_A_SECOND = 10, 1.0
"""Limit for lines of unauthenticated callers: a flood of them must not crowd out other lines."""
PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
FORGET_EVERY_S = 3600.0
DELETE_BATCH = 1000
READS_EVERY_S = 5.0
"""How long reads are counted before they are written; a server that is killed loses those of so long."""
READS_AT_ONCE = 5000
REPORTS_AT_ONCE = 200
STOP_SECONDS = 5.0

TimedLine = tuple[float, AuditLine]


@dataclass(slots=True)
class AuditLog:
    """Write denied requests, reads and clients' reports in a thread of its own, and remove those older than `days` (`reads_days`).

    `branch`, `branch_lake`: the requests are for that branch of the lake. The lake keeps what was denied and read, because the schema of
    the branch goes with it; reports and old lines are those of the branch.
    `first_s` delays the first removal, because a starting server is busy.
    """

    lake: Lake
    days: int
    reads: ReadCounter = field(default_factory=lambda: ReadCounter(0.0))
    reads_days: int = 30
    reports: ReportQueue = field(default_factory=lambda: ReportQueue(0))
    branch: str | None = None
    branch_lake: Lake | None = None
    first_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    dropped_count: int = 0
    _waiting: Queue[TimedLine] = field(default_factory=lambda: Queue(MAX_WAITING))
    _log: logging.Logger = field(default_factory=lambda: logging.getLogger("duckicelake.audit"))
    _has_lines: Event = field(default_factory=Event)
    _stopping: Event = field(default_factory=Event)
    _thread: Thread = field(init=False)
    _unwritten_reads: list[CountedRead] = field(default_factory=list[CountedRead])
    _unwritten_reports: list[ClientReport] = field(default_factory=list[ClientReport])
    _unproven_left: float = UNPROVEN_AT_ONCE
    _unproven_at_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._thread = Thread(target=self._run, name="audit", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within seconds, with what is waiting written if Postgres lets it."""
        self._stopping.set()
        self._has_lines.set()
        self._thread.join(STOP_SECONDS)

    def note(self, line: AuditLine) -> None:
        """Queue a line; if too many are queued, drop and count it."""
        if line.outcome == UNPROVEN and not self._admits_unproven():
            self.dropped_count += 1
            return
        try:
            self._waiting.put_nowait((time.time(), line))
        except Full:
            self.dropped_count += 1
        self._has_lines.set()

    def _admits_unproven(self) -> bool:
        """Return True if one more line of an unauthenticated caller is accepted: a few at once, then one a second, none if many wait."""
        now_s = self.clock()
        left = min(self._unproven_left + (now_s - self._unproven_at_s) * UNPROVEN_A_SECOND, UNPROVEN_AT_ONCE)
        is_taken = left >= 1 and self._waiting.qsize() < MAX_WAITING // 2
        self._unproven_left, self._unproven_at_s = left - is_taken, now_s
        return is_taken

    def _run(self) -> None:
        forget_at = time.monotonic() + self.first_s
        reads_at = time.monotonic() + READS_EVERY_S
        lines: list[TimedLine] = []
        pause_s = PAUSE_S
        while not self._stopping.is_set():
            if time.monotonic() >= forget_at:
                self._try(self._forget)
                forget_at = time.monotonic() + FORGET_EVERY_S
            if time.monotonic() >= reads_at:
                self._write_reads()
                self._write_reports()
                reads_at = time.monotonic() + READS_EVERY_S
            if not lines and self._waiting.empty():
                self._has_lines.wait(PAUSE_S)
            self._has_lines.clear()
            lines += self._take(BATCH_LINES - len(lines))
            if lines:
                is_away = not self._write_or_retry(lines)
                lines, pause_s = (lines, min(pause_s * 2, LONGEST_PAUSE_S)) if is_away else ([], PAUSE_S)
                self._stopping.wait(pause_s)
        self._write_reads()
        self._write_reports()
        while lines := lines + self._take(BATCH_LINES - len(lines)):
            if not self._write_or_retry(lines):
                self.dropped_count += len(lines) + self._waiting.qsize()
                return
            lines = []

    def _write_or_retry(self, lines: Sequence[TimedLine]) -> bool:
        """Write lines and return True, or False if Postgres is unavailable and the lines must be tried again."""
        error = self._try(partial(self._write, lines))
        if error is not None and not isinstance(error, ServiceUnavailable):
            self.dropped_count += len(lines)
        return not isinstance(error, ServiceUnavailable)

    def _write_reads(self) -> None:
        """Write the reads that were counted. While Postgres is unavailable they are kept, as many as are counted at a time."""
        waiting = self._unwritten_reads + self.reads.take()
        self._unwritten_reads = []
        while batch := waiting[:READS_AT_ONCE]:
            error = self._try(partial(self._write_read_rows, batch))
            if isinstance(error, ServiceUnavailable) and not self._stopping.is_set():
                self._unwritten_reads = waiting[: self.reads.max_kinds]
                self.reads.give_up(waiting[self.reads.max_kinds :])
                return
            if error is not None:
                self.reads.give_up(batch)
            waiting = waiting[READS_AT_ONCE:]

    def _write_reports(self) -> None:
        """Write what clients reported. While Postgres is unavailable it waits, as much as the queue has room for."""
        while batch := self._unwritten_reports or self.reports.take(REPORTS_AT_ONCE):
            error = self._try(partial(self._write_report_rows, batch))
            if isinstance(error, ServiceUnavailable) and not self._stopping.is_set():
                self._unwritten_reports = batch
                return
            self._unwritten_reports = []
            if error is not None:
                self.reports.dropped_count += len(batch)

    def _take(self, most: int) -> list[TimedLine]:
        """Return what is waiting."""
        found: list[TimedLine] = []
        with suppress(Empty):
            while len(found) < most:
                found.append(self._waiting.get_nowait())
        return found

    def _try(self, act: Callable[[], None]) -> Exception | None:
        try:
            act()
        except CatalogError as error:
            self._log.warning("The audit log cannot be written: %s", error.message)
            return error
        except Exception as error:  # noqa: BLE001  the outermost frame of this thread: one faulty line must not end it
            self._log.exception("The audit log cannot be written")
            return error
        return None

    def _write(self, lines: Sequence[TimedLine]) -> None:
        with writing_on_new_connection(self.lake) as conn:
            write_denied_lines(conn, lines, self.branch)

    def _write_read_rows(self, reads: Sequence[CountedRead]) -> None:
        with writing_on_new_connection(self.lake) as conn:
            write_reads(conn, reads, self.branch)

    def _write_report_rows(self, reports: Sequence[ClientReport]) -> None:
        with writing_on_new_connection(self.branch_lake or self.lake) as conn:
            write_reports(conn, reports, self.reports.kept)

    def _forget(self) -> None:
        """Remove old lines, reads, reports and copies of expired lake snapshots, a batch in a transaction."""
        by_days = ((delete_old_lines, self.days), (delete_old_events, self.days), (delete_old_reports, self.days))
        for delete, days in (*by_days, (delete_old_reads, self.reads_days)):
            found = DELETE_BATCH
            while found == DELETE_BATCH and not self._stopping.is_set():
                with writing_on_new_connection(self.branch_lake or self.lake) as conn:
                    found = delete(conn, days, DELETE_BATCH)
