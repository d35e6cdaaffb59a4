"""What is noted about a table's refs, and when that changed last."""

import psycopg

from duckicelake.lake.read import QueryResults, fetch_queries
from duckicelake.lake.refs.rows import KeptSnapshotNote, MoveNote, RefNote, RefNotes
from duckicelake.lake.registered.read import SELECT_REGISTERED
from duckicelake.lake.registered.rows import RegisteredNote

SELECT_REFS = """
SELECT name, snapshot_id, type, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep
  FROM iceberg_ref WHERE table_id = %(table_id)s ORDER BY name
"""

SELECT_KEPT = """
SELECT snapshot_id, base_snapshot_id, json, manifest_list IS NOT NULL AS is_off_main
  FROM iceberg_kept WHERE table_id = %(table_id)s ORDER BY snapshot_id
"""

SELECT_MOVES = """
SELECT lake_snapshot_id, snapshot_id FROM iceberg_move WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_ROOTS = """
SELECT lake_snapshot_id FROM iceberg_root WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id
"""

SELECT_HIDDEN = """
SELECT snapshot_id FROM iceberg_hidden WHERE table_id = %(table_id)s
"""


REF_QUERIES = (SELECT_REFS, SELECT_KEPT, SELECT_MOVES, SELECT_ROOTS, SELECT_HIDDEN, SELECT_REGISTERED)


def read_ref_notes(conn: psycopg.Connection, table_id: int) -> RefNotes:
    """Return what is noted about a table's refs, and of how it came here."""
    return to_ref_notes(fetch_queries(conn, REF_QUERIES, table_id=table_id))


def to_ref_notes(found: QueryResults) -> RefNotes:
    """Return what is noted about a table's refs; for most tables that is nothing."""
    return RefNotes(
        refs=tuple(found.rows(RefNote, SELECT_REFS)),
        kept=tuple(found.rows(KeptSnapshotNote, SELECT_KEPT)),
        moves=tuple(found.rows(MoveNote, SELECT_MOVES)),
        hidden=frozenset(found.column(SELECT_HIDDEN)),
        roots=tuple(found.column(SELECT_ROOTS)),
        registered=next(iter(found.rows(RegisteredNote, SELECT_REGISTERED)), None),
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
       -- the newest change that may have changed what the history looks like
                (SELECT coalesce(max(id), 0) FROM iceberg_change WHERE table_id = %(table_id)s AND kind = 'hide'))
"""
