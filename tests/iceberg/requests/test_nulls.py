"""What a data file's own counts say of NULLs in required columns."""

from dataclasses import replace

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.requests.manifest_checks import RequiredColumns, build_required_columns, check_required_columns
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import ListType, NestedField, PrimitiveType, StructType
from tests.iceberg.support.updates import table

INT = PrimitiveType("int")
SCHEMA = Schema(
    0,
    (
        NestedField(1, "a", INT, True),
        NestedField(2, "s", StructType((NestedField(3, "x", INT, True), NestedField(4, "y", INT, False))), True),
        NestedField(5, "o", StructType((NestedField(6, "z", INT, True),)), False),
        NestedField(7, "l", ListType(8, INT, True), True),
        NestedField(9, "d", INT, True, None, 5, 5),
    ),
)
EVERY = (1, 3, 4, 6, 8, 9)


def make_file(nulls: dict[int, int] | None = None, known: tuple[int, ...] = EVERY) -> DataFile:
    """A file of three rows with these counts of NULLs, 0 for others, that says nothing of columns that are not known."""
    counts = dict.fromkeys(known, 3)
    file = DataFile(0, "s3://b/t/data/f.parquet", "PARQUET", (), 3, 100, value_counts=counts)
    return replace(file, null_value_counts={i: (nulls or {}).get(i, 0) for i in known}, column_sizes=counts)


def make_rules(**properties: str) -> RequiredColumns:
    """The rules of a table with these properties."""
    return build_required_columns(replace(table(), schemas=(SCHEMA,), current_schema_id=0, properties=properties))


@pytest.mark.parametrize(
    ("file", "column"),
    [
        pytest.param(make_file({1: 1}), "has 1 NULLs in column 'a'", id="null"),
        pytest.param(make_file({3: 2}), "has 2 NULLs in column 's.x'", id="null-in-a-required-struct"),
        pytest.param(make_file(known=(3, 4)), "lacks column 'a'", id="lacks"),
    ],
)
def test_a_file_that_says_that_it_holds_nulls_is_refused(file: DataFile, column: str) -> None:
    """The refusal names file and column."""
    with pytest.raises(BadRequest, match=column) as refusal:
        check_required_columns(file, 0, make_rules())
    assert "f.parquet" in str(refusal.value)


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(make_file(), id="no-nulls"),
        pytest.param(make_file({4: 3, 6: 3, 8: 1}), id="nulls-that-may-be-of-what-the-leaf-is-part-of"),
        pytest.param(replace(make_file({1: 1}), record_count=0), id="no-rows"),
        pytest.param(make_file(known=(1, 3)), id="lacks-a-column-with-a-default"),
        pytest.param(DataFile(0, "f", "PARQUET", (), 3, 100), id="counts-nothing"),
    ],
)
def test_a_file_that_does_not_say_so_is_taken(file: DataFile) -> None:
    """Counts that are missing, or count more than this column, prove nothing against a file."""
    check_required_columns(file, 0, make_rules())


@pytest.mark.parametrize(
    "properties",
    [
        pytest.param({"write.metadata.metrics.default": "None"}, id="default"),
        pytest.param({"write.metadata.metrics.column.a": "none"}, id="column"),
        pytest.param({"write.metadata.metrics.max-inferred-column-defaults": "1"}, id="inferred"),
    ],
)
def test_metrics_that_are_off_are_no_missing_columns(properties: dict[str, str]) -> None:
    """Writers note nothing of such columns; a NULL that they count is refused all the same."""
    check_required_columns(make_file(known=(3, 4)), 0, make_rules(**properties))
    with pytest.raises(BadRequest):
        check_required_columns(make_file({1: 1}), 0, make_rules(**properties))


def test_a_partition_value_stands_in_for_a_column() -> None:
    """Files that Hive wrote lack the columns that they are partitioned by."""
    spec = PartitionSpec(0, (PartitionField(1, 1000, "a", "identity"),))
    check_required_columns(make_file(known=(3, 4)), 0, replace(make_rules(), specs={0: spec}))
