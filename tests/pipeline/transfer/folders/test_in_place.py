"""What is said of files that stay where they are, from their footers and paths alone."""

from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from duckicelake.errors import CommitFailed, ServiceUnavailable, Unsupported
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import UNPARTITIONED, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType
from duckicelake.pipeline.common.rest import RestCatalog, TableIdent
from duckicelake.pipeline.common.storage import StoredFiles
from duckicelake.pipeline.transfer import parquet_folders
from duckicelake.pipeline.transfer.catalogs import TransferTable
from duckicelake.pipeline.transfer.copies import Store
from duckicelake.pipeline.transfer.parquet_folders import FolderFile, describe_files, format_file_uri, format_names, take_files

DISK = StoredFiles(LocalFileSystem())
TYPES = {"id": "long", "name": "string", "day": "date", "price": "decimal(6, 2)", "half": "double", "part": "int"}
SCHEMA = Schema(0, tuple(NestedField(number, name, PrimitiveType(kind), False) for number, (name, kind) in enumerate(TYPES.items(), 1)))
BY_PART = PartitionSpec(1, (PartitionField(6, 1000, "part", "identity"),))
TABLE = TableMetadata(2, "u", "s3://b/t", 0, 0, 6, (SCHEMA,), 0, (UNPARTITIONED, BY_PART), 1, 1000)
LONG_TEXT = "x" * 40
ROWS = pa.table(
    {
        "name": ["a", None, LONG_TEXT],
        "id": pa.array([3, 1, 2], pa.int64()),
        "day": [date(2026, 3, 1), date(1969, 12, 31), None],
        "price": pa.array([Decimal("1.50"), Decimal("-2.00"), None], pa.decimal128(6, 2)),
        "half": [0.5, float("nan"), None],
    }
)


def lay(folder: Path, rows: Any = ROWS, **how: Any) -> FolderFile:
    """A file of the table in its folder."""
    path = folder / "part=7" / "rows.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **how)
    return FolderFile(format_file_uri(str(folder), str(path)), path.stat().st_size)


@pytest.mark.parametrize("rows_a_group", [1, 3])
def test_footers_tell_what_manifests_say(tmp_path: Path, rows_a_group: int) -> None:
    """Rows, sizes, nulls and outer bounds over all row groups; nothing of floating-point numbers, which may be NaN."""
    lying = lay(tmp_path, row_group_size=rows_a_group)
    [file] = describe_files(DISK, [lying], TABLE)
    assert (file.file_path, file.partition, file.record_count, file.file_size_in_bytes) == (lying.uri, (7,), 3, lying.size_bytes)
    assert file.value_counts == dict.fromkeys(range(1, 6), 3)
    assert file.null_value_counts == {1: 0, 2: 1, 3: 1, 4: 1, 5: 1}
    assert sum((file.column_sizes or {}).values()) < file.file_size_in_bytes
    lows, highs = (
        {i: decode_value(PrimitiveType(list(TYPES.values())[i - 1]), said) for i, said in (found or {}).items()}
        for found in (
            file.lower_bounds,
            file.upper_bounds,
        )
    )
    assert lows == {1: 1, 2: "a", 3: -1, 4: Decimal("-2.00")}
    assert highs == {1: 3, 2: "x" * 15 + "y", 3: 20_513, 4: Decimal("1.50")}


def test_narrower_numbers_are_taken(tmp_path: Path) -> None:
    """As all readers read them: 32 bits in a column of 64."""
    [file] = describe_files(DISK, [lay(tmp_path, ROWS.set_column(1, "id", pa.array([3, 1, 2], pa.int32())))], TABLE)
    assert (file.lower_bounds or {})[1] == (1).to_bytes(8, "little")


