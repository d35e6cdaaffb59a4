"""Records of requests in the lake: lines of the audit log (`iceberg_audit`, and the server's log), reads, and reports of clients.

A committed change writes its line in its own transaction; the making and deleting of branches, and their garbage collection, write it
afterwards. The thread of `catalog.audit_log` writes lines of denied requests and of changes in catalogs behind routes, reads and reports in
batches, and deletes old ones, in transactions of its own. `catalog.records` lists reads and reports in read transactions.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import psycopg


@dataclass(frozen=True, slots=True)
class AuditContext:
    """The principal, the operation and the objects of a request; objects as `sales.orders`, with levels and names escaped as in rights.

    `principal` None: the server does not require authentication.
    """

    request_id: str
    principal: str | None
    operation: str
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line with the outcome. `done`: the change is in the lake; otherwise `reason` says why nothing was done.

    `lake_snapshot_id`: the last lake snapshot that the change made; None if it made none.
    """

    audit_context: AuditContext
    outcome: str
    lake_snapshot_id: int | None = None
    reason: str | None = None


DONE, UNKNOWN, DENIED, HIDDEN, UNPROVEN = "done", "unknown", "denied", "hidden", "unproven"
"""Outcomes. Of the lake's own changes, `unknown` appears only in the server's log: Postgres has the line if the change is in the lake.
`hidden`: denied, and answered as if the object did not exist. `unproven`: the principal could not be authenticated.
"""


JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

INSERT_DONE = """
INSERT INTO iceberg_audit (lake_snapshot_id, request_id, principal, operation, objects)
SELECT %(made_snapshot_id)s, n.* FROM json_to_recordset(%(audit_context)s::json)
  AS n(request_id text, principal text, operation text, objects text[])
"""

INSERT_DENIED = """
INSERT INTO iceberg_audit (logged_at, request_id, principal, operation, objects, outcome, reason, branch)
SELECT to_timestamp(n.logged_at), n.request_id, n.principal, n.operation, n.objects, n.outcome, n.reason, %(branch)s
  FROM json_to_recordset(%(lines)s::json)
       AS n(logged_at double precision, request_id text, principal text, operation text, objects text[], outcome text, reason text)
"""

DELETE_OLD_LINES = """
DELETE FROM iceberg_audit
 WHERE id IN (SELECT id FROM iceberg_audit WHERE logged_at < clock_timestamp() - %(days)s * interval '1 day'
               -- Skip rows that another server is deleting.
               LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def encode_contexts(audit_contexts: Sequence[AuditContext]) -> str | None:
    """Return the requests of a change as the JSON parameter of a statement; None without any, and then the statement writes no line."""
    if not audit_contexts:
        return None
    return JSON.encode(
        [
            {"request_id": each.request_id, "principal": each.principal, "operation": each.operation, "objects": each.objects}
            for each in audit_contexts
        ]
    )


def write_line(conn: psycopg.Connection, audit_context: AuditContext, lake_snapshot_id: int | None) -> None:
    """Write the line of a change in its own transaction."""
    write_lines(conn, (audit_context,), lake_snapshot_id)


def write_lines(conn: psycopg.Connection, audit_contexts: Sequence[AuditContext], lake_snapshot_id: int | None) -> None:
    """Write a line for each request of a change in its own transaction."""
    conn.execute(INSERT_DONE, {"made_snapshot_id": lake_snapshot_id, "audit_context": encode_contexts(audit_contexts)})


def write_denied_lines(conn: psycopg.Connection, lines: Sequence[tuple[float, AuditLine]], branch: str | None = None) -> None:
    """Write the lines of denied requests, each with its time in seconds. `branch`: the branch of the lake that they were for."""
    rows = [{"logged_at": at_s, **asdict(line.audit_context), "outcome": line.outcome, "reason": line.reason} for at_s, line in lines]
    conn.execute(INSERT_DENIED, {"lines": json.dumps(rows).replace("\\u0000", ""), "branch": branch})


def delete_old_lines(conn: psycopg.Connection, days: float, most: int) -> int:
    """Delete up to `most` lines older than `days`, and return how many were deleted."""
    return conn.execute(DELETE_OLD_LINES, {"days": days, "most": most}).rowcount


def log_line(line: AuditLine) -> None:
    """Write a line to the server's log, with its fields in `extra` for JSON logs."""
    log, audit_context = logging.getLogger("duckicelake.audit"), line.audit_context
    if not log.isEnabledFor(logging.INFO):
        return
    fields = {**asdict(audit_context), "lake_snapshot_id": line.lake_snapshot_id, "outcome": line.outcome, "reason": line.reason}
    objects, why = " ".join(audit_context.objects), "" if line.outcome == DONE else f" ({line.reason})"
    text = "%s %s%s: %s of %s, request %s"
    log.info(
        text,
        audit_context.operation,
        line.outcome,
        why,
        audit_context.principal or "anonymous",
        objects,
        audit_context.request_id,
        extra={"audit": fields},
    )


