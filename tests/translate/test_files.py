"""Data files with the statistics that readers prune by, proved against the rows in the files."""

import math

import numpy as np
import pytest
from pyiceberg.expressions import GreaterThan, LessThan
from pyiceberg.expressions.visitors import _StrictMetricsEvaluator  # pyright: ignore[reportPrivateUsage] -- its own delete asks it
from pyiceberg.manifest import DataFile as PyIcebergFile
from pyiceberg.schema import Schema as PyIcebergSchema
from pyiceberg.types import DoubleType, IntegerType
from pyiceberg.types import NestedField as PyIcebergField

from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema, list_leaf_fields
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.read_files import read_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, TableState
from duckicelake.translate.files import check_hive_columns, check_readable, find_lower, find_upper, to_data_file, to_position_deletes
from duckicelake.translate.partitions import Partitioning, PartitionKey, PublishedSpec
from duckicelake.translate.schemas import to_schemas
from tests.translate.support.room import Room, read_file, to_iceberg_values

VALUES: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false", "NULL"],
    "TINYINT": ["'-128'", "127", "NULL"],
    "USMALLINT": ["65535", "0"],
    "INTEGER": ["'-2147483648'", "2147483647", "NULL"],
    "BIGINT": ["'-9223372036854775808'", "9223372036854775807"],
    "FLOAT": ["0.1", "102264672", "'-0.0'", "'inf'", "NULL"],
    "DOUBLE": ["0.1", "0.0", "1e300", "'-inf'"],
    "DECIMAL(9, 2)": ["'-1.5'", "14.2", "NULL"],
    "DECIMAL(38, 10)": ["'-1e20'", "0.0000000001"],
    "VARCHAR": ["''", "'ü'", "'a long one that is cut somewhere'", "repeat('ü', 20)", "NULL"],
    "DATE": ["'0044-03-15 (BC)'", "'12000-01-01'", "NULL"],
    "TIME": ["'00:00:00'", "'23:59:59.999999'"],
    "TIMESTAMP": ["'1969-12-31 23:59:59.999'", "'0044-03-15 (BC) 10:00:00.5'", "NULL"],
    "TIMESTAMP_S": ["'1969-12-31 23:59:59'", "'2020-01-01'"],
    "TIMESTAMP_MS": ["'1969-12-31 23:59:59.999'", "'2020-01-01'"],
    "TIMESTAMPTZ": ["'2020-01-01 00:00:00+05:30'", "'0044-03-15 (BC) 10:00:00+00'", "NULL"],
}
UNBOUNDED_VALUES: dict[str, list[str]] = {
    "UUID": ["'550e8400-e29b-41d4-a716-446655440000'", "'150e8400-e29b-41d4-a716-446655440000'"],
    "BLOB": ["'\\xFF\\x00'", "'6230'"],
    "DATE": ["'infinity'", "'2020-01-01'"],
    "TIMESTAMP": ["'-infinity'", "'2020-01-01'"],
    "DOUBLE": ["NULL"],
    "VARCHAR": ["repeat(chr(1114111), 17)", "'a'"],
}


def describe(room: Room, column_type: str, values: list[str]) -> tuple[DataFile, PrimitiveType, list[object]]:
    """A file with one row per value: as Iceberg is told of it, and what is in its column."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k {column_type}, v INTEGER)")
    rows = ", ".join(f"(({value})::{column_type}, 1)" for value in values)
    room.run(f"INSERT INTO {name} SELECT k, v FROM (VALUES {rows}) x(k, v), range(11)")
    state = room.read(name)
    (row,) = room.files(state)
    return data_file(room, state, row), leaf_types(state)[1], to_iceberg_values(read_file(state, row)["k"])


def leaf_types(state: TableState) -> dict[int, PrimitiveType]:
    """The types of a table's leaves."""
    return dict(list_leaf_fields(to_schemas(state, 0).current))


def data_file(room: Room, state: TableState, row: DataFileRow) -> DataFile:
    """A file for a manifest."""
    stats = read_column_stats(room.postgres, state.table.table_id, [row.data_file_id])
    return to_data_file(row, "s3://b/f", (), stats, leaf_types(state))


