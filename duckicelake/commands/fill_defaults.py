"""`duckicelake fill-defaults`: write a column's default into the files that are older than the column; called by the command line.

Readers that know no defaults of format version 3 read NULL from those files. A DuckDB session of this process writes files and commits rows
to Postgres, with the lake's own keys, as DuckDB always does; else Postgres is only read here, with autocommit.
"""

from collections.abc import Sequence

import duckdb

from duckicelake.commands.branches import connecting
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb, quote, quote_name
from duckicelake.embedded.home import Home
from duckicelake.errors import BadRequest, CommitFailed, NoSuchTable
from duckicelake.lake.inspect import LateColumn, read_inlining, read_late_columns
from duckicelake.lake.read import find_table
from duckicelake.translate.namespaces import to_schema_name

SNAPSHOT_COLUMN = "snapshot_id"
"""DuckLake's virtual column of the lake snapshot that a row came with."""


def fill_defaults(lake: LakeSettings, home: Home, levels: Sequence[str]) -> str:
    """Write the defaults of a table's columns into the files that are older than them, and return a line to print.

    DuckDB updates every row of such a file, which ends the file: there is no delete file afterwards, and rows keep their ids. A file of
    which deleted rows are in Postgres would not end by that, so DuckDB writes those first, and keeps none there in this session.
    Raises: NoSuchTable. BadRequest: an option of the lake lets DuckDB keep deleted rows in Postgres.
    CommitFailed: DuckDB cannot write, perhaps because another session changed the rows meanwhile
    """
    schema_name, table_name = to_schema_name(tuple(levels[:-1])), levels[-1]
    with connecting(lake) as conn:
        table = find_table(conn, schema_name, table_name)
        if table is None:
            raise NoSuchTable(f"Table does not exist: {'.'.join(levels)}")
        late, inlining = read_late_columns(conn, table.table_id), read_inlining(conn, table.table_id)
    if not late:
        return f"every file of {'.'.join(levels)} has its columns' defaults"
    if inlining.row_limit:
        name = f"schema => {quote(table.schema_name)}, table_name => {quote(table.table_name)}"
        raise BadRequest(
            f"The option data_inlining_row_limit is set to {inlining.row_limit}: DuckDB would keep deleted rows of {'.'.join(levels)} in "
            f"Postgres, and the older files with them. CALL lake.set_option('data_inlining_row_limit', 0, {name}) first."
        )
    with connect_duckdb(home.make_folder("extensions")) as session:
        address = LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema)
        session.execute("SET ducklake_default_data_inlining_row_limit = 0")
        attach_lake(session, address, find_s3_keys(lake))
        try:
            for statement in format_flush(table.schema_name, table.table_name) if inlining.has_deletes else ():
                session.execute(statement)
            [count] = session.execute(format_update(table.schema_name, table.table_name, late)).fetchone() or (0,)
        except duckdb.Error as error:
            reason = str(error).replace(address.dsn, "…")
            raise CommitFailed(f"DuckDB did not write the defaults of {'.'.join(levels)}; no value is changed: {reason}") from None
    names = ", ".join(column.name for column in late)
    return f"{'.'.join(levels)}: wrote {names} into new files in place of {max(column.file_count for column in late)}, {count} rows"


def format_update(schema_name: str, table_name: str, late: Sequence[LateColumn]) -> str:
    """Return the UPDATE that leaves every value as it is. A column of the table may hide DuckLake's own; then all rows are written."""
    changed = ", ".join(f"{quote_name(column.name)} = {quote_name(column.name)}" for column in late)
    update = f"UPDATE lake.{quote_name(schema_name)}.{quote_name(table_name)} SET {changed}"  # noqa: S608  names are quoted
    is_hidden = late[0].hides_snapshots
    return update if is_hidden else f"{update} WHERE {SNAPSHOT_COLUMN} < {max(column.begin_snapshot for column in late)}"


def format_flush(schema_name: str, table_name: str) -> Sequence[str]:
    """Return the statements that write what DuckDB keeps of a table in Postgres. A flush that is retried may bring deleted rows back."""
    return (
        "SET ducklake_max_retry_count = 0",
        f"CALL ducklake_flush_inlined_data('lake', schema_name => {quote(schema_name)}, table_name => {quote(table_name)})",
        "RESET ducklake_max_retry_count",
    )