def test_files_without_statistics_have_no_bounds(tmp_path: Path) -> None:
    """Nor counts of nulls."""
    [file] = describe_files(DISK, [lay(tmp_path, write_statistics=False)], TABLE)
    assert (file.null_value_counts, file.lower_bounds, file.upper_bounds) == ({}, {}, {})


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        pytest.param(ROWS.append_column("part", pa.array([7, 7, 7])), "has the column part, which names of folders have", id="both"),
        pytest.param(ROWS.append_column("Name", pa.array(["a", "b", "c"])), "has a column Name, which is spelled otherwise", id="case"),
        pytest.param(ROWS.set_column(1, "id", pa.array(["1", "2", "3"])), "holds string in the column 'id'", id="type"),
        pytest.param(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), "two columns are called 'id'", id="twice"),
    ],
)
def test_a_file_of_other_columns_is_refused(tmp_path: Path, rows: Any, told: str) -> None:
    """By its name, with what to do."""
    lying = lay(tmp_path, rows)
    with pytest.raises(Unsupported, match=f"{told}.*--mode copy"):
        describe_files(DISK, [lying], TABLE)


def test_files_that_are_not_what_was_listed_are_refused(tmp_path: Path) -> None:
    """Those that are being written, those that vanished, what is no Parquet, and more than a commit takes."""
    lying = lay(tmp_path)
    with pytest.raises(ServiceUnavailable, match="is being written"):
        describe_files(DISK, [replace(lying, size_bytes=1)], TABLE)
    with pytest.raises(ServiceUnavailable, match="cannot read"):
        describe_files(DISK, [FolderFile(lying.uri + "x", None)], TABLE)
    with pytest.raises(Unsupported, match="10001 files, more than the 10000"):
        describe_files(DISK, [lying] * (parquet_folders.MAX_FILES + 1), TABLE)
    Path(lying.uri.removeprefix("file://")).write_bytes(b"no Parquet at all")
    with pytest.raises(Unsupported, match="is no Parquet file"):
        describe_files(DISK, [FolderFile(lying.uri, None)], TABLE)


@pytest.mark.parametrize("folder", ["part=7/part=8", "part=7.0", "part=null", "part=%C3", "Part=7", "elsewhere"])
def test_folders_that_say_no_one_value_are_refused(tmp_path: Path, folder: str) -> None:
    """Whoever reads them."""
    place = tmp_path / folder
    place.mkdir(parents=True)
    pq.write_table(ROWS, place / "rows.parquet")
    with pytest.raises(Unsupported, match="part=.*--mode copy"):
        describe_files(DISK, [FolderFile(format_file_uri(str(tmp_path), f"{tmp_path}/{folder}/rows.parquet"), None)], TABLE)


def test_nested_columns_are_refused(tmp_path: Path) -> None:
    """Before any file is looked at."""
    nested = NestedField(7, "s", StructType((NestedField(8, "x", PrimitiveType("int"), False),)), False)
    table = replace(TABLE, schemas=(replace(SCHEMA, fields=(*SCHEMA.fields, nested)),))
    with pytest.raises(Unsupported, match="column s is nested"):
        describe_files(DISK, [FolderFile(f"file://{tmp_path}/none", None)], table)


def test_a_catalog_that_numbers_columns_otherwise_is_told(tmp_path: Path) -> None:
    """What was said of files by number would be of other columns; nothing is written then."""
    swapped = replace(SCHEMA, fields=tuple(replace(item, field_id=7 - item.field_id) for item in SCHEMA.fields))
    held = TransferTable(
        TableIdent(("ns",), "t"), replace(TABLE, location=str(tmp_path), schemas=(swapped,)), f"{tmp_path}/metadata/copy-0/x.json", {}
    )
    store = Store(RestCatalog("", ""), {}, lambda *_: False)
    with pytest.raises(CommitFailed, match="would make other columns of it"):
        take_files(store, held, TABLE, [], "it")
    assert list(tmp_path.iterdir()) == []


def test_names_are_said_to_all_readers() -> None:
    """Each column by its own."""
    fields = SCHEMA.fields[:2]
    assert format_names(replace(SCHEMA, fields=fields)) == '[{"field-id":1,"names":["id"]},{"field-id":2,"names":["name"]}]'
