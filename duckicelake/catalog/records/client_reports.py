"""Metrics reports of clients, by table: queued by requests, written by the thread of the audit log, listed and summed up.

The REST routes and the command line call this.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from queue import Empty, Full, Queue
from typing import Any, cast

from duckicelake.catalog.namespaces import find_schema
from duckicelake.catalog.tables import Ident, get_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.iceberg.requests.reports import COMMIT, SCAN
from duckicelake.lake.audit_log import ClientReport, read_reports
from duckicelake.lake.connect import reading
from duckicelake.lake.read import find_table
from duckicelake.translate.namespaces import to_schema_name

MAX_WAITING = 1000
"""Reports that wait to be written in each worker, 8 MB at most."""
MOST_REPORTS = 5000
"""The largest number of reports that a lake keeps of a table."""
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


def list_reports(warehouse: Warehouse, ident: Ident, most: int) -> Sequence[ClientReport]:
    """Return the reports on a table that are kept, the newest first. Raises: NoSuchTable."""
    with reading(warehouse.lake) as conn:
        return read_reports(conn, get_table(conn, ident).table_id, most)


def encode_report(kept: ClientReport) -> Mapping[str, Any]:
    """Return a report as the REST API and the command line show it."""
    return {"received-at": kept.received_at.astimezone(UTC).isoformat(), "principal": kept.principal, **kept.report}


def summarize_reports(reports: Sequence[ClientReport]) -> Mapping[str, Any]:
    """Return sums over reports: of scans with the commonest filters and columns, and of commits."""
    scans = [each for each in reports if each.report["report-type"] == SCAN]
    commits = [each for each in reports if each.report["report-type"] == COMMIT]
    return {
        "scans": {
            **count_reports(scans),
            "total-file-size-in-bytes": add_metric(scans, "total-file-size-in-bytes"),
            "result-data-files": add_metric(scans, "result-data-files"),
            "result-delete-files": add_metric(scans, "result-delete-files"),
            "skipped-data-files": add_metric(scans, "skipped-data-files"),
            "total-planning-ms": add_metric(scans, "total-planning-duration") // NANOSECONDS_IN_MS,
        },
        "filters": list_commonest([str(each.report["filter"]) for each in scans if "filter" in each.report], "filter"),
        "fields": list_commonest([str(name) for each in scans for name in list_fields(each)], "name"),
        "commits": {
            **count_reports(commits),
            "operations": dict(Counter(str(each.report.get("operation", "")) for each in commits).most_common(MOST_SHOWN)),
            "added-records": add_metric(commits, "added-records"),
            "added-files-size-bytes": add_metric(commits, "added-files-size-bytes"),
            "added-data-files": add_metric(commits, "added-data-files"),
            "removed-data-files": add_metric(commits, "removed-data-files"),
            "attempts": add_metric(commits, "attempts"),
            "total-ms": add_metric(commits, "total-duration") // NANOSECONDS_IN_MS,
        },
    }


def count_reports(reports: Sequence[ClientReport]) -> Mapping[str, Any]:
    """Return the number of reports, and the time of the first and the last one; None of none."""
    times = [each.received_at.astimezone(UTC) for each in reports]
    first, last = (min(times).isoformat(), max(times).isoformat()) if times else (None, None)
    return {"count": len(reports), "first-at": first, "last-at": last}


def add_metric(reports: Sequence[ClientReport], name: str) -> int:
    """Return the sum of a metric."""
    return sum(cast("Mapping[str, int]", each.report["metrics"]).get(name, 0) for each in reports)


def list_fields(kept: ClientReport) -> Sequence[object]:
    """Return the names of the columns that a scan read."""
    return cast("Sequence[object]", kept.report.get("projected-field-names", ()))


def list_commonest(values: Sequence[str], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the commonest values with their number."""
    return [{name: value, "count": count} for value, count in Counter(values).most_common(MOST_SHOWN)]
