"""What stock clients do with the types of format version 3 in DuckLake 1.0: the table in docs/compatibility.md, and how it is tried."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from duckdb import DuckDBPyConnection
from pyiceberg.schema import Schema
from pyiceberg.types import (
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    NestedField,
    TimestampNanoType,
    TimestamptzNanoType,
    UnknownType,
)

from duckicelake.pyiceberg_v3 import VariantType
from tests.support.readers import PyIcebergReader, SparkReader

CREATE, ADD, APPEND, READ = OPERATIONS = ("create", "add column", "append", "read")
ALL = frozenset(OPERATIONS)
NONE = frozenset[str]()
PYICEBERG, SPARK, EXTENSION, DUCKDB = CLIENTS = "PyIceberg with the shim", "Spark", "DuckDB's `iceberg`", "DuckDB"
TYPES = "timestamp_ns", "timestamptz_ns", "geometry", "geography", "unknown", "variant"
WORKS: Mapping[tuple[str, str], frozenset[str]] = {
    ("timestamp_ns", PYICEBERG): ALL,
    ("timestamp_ns", SPARK): NONE,
    ("timestamp_ns", EXTENSION): ALL,
    ("timestamp_ns", DUCKDB): ALL,
    ("geometry", PYICEBERG): frozenset({CREATE, ADD}),
    ("geometry", SPARK): ALL,
    ("geometry", EXTENSION): ALL,
    ("geometry", DUCKDB): ALL,
    ("variant", PYICEBERG): frozenset({CREATE, ADD, READ}),
    ("variant", SPARK): ALL,
    ("variant", EXTENSION): frozenset({CREATE, APPEND, READ}),
    ("variant", DUCKDB): ALL,
}
"""The operations that work, by type and client; none where there is no entry. DuckDB 1.5 has only the types in `SQL_TYPES`."""


def format_table() -> str:
    """The table in docs/compatibility.md."""
    rows = [["type", *CLIENTS], ["---"] * (len(CLIENTS) + 1)]
    for name in TYPES:
        works = [WORKS.get((name, client), NONE) for client in CLIENTS]
        cells = ["all" if found == ALL else ", ".join(each for each in OPERATIONS if each in found) or "–" for found in works]
        rows.append([f"`{name}`", *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


WKB = bytes.fromhex("0101000000000000000000F03F0000000000000040")
POINT = f"'{WKB.hex()}'"
NANOS = 1_500_000_000_123_456_789
SQL_TYPES = {"timestamp_ns": "TIMESTAMP_NS", "geometry": "GEOMETRY", "variant": "VARIANT"}
VALUES = {
    "timestamp_ns": "make_timestamp_ns(1500000000123456789)",
    "geometry": "'POINT (1 2)'::GEOMETRY",
    "variant": "{'a': 1}::VARIANT",
}
TEXTS = {"timestamp_ns": "2017-07-14 02:40:00.123456789", "geometry": "POINT (1 2)", "variant": "{'a': 1}"}


class Client(Protocol):
    """A client that tries each operation on a table of the namespace `main`, with the columns `i` and `v`."""

    def create(self, table: str, kind: str) -> None: ...

    def add(self, table: str, kind: str) -> None: ...

    def append(self, table: str, kind: str) -> None: ...

    def read(self, table: str, kind: str) -> list[object]:
        """The texts of `v`, by `i`."""
        ...


@dataclass(frozen=True, slots=True)
class ByPyIceberg:
    """PyIceberg, which must have the shim."""

    reader: PyIcebergReader
    types: Mapping[str, IcebergType] = field(
        default_factory=lambda: {
            "timestamp_ns": TimestampNanoType(),
            "timestamptz_ns": TimestamptzNanoType(),
            "geometry": GeometryType(),
            "geography": GeographyType(),
            "unknown": UnknownType(),
            "variant": VariantType(),
        }
    )

    def create(self, table: str, kind: str) -> None:
        fields = NestedField(1, "i", IntegerType(), required=False), NestedField(2, "v", self.types[kind], required=False)
        self.reader.catalog.create_table(("main", table), Schema(*fields), properties={"format-version": "3"})

    def add(self, table: str, kind: str) -> None:
        with self.reader.catalog.load_table(("main", table)).update_schema() as update:
            update.add_column("w", self.types[kind])

    def append(self, table: str, kind: str) -> None:
        values = pa.array([NANOS, None], pa.timestamp("ns")) if kind == "timestamp_ns" else pa.array([WKB, None], pa.binary())
        self.reader.catalog.load_table(("main", table)).append(pa.table({"i": pa.array([1, 2], pa.int32()), "v": values}))

    def read(self, table: str, kind: str) -> list[object]:
        rows = self.reader.read(("main", table)).sort_by("i")
        values = rows.column("v").to_pylist()
        if kind == "variant":
            values = [None if value is None else json.loads(value) for value in values]
        return [None if value is None else str(value) for value in values]


@dataclass(frozen=True, slots=True)
class BySql:
    """A DuckDB session, with the lake or the catalog attached under a name."""

    conn: DuckDBPyConnection
    catalog: str

    def create(self, table: str, kind: str) -> None:
        if kind not in SQL_TYPES:
            raise LookupError(f"DuckDB 1.5 has no type like {kind}")
        options = " WITH ('format-version' = '3')" if self.catalog == "ice" else ""
        self.conn.execute(f"CREATE TABLE {self.catalog}.main.{table} (i INTEGER, v {SQL_TYPES[kind]}){options}")

    def add(self, table: str, kind: str) -> None:
        self.conn.execute(f"ALTER TABLE {self.catalog}.main.{table} ADD COLUMN w {SQL_TYPES[kind]}")

    def append(self, table: str, kind: str) -> None:
        self.conn.execute(f"INSERT INTO {self.catalog}.main.{table} (i, v) VALUES (1, {VALUES[kind]}), (2, NULL)")

    def read(self, table: str, kind: str) -> list[object]:
        return [row[0] for row in self.conn.execute(f"SELECT v::VARCHAR FROM {self.catalog}.main.{table} ORDER BY i").fetchall()]


@dataclass(frozen=True, slots=True)
class BySpark:
    """Spark, where the setting for geometries must be on."""

    reader: SparkReader
    types: Mapping[str, tuple[str, str]] = field(
        default_factory=lambda: {
            "geometry": ("GEOMETRY(4326)", f"ST_SetSrid(ST_GeomFromWKB(X{POINT}), 4326)"),
            "geography": ("GEOGRAPHY(4326)", f"ST_GeogFromWKB(X{POINT})"),
            "variant": ("VARIANT", "parse_json('{\"a\":1}')"),
            "timestamp_ns": ("TIMESTAMP_NTZ_NANOS", "NULL"),
            "timestamptz_ns": ("TIMESTAMP_NANOS", "NULL"),
            "unknown": ("VOID", "NULL"),
        }
    )

    def _run(self, statement: str) -> pa.Table:
        return self.reader.spark.arrow(statement)

    def create(self, table: str, kind: str) -> None:
        name = self.reader.sql_name(("main", table))
        self._run(f"CREATE TABLE {name} (i INT, v {self.types[kind][0]}) TBLPROPERTIES ('format-version' = '3')")

    def add(self, table: str, kind: str) -> None:
        self._run(f"ALTER TABLE {self.reader.sql_name(('main', table))} ADD COLUMN w {self.types[kind][0]}")

    def append(self, table: str, kind: str) -> None:
        self._run(f"INSERT INTO {self.reader.sql_name(('main', table))} (i, v) VALUES (1, {self.types[kind][1]}), (2, NULL)")

    def read(self, table: str, kind: str) -> list[object]:
        shown = "hex(ST_AsBinary(v))" if kind == "geometry" else "CAST(v AS STRING)"
        rows = self._run(f"SELECT {shown} AS v FROM {self.reader.sql_name(('main', table))} ORDER BY i").column("v").to_pylist()
        same = {"geometry": WKB.hex().upper(), "variant": '{"a":1}'}
        return [TEXTS[kind] if value == same[kind] else value for value in rows]


Attempt = Callable[[str, str], object]


def list_working(client: Client, lake: DuckDBPyConnection, kind: str, name: str) -> frozenset[str]:
    """Return the operations that work with a type. What a client does not make is made by DuckDB, and DuckDB reads what clients write."""
    works: set[str] = set()
    if _try(client.create, f"{name}_own", kind):
        works.add(CREATE)
    if kind not in SQL_TYPES:
        return frozenset(works)
    made = BySql(lake, "lake")
    made.create(name, kind)
    # More rows than DuckDB inlines.
    lake.execute(f"INSERT INTO lake.main.{name} SELECT n, CASE WHEN n < 20 THEN {VALUES[kind]} END FROM range(10, 30) r(n)")
    if _try(client.append, name, kind):
        assert made.read(name, kind)[:2] == [TEXTS[kind], None]
        works.add(APPEND)
    found = _try(client.read, name, kind)
    if found:
        assert found == made.read(name, kind)
        works.add(READ)
    if _try(client.add, name, kind):
        works.add(ADD)
    return frozenset(works)


def _try(attempt: Attempt, name: str, kind: str) -> object:
    try:
        return attempt(name, kind) or True
    except Exception:  # noqa: BLE001 - each client has errors of its own, and all count as no
        return False
