"""Names of columns in files without field ids, and of folders that such files lie in."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.lake.note_rows import MappedName, NewMapping
from duckicelake.lake.writing.rows import NewColumnStats
from duckicelake.translate.name_mapping import PROPERTY, FileColumns, parse_name_mapping
from duckicelake.translate.to_ducklake.files import (
    NamedFile,
    PartitionOnlyColumn,
    add_mapping,
    build_partition_stats,
    find_names,
    list_folder_texts,
    list_partition_folders,
    list_partition_only,
    reads_value,
)

NAMES = '[{"field-id":1,"names":["a","old"]},{"field-id":2,"names":["b"]}]'
KNOWN = parse_name_mapping(NAMES)
SCHEMA = Schema(0, tuple(NestedField(number, name, PrimitiveType("long"), False) for number, name in enumerate("ab", 1)))
BY_B = PartitionSpec(1, (PartitionField(1, 1000, "a_bucket", "bucket[4]"), PartitionField(2, 1001, "b", "identity")))
TABLE = TableMetadata(2, "", "s3://b/t", 0, 0, 2, (SCHEMA,), 0, (UNPARTITIONED, BY_B), 0, 1001, properties={PROPERTY: NAMES})


def columns(**ids: int | None) -> FileColumns:
    """The columns of a file, with the field ids they carry."""
    return FileColumns({(name,): field_id for name, field_id in ids.items()}, {(name,): "int64" for name in ids})


def file(path: str, *partition: object) -> DataFile:
    """A file of three rows."""
    return DataFile(0, path, "PARQUET", partition, 3, 1)


def test_names_are_found_where_no_column_carries_an_id() -> None:
    """By any name that the mapping has; others are no columns of the table."""
    assert find_names("f", columns(old=None, b=None, c=None), TABLE, KNOWN) == NamedFile((("b", 2), ("old", 1)))
    assert find_names("f", columns(old=1, b=2), TABLE, KNOWN) is None


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(columns(a=1, b=None), id="some ids only"),
        pytest.param(columns(a=None, old=None), id="one column twice"),
        pytest.param(FileColumns({("a",): None, ("a", "x"): None}), id="nested"),
        pytest.param(FileColumns({("a",): None}, {("a",): "string"}), id="of another type"),
    ],
)
def test_files_that_readers_would_read_otherwise_are_refused(found: FileColumns) -> None:
    """Iceberg goes by ids where there is any, DuckLake by place where one is missing."""
    with pytest.raises(BadRequest):
        find_names("f", found, TABLE, KNOWN)


def test_partition_columns_may_be_in_names_of_folders() -> None:
    """Columns that the files have themselves are looked for nowhere else; DuckLake is told which is where."""
    named = find_names("f", columns(a=None), TABLE, KNOWN)
    assert list_partition_only("f", columns(a=None), TABLE, 0, named) == ()
    assert list_partition_only("f", columns(a=None, b=None), TABLE, 1, find_names("f", columns(a=None, b=None), TABLE, KNOWN)) == ()
    [untold] = list_partition_only("f", columns(a=None), TABLE, 1, named)
    assert (untold.position, untold.column.name) == (1, "b")
    assert list_partition_folders(file("s3://x/b=5/c=6/f", 2, 5), [untold], KNOWN) == (("b", 2),)
    assert add_mapping(7, 8, NamedFile((("a", 1),), (("b", 2),)), {1, 2}) == [
        NewMapping(8, 7),
        MappedName(8, 0, "a", 1),
        MappedName(8, 1, "b", 2, is_partition=True),
    ]
    with pytest.raises(BadRequest, match="carries field ids and has the column 'b'"):
        list_partition_only("f", columns(a=1), TABLE, 1, None)


@pytest.mark.parametrize(
    ("path", "partition"),
    [
        pytest.param("s3://x/f", (2, 5), id="no folder"),
        pytest.param("s3://x/b=5", (2, 5), id="the file's own name"),
        pytest.param("s3://x/b=6/f", (2, 5), id="another value"),
        pytest.param("s3://x/b=5/b=5/f", (2, 5), id="twice"),
        pytest.param("s3://x/b=5/f", (2,), id="no value"),
        pytest.param("s3://x/b=5/f", (2, None), id="null"),
    ],
)
def test_folders_that_say_something_else_are_refused(path: str, partition: tuple[object, ...]) -> None:
    """DuckDB would show it."""
    with pytest.raises(BadRequest, match=path):
        list_partition_folders(file(path, *partition), [PartitionOnlyColumn(1, SCHEMA.fields[1])], KNOWN)


def test_folders_are_told_by_both_kinds_of_slashes() -> None:
    """As DuckDB tells them: neither with several equals signs nor with what it takes for the end of a path."""
    found = list_folder_texts("s3://x/a=1\\b=2/c=x=y/d=a?b/e=/=v/f=%2F/g=1\n/h=1/h=1/i=1")
    assert found == {"a": "1", "b": "2", "e": "", "f": "%2F"}


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "a?b", "a/b"),
        ("string", "NULL", "NULL"),
        ("string", "%00", "\0"),
        ("string", "%FF", "\ufffd"),
        ("int", "1_000", 1000),
        ("int", "+1", 1),
        ("int", "", None),
        ("boolean", "1", True),
        ("boolean", "TRUE", True),
        ("decimal(6, 2)", "1.505", Decimal("1.51")),
        ("timestamp", "2026-03-01", 20_513 * 86_400_000_000),
        ("timestamptz", "2026-03-01 00:00:00", 20_513 * 86_400_000_000),
        ("double", "0.5", 0.5),
        ("float", "0.5", 0.5),
        ("uuid", "00000000-0000-0000-0000-000000000000", bytes(16)),
        ("binary", "a", b"a"),
    ],
)
def test_values_of_several_spellings_are_refused(type_: str, text: str, value: object) -> None:
    """What DuckDB makes of them hangs on its session, its version or the column's next type."""
    assert not reads_value(PrimitiveType(type_), text, value)


@given(st.one_of(st.integers(-(2**63), 2**63 - 1), st.booleans(), st.decimals(-9999, 9999, places=2), st.none()))
def test_plain_values_are_read(value: object) -> None:
    """By their plain texts; no other value is."""
    kinds = {bool: "boolean", int: "long", Decimal: "decimal(6, 2)", type(None): "long"}
    type_ = PrimitiveType(kinds[type(value)])
    text = "__HIVE_DEFAULT_PARTITION__" if value is None else str(value).lower()
    assert reads_value(type_, text, value)
    assert not reads_value(type_, text, "another")


@pytest.mark.parametrize(("value", "row"), [(5, (3, 0, "5", "5")), (None, (0, 3, None, None))])
def test_duckdb_is_told_the_values_of_folders(value: object, row: tuple[object, ...]) -> None:
    """So that it passes files over; what the manifest tells counts where it does."""
    untold = [PartitionOnlyColumn(1, SCHEMA.fields[1])]
    values, nulls, lower, upper = row
    assert build_partition_stats(7, 8, file("f", 2, value), untold) == [NewColumnStats(8, 7, 2, None, values, nulls, lower, upper, None)]  # pyright: ignore
    told = DataFile(0, "f", "PARQUET", (2, value), 3, 1, value_counts={2: 3})
    assert build_partition_stats(7, 8, told, untold) == []
