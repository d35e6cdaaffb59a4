"""Metrics reports of clients, in `iceberg_report`: the newest of each table. `catalog.records` writes and reads them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg


@dataclass(frozen=True, slots=True)
class ClientReport:
    """What was kept of a client's report on a table. `report`: as `iceberg.requests.reports` returns it."""

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
 WHERE r.table_id = %(table_id)s
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


def read_reports(conn: psycopg.Connection, table_id: int, most: int) -> list[ClientReport]:
    """Return the reports on a table, the newest first."""
    rows = conn.execute(SELECT_REPORTS, {"table_id": table_id, "most": most}).fetchall()
    return [ClientReport(*row) for _, *row in rows]


def delete_old_reports(conn: psycopg.Connection, days: float, most: int) -> int:
    """Delete up to `most` reports older than `days`, and return how many were deleted."""
    return conn.execute(DELETE_OLD_REPORTS, {"days": days, "most": most}).rowcount
