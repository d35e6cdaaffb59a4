"""Numbers and names of registered tables, from their metadata alone."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType
from duckicelake.lake.note_rows import FormerColumn
from duckicelake.translate.name_mapping import PROPERTY
from duckicelake.translate.to_ducklake.commits import check_partition, compute_first_row_id, compute_lake_snapshot_id, list_former_columns

NAMES = '[{"field-id":1,"names":["a","old"]},{"field-id":2,"names":["b"]}]'


def column(field_id: int, name: str, type_: str = "long") -> NestedField:
    """An optional column."""
    return NestedField(field_id, name, PrimitiveType(type_), False)


def metadata(*schemas: Schema, last_column_id: int = 2, **more: object) -> TableMetadata:
    """A table's metadata; the last schema is the current one."""
    shown = schemas or (Schema(0, (column(1, "a"), column(2, "b"))),)
    plain = TableMetadata(2, "", "s3://b/t", 0, 0, last_column_id, shown, shown[-1].schema_id, (UNPARTITIONED,), 0, 999)
    return replace(plain, **{"properties": {PROPERTY: NAMES}, **more})  # pyright: ignore


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        pytest.param("long", 5, "x", id="long"),
        pytest.param("string", "x", 5, id="string"),
        pytest.param("date", 20_000, "2024-10-04", id="date"),
        pytest.param("decimal(4, 2)", Decimal("1.50"), b"x", id="decimal"),
    ],
)
def test_partition_values_are_of_their_types(type_: str, good: object, bad: object) -> None:
    """What could not be shown again is refused before anything is written."""
    spec, schema = PartitionSpec(1, (PartitionField(2, 1000, "b", "identity"),)), Schema(0, (column(2, "b", type_),))
    check_partition("f", spec, schema, (good,))
    check_partition("f", spec, schema, (None,))
    with pytest.raises(BadRequest):
        check_partition("f", spec, schema, (bad,))


def test_columns_of_old_keep_their_ids() -> None:
    """With the last of their types, and nested ones as texts; where the last id is nowhere to be seen it is taken all the same."""
    nested = NestedField(3, "s", StructType((column(4, "x", "int"),)), False)
    first = Schema(0, (column(1, "a", "int"), column(2, "b"), nested))
    second = Schema(1, (column(1, "a", "long"), column(2, "b"), column(5, "t", "timestamp_ns")))
    lost = list_former_columns(7, metadata(first, second, Schema(2, (column(2, "b"),)), last_column_id=9))
    assert lost == [
        FormerColumn(7, 1, "a", "int64"),
        FormerColumn(7, 3, "s", "varchar"),
        FormerColumn(7, 4, "x", "int32"),
        FormerColumn(7, 5, "t", "timestamp_ns"),
        FormerColumn(7, 9, "lost_9", "varchar"),
    ]


@given(st.integers(0, 2**20), st.integers(0, 2**21), st.lists(st.integers(0, 2**62), max_size=5, unique=True))
def test_no_number_comes_twice(head: int, last: int, ids: list[int]) -> None:
    """The lake goes on above the sequence numbers and above every id that it could reach, or not at all."""
    snapshots = tuple(Snapshot(i, None, 0, 0, "", {}, None) for i in ids)
    found = metadata(snapshots=snapshots, last_sequence_number=last)
    try:
        at = compute_lake_snapshot_id(found, head, 2**20)
    except BadRequest:
        assert last > head + 2**20 or head + 2**20 in ids
        return
    assert head < at <= head + 2**20
    assert at >= last
    assert not [i for i in ids if at <= i <= head + 2**20]


@pytest.mark.parametrize(
    ("version", "told", "first"),
    [
        pytest.param(2, {}, 0, id="never in a lake"),
        pytest.param(2, {"ducklake.snapshot-id": "7"}, 8 * 2**32, id="in a lake before"),
        pytest.param(2, {"ducklake.snapshot-id": "x"}, 0, id="somebody's own word"),
        pytest.param(3, {"ducklake.snapshot-id": "7"}, 55, id="with row lineage"),
    ],
)
def test_row_ids_begin_above_those_in_the_files(version: int, told: dict[str, str], first: int) -> None:
    """Files of a table that was in a lake may carry ids; version 3 has its own count."""
    assert compute_first_row_id(metadata(format_version=version, properties=told, next_row_id=55)) == first


@pytest.mark.parametrize(
    "value", [pytest.param(float("nan"), id="nan"), pytest.param(float("-inf"), id="infinity"), pytest.param(0.5, id="half")]
)
def test_partitions_of_nan_and_infinity_are_registered(value: float) -> None:
    """JSON has no word for them, and Iceberg's partitions have."""
    schema = Schema(0, (column(1, "a", "double"),))
    check_partition("It", PartitionSpec(0, (PartitionField(1, 1000, "a", "identity"),)), schema, (value,))