@pytest.mark.parametrize("column_type", VALUES)
def test_bounds_hold_every_value(room: Room, column_type: str) -> None:
    """No reader that prunes by them loses a row; counts are those of the rows."""
    file, type_, values = describe(room, column_type, VALUES[column_type])
    known = [value for value in values if value is not None]
    assert file.lower_bounds is not None
    assert file.upper_bounds is not None
    lower, upper = decode_value(type_, file.lower_bounds[1]), decode_value(type_, file.upper_bounds[1])
    assert all(lower <= value <= upper for value in known)  # pyright: ignore
    assert lower == min(known) or type_.name == "string"  # pyright: ignore
    assert upper == max(known) or type_.name == "string"  # pyright: ignore
    assert file.value_counts == {1: len(values), 2: len(values)}
    assert file.null_value_counts == {1: len(values) - len(known), 2: 0}
    assert file.record_count == len(values)
    assert set(file.column_sizes or {}) == {1, 2}


@pytest.mark.parametrize("column_type", UNBOUNDED_VALUES)
def test_bounds_that_would_be_wrong_are_left_out(room: Room, column_type: str) -> None:
    """Infinities of dates, uuids, binaries, nothing but nulls, and strings no greater one can be made of."""
    file, _, _ = describe(room, column_type, UNBOUNDED_VALUES[column_type])
    assert set(file.lower_bounds or {}) == set(file.upper_bounds or {})
    assert 1 not in (file.upper_bounds or {})


def test_zeros_are_bounded_on_both_sides() -> None:
    """Iceberg orders -0.0 below 0.0, DuckDB's statistics may name either."""
    double = PrimitiveType("double")
    for zero in (0.0, -0.0):
        lower, upper = find_lower(double, zero), find_upper(double, zero)
        assert lower is not None
        assert upper is not None
        bounds = decode_value(double, lower), decode_value(double, upper)
        assert [math.copysign(1, value) for value in bounds] == [-1, 1]  # pyright: ignore


def test_nan_counts_are_told_only_when_there_is_none(room: Room) -> None:
    """DuckLake knows whether, not how many; a NaN is above all bounds, so a file with one has none."""
    assert describe(room, "DOUBLE", ["1.5"])[0].nan_value_counts == {1: 0}
    file, _, _ = describe(room, "DOUBLE", ["'nan'", "1.5"])
    assert file.nan_value_counts is None
    assert 1 not in (file.lower_bounds or {})
    assert 1 not in (file.upper_bounds or {})


def to_file(*stats: ColumnStatsRow, **types: str) -> DataFile:
    """A file of five rows whose statistics are these rows, for columns 1, 2, … of these types."""
    row = DataFileRow(1, 1, "f", True, 5, 100, 40, None, None, None, None, None)
    return to_data_file(row, "s3://b/f", (), stats, {place: PrimitiveType(name) for place, name in enumerate(types.values(), 1)})


def test_null_counts_are_told_without_value_counts() -> None:
    """Zeros on both sides count nothing, a zero alone does."""
    counts = ((None, 0), (None, 2), (3, 2), (0, 0), (3, None), (None, None))
    stats = [ColumnStatsRow(1, place, None, *both, None, None, None) for place, both in enumerate(counts, 1)]
    file = to_file(*stats, **{f"c{place}": "int" for place in range(len(counts))})
    assert file.null_value_counts == {1: 0, 2: 2, 3: 2}
    assert file.value_counts == {3: 5}


@pytest.mark.parametrize(
    ("kind", "nulls", "has_nan", "is_client_path"),
    [
        pytest.param("int", 0, None, True, id="no null"),
        pytest.param("int", 2, None, True, id="known nulls"),
        pytest.param("int", None, None, False, id="unknown nulls"),
        pytest.param("double", 0, False, True, id="no NaN"),
        pytest.param("double", 0, None, False, id="unknown NaN"),
        pytest.param("double", 0, True, False, id="NaN"),
        pytest.param("double", None, False, False, id="no NaN, unknown nulls"),
    ],
)
def test_bounds_are_told_only_beside_what_they_leave_out(kind: str, nulls: int | None, has_nan: bool | None, is_client_path: bool) -> None:
    """Readers that delete whole files by bounds take a count that is not told for none: see decision 062."""
    file = to_file(ColumnStatsRow(1, 1, None, None, nulls, "1", "2", has_nan), c=kind)
    assert (file.lower_bounds is not None, file.upper_bounds is not None) == (is_client_path, is_client_path)
    schema = PyIcebergSchema(PyIcebergField(1, "c", IntegerType() if kind == "int" else DoubleType(), required=False))
    told = {name: getattr(file, name) or {} for name in ("value_counts", "null_value_counts", "nan_value_counts")}
    known = PyIcebergFile.from_args(record_count=5, lower_bounds=file.lower_bounds or {}, upper_bounds=file.upper_bounds or {}, **told)
    is_whole = [_StrictMetricsEvaluator(schema, each).eval(known) for each in (LessThan("c", 9), GreaterThan("c", 0))]
    assert is_whole == [is_client_path and nulls == 0] * 2


