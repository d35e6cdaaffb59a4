"""Lines of the record: written with the change they are about, or many at once; told to the log; removed when they are old."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import psycopg


@dataclass(frozen=True, slots=True)
class AuditContext:
    """Who asks for what, of which objects: `sales.orders`, levels and name escaped as rights write them.

    `principal` None: nobody has to say who they are.
    """

    request_id: str
    principal: str | None
    operation: str
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line: what became of it. `done`: its change is in the lake; else it is why nothing was done, by its `reason`.

    `lake_snapshot_id`: the last one that the change made; None: it made none.
    """

    audit_context: AuditContext
    outcome: str
    lake_snapshot_id: int | None = None
    reason: str | None = None


DONE, UNKNOWN, DENIED, HIDDEN, UNPROVEN = "done", "unknown", "denied", "hidden", "unproven"
"""Outcomes. `unknown` is told in the log alone: Postgres has the line if the change is in the lake. `hidden`: denied, as if the
object were not there. `unproven`: nobody knows who asked."""


JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

INSERT_DONE = """
INSERT INTO iceberg_audit (lake_snapshot_id, request_id, principal, operation, objects)
SELECT %(made_snapshot_id)s, n.* FROM json_to_recordset(%(audit_context)s::json)
  AS n(request_id text, principal text, operation text, objects text[])
"""

INSERT_DENIED = """
INSERT INTO iceberg_audit (logged_at, request_id, principal, operation, objects, outcome, reason)
SELECT to_timestamp(n.logged_at), n.request_id, n.principal, n.operation, n.objects, n.outcome, n.reason
  FROM json_to_recordset(%(lines)s::json)
       AS n(logged_at double precision, request_id text, principal text, operation text, objects text[], outcome text, reason text)
"""

DELETE_OLD_LINES = """
DELETE FROM iceberg_audit
 WHERE id IN (SELECT id FROM iceberg_audit WHERE logged_at < clock_timestamp() - %(days)s * interval '1 day'
               -- another server may be removing the same ones
               LIMIT %(most)s FOR UPDATE SKIP LOCKED)
"""


def encode_context(audit_context: AuditContext | None) -> str | None:
    """Return who asks as the document that a statement takes; None when nobody is to be named, and then no line is written."""
    if audit_context is None:
        return None
    told = {
        "request_id": audit_context.request_id,
        "principal": audit_context.principal,
        "operation": audit_context.operation,
        "objects": audit_context.objects,
    }
    return JSON.encode([told])


def write_line(conn: psycopg.Connection, audit_context: AuditContext, lake_snapshot_id: int | None) -> None:
    """Write the line of a change in its own transaction."""
    conn.execute(INSERT_DONE, {"made_snapshot_id": lake_snapshot_id, "audit_context": encode_context(audit_context)})


def write_denied_lines(conn: psycopg.Connection, lines: Sequence[tuple[float, AuditLine]]) -> None:
    """Write lines of what was denied, each with its time in seconds."""
    told = [{"logged_at": at_s, **asdict(line.audit_context), "outcome": line.outcome, "reason": line.reason} for at_s, line in lines]
    conn.execute(INSERT_DENIED, {"lines": json.dumps(told).replace("\\u0000", "")})


def delete_old_lines(conn: psycopg.Connection, days: float, most: int) -> int:
    """Remove so many of the lines that are older, and return how many there were."""
    return conn.execute(DELETE_OLD_LINES, {"days": days, "most": most}).rowcount


def log_line(line: AuditLine) -> None:
    """Tell the log of a line: as fields where it is JSON."""
    log, audit_context = logging.getLogger("duckicelake.audit"), line.audit_context
    if not log.isEnabledFor(logging.INFO):
        return
    told = {**asdict(audit_context), "lake_snapshot_id": line.lake_snapshot_id, "outcome": line.outcome, "reason": line.reason}
    objects, why = " ".join(audit_context.objects), "" if line.outcome == DONE else f" ({line.reason})"
    text = "%s %s%s: %s of %s, request %s"
    log.info(
        text,
        audit_context.operation,
        line.outcome,
        why,
        audit_context.principal or "somebody",
        objects,
        audit_context.request_id,
        extra={"audit": told},
    )
