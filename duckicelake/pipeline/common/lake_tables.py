"""The live tables of the lake by DuckLake's rows, and whether this account may write to them.

The jobs `maintain`, `profile` and `publish` choose their tables here, in the driver. Tables are read from Postgres on the caller's
connection; only `explain_hidden_table` opens one. `check_may_write` and `may_write` send a commit without changes over REST.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row

from duckicelake.errors import BadRequest, CommitFailed, Forbidden, NoSuchTable, Unsupported
from duckicelake.iceberg.requests.bodies import check_name
from duckicelake.lake.lake_format import NAMED_SCHEMA
from duckicelake.pipeline.common.failures import FAILURES, explain_failure
from duckicelake.pipeline.common.http_client import ANONYMOUS
from duckicelake.pipeline.common.rest import Rest, TableIdent
from duckicelake.pipeline.common.staging import format_identifier
from duckicelake.translate.namespaces import to_levels

SELECT_TABLES = "".join(
    (
        """
SELECT t.table_id, n.schema_name, t.table_name
  FROM ducklake_table t """,
        NAMED_SCHEMA.format("t"),
        """
 WHERE t.end_snapshot IS NULL AND n.schema_name IS NOT NULL
 ORDER BY n.schema_name, t.table_name
""",
    )
)


@dataclass(frozen=True, slots=True)
class TableName:
    """A live table."""

    table_id: int
    schema_name: str
    table_name: str

    @property
    def ident(self) -> TableIdent:
        return TableIdent(tuple(to_levels(self.schema_name)), self.table_name)


def list_live_tables(conn: psycopg.Connection) -> list[TableName]:
    """Return every live table of the lake."""
    with conn.cursor(row_factory=class_row(TableName)) as cursor:
        return cursor.execute(SELECT_TABLES).fetchall()


def choose_tables(live: Sequence[TableName], asked: Sequence[TableIdent]) -> list[TableName]:
    """Return those that were asked for, in any case, or all. Raises: NoSuchTable: one of them is not there"""
    folded: dict[TableIdent, list[TableName]] = {}
    for name in live:
        folded.setdefault(name.ident.folded, []).append(name)
    chosen = {_choose_table(folded.get(ident.folded, ()), ident) for ident in asked}
    return [name for name in live if not asked or name in chosen]


def _choose_table(same: Sequence[TableName], ident: TableIdent) -> TableName:
    """Return one of those whose names differ by case alone, as the catalog chooses."""
    if not same:
        raise NoSuchTable(f"There is no table {ident}")
    return min(same, key=lambda name: (name.table_name != ident.name, name.ident.namespace != ident.namespace, name.table_id))


def check_askable(name: TableName) -> None:
    """Raises: Unsupported: DuckDB made it, and no request can have such a name."""
    try:
        for level in (*name.ident.namespace, name.table_name):
            check_name(level, "name")
    except BadRequest as error:
        raise Unsupported(f"{error.message} Rename it with DuckDB.") from error


def explain_hidden(conn: psycopg.Connection, name: TableName, said: str) -> str:
    """Return what is to be said of a table that the catalog does not have; "" when the lake has it no longer either."""
    is_live = name in list_live_tables(conn)
    return f"{said}; the lake has it, so perhaps the catalog does not show it to this account" if is_live else ""


def explain_hidden_table(open_postgres: Callable[[], psycopg.Connection], connect: Callable[[], Rest], name: TableName, said: str) -> str:
    """Return the same, asked on a connection of its own, or why Postgres cannot be asked."""
    try:
        with closing(open_postgres()) as conn:
            return explain_hidden(conn, name, said)
    except FAILURES as error:
        return explain_failure(error, connect)


def check_may_write(rest: Rest, ident: TableIdent) -> None:
    """Have the catalog look at an account's rights before something is done that needs them, by a commit of nothing.

    Raises: Forbidden, NoSuchTable: what it says
    """
    if rest.caller is not ANONYMOUS:
        rest.change([{"identifier": format_identifier(ident), "requirements": [], "updates": []}])


def may_write(rest: Rest, ident: TableIdent) -> bool:
    """Return False if the catalog says that the account may not write to a table; it says nothing of tables that it cannot show."""
    try:
        check_may_write(rest, ident)
    except (Forbidden, NoSuchTable):
        return False
    except (BadRequest, Unsupported, CommitFailed):
        return True
    return True
