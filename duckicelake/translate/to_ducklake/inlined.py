"""The Postgres table that DuckDB puts the rows of small inserts into, made anew whenever a table's columns change.

DuckDB takes the newest one that is registered and fills it by position, so it must always have the present columns. Where there is
none it makes one of a schema version that no table is noted to have, and after a later change takes its rows for those of the
columns that the table was made with.
Source: DuckLake 1.0, PostgresMetadataManager::GetColumnTypeInternal
"""

import re
from collections.abc import Mapping, Sequence

from duckicelake.lake.rows import ColumnRow
from duckicelake.lake.writing.rows import EndedColumn, NewColumn, NewInlinedTable, NewRow

POSTGRES_TYPES: Mapping[str, str] = {
    "boolean": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "uint8": "integer",
    "uint16": "integer",
    "uint32": "bigint",
    "float32": "real",
    "float64": "double precision",
    "time": "time",
    "timetz": "time with time zone",
    "interval": "interval",
    "uuid": "uuid",
    "varchar": "bytea",
    "json": "bytea",
    "blob": "bytea",
}
"""What Postgres has a type of its own for; DuckDB writes everything else as text."""

NEVER_INLINED = frozenset({"geometry", "variant", "time_ns"})
DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")
NAME_MAX_BYTES = 63


def to_inlined_table(table_id: int, columns: Sequence[ColumnRow], rows: Sequence[NewRow]) -> NewInlinedTable | None:
    """Return the table for the columns that there are after these rows; None where DuckDB never puts rows into one."""
    ended = {row.column_id for row in rows if isinstance(row, EndedColumn)}
    kept = [c for c in columns if c.end_snapshot is None and c.parent_column is None and c.column_id not in ended]
    fresh = [row for row in rows if isinstance(row, NewColumn) and row.parent_column is None]
    found: list[tuple[int, int, str, str]] = [(c.column_order, c.column_id, c.column_name, c.column_type.lower()) for c in (*kept, *fresh)]
    if any(kind in NEVER_INLINED or len(name.encode()) > NAME_MAX_BYTES for _, _, name, kind in found):
        return None
    return NewInlinedTable(table_id, tuple((name, find_postgres_type(kind)) for _, _, name, kind in sorted(found)))


def find_postgres_type(column_type: str) -> str:
    """Return the Postgres type that DuckDB keeps values of a DuckLake type in."""
    decimal = DECIMAL.fullmatch(column_type)
    return f"numeric({decimal[1]},{decimal[2]})" if decimal else POSTGRES_TYPES.get(column_type, "varchar")
