"""What is noted about a table's refs, and when that changed last."""

import psycopg

from duckicelake.lake.read import fetch_rows
from duckicelake.lake.refs.rows import KeptNote, MoveNote, RefNote, RefNotes
from duckicelake.lake.registered.read import find_registered

SELECT_HAS_REFS = """
SELECT EXISTS (SELECT FROM iceberg_ref WHERE table_id = %(table_id)s)
    OR EXISTS (SELECT FROM iceberg_kept WHERE table_id = %(table_id)s)
    OR EXISTS (SELECT FROM iceberg_move WHERE table_id = %(table_id)s)
    OR EXISTS (SELECT FROM iceberg_hidden WHERE table_id = %(table_id)s)
    OR EXISTS (SELECT FROM iceberg_registered WHERE table_id = %(table_id)s)
"""

SELECT_REFS = """
SELECT name, snapshot_id, type, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep
  FROM iceberg_ref WHERE table_id = %(table_id)s ORDER BY name
"""

SELECT_KEPT = """
SELECT snapshot_id, base_snapshot_id, json, manifest_list IS NOT NULL AS is_beside
  FROM iceberg_kept WHERE table_id = %(table_id)s ORDER BY snapshot_id
"""

SELECT_MOVES = """
SELECT lake_snapshot_id, snapshot_id FROM iceberg_move WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_HIDDEN = """
SELECT snapshot_id FROM iceberg_hidden WHERE table_id = %(table_id)s
"""


def read_ref_notes(conn: psycopg.Connection, table_id: int) -> RefNotes:
    """Return what is noted about a table's refs; for most tables that is nothing."""
    known = {"table_id": table_id}
    row = conn.execute(SELECT_HAS_REFS, known).fetchone()
    if row is None or not row[0]:
        return RefNotes()
    return RefNotes(
        refs=tuple(fetch_rows(conn, RefNote, SELECT_REFS, table_id=table_id)),
        kept=tuple(fetch_rows(conn, KeptNote, SELECT_KEPT, table_id=table_id)),
        moves=tuple(fetch_rows(conn, MoveNote, SELECT_MOVES, table_id=table_id)),
        hidden=frozenset(row[0] for row in conn.execute(SELECT_HIDDEN, known)),
        registered=find_registered(conn, table_id),
    )


SELECT_KEPT_LIST = """
SELECT manifest_list FROM iceberg_kept WHERE table_id = %(table_id)s AND snapshot_id = %(snapshot_id)s
"""


def read_kept_list(conn: psycopg.Connection, table_id: int, snapshot_id: int) -> bytes:
    """Return the manifest list of a snapshot that was made beside main."""
    row = conn.execute(SELECT_KEPT_LIST, {"table_id": table_id, "snapshot_id": snapshot_id}).fetchone()
    return row[0] if row and row[0] else b""


SELECT_HISTORY_ID = """
SELECT greatest((SELECT coalesce(max(id), 0) FROM iceberg_change WHERE table_id IS NULL),
                (SELECT coalesce(max(id), 0) FROM iceberg_change WHERE table_id = %(table_id)s AND kind = 'hide'))
"""


def read_history_id(conn: psycopg.Connection, table_id: int) -> int:
    """Return the newest change that may have changed what a table's history looks like."""
    row = conn.execute(SELECT_HISTORY_ID, {"table_id": table_id}).fetchone()
    return row[0] if row else 0
