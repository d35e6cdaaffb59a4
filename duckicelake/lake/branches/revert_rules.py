"""What stands against a revert of a lake snapshot, besides rows that changed since, and names of objects.

`revert` calls it under the member's lock. The search path is the metadata schema of the lake or branch. `ids` has the snapshots `reverted`
and `made`. Only `take_back_purges` writes: it deletes notes.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product

import psycopg
from psycopg import sql

from duckicelake.lake.branches.changes import get_table_id
from duckicelake.lake.lake_format import SCHEMA_NAMES, SHOWN_SCHEMA_NAME

# A row has one span of snapshots, so a file that came back has another row with the same path, which may be relative in one of them.
SELECT_FILES_BACK = """
SELECT DISTINCT f.table_id FROM ducklake_data_file f
  JOIN ducklake_data_file l ON l.table_id = f.table_id AND l.end_snapshot IS NULL AND l.begin_snapshot <> %(reverted)s
   AND regexp_replace(l.path, '^.*/', '') = regexp_replace(f.path, '^.*/', '')
 WHERE f.end_snapshot = %(reverted)s AND f.begin_snapshot < %(reverted)s
   AND (l.path = f.path OR right(l.path, length(f.path) + 1) = '/' || f.path OR right(f.path, length(l.path) + 1) = '/' || l.path)
"""
HAS_ROWS_BACK = sql.SQL("""
SELECT EXISTS (SELECT FROM {t} e JOIN {l} l ON l.{row_id} = e.{row_id} AND l.{end} IS NULL AND l.{begin} <> %(reverted)s
                WHERE e.{end} = %(reverted)s AND e.{begin} < %(reverted)s)
""")


def list_tables_back(
    conn: psycopg.Connection, ids: Mapping[str, int], inlined: Sequence[str], columns: Mapping[str, sql.Composable]
) -> set[int]:
    """Return the tables with rows that the snapshot deleted and that are live again, as after another revert.

    `inlined`: the tables of inlined rows and deletes. `columns`: the first columns of those of rows.
    """
    found = {row[0] for row in conn.execute(SELECT_FILES_BACK, ids).fetchall()}
    rows = [name for name in inlined if not name.startswith("ducklake_inlined_delete_")]
    for ended, live in product(rows, rows):
        if get_table_id(ended) == get_table_id(live):
            query = HAS_ROWS_BACK.format(**columns, t=sql.Identifier(ended), l=sql.Identifier(live))
            row = conn.execute(query, ids).fetchone()
            if row and row[0]:
                found.add(get_table_id(ended))
    return found


SELECT_REVERTS = """
SELECT snapshot_id, commit_extra_info FROM ducklake_snapshot_changes
 WHERE snapshot_id > %(reverted)s AND starts_with(commit_extra_info, '{"revert":')
 ORDER BY snapshot_id
"""


def find_revert(conn: psycopg.Connection, ids: Mapping[str, int]) -> int | None:
    """Return the snapshot that reverted the snapshot and was not reverted itself, or None."""
    reverts = [(number, _read_reverted(text)) for number, text in conn.execute(SELECT_REVERTS, ids).fetchall()]
    undone: set[int | None] = set()
    standing: int | None = None
    # A revert has a larger id than what it reverts, so the newest ones stand.
    for number, reverted in reversed(reverts):
        if number not in undone:
            undone.add(reverted)
            standing = number if reverted == ids["reverted"] else standing
    return standing


def _read_reverted(text: str) -> int | None:
    # Clients write what they like there.
    try:
        return int(json.loads(text)["revert"]["reverted"])
    except (ValueError, TypeError, KeyError):
        return None


SELECT_DEAD = """
SELECT n.id FROM unnest(%(ids)s::bigint[]) AS n(id)
 WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = n.id AND t.end_snapshot IS NULL)
   AND NOT EXISTS (SELECT FROM ducklake_view v WHERE v.view_id = n.id AND v.end_snapshot IS NULL)
   AND NOT EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = n.id AND s.end_snapshot IS NULL)
   AND NOT EXISTS (SELECT FROM ducklake_macro m WHERE m.macro_id = n.id AND m.end_snapshot IS NULL)
 ORDER BY n.id
"""


def list_dead(conn: psycopg.Connection, objects: Collection[int]) -> list[int]:
    """Return those of the objects that are dropped."""
    return [row[0] for row in conn.execute(SELECT_DEAD, {"ids": sorted(objects)}).fetchall()]


# Files written since have values of the newer type, or NULLs; a compaction gives older rows to new files.
SELECT_NARROWED = """
SELECT DISTINCT o.table_id,
       EXISTS (SELECT FROM ducklake_data_file f
                WHERE f.table_id = o.table_id AND f.end_snapshot IS NULL
                  AND (f.begin_snapshot > %(reverted)s
                       OR f.data_file_id >= (SELECT s.next_file_id FROM ducklake_snapshot s WHERE s.snapshot_id = %(reverted)s)))
  FROM ducklake_column o
  LEFT JOIN ducklake_column n ON n.table_id = o.table_id AND n.column_id = o.column_id AND n.begin_snapshot = %(reverted)s
 WHERE o.end_snapshot = %(reverted)s AND o.begin_snapshot < %(reverted)s
   AND CASE WHEN n.column_id IS NULL THEN NOT coalesce(o.nulls_allowed, true)
            ELSE n.column_type <> o.column_type OR coalesce(n.nulls_allowed, true) AND NOT coalesce(o.nulls_allowed, true) END
