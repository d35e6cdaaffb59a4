"""Derived files as others read them: DuckDB, pyarrow and PyIceberg are the judges."""

import io
import math
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFileIO, pyarrow_to_schema
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record

from duckicelake.store.derived_files import DerivedFile, InlinedColumn, LeafStats, convert_rows, encode_inlined, split_by_snapshot
from tests.store.lake_rows import InlinedTable

WIDE = """
CREATE TABLE {t} (b BOOLEAN, i1 TINYINT, i2 SMALLINT, i4 INTEGER, i8 BIGINT, u1 UTINYINT, u2 USMALLINT, u4 UINTEGER, f FLOAT, d DOUBLE,
  n4 DECIMAL(4, 1), n9 DECIMAL(9, 2), n18 DECIMAL(18, 3), n38 DECIMAL(38, 4), s VARCHAR, j JSON, bl BLOB, u UUID, dt DATE, t TIME,
  ts TIMESTAMP, tss TIMESTAMP_S, tsm TIMESTAMP_MS, tsn TIMESTAMP_NS, tz TIMESTAMPTZ, h HUGEINT,
  l INTEGER[], m MAP(VARCHAR, UUID), st STRUCT(x INTEGER, y STRUCT(z VARCHAR)), ls STRUCT(q DECIMAL(4, 1))[]);
INSERT INTO {t} VALUES (true, 1, 2, 3, 4, 5, 6, 4000000000, 1.5, 2.5, 1.1, 2.2, 3.3, 4.4, 'text', '{"a": 1}', 'blob'::BLOB,
  '00000000-0000-0000-0000-000000000001', '2020-01-02', '12:34:56.789', '2020-01-02 03:04:05.6', '2020-01-02 03:04:05',
  '2020-01-02 03:04:05.678', '2020-01-02 03:04:05.678901', '2020-01-02 03:04:05+00', 12,
  [1, NULL], MAP {'k': '00000000-0000-0000-0000-000000000002'}, {'x': 1, 'y': {'z': 'deep'}}, [{'q': 1.5}, NULL])"""

# What a node of a Parquet schema is made of; the names of the root and of the two lineage columns differ.
LAYOUT = """
SELECT coalesce(field_id::VARCHAR, name), type, type_length, repetition_type, num_children, scale, precision
FROM parquet_schema(?) WHERE name NOT IN ('schema', 'duckdb_schema')"""


@pytest.fixture
def wide(table: InlinedTable, tmp_path: Path) -> str:
    """The derived file of a table with every type."""
    table.run(WIDE)
    [file] = table.read_files().values()
    path = tmp_path / "derived.parquet"
    path.write_bytes(file.content)
    return str(path)


def test_the_layout_is_that_of_duckdb_s_own_files(table: InlinedTable, wide: str) -> None:
    """A flush makes DuckDB write the same rows: same ids, nesting and physical types on every node.

    Only uint32 differs: DuckDB stores an unsigned INT32, which Iceberg's Java reader takes for negative numbers.
    """
    table.run("CALL ducklake_flush_inlined_data('lake', table_name => '{t}')")
    [theirs] = table.fetch("SELECT data_file FROM ducklake_list_files('lake', '{t}')")
    ours, duckdb_s = ({row[0]: row[1:] for row in table.duckdb.execute(LAYOUT, [path]).fetchall()} for path in (wide, theirs[0]))
    assert ours.keys() == duckdb_s.keys()
    assert {key: (ours[key][0], duckdb_s[key][0]) for key in ours if ours[key] != duckdb_s[key]} == {"8": ("INT64", "INT32")}
    assert read_by_duckdb(wide) == table.fetch("SELECT * REPLACE (epoch_us(tz) AS tz) FROM {t}")


def read_by_duckdb(path: str, *left_out: str) -> list[tuple[Any, ...]]:
    """A derived file's columns as DuckDB reads them, its lineage left out; instants as microseconds."""
    names = ", ".join(["_row_id", "_last_updated_sequence_number", *left_out])
    return duckdb.read_parquet(path).project(f"* EXCLUDE ({names}) REPLACE (epoch_us(tz) AS tz)").fetchall()