@dataclass(frozen=True, slots=True)
class CountedRead:
    """Equal reads of some seconds. `request_id`: that of the first. `object_name`: as in `AuditContext`; None if the request names none.

    `principal` None: the server does not require authentication. `snapshot_id`: the table's current snapshot, or the planned one.
    `keys`: what the answer gave access to in the store: `read`, `read,write` or `sign`; None for nothing.
    `branch`: the branch of the lake that was read; None: the lake itself.
    """

    first_at: datetime
    last_at: datetime
    read_count: int
    request_id: str
    principal: str | None
    address: str | None
    operation: str
    object_name: str | None
    snapshot_id: int | None
    keys: str | None
    branch: str | None = None


INSERT_READS = """
INSERT INTO iceberg_read
       (first_at, last_at, read_count, request_id, principal, address, operation, object, snapshot_id, keys, branch)
SELECT n.first_at, n.last_at, n.read_count, n.request_id, n.principal, n.address, n.operation, n.object_name, n.snapshot_id, n.keys,
       %(branch)s
  FROM json_to_recordset(%(reads)s::json)
       AS n(first_at timestamptz, last_at timestamptz, read_count bigint, request_id text, principal text, address text, operation text,
            object_name text, snapshot_id bigint, keys text)
"""

SELECT_READS = """
SELECT r.id, r.first_at, r.last_at, r.read_count, r.request_id, r.principal, r.address, r.operation, r.object, r.snapshot_id, r.keys,
       r.branch
  FROM iceberg_read r
 WHERE r.id < %(before)s
   AND (%(object)s::text IS NULL OR left(r.object, 500) = left(%(object)s, 500) AND r.object = %(object)s)
   AND (%(principal)s::text IS NULL OR left(r.principal, 500) = left(%(principal)s, 500) AND r.principal = %(principal)s)
 ORDER BY r.id DESC
 LIMIT %(most)s
"""

DELETE_OLD_READS = """
DELETE FROM iceberg_read
 WHERE id IN (SELECT id FROM iceberg_read WHERE last_at < clock_timestamp() - %(days)s * interval '1 day'
               -- Skip rows that another server is deleting.
               LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def write_reads(conn: psycopg.Connection, reads: Sequence[CountedRead], branch: str | None = None) -> None:
    """Write reads that were counted on the lake, or on a branch of it."""
    rows = [asdict(read) | {"first_at": read.first_at.isoformat(), "last_at": read.last_at.isoformat()} for read in reads]
    conn.execute(INSERT_READS, {"reads": json.dumps(rows).replace("\\u0000", ""), "branch": branch})


def read_reads(
    conn: psycopg.Connection, before: int, most: int, object_name: str | None, principal: str | None
) -> list[tuple[int, CountedRead]]:
    """Return reads with their numbers, those that were written last first: at most `most` with a number below `before`."""
    wanted = {"before": before, "most": most, "object": object_name, "principal": principal}
    return [(number, CountedRead(*row)) for number, *row in conn.execute(SELECT_READS, wanted).fetchall()]


def delete_old_reads(conn: psycopg.Connection, days: float, most: int) -> int:
    """Delete up to `most` reads older than `days`, and return how many were deleted."""
    return conn.execute(DELETE_OLD_READS, {"days": days, "most": most}).rowcount


@dataclass(frozen=True, slots=True)
class ClientReport:
    """A client's report on a table, as it was kept. `report`: as `iceberg.requests.reports` returns it."""

    table_id: int
    received_at: datetime
    principal: str | None
    report: Mapping[str, object]


INSERT_REPORTS = """
WITH added AS (
    INSERT INTO iceberg_report (table_id, received_at, principal, report)
    SELECT n.table_id, n.received_at, n.principal, n.report
      FROM json_to_recordset(%(reports)s::json) AS n(table_id bigint, received_at timestamptz, principal text, report jsonb)
    RETURNING table_id
)
-- The rows that are inserted here are not seen by the deletion, so a table has up to one batch more than `kept`.
DELETE FROM iceberg_report r
 USING (SELECT DISTINCT table_id FROM added) t
 WHERE r.table_id = t.table_id
   AND r.id <= (SELECT o.id FROM iceberg_report o WHERE o.table_id = t.table_id ORDER BY o.id DESC OFFSET %(kept)s LIMIT 1)
"""

