"""A table for each DuckLake type, with its extremes at every depth, and what Iceberg clients are to show of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tests.interop.rich_lake import RichLake
from tests.support.readers import Ident

DECIMALS = {
    "DECIMAL(4, 1)": ("-999.9", "999.9"),
    "DECIMAL(9, 2)": ("-9999999.99", "9999999.99"),
    "DECIMAL(18, 4)": ("-99999999999999.9999", "0.0001"),
    "DECIMAL(38, 10)": ("-9999999999999999999999999999.9999999999", "0.0000000001"),
}
EXTREMES: dict[str, tuple[str, ...]] = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127"),
    "SMALLINT": ("-32768", "32767"),
    "INTEGER": ("-2147483648", "2147483647"),
    "BIGINT": ("-9223372036854775808", "9223372036854775807"),
    "UTINYINT": ("0", "255"),
    "USMALLINT": ("0", "65535"),
    "UINTEGER": ("0", "2147483647"),
    "HUGEINT": ("-9007199254740992", "85070591730234615865843651857942052864", "0"),
    "UHUGEINT": ("0", "170141183460469231731687303715884105728"),
    "FLOAT": ("'nan'", "'-inf'", "3.4028234663852886e38", "1e-45", "0.1"),
    "DOUBLE": ("'nan'", "'inf'", "-1.7976931348623157e308", "5e-324", "0.1"),
    "VARCHAR": ("''", "'it''s'", "'ü😀'", "'" + "x" * 40 + "'"),
    "JSON": ("""'{"a": [1, null]}'""", "'null'"),
    "BLOB": ("''::BLOB", r"'\x00\xFF''A'::BLOB"),
    "UUID": ("'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "DATE": ("'0001-01-01'", "'9999-12-31'", "'1969-12-31'"),
    "TIME": ("'00:00:00'", "'23:59:59.999999'"),
    "TIMETZ": ("'00:00:00+00'", "'23:59:59.999999+00'"),
    "TIMESTAMP": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'", "'1969-12-31 23:59:59.999999'"),
    "TIMESTAMP_S": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59'", "'1969-12-31 23:59:59'"),
    "TIMESTAMP_MS": ("'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999'", "'1969-12-31 23:59:59.999'"),
    "TIMESTAMP_NS": ("'1677-09-22 00:00:00'", "'2262-04-11 00:00:00.123456789'", "'1969-12-31 23:59:59.999999999'"),
    "TIMESTAMPTZ": ("'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'", "'1969-12-31 23:59:59.999999+00'"),
    "GEOMETRY": ("'POINT (1 2)'", "'LINESTRING (0 0, -1 1)'", "'POLYGON EMPTY'"),
} | DECIMALS
"""The values of each published type, without NULL."""

SHOWN = {
    "TINYINT": "INTEGER",
    "SMALLINT": "INTEGER",
    "UTINYINT": "INTEGER",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "HUGEINT": "DOUBLE",
    "UHUGEINT": "DOUBLE",
    "JSON": "VARCHAR",
    "TIMETZ": "TIME",
    "TIMESTAMP_S": "TIMESTAMP",
    "TIMESTAMP_MS": "TIMESTAMP",
}
"""The types that Iceberg clients show as another one, in DuckDB's words."""

COLUMNS = {
    "i": "INTEGER",
    "v": "{}",
    "l": "{}[]",
    "m": "MAP(VARCHAR, {})",
    "r": "STRUCT(a {})[]",
    "s": "STRUCT(a {}, l {}[])",
}
"""A column of each shape; DuckDB 1.5.5 does not read inlined root structs back, so `s` is NULL in inlined rows."""

UNREADABLE_INSIDE = ("JSON",)
"""DuckDB 1.5.5 ends with an internal error on reading or flushing inlined lists of these."""

FLAT = ("i", "v")
SCHEMAS = ("inlined", "flushed")
MANY = 12
"""More rows than DuckDB inlines."""


@dataclass(frozen=True, slots=True)
class TypeTable:
    """The table of a type in one of the schemas."""

    sql_type: str
    schema: str

    @property
    def ident(self) -> Ident:
        """Schema and name."""
        words = self.sql_type.lower().replace("(", " ").replace(")", "").replace(",", "").split()
        return self.schema, "_".join(("t", *words))

    @property
    def sql_name(self) -> str:
        """The table as DuckDB's SQL writes it."""
        return ".".join(self.ident)

    def statements(self) -> tuple[str, str, str]:
        """SQL that makes the table, gives it a file, and inlines rows."""
        columns = ", ".join(f"{name} {kind.format(self.sql_type, self.sql_type)}" for name, kind in COLUMNS.items())
        values = (*EXTREMES[self.sql_type], "NULL")
        drawn = f"([{', '.join(f'CAST({value} AS {self.sql_type})' for value in values)}])[1 + n % {len(values)}]"

        def fill(shapes: str, start: int, end: int) -> str:
            return f"INSERT INTO {self.sql_name} SELECT n, v, {shapes} FROM (SELECT n, {drawn} AS v FROM range({start}, {end}) t(n))"

        many, few = "[v, NULL], MAP {'k': v}, [{'a': v}], {'a': v, 'l': [v]}", "[v, NULL], MAP {'k': v}, [{'a': v}], NULL"
        if self.sql_type in UNREADABLE_INSIDE:
            few = "NULL, NULL, [], NULL"
        file, inlined = fill(many, 0, MANY), fill(few, MANY, MANY + len(values))
        return f"CREATE TABLE {self.sql_name} ({columns})", file, inlined

    def expect(self, lake: RichLake, names: tuple[str, ...] = tuple(COLUMNS), **changed: str) -> pa.Table:
        """What Iceberg clients are to show; `changed` names types that one client shows otherwise still."""
        shown = (SHOWN | changed).get(self.sql_type, self.sql_type)
        columns = ", ".join(f"CAST({name} AS {COLUMNS[name].format(shown, shown)}) AS {name}" for name in names)
        return lake.ask(f"SELECT {columns} FROM lake.{self.sql_name}")


def list_tables(*without: str) -> list[TypeTable]:
    """All tables, but for those of some types."""
    return [TypeTable(sql_type, schema) for schema in SCHEMAS for sql_type in EXTREMES if sql_type not in without]


def name_of(table: TypeTable) -> str:
    """The table in a test's name."""
    return ".".join(table.ident)


def list_statements() -> Iterator[str]:
    """SQL that makes all tables; each step is one transaction of DuckDB's."""
    yield from (f"CREATE SCHEMA {schema}" for schema in SCHEMAS)
    made, files, inlined = zip(*(table.statements() for table in list_tables()), strict=True)
    for step in (made, files, inlined):
        yield from ("BEGIN", *step, "COMMIT")
    yield "CALL ducklake_flush_inlined_data('lake', schema_name => 'flushed')"