def test_pyiceberg_reads_a_derived_file(wide: str) -> None:
    """PyIceberg finds an id on every node and gets DuckDB's values through its own reader."""
    schema = pyarrow_to_schema(pq.read_schema(wide), downcast_ns_timestamp_to_us=True)
    schema = Schema(*(field for field in schema.fields if field.field_id < 2**30 and field.name != "tsn"))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///nowhere")
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=wide,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=Path(wide).stat().st_size,
    )
    data_file.spec_id = 0
    # PyIceberg numbers a new table's columns again; the file has ours.
    scan = ArrowScan(metadata.model_copy(update={"schemas": [schema]}), PyArrowFileIO(), schema, AlwaysTrue())
    rows = scan.to_table([FileScanTask(data_file)])
    rows = rows.set_column(rows.column_names.index("tz"), "tz", rows["tz"].cast(pa.int64()))
    [row] = rows.to_pylist()
    [expected] = read_by_duckdb(wide, "tsn")
    assert tuple((row | {"m": dict(row["m"])}).values()) == expected


C = InlinedColumn
COLUMNS = (
    C(1, "b", "boolean"),
    C(2, "f", "float64"),
    C(3, "s", "varchar"),
    C(4, "u", "uuid"),
    C(5, "d", "date"),
    C(6, "n", "decimal(9, 2)"),
    C(7, "st", "struct", (C(8, "x", "timestamp"), C(9, "l", "list", (C(10, "element", "int32"),)))),
    C(11, "m", "map", (C(12, "key", "varchar"), C(13, "value", "int32"))),
    C(14, "bl", "blob"),
    C(15, "ns", "timestamp_ns"),
)
NOTHING = (None,) * len(COLUMNS)
FIRST = (True, 1.5, b"b", UUID(int=2), "1970-01-02", Decimal("1.5"), "{'x': CAST('1970-01-01 00:00:00.000005' AS VARCHAR), 'l': [1]}")
FIRST_REST = ("{k=1}", b"\xff\x00", "1970-01-01 00:00:00.000000007")
SECOND = (False, math.nan, "ü".encode(), UUID(int=1), "5000-01-01 (BC)", Decimal("-2"), "{'x': NULL, 'l': NULL}", "{}", b"", "infinity")


def encode(*rows: tuple[object, ...]) -> DerivedFile:
    """One file of the rows, in columns of many types."""
    return encode_inlined(COLUMNS, convert_rows(COLUMNS, [(number, 7, *row) for number, row in enumerate(rows)]))


def test_statistics_are_exact() -> None:
    """Counts and bounds of every leaf that no list or map hides, in the values that bounds are made of."""
    file = encode(FIRST + FIRST_REST, SECOND, NOTHING)
    assert file.record_count == 3
    assert file.stats == {
        1: LeafStats(3, 1, None, False, True),
        2: LeafStats(3, 1, 1, 1.5, 1.5),
        3: LeafStats(3, 1, None, "b", "ü"),
        4: LeafStats(3, 1, None, UUID(int=1).bytes, UUID(int=2).bytes),
        5: LeafStats(3, 1, None, -2545375, 1),
        6: LeafStats(3, 1, None, Decimal("-2.00"), Decimal("1.50")),
        8: LeafStats(3, 2, None, 5, 5),
        14: LeafStats(3, 1, None, b"", b"\xff\x00"),
        15: LeafStats(3, 1, None, 7, 2**63 - 1),
    }


