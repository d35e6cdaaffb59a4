"""Clients' data files as DuckLake's rows."""

import math
from typing import Any

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import encode_value
from duckicelake.iceberg.types import ListType, NestedField, PrimitiveType, StructType
from duckicelake.lake.writing.rows import AddedRows, NewColumnStats, NewDataFile, NewFileNote, RemovedTableBounds
from duckicelake.translate.to_ducklake.files import AddedFile, FirstIds, add_files, check_file

LONG, DOUBLE = PrimitiveType("long"), PrimitiveType("double")
SCHEMA = Schema(0, (NestedField(1, "i", LONG, False), NestedField(2, "d", DOUBLE, False)))
BY_FLOATING = PartitionSpec(1, (PartitionField(1, 1000, "i_bucket", "bucket[8]"), PartitionField(2, 1001, "d", "identity")))


def file(path: str = "s3://b/t/a.parquet", **more: Any) -> DataFile:
    """A data file of ten rows."""
    known: dict[str, Any] = {"content": 0, "file_format": "PARQUET", "partition": (), "record_count": 10, "file_size_in_bytes": 100}
    return DataFile(file_path=path, **known | more)


def stats(found: DataFile, schema: Schema = SCHEMA) -> dict[int, NewColumnStats]:
    """The statistics that are kept of a file, by column."""
    rows = add_files(7, [AddedFile(found, UNPARTITIONED)], schema, FirstIds(3, 0))
    return {row.column_id: row for row in rows if isinstance(row, NewColumnStats)}


def test_row_ids_follow_each_other() -> None:
    """In the order of the files, from where the table's own left off."""
    files = [AddedFile(file("a"), UNPARTITIONED), AddedFile(file("b", record_count=5), UNPARTITIONED)]
    rows = add_files(7, files, SCHEMA, FirstIds(3, 1000))
    assert [row for row in rows if isinstance(row, NewDataFile)] == [
        NewDataFile(3, 7, "a", 10, 100, 1000),
        NewDataFile(4, 7, "b", 5, 100, 1010),
    ]
    assert [row for row in rows if isinstance(row, AddedRows | RemovedTableBounds)] == [AddedRows(7, 15, 200), RemovedTableBounds(7)]


def test_counts_are_ducklakes() -> None:
    """It counts the values that are not null, Iceberg all of them."""
    found = stats(file(value_counts={1: 10}, null_value_counts={1: 4}, column_sizes={1: 33}))
    assert (found[1].value_count, found[1].null_count, found[1].column_size_bytes) == (6, 4, 33)
    assert 2 not in found


def test_rows_without_a_value_are_nulls_outside_of_lists_and_maps() -> None:
    """Iceberg 1.11 does not count those of floating-point fields whose struct is NULL."""
    inside = (NestedField(4, "f", DOUBLE, False), NestedField(5, "l", ListType(6, DOUBLE, False), False))
    schema = Schema(0, (NestedField(3, "s", StructType(inside), False),))
    found = stats(file(value_counts={4: 7, 6: 7}, null_value_counts={4: 1, 6: 1}), schema)
    assert (found[4].value_count, found[4].null_count) == (6, 4)
    assert (found[6].value_count, found[6].null_count) == (6, 1)


def test_null_counts_are_kept_without_value_counts() -> None:
    """A column of the table has a value in each row; of a field of a struct, 0 may leave out the rows whose struct is NULL."""
    inside = (NestedField(4, "a", LONG, False), NestedField(5, "b", LONG, False), NestedField(6, "l", ListType(7, LONG, False), False))
    schema = Schema(0, (*SCHEMA.fields, NestedField(3, "s", StructType(inside), False)))
    found = stats(file(null_value_counts={1: 0, 2: 4, 4: 0, 5: 3, 7: 0}), schema)
    assert {key: (row.value_count, row.null_count) for key, row in found.items()} == {1: (10, 0), 2: (6, 4), 5: (None, 3), 7: (None, 0)}