SELECT_REPORTS = """
SELECT r.id, r.table_id, r.received_at, r.principal, r.report
  FROM iceberg_report r
 WHERE r.table_id = %(table_id)s AND r.id < %(before)s
 ORDER BY r.id DESC
 LIMIT %(most)s
"""

DELETE_OLD_REPORTS = """
DELETE FROM iceberg_report
 WHERE id IN (SELECT id FROM iceberg_report WHERE received_at < clock_timestamp() - %(days)s * interval '1 day'
               -- Skip rows that another server is deleting.
               LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def write_reports(conn: psycopg.Connection, reports: Sequence[ClientReport], kept: int) -> None:
    """Write reports, and delete the oldest of their tables beyond `kept`."""
    rows = [
        {"table_id": each.table_id, "received_at": each.received_at.isoformat(), "principal": each.principal, "report": each.report}
        for each in reports
    ]
    conn.execute(INSERT_REPORTS, {"reports": json.dumps(rows), "kept": kept})


def read_reports(conn: psycopg.Connection, table_id: int, before: int, most: int) -> list[tuple[int, ClientReport]]:
    """Return reports on a table with their numbers, the newest first: at most `most` with a number below `before`."""
    wanted = {"table_id": table_id, "before": before, "most": most}
    return [(number, ClientReport(*row)) for number, *row in conn.execute(SELECT_REPORTS, wanted).fetchall()]


SELECT_REPORT_COUNTS = """
SELECT r.report ->> 'report-type' AS report_type, count(*), min(r.received_at), max(r.received_at)
  FROM iceberg_report r
 WHERE r.table_id = %(table_id)s
 GROUP BY 1
"""

SELECT_REPORT_METRICS = """
SELECT r.report ->> 'report-type' AS report_type, m.key, sum(m.value::numeric)
  FROM iceberg_report r CROSS JOIN jsonb_each_text(r.report -> 'metrics') m
 WHERE r.table_id = %(table_id)s AND m.key = ANY(%(metrics)s)
 GROUP BY 1, 2
"""

SELECT_REPORT_VALUES = """
SELECT ranked.kind, ranked.value, ranked.value_count FROM (
    SELECT v.kind, v.value, count(*) AS value_count, max(r.id) AS newest_id,
           row_number() OVER (PARTITION BY v.kind ORDER BY count(*) DESC, max(r.id) DESC) AS place
      FROM iceberg_report r
     CROSS JOIN LATERAL (
        SELECT 'operation' AS kind, coalesce(r.report ->> 'operation', '') AS value WHERE r.report ->> 'report-type' = 'commit-report'
         UNION ALL
        SELECT 'filter', r.report ->> 'filter' WHERE r.report ->> 'report-type' = 'scan-report' AND r.report ? 'filter'
         UNION ALL
        SELECT 'field', jsonb_array_elements_text(r.report -> 'projected-field-names') WHERE r.report ->> 'report-type' = 'scan-report') v
     WHERE r.table_id = %(table_id)s
     GROUP BY v.kind, v.value) ranked
 WHERE ranked.place <= %(most)s
 ORDER BY ranked.kind, ranked.place
"""


@dataclass(frozen=True, slots=True)
class ReportSums:
    """Sums over the reports on a table. `counts`: number, first and last time by type; `metrics`: by type and name.

    `values`: the commonest operations of commits, filters and fields of scans, each with its number, by `operation`, `filter` and `field`.
    """

    counts: Mapping[str, tuple[int, datetime, datetime]]
    metrics: Mapping[tuple[str, str], int]
    values: Mapping[str, Sequence[tuple[str, int]]]


def sum_reports(conn: psycopg.Connection, table_id: int, metrics: Sequence[str], most: int) -> ReportSums:
    """Return sums over all reports on a table: of these metrics, with at most `most` values of each kind."""
    wanted = {"table_id": table_id, "metrics": list(metrics), "most": most}
    counts = {kind: (count, first, last) for kind, count, first, last in conn.execute(SELECT_REPORT_COUNTS, wanted)}
    sums = {(kind, name): int(value) for kind, name, value in conn.execute(SELECT_REPORT_METRICS, wanted)}
    values: dict[str, list[tuple[str, int]]] = {}
    for kind, value, count in conn.execute(SELECT_REPORT_VALUES, wanted):
        values.setdefault(kind, []).append((value, count))
    return ReportSums(counts, sums, values)


def delete_old_reports(conn: psycopg.Connection, days: float, most: int) -> int:
    """Delete up to `most` reports older than `days`, and return how many were deleted."""
    return conn.execute(DELETE_OLD_REPORTS, {"days": days, "most": most}).rowcount
