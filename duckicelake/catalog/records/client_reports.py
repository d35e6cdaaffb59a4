"""Metrics reports of clients, by table: queued by requests, written by the thread of the audit log, listed and summed up.

The REST routes call this on worker threads, and the command line too. Lists and sums are one read transaction each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from typing import Any

from duckicelake.catalog.namespaces import find_schema
from duckicelake.catalog.tables import Ident, get_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.iceberg.requests.reports import COMMIT, SCAN
from duckicelake.lake.audit_log import ClientReport, ReportSums, read_reports, sum_reports
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table
from duckicelake.translate.namespaces import to_schema_name

MAX_WAITING = 1000
"""Reports that wait to be written in each worker, 8 MB at most."""
MOST_REPORTS = 1000
"""Reports in a page."""
LARGEST_ID = 2**63 - 1
MOST_SHOWN = 20
"""Filters and fields in a summary."""
NANOSECONDS_IN_MS = 10**6


class ReportQueue:
    """Reports that wait to be written. `kept`: how many the lake keeps of each table; 0: none. Threads of requests add, one takes."""

    def __init__(self, kept: int) -> None:
        self.kept = kept
        self.dropped_count = 0
        self._waiting: Queue[ClientReport] = Queue(MAX_WAITING)

    def add(self, table_id: int, principal: str | None, report: Mapping[str, object]) -> None:
        """Queue a report; if too many wait, count that it is missing."""
        if not self.kept:
            return
        try:
            self._waiting.put_nowait(ClientReport(table_id, datetime.now(UTC), principal, report))
        except Full:
            self.dropped_count += 1

    def take(self, most: int) -> list[ClientReport]:
        """Return what waits, oldest first."""
        found: list[ClientReport] = []
        try:
            while len(found) < most:
                found.append(self._waiting.get_nowait())
        except Empty:
            pass
        return found


def find_reported_table(warehouse: Warehouse, ident: Ident, *, may_be_new: bool) -> int | None:
    """Return the id of the table that a report is about; with `may_be_new`, None if only its namespace exists.

    Raises: NoSuchTable
    """
    with reading(warehouse.lake) as conn:
        if may_be_new and find_schema(conn, ident.namespace) is not None:
            table = find_table(conn, to_schema_name(ident.namespace), ident.name)
            return None if table is None else table.table_id
        return get_table(conn, ident).table_id


@dataclass(frozen=True, slots=True)
class ReportPage:
    """Reports on a table, the newest first, and the number below which the next page begins; None on the last page."""

    reports: Sequence[ClientReport]
    before: int | None


def list_reports(warehouse: Warehouse, ident: Ident, most: int, before: int | None) -> ReportPage:
    """Return the newest reports on a table that are kept, or those whose numbers are below `before`. Raises: NoSuchTable."""
    with reading(warehouse.lake) as conn:
        found = read_reports(conn, get_table(conn, ident).table_id, LARGEST_ID if before is None else before, most + 1)
    shown = found[:most]
    return ReportPage([report for _, report in shown], shown[-1][0] if len(found) > most else None)


def encode_report(kept: ClientReport) -> Mapping[str, Any]:
    """Return a report as the REST API and the command line show it."""
    return {"received-at": kept.received_at.astimezone(UTC).isoformat(), "principal": kept.principal, **kept.report}


SCAN_SUMS = ("total-file-size-in-bytes", "result-data-files", "result-delete-files", "skipped-data-files")
COMMIT_SUMS = ("added-records", "added-files-size-bytes", "added-data-files", "removed-data-files", "attempts")
PLANNING, COMMITTING = "total-planning-duration", "total-duration"


def summarize_reports(warehouse: Warehouse, ident: Ident) -> Mapping[str, Any]:
    """Return sums over all reports on a table: of scans with the commonest filters and columns, and of commits. Raises: NoSuchTable."""
    with reading(warehouse.lake) as conn:
        sums = sum_reports(conn, get_table(conn, ident).table_id, (*SCAN_SUMS, *COMMIT_SUMS, PLANNING, COMMITTING), MOST_SHOWN)
    return {
        "scans": {
            **encode_counts(sums, SCAN),
            **{name: sums.metrics.get((SCAN, name), 0) for name in SCAN_SUMS},
            "total-planning-ms": sums.metrics.get((SCAN, PLANNING), 0) // NANOSECONDS_IN_MS,
        },
        "filters": [{"filter": value, "count": count} for value, count in sums.values.get("filter", ())],
        "fields": [{"name": value, "count": count} for value, count in sums.values.get("field", ())],
        "commits": {
            **encode_counts(sums, COMMIT),
            "operations": dict(sums.values.get("operation", ())),
            **{name: sums.metrics.get((COMMIT, name), 0) for name in COMMIT_SUMS},
            "total-ms": sums.metrics.get((COMMIT, COMMITTING), 0) // NANOSECONDS_IN_MS,
        },
    }


def encode_counts(sums: ReportSums, report_type: str) -> Mapping[str, Any]:
    """Return the number of reports of a type, and the time of the first and the last one; None of none."""
    count, *times = sums.counts.get(report_type, (0, None, None))
    first, last = (None if each is None else each.astimezone(UTC).isoformat() for each in times)
    return {"count": count, "first-at": first, "last-at": last}