"""


def list_narrowed(conn: psycopg.Connection, ids: Mapping[str, int]) -> list[tuple[int, bool]]:
    """Return the tables of which a column would get its narrower type back, or NOT NULL; True: files were written since."""
    return [(row[0], row[1]) for row in conn.execute(SELECT_NARROWED, ids).fetchall()]


TAKE_BACK_PURGES = "DELETE FROM iceberg_purge WHERE table_id = ANY(%(tables)s::bigint[]) AND due_at > clock_timestamp()"
SELECT_PURGED = "SELECT table_id FROM iceberg_purge WHERE table_id = ANY(%(tables)s::bigint[]) ORDER BY table_id"


def take_back_purges(conn: psycopg.Connection, tables: Iterable[int]) -> list[int]:
    """Delete the notes of purges that are not due, because their tables come back; return the tables whose files are being deleted."""
    parameters = {"tables": sorted(tables)}
    conn.execute(TAKE_BACK_PURGES, parameters)
    return [row[0] for row in conn.execute(SELECT_PURGED, parameters).fetchall()]


# DuckDB attaches no lake with one of the first two.
SELECT_UNSOUND_COLUMNS = r"""
SELECT 'table ' || t.table_name || ' has two columns ' || min(c.column_name) FROM ducklake_column c
  JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.table_id = ANY(%(tables)s::bigint[])
 GROUP BY t.table_id, t.table_name, c.parent_column, lower(c.column_name) HAVING count(*) > 1
 UNION ALL
SELECT 'table ' || t.table_name || ' has the field ' || c.column_name || ' in a column that is dropped' FROM ducklake_column c
  JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.parent_column IS NOT NULL AND c.table_id = ANY(%(tables)s::bigint[])
   AND NOT EXISTS (SELECT FROM ducklake_column p
                    WHERE p.table_id = c.table_id AND p.column_id = c.parent_column AND p.end_snapshot IS NULL)
 UNION ALL
SELECT DISTINCT 'table ' || t.table_name || ' is sorted by a column that is dropped or renamed: ' || e.expression FROM ducklake_sort_info i
  JOIN ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
  JOIN ducklake_sort_expression e ON e.sort_id = i.sort_id AND e.table_id = i.table_id
  JOIN ducklake_column c ON c.table_id = i.table_id AND c.end_snapshot IS NOT NULL
   AND lower(e.expression) ~ ('\m' || regexp_replace(lower(c.column_name), '(\W)', '\\\1', 'g') || '\M')
 WHERE i.end_snapshot IS NULL AND i.table_id = ANY(%(tables)s::bigint[])
   AND NOT EXISTS (SELECT FROM ducklake_column l
                    WHERE l.table_id = c.table_id AND lower(l.column_name) = lower(c.column_name) AND l.end_snapshot IS NULL)
"""


def list_unsound_columns(conn: psycopg.Connection, tables: Collection[int]) -> Iterator[str]:
    """Yield what does not go together in the columns and sort orders of tables, after the revert is written."""
    yield from (row[0] for row in conn.execute(SELECT_UNSOUND_COLUMNS, {"tables": sorted(tables)}).fetchall())


SELECT_NAMES = sql.SQL("""
SELECT t.table_id, {name} || '.' || t.table_name FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
 ORDER BY t.table_id, t.begin_snapshot
""").format(name=sql.SQL(SHOWN_SCHEMA_NAME).format(lake=sql.SQL("")))


def read_table_names(conn: psycopg.Connection) -> dict[int, str]:
    """Return the newest names of all tables, of dropped ones too, as messages show them."""
    return dict(conn.execute(SELECT_NAMES).fetchall())


SELECT_NAME = sql.SQL("""
SELECT {names} || o.{name}::text FROM {t} o JOIN ducklake_schema s ON s.schema_id = o.schema_id AND s.end_snapshot IS NULL
 WHERE o.{id} = %(id)s AND o.end_snapshot IS NULL
""")


def read_name(conn: psycopg.Connection, kind: str, object_id: int) -> Sequence[str]:
    """Return the levels of the namespace, and the name, of a live table or view."""
    parts = {"name": f"{kind}_name", "t": f"ducklake_{kind}", "id": f"{kind}_id"}
    names = {part: sql.Identifier(text) for part, text in parts.items()}
    row = conn.execute(SELECT_NAME.format(**names, names=sql.SQL(SCHEMA_NAMES).format(lake=sql.SQL(""))), {"id": object_id}).fetchone()
    assert row is not None
    return row[0]
