"""The tables, views, macros and namespaces that a merge or reset brings to a branch, as entries for the branch's first lake snapshot.

`refork` calls it in the transaction of a merge or reset, before and after it changes the branch. A transaction of DuckDB that is open
on the branch creates its objects without a look at the rows: only an entry `created_…` with the same name makes its commit fail.
"""

from collections.abc import Mapping, Set

import psycopg
from psycopg import sql

from duckicelake.lake.branches.layout import NO_DATA_FILE
from duckicelake.lake.changes import Change, quote_names

Version = tuple[int, int]
"""The id of an object, and the `begin_snapshot` of its row."""

# The row that stands for kept files begins after every lake snapshot.
SELECT_LIVE = sql.SQL("""
WITH live AS (SELECT * FROM {b}.ducklake_schema WHERE end_snapshot IS NULL AND begin_snapshot < {placeholder})
SELECT schema_id, begin_snapshot, 'created_schema', schema_name, NULL FROM live
 UNION ALL
SELECT t.table_id, t.begin_snapshot, 'created_table', s.schema_name, t.table_name
  FROM {b}.ducklake_table t JOIN live s USING (schema_id) WHERE t.end_snapshot IS NULL
 UNION ALL
SELECT v.view_id, v.begin_snapshot, 'created_view', s.schema_name, v.view_name
  FROM {b}.ducklake_view v JOIN live s USING (schema_id) WHERE v.end_snapshot IS NULL
 UNION ALL
SELECT m.macro_id, m.begin_snapshot, 'created_scalar_macro', s.schema_name, m.macro_name
  FROM {b}.ducklake_macro m JOIN live s USING (schema_id) WHERE m.end_snapshot IS NULL
 ORDER BY 1, 2
""")


def read_shown(conn: psycopg.Connection, branch: str, fork_snapshot_id: int) -> Set[Version]:
    """Return the versions of objects that the branch has shown ever since its fork point."""
    return {version for version in _read_live(conn, branch) if version[1] <= fork_snapshot_id}


def list_arrivals(conn: psycopg.Connection, branch: str, shown: Set[Version]) -> list[Change]:
    """Return entries for the objects that the branch shows now and that are not among those it has shown ever since.

    An object that the branch had dropped or renamed is one of them: a name that was free, for however short, may be taken by then.
    """
    return [change for version, change in _read_live(conn, branch).items() if version not in shown]


def _read_live(conn: psycopg.Connection, branch: str) -> Mapping[Version, Change]:
    rows = conn.execute(SELECT_LIVE.format(b=sql.Identifier(branch), placeholder=NO_DATA_FILE)).fetchall()
    return {
        (object_id, begin): Change(kind, quote_names(*(part for part in (schema, name) if part is not None)))
        for object_id, begin, kind, schema, name in rows
    }
