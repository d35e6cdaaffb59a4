"""Queries for DuckLake's rows that several modules share.

Modules of `catalog` and `lake` call them in their own transactions: read transactions, commits under the lake's lock, and those of staged
creates without it; a load's first look at its table is one statement without a transaction. `check` calls some of them in read
transactions, `fill-defaults` one on a connection with autocommit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeVar
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from duckicelake.errors import Damaged
from duckicelake.lake.changes import TABLE_KINDS, TOKENS_SINCE, format_tokens
from duckicelake.lake.lake_format import HAS_SCHEMA_NAME, NAMED_SCHEMA
from duckicelake.lake.rows import Position, SchemaRow, TableRow, TagRow

Row = TypeVar("Row")


def fetch_rows(conn: psycopg.Connection, kind: type[Row], query: LiteralString, **parameters: object) -> list[Row]:
    """Return the rows of a query as frozen dataclasses whose fields are named like its columns."""
    with conn.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(query, parameters).fetchall()


@dataclass(frozen=True, slots=True)
class QueryResults:
    """The rows of several queries that ran in one statement, by query. They come as JSON, so times and UUIDs are texts."""

    rows_by_query: Mapping[LiteralString, Sequence[dict[str, Any]]]

    def rows(self, kind: type[Row], query: LiteralString, **convert: Callable[[Any], object]) -> list[Row]:
        """Return the rows of a query as frozen dataclasses whose fields are named like its columns."""
        rows = self.rows_by_query[query]
        for column, read in convert.items():
            for row in rows:
                row[column] = read(row[column])
        return [kind(**row) for row in rows]

    def column(self, query: LiteralString) -> list[Any]:
        """Return the first column of a query."""
        return [next(iter(row.values())) for row in self.rows_by_query[query]]

    def value(self, query: LiteralString) -> Any:
        """Return the first column of a query's only row; None if it has no row."""
        return next(iter(self.column(query)), None)


def fetch_queries(conn: psycopg.Connection, queries: Sequence[LiteralString], **parameters: object) -> QueryResults:
    """Run queries in one statement, so that all of them see one state of the lake."""
    opening, closing = "(SELECT json_agg(q) FROM (", ") q)"
    subqueries = (closing + ", " + opening).join(queries)
    row = conn.execute("SELECT " + opening + subqueries + closing, parameters).fetchone()
    assert row is not None
    return QueryResults({query: rows or [] for query, rows in zip(queries, row, strict=True)})


SELECT_POSITION = """
SELECT max(snapshot_id) AS lake_snapshot_id, (SELECT coalesce(max(id), 0) FROM iceberg_change) AS change_id
  FROM ducklake_snapshot
"""


def read_position(conn: psycopg.Connection) -> Position:
    """Return the position of the lake that this transaction sees."""
    return fetch_rows(conn, Position, SELECT_POSITION)[0]


SELECT_REPAIR_ID = """
SELECT coalesce(max(id), 0) FROM iceberg_change WHERE kind = 'repair'
"""


SELECT_IS_TOUCHED = "".join(
    (
        """
SELECT EXISTS (""",
        TOKENS_SINCE.format(since="%(since)s::bigint", tokens="tokens"),
        """)
    OR (SELECT max(id) FROM iceberg_change WHERE table_id IS NULL) > %(change_id)s
    OR (SELECT max(id) FROM iceberg_change WHERE table_id = %(table_id)s) > %(change_id)s
    OR EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = %(table_id)s AND t.begin_snapshot > %(since)s)
    -- A lake snapshot without a row in snapshot_changes may have changed anything.
    OR (SELECT count(c.changes_made) FROM ducklake_snapshot_changes c
         WHERE c.snapshot_id > %(since)s AND c.snapshot_id <= %(until)s) < %(until)s - %(since)s
""",
    )
)


def is_touched(conn: psycopg.Connection, table_id: int, since: Position, until: Position) -> bool:
    """Return True if anything between two positions may concern a table."""
    if since.change_id > until.change_id or since.lake_snapshot_id > until.lake_snapshot_id:
        return True
    span = {"since": since.lake_snapshot_id, "until": until.lake_snapshot_id, "change_id": since.change_id}
    tokens = format_tokens(table_id, TABLE_KINDS)
    row = conn.execute(SELECT_IS_TOUCHED, {"table_id": table_id, "tokens": tokens, **span}).fetchone()
    return row is None or bool(row[0])


SELECT_DATA_PATH = """
SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL
"""

SELECT_ICEBERG_PATH = """
SELECT value FROM iceberg_setting WHERE key = 'iceberg_path'
"""


SELECT_RESTORED_MAX = """
SELECT value FROM iceberg_setting WHERE key = 'restored_max_bytes'
"""


def read_data_path(conn: psycopg.Connection) -> str:
    """Return DATA_PATH, with its trailing slash."""
    row = conn.execute(SELECT_DATA_PATH).fetchone()
    return row[0] if row else ""


def read_iceberg_path(conn: psycopg.Connection) -> str:
    """Return ICEBERG_PATH, with its trailing slash.

    Raises: Damaged: the lake has none
    """
    row = conn.execute(SELECT_ICEBERG_PATH).fetchone()
    return to_iceberg_path(row[0] if row else None)


def to_iceberg_path(path: str | None) -> str:
    """Return ICEBERG_PATH from the value that was read. Raises: Damaged: there is none"""
    if path is None:
        raise Damaged("The lake has no ICEBERG_PATH yet; run `duckicelake init`.")
    return path