def test_statistics_of_nothing_bound_nothing() -> None:
    """A file of NULLs, or of NaN, has counts and no bounds."""
    assert encode(NOTHING).stats[3] == LeafStats(1, 1, None, None, None)
    column = InlinedColumn(1, "f", "float32")
    file = encode_inlined([column], convert_rows([column], [(0, 1, math.nan)]))
    assert file.stats == {1: LeafStats(1, 0, 1, None, None)}


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0,), (0.0,)])
def test_the_bounds_of_zero_are_outer_ones(zeros: tuple[float, ...]) -> None:
    """A reader that tells -0.0 from 0.0 finds both inside."""
    column = InlinedColumn(1, "f", "float64")
    stats = encode_inlined([column], convert_rows([column], [(row, 1, zero) for row, zero in enumerate(zeros)])).stats[1]
    assert (repr(stats.lower), repr(stats.upper)) == ("-0.0", "0.0")


def test_equal_rows_give_equal_bytes() -> None:
    """The order in which Postgres returns rows does not show."""
    rows = [(1, 7, *SECOND), (0, 7, *FIRST, *FIRST_REST), (2, 8, *NOTHING)]
    [first, again] = [encode_inlined(COLUMNS, convert_rows(COLUMNS, order)).content for order in (rows, rows[::-1])]
    assert first == again


def test_a_slice_is_a_file_of_its_own() -> None:
    """Rows of another snapshot show neither in the file nor in its statistics."""
    rows = [(0, 7, *FIRST, *FIRST_REST), (1, 8, *SECOND)]
    [(_, part), _] = split_by_snapshot(convert_rows(COLUMNS, rows))
    file = encode_inlined(COLUMNS, part)
    assert file == encode_inlined(COLUMNS, convert_rows(COLUMNS, rows[:1]))
    assert pq.read_table(io.BytesIO(file.content)).column("_row_id").to_pylist() == [0]


KEY = InlinedColumn(1, "k", "blob", length=2)
MAP = InlinedColumn(5, "m", "map", (InlinedColumn(6, "key", "varchar"), InlinedColumn(7, "value", "blob", length=1)))
PARTS = InlinedColumn(2, "l", "list", (InlinedColumn(3, "element", "struct", (InlinedColumn(4, "x", "blob", length=3),)),))


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        pytest.param([(b"ab", "[{'x': abc}, NULL, {'x': NULL}]", "{k=v, l=NULL}"), (None, None, None)], (2, 3, 1), id="as told"),
        pytest.param([(b"ab", "[]", "{}"), (b"a", "[]", None)], (-1, 3, 1), id="another length"),
        pytest.param([(b"ab", "[{'x': abc}, {'x': abcd}]", "{k=vv}")], (2, -1, -1), id="within lists and maps"),
    ],
)
def test_fixed_parts_have_their_length_unless_a_value_has_another(values: Any, lengths: tuple[int, ...]) -> None:
    """PyIceberg reads a `fixed` column by no other Parquet type; values and field ids stay what they are, and slices count alone."""
    columns = [KEY, PARTS, MAP]
    rows = [(row_id, 1, *value) for row_id, value in enumerate(values)]
    beside = (b"too long", "[{'x': too long}]", "{k=too long}")
    _, part, _ = (part for _, part in split_by_snapshot(convert_rows(columns, [(7, 0, *beside), *rows, (9, 2, *beside)])))
    file = encode_inlined(columns, part)
    read = pq.read_table(io.BytesIO(file.content))
    inner: Any = read.schema.field("l").type
    found = (read.schema.field("k").type, inner.value_type.field("x").type, read.schema.field("m").type.item_type)
    assert found == tuple(pa.binary(length) for length in lengths)
    fields = (inner.value_type.field("x"), read.schema.field("m").type.key_field, read.schema.field("m").type.item_field)
    assert [field.metadata[b"PARQUET:field_id"] for field in fields] == [b"4", b"6", b"7"]
    assert read.select(["k", "l", "m"]).to_pylist() == part.select(["k", "l", "m"]).to_pylist()
    assert file.stats.keys() == {1}


def test_many_nulls_of_a_great_length_take_no_room() -> None:
    """Whoever makes a table chooses the length."""
    column = InlinedColumn(1, "k", "blob", length=999_999_999)
    file = encode_inlined([column], convert_rows([column], [(row_id, 1, None) for row_id in range(100)]))
    assert len(file.content) < 10_000