def test_bounds_are_kept_in_pairs() -> None:
    """Half of them, reversed ones and nonsense prove nothing."""
    low, high = encode_value(LONG, -5), encode_value(LONG, 7)
    both = stats(file(lower_bounds={1: low}, upper_bounds={1: high}))
    assert (both[1].min_value, both[1].max_value) == ("-5", "7")
    for lower, upper in (({1: low}, {}), ({1: high}, {1: low}), ({1: b"x"}, {1: high})):
        assert stats(file(lower_bounds=lower, upper_bounds=upper)) == {}


@pytest.mark.parametrize(("counts", "expected"), [(None, None), ({2: 0}, False), ({2: 3}, True)])
def test_nan_is_unknown_unless_counted(counts: dict[int, int] | None, expected: bool | None) -> None:
    """DuckDB trusts bounds of floats only where there is none."""
    found = stats(file(nan_value_counts=counts, value_counts={2: 10}, null_value_counts={2: 0}))
    assert found[2].contains_nan is expected


@pytest.mark.parametrize(
    ("spec", "partition", "counts", "expected"),
    [
        pytest.param(BY_FLOATING, (5, 0.9), None, False, id="a number"),
        pytest.param(BY_FLOATING, (5, 0.0), None, False, id="zero"),
        pytest.param(BY_FLOATING, (5, None), None, False, id="NULL"),
        pytest.param(BY_FLOATING, (5, math.nan), None, None, id="NaN"),
        pytest.param(BY_FLOATING, (5, 0.9), {2: 3}, True, id="NaN that is counted all the same"),
        pytest.param(PartitionSpec(1, (PartitionField(2, 1000, "f", "void"),)), (None,), None, None, id="void"),
        pytest.param(PartitionSpec(1, (PartitionField(1, 1000, "f", "identity"),)), (5,), None, None, id="another column"),
    ],
)
def test_a_partition_proves_that_there_is_no_nan(
    spec: PartitionSpec, partition: tuple[object, ...], counts: dict[int, int] | None, expected: bool | None
) -> None:
    """All of a file's values are that of its identity partition, so that bounds can be trusted though the writer counts no NaN."""
    taken = AddedFile(file(partition=partition, nan_value_counts=counts, value_counts={2: 10}, null_value_counts={2: 0}), spec)
    found = {row.column_id: row for row in add_files(7, [taken], SCHEMA, FirstIds(3, 0)) if isinstance(row, NewColumnStats)}
    assert found[2].contains_nan is expected


def test_counts_that_cannot_be_are_left_out() -> None:
    """More nulls than values, or negative ones."""
    assert stats(file(value_counts={1: 3}, null_value_counts={1: 4})) == {}
    assert stats(file(value_counts={1: -3}, null_value_counts={1: -4})) == {}
    assert stats(file(null_value_counts={1: 11})) == {}


def test_what_ducklake_has_no_column_for_is_noted() -> None:
    """Spec, partition values, sort order and split offsets."""
    spec = PartitionSpec(4, (PartitionField(1, 1000, "part", "bucket[8]"),))
    taken = AddedFile(file(partition=(5,), sort_order_id=2, split_offsets=(4, 900)), spec)
    notes = [row for row in add_files(7, [taken], SCHEMA, FirstIds(3, 0)) if isinstance(row, NewFileNote)]
    assert notes == [NewFileNote(7, 3, 4, "[5]", 2, "[4,900]")]


@pytest.mark.parametrize("more", [{"file_format": "AVRO"}, {"record_count": -1}, {"file_size_in_bytes": 0}])
def test_files_that_duckdb_cannot_read_are_refused(more: dict[str, Any]) -> None:
    """A size of 0 would end its whole process."""
    with pytest.raises(BadRequest):
        check_file(AddedFile(file(**more), UNPARTITIONED))