SELECT_SCHEMAS = "".join(
    (
        """
SELECT l.schema_id, n.schema_name, names.schema_names, l.path, coalesce(l.path_is_relative, true) AS path_is_relative
  FROM ducklake_schema l
  """,
        NAMED_SCHEMA.format("l"),
        """
 -- A schema without a name cannot be addressed, and one in a dropped schema is not there.
 WHERE l.end_snapshot IS NULL AND l.schema_name <> '' AND n.schema_name IS NOT NULL
 -- DuckLake 1.0 has nested namespaces as one schema, which may be left beside a nested one of the same levels.
 ORDER BY n.schema_name, cardinality(names.schema_names) DESC
""",
    )
)


def read_schemas(conn: psycopg.Connection) -> list[SchemaRow]:
    """Return the live DuckLake schemas, ordered by name."""
    return fetch_rows(conn, SchemaRow, SELECT_SCHEMAS)


SELECT_SCHEMA = "".join(
    (
        """
SELECT l.schema_id, n.schema_name, names.schema_names, l.path, coalesce(l.path_is_relative, true) AS path_is_relative
  FROM ducklake_schema l
  """,
        NAMED_SCHEMA.format("l"),
        """
 WHERE l.end_snapshot IS NULL AND l.schema_name <> '' AND """,
        HAS_SCHEMA_NAME,
        """
 -- An exact spelling wins over a folded one, and a nested schema over one of DuckLake 1.0.
 ORDER BY n.schema_name = %(schema_name)s DESC, n.schema_name, cardinality(names.schema_names) DESC
 LIMIT 1
""",
    )
)


def find_schema_row(conn: psycopg.Connection, schema_name: str) -> SchemaRow | None:
    """Return the live schema of that name, in any case, or None."""
    rows = fetch_rows(conn, SchemaRow, SELECT_SCHEMA, schema_name=schema_name)
    return rows[0] if rows else None


SELECT_TAGS = """
SELECT key, value FROM ducklake_tag
 WHERE object_id = %(object_id)s AND end_snapshot IS NULL AND key IS NOT NULL
 -- The order in metadata files must not depend on the database's collation.
 ORDER BY key COLLATE "C"
"""


def read_tags(conn: psycopg.Connection, object_id: int) -> list[TagRow]:
    """Return the live tags of a table, view or schema."""
    return fetch_rows(conn, TagRow, SELECT_TAGS, object_id=object_id)


SELECT_TABLE_NAMES = """
SELECT t.table_name
  FROM ducklake_table t
 WHERE t.schema_id = %(schema_id)s AND t.end_snapshot IS NULL AND t.table_name <> ''
 ORDER BY t.table_name
"""


def read_table_names(conn: psycopg.Connection, schema_id: int) -> list[str]:
    """Return the names of a schema's live tables, in order."""
    return [row[0] for row in conn.execute(SELECT_TABLE_NAMES, {"schema_id": schema_id})]


SELECT_TABLE = "".join(
    (
        """
SELECT t.table_id, t.table_uuid, t.table_name, t.path, coalesce(t.path_is_relative, true) AS path_is_relative,
       n.schema_name, s.path AS schema_path, coalesce(s.path_is_relative, true) AS schema_path_is_relative
  FROM ducklake_table t """,
        NAMED_SCHEMA.format("t"),
        """
 -- DuckDB folds the case of ASCII letters in names; an exact spelling wins over a folded one.
 WHERE t.end_snapshot IS NULL
   AND lower(t.table_name COLLATE "C") = lower(%(table_name)s COLLATE "C")
   AND """,
        HAS_SCHEMA_NAME,
        """
 ORDER BY t.table_name = %(table_name)s DESC, n.schema_name = %(schema_name)s DESC,
          cardinality(names.schema_names) DESC, t.table_id
 LIMIT 1
""",
    )
)


def find_table(conn: psycopg.Connection, schema_name: str, table_name: str) -> TableRow | None:
    """Return the live table of that name, in any case, or None."""
    return _first(fetch_rows(conn, TableRow, SELECT_TABLE, schema_name=schema_name, table_name=table_name))


def _first(rows: Sequence[TableRow]) -> TableRow | None:
    return rows[0] if rows else None


@dataclass(frozen=True, slots=True)
class TableAtPosition:
    """A table, the position of the lake it was read at, and the newest repair."""

    table: TableRow | None
    position: Position
    repair_id: int


POSITION_QUERIES = (SELECT_TABLE, SELECT_POSITION, SELECT_REPAIR_ID)


def read_table_at_position(conn: psycopg.Connection, schema_name: str, table_name: str) -> TableAtPosition:
    """Return the live table of that name, in any case, with the position and repair that a cache checks."""
    return to_table_at_position(fetch_queries(conn, POSITION_QUERIES, schema_name=schema_name, table_name=table_name))


def to_table_at_position(results: QueryResults) -> TableAtPosition:
    """Return the same from the results of `POSITION_QUERIES`."""
    [position] = results.rows(Position, SELECT_POSITION)
    return TableAtPosition(_first(to_tables(results)), position, results.value(SELECT_REPAIR_ID))


def to_tables(results: QueryResults) -> list[TableRow]:
    """Return the tables in the results of `SELECT_TABLE`."""
    return results.rows(TableRow, SELECT_TABLE, table_uuid=lambda text: None if text is None else UUID(text))