def test_leaves_within_lists_structs_and_maps_have_counts(room: Room) -> None:
    """Each leaf by its own field id."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (s STRUCT(a INTEGER, b VARCHAR), l INTEGER[], m MAP(VARCHAR, INTEGER))")
    room.run(f"INSERT INTO {name} SELECT {{'a': range, 'b': NULL}}, [1, NULL], map {{'k': 7}} FROM range(20)")
    state = room.read(name)
    (row,) = room.files(state)
    file = data_file(room, state, row)
    assert file.value_counts == {2: 20, 3: 20, 5: 40, 7: 20, 8: 20}
    assert file.null_value_counts == {2: 0, 3: 20, 5: 20, 7: 0, 8: 0}
    assert set(file.lower_bounds or {}) == {2, 5, 7, 8}


def test_statistics_of_columns_nobody_knows_are_passed_over() -> None:
    """A column that is gone, and counts that are missing, are simply not told."""
    file = to_file(ColumnStatsRow(1, 9, 1, 1, 1, "1", "2", None), ColumnStatsRow(1, 1, None, None, None, "3", None, None), c="int")
    assert (file.value_counts, file.null_value_counts, file.lower_bounds, file.upper_bounds, file.nan_value_counts) == (None,) * 5
    assert file.column_sizes == {}
    assert file.first_row_id == 40


def test_equal_files_are_told_in_equal_bytes() -> None:
    """The order in which Postgres gives statistics does not matter."""
    row = DataFileRow(1, 1, "f", True, 5, 100, None, None, None, None, None, None)
    stats = [ColumnStatsRow(1, n, n, 5, 0, str(n), str(n), None) for n in (1, 2, 3)]
    types = {n: PrimitiveType("int") for n in (1, 2, 3)}
    files = [to_data_file(row, "s3://b/f", (), order, types) for order in (stats, stats[::-1])]
    assert [list(file.lower_bounds or {}) for file in files] == [[1, 2, 3]] * 2


def test_an_encrypted_file_is_refused_by_name() -> None:
    """No Iceberg reader can open it."""
    row = DataFileRow(1, 1, "main/t/x.parquet", True, 5, 100, 0, None, None, None, None, None)
    check_readable(row)
    with pytest.raises(Unsupported, match="main/t/x.parquet"):
        check_readable(row._replace(encryption_key="AAAA"))


def test_a_column_in_the_path_alone_needs_a_spec_that_says_it() -> None:
    """A spec that only Iceberg knows says it too, and gives no text of DuckLake's to name in a refusal."""
    own, later = (PublishedSpec(place, (1000 + place,), (PartitionKey(place, "identity", ()),)) for place in (1, 2))
    partitioning = Partitioning((own, later), {7: own}, 2, ())
    row = DataFileRow(1, 1, "day=1/x.parquet", True, 5, 100, 0, 7, None, None, None, ())
    check_hive_columns(row, frozenset({1}), own, partitioning, Schema(0, ()))
    with pytest.raises(Unsupported, match="not partitioned by them"):
        check_hive_columns(row, frozenset({1}), later, partitioning, Schema(0, ()))


def test_a_delete_file_names_its_one_data_file() -> None:
    """By equal, whole bounds of file_path, as readers of version 2 want it, under its partition; bounds of pos are the ends."""
    target = DataFile(0, "s3://b/a/very/long/path/to/some.parquet", "PARQUET", (7,), 5, 100)
    file = to_position_deletes("s3://b/d.parquet", 50, np.array([3, 300]), target)
    path = target.file_path.encode()
    assert (file.content, file.partition, file.record_count, file.referenced_data_file) == (1, (7,), 2, target.file_path)
    assert file.lower_bounds == {2147483546: path, 2147483545: (3).to_bytes(8, "little")}
    assert file.upper_bounds == {2147483546: path, 2147483545: (300).to_bytes(8, "little")}
