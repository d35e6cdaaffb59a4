"""`duckicelake fill-defaults`: write a column's default into the files that are older than the column; called by the command line.

Readers that know no defaults of format version 3 read NULL from those files.
"""

from collections.abc import Sequence

import duckdb

from duckicelake.commands.branches import connecting
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import Home
from duckicelake.errors import CommitFailed, NoSuchTable
from duckicelake.lake.inspect import LateColumn, read_late_columns
from duckicelake.lake.read import find_table
from duckicelake.translate.namespaces import to_schema_name

SNAPSHOT_COLUMN = "snapshot_id"
"""DuckLake's virtual column of the lake snapshot that a row came with."""


def fill_defaults(lake: LakeSettings, home: Home, levels: Sequence[str]) -> str:
    """Write the defaults of a table's columns into the files that are older than them, and return a line to print.

    DuckDB updates every row of such a file, which ends the file: there is no delete file afterwards, and rows keep their ids.
    Raises: NoSuchTable. CommitFailed: DuckDB cannot write, perhaps because another session changed the rows meanwhile
    """
    schema_name, table_name = to_schema_name(tuple(levels[:-1])), levels[-1]
    with connecting(lake) as conn:
        table = find_table(conn, schema_name, table_name)
        if table is None:
            raise NoSuchTable(f"Table does not exist: {'.'.join(levels)}")
        late = read_late_columns(conn, table.table_id)
    if not late:
        return f"every file of {'.'.join(levels)} has its columns' defaults"
    with connect_duckdb(home.make_folder("extensions")) as session:
        attach_lake(session, LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema), find_s3_keys(lake))
        try:
            [count] = session.execute(format_update(table.schema_name, table.table_name, late)).fetchone() or (0,)
        except duckdb.Error as error:
            raise CommitFailed(f"DuckDB did not write the defaults of {'.'.join(levels)}; nothing is changed: {error}") from error
    names = ", ".join(column.name for column in late)
    return f"{'.'.join(levels)}: wrote {names} into new files in place of {max(column.file_count for column in late)}, {count} rows"


def format_update(schema_name: str, table_name: str, late: Sequence[LateColumn]) -> str:
    """Return the UPDATE that leaves every value as it is. A column of the table may hide DuckLake's own; then all rows are written."""
    changed = ", ".join(f"{quote_name(column.name)} = {quote_name(column.name)}" for column in late)
    update = f"UPDATE lake.{quote_name(schema_name)}.{quote_name(table_name)} SET {changed}"  # noqa: S608  names are quoted
    is_hidden = late[0].hides_snapshots
    return update if is_hidden else f"{update} WHERE {SNAPSHOT_COLUMN} < {max(column.begin_snapshot for column in late)}"


def quote_name(name: str) -> str:
    """Return a name as a SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
