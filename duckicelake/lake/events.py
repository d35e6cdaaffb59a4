"""Lake snapshots with what they changed, in order, and the cursor of the webhook: how far its receiver has acknowledged them.

Lake snapshots are DuckLake's rows, and the copies that a trigger keeps of those that expire; `catalog.events` reads them in one read-only
transaction, but for the webhook: its thread reads them at READ COMMITTED in the transaction of the cursor. Nothing is written when a
commit is made. A lake snapshot becomes visible after all before it, because the primary key of `ducklake_snapshot` lets one commit follow
the other: a reader that goes on after the last id that it saw misses none. `catalog.audit_log` deletes old copies on its own thread, each
batch in a transaction of its own.

`catalog.events` moves the cursor. The functions of the cursor run in one transaction, which is open while a request is sent and holds the
lock of the webhook until it ends, so that only one of several servers sends.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from duckicelake.lake.lake_format import SCHEMA_NAMES
from duckicelake.lake.read import fetch_rows

PRUNED = "events_pruned_to"
"""The setting with the newest lake snapshot whose copy was deleted."""


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A lake snapshot. `objects`: the tables, views and schemas that it names, as JSON objects; with the audit line of its request, if any.

    An object has `kind`, `id`, `uuid`, `namespace` (joined by `translate.namespaces.LEVEL_SEPARATOR`), `name`, `begin`, `end` and, for a
    table, `previous_end`: where its row before this one ended.
    """

    snapshot_id: int
    snapshot_time: datetime
    changes_made: str | None
    author: str | None
    commit_message: str | None
    objects: Sequence[dict[str, Any]]
    principal: str | None
    operation: str | None
    request_id: str | None


SELECT_OUTBOX = "".join(
    (
        """
WITH entry AS (
    SELECT * FROM (
        SELECT c.snapshot_id, c.changes_made, c.author, c.commit_message, true AS is_live FROM (
            SELECT * FROM ducklake_snapshot_changes WHERE snapshot_id > %(after)s ORDER BY snapshot_id LIMIT %(most)s) c
         UNION ALL
        -- A lake snapshot that expired had its copy made in the transaction that expired it.
        SELECT k.snapshot_id, k.changes_made, k.author, k.commit_message, false FROM (
            SELECT * FROM iceberg_event e
             WHERE snapshot_id > %(after)s
               AND (SELECT true FROM ducklake_snapshot_changes c WHERE c.snapshot_id = e.snapshot_id) IS NULL
             ORDER BY snapshot_id LIMIT %(most)s) k) x
     ORDER BY snapshot_id LIMIT %(most)s
), live AS (
    SELECT e.*, (SELECT s.snapshot_time FROM ducklake_snapshot s WHERE s.snapshot_id = e.snapshot_id) AS snapshot_time,
           ARRAY(SELECT m[1]::bigint FROM regexp_matches(e.changes_made, ':([0-9]{1,18})(?=,|$)', 'g') m) AS ids
      FROM (SELECT *, sum(1 + length(changes_made) - length(replace(changes_made, ',', '')))
                      OVER (ORDER BY snapshot_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS changes_before
              FROM entry) e
     -- A lake snapshot has as many events as changes at most.
     WHERE coalesce(e.changes_before, 0) < %(most)s
), page AS (
    -- What only the expired lake snapshots before a drop showed has a copy, too. OFFSET 0 keeps the planner from reading all schemas.
    SELECT l.snapshot_id, l.snapshot_time, l.changes_made, l.author, l.commit_message, coalesce((
            SELECT k.objects FROM iceberg_event k WHERE k.snapshot_id = l.snapshot_id), (
        SELECT jsonb_agg(o.object ORDER BY o.kind, o.id, o.begins) FROM (
            SELECT 'table' AS kind, t.table_id AS id, t.begin_snapshot AS begins, jsonb_build_object(
                       'kind', 'table', 'id', t.table_id, 'uuid', t.table_uuid, 'namespace', array_to_string(""",
        SCHEMA_NAMES.format(lake="").replace(" AND p.end_snapshot IS NULL", ""),
        """, '\u241f'), 'name', t.table_name, 'begin', t.begin_snapshot, 'end', t.end_snapshot, 'previous_end',
                       (SELECT max(e.end_snapshot) FROM ducklake_table e
                         WHERE e.table_id = t.table_id AND e.begin_snapshot < t.begin_snapshot)) AS object
              FROM ducklake_table t CROSS JOIN LATERAL (SELECT * FROM ducklake_schema s WHERE s.schema_id = t.schema_id OFFSET 0) s
             WHERE (t.table_id = ANY(l.ids) AND t.begin_snapshot <= l.snapshot_id
                    AND (t.end_snapshot IS NULL OR t.end_snapshot >= l.snapshot_id))
                OR t.begin_snapshot = l.snapshot_id
             UNION ALL
            SELECT 'view', v.view_id, v.begin_snapshot, jsonb_build_object(
                       'kind', 'view', 'id', v.view_id, 'uuid', v.view_uuid, 'namespace', array_to_string(""",
        SCHEMA_NAMES.format(lake="").replace(" AND p.end_snapshot IS NULL", ""),
        """, '\u241f'), 'name', v.view_name, 'begin', v.begin_snapshot, 'end', v.end_snapshot)
              FROM ducklake_view v CROSS JOIN LATERAL (SELECT * FROM ducklake_schema s WHERE s.schema_id = v.schema_id OFFSET 0) s
             WHERE (v.view_id = ANY(l.ids) AND v.begin_snapshot <= l.snapshot_id
                    AND (v.end_snapshot IS NULL OR v.end_snapshot >= l.snapshot_id))
                OR v.begin_snapshot = l.snapshot_id
             UNION ALL
            SELECT 'schema', s.schema_id, s.begin_snapshot, jsonb_build_object(
                       'kind', 'schema', 'id', s.schema_id, 'uuid', s.schema_uuid, 'namespace', array_to_string(""",
        SCHEMA_NAMES.format(lake="").replace(" AND p.end_snapshot IS NULL", ""),
        """, '\u241f'), 'begin', s.begin_snapshot, 'end', s.end_snapshot)
              FROM ducklake_schema s
             WHERE s.begin_snapshot = l.snapshot_id OR s.end_snapshot = l.snapshot_id) o), '[]') AS objects
      FROM live l
     WHERE l.is_live
     UNION ALL
    SELECT l.snapshot_id, k.snapshot_time, l.changes_made, l.author, l.commit_message, k.objects
      FROM live l CROSS JOIN LATERAL (SELECT e.snapshot_time, e.objects FROM iceberg_event e WHERE e.snapshot_id = l.snapshot_id OFFSET 0) k
     WHERE NOT l.is_live
)
SELECT c.snapshot_id, least('9999-12-31Z', greatest('1970-01-01Z', c.snapshot_time)) AS snapshot_time,
       c.changes_made, c.author, c.commit_message, c.objects, a.principal, a.operation, a.request_id
  FROM page c
  LEFT JOIN LATERAL (
        SELECT min(a.principal) AS principal, min(a.operation) AS operation, min(a.request_id) AS request_id FROM iceberg_audit a
         WHERE a.lake_snapshot_id = c.snapshot_id AND a.outcome = 'done'
        -- Requests that were committed as a group share a lake snapshot, which is none of theirs alone.
        HAVING count(DISTINCT a.request_id) = 1) a ON true
 ORDER BY c.snapshot_id
""",
    )
)


def read_outbox(conn: psycopg.Connection, after: int, most: int) -> Sequence[OutboxRow]:
    """Return lake snapshots that follow an id, in order: the first one, and further ones while fewer than `most` changes precede them."""
    return fetch_rows(conn, OutboxRow, SELECT_OUTBOX, after=after, most=most)


@dataclass(frozen=True, slots=True)
class OutboxBounds:
    """The newest lake snapshot whose copy was deleted, or -1, and the newest one that is there."""

    pruned: int
    newest: int


SELECT_BOUNDS = """
SELECT coalesce((SELECT value::bigint FROM iceberg_setting WHERE key = 'events_pruned_to'), -1) AS pruned,
       greatest((SELECT max(snapshot_id) FROM ducklake_snapshot_changes), (SELECT max(snapshot_id) FROM iceberg_event), -1) AS newest
"""


def read_bounds(conn: psycopg.Connection) -> OutboxBounds:
    """Return from where to where events can be read."""
    [bounds] = fetch_rows(conn, OutboxBounds, SELECT_BOUNDS)
    return bounds


DELETE_OLD_EVENTS = """
WITH gone AS (
    DELETE FROM iceberg_event
     WHERE snapshot_id IN (SELECT e.snapshot_id FROM iceberg_event e WHERE e.kept_at < clock_timestamp() - %(days)s * interval '1 day'
                              -- The copy of a lake snapshot that is still there has the names of what expired before it.
                              AND NOT EXISTS (SELECT FROM ducklake_snapshot s WHERE s.snapshot_id = e.snapshot_id)
                            ORDER BY e.snapshot_id LIMIT %(most)s)
 RETURNING snapshot_id
), noted AS (
    INSERT INTO iceberg_setting (key, value) SELECT 'events_pruned_to', max(snapshot_id)::text FROM gone HAVING count(*) > 0
    ON CONFLICT (key) DO UPDATE SET value = greatest(iceberg_setting.value::bigint, excluded.value::bigint)::text
)
SELECT count(*) FROM gone
"""


def delete_old_events(conn: psycopg.Connection, days: float, most: int) -> int:
    """Delete up to `most` copies of lake snapshots that expired before so many days, and return how many were deleted."""
    row = conn.execute(DELETE_OLD_EVENTS, {"days": days, "most": most}).fetchone()
    return 0 if row is None else row[0]


LOCK_CLASS = 0x77656268
"""The first key of the advisory lock, which separates it from those of other programs."""

LOCK_WEBHOOK = """
SELECT pg_try_advisory_xact_lock(%(class)s, hashtext(current_schema()))
"""


@contextmanager
def locking_webhook(conn: psycopg.Connection) -> Generator[bool]:
    """Lock the webhook of the lake for one transaction, which is committed at the end. Yield False if another server sends now.

    An error leaves the transaction open: the connection is closed then.
    """
    row = conn.execute(LOCK_WEBHOOK, {"class": LOCK_CLASS}).fetchone()
    yield bool(row and row[0])
    conn.commit()


SELECT_CURSOR = """
SELECT value FROM iceberg_setting WHERE key = 'events_webhook_cursor'
"""


def find_webhook_cursor(conn: psycopg.Connection) -> str | None:
    """Return the cursor that the receiver has acknowledged; None before the first one is written."""
    row = conn.execute(SELECT_CURSOR).fetchone()
    return None if row is None else row[0]


UPSERT_CURSOR = """
INSERT INTO iceberg_setting (key, value) VALUES ('events_webhook_cursor', %(cursor)s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""


def write_webhook_cursor(conn: psycopg.Connection, cursor: str) -> None:
    """Write the cursor that the receiver has acknowledged."""
    conn.execute(UPSERT_CURSOR, {"cursor": cursor})
