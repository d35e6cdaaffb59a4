"""Which names of a client's files DuckLake takes down."""

from dataclasses import replace
from typing import Any

import pytest

from duckicelake.catalog.incoming import column_names as module
from duckicelake.catalog.incoming.column_names import ColumnNames
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import UNPARTITIONED
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.lake.note_rows import MappedFile, MappedName, NewMapping
from duckicelake.translate.name_mapping import PROPERTY, FileColumns
from duckicelake.translate.to_ducklake.files import AddedFile, NamedFile
from duckicelake.translate.to_ducklake.tables import IdAllocator

SCHEMA = Schema(0, tuple(NestedField(number, name, PrimitiveType("long"), False) for number, name in enumerate("ab", 1)))
TABLE = TableMetadata(2, "", "s3://b/t", 0, 0, 2, (SCHEMA,), 0, (UNPARTITIONED,), 0, 999)


def columns(*names: str, field_id: int | None = None) -> FileColumns:
    """Columns of a file, with the same field id or none."""
    return FileColumns({(name,): field_id for name in names}, {(name,): "int64" for name in names})


def taken(path: str) -> AddedFile:
    """A file of one row."""
    return AddedFile(DataFile(0, path, "PARQUET", (), 1, 1), UNPARTITIONED)


def test_files_that_name_the_same_share_a_mapping() -> None:
    """With one that is there, too; files with field ids need none."""
    footers = {"x": columns("b", "a"), "y": columns("a", "b"), "z": columns("a", field_id=1), "w": columns("b")}
    names = ColumnNames(footers, {NamedFile((("b", 2),)): 7}, {("b",): 2})
    rows = names.map_files(5, {number: taken(path) for number, path in enumerate("xyzw", 20)}, TABLE, IdAllocator(0, 30))
    assert rows == [
        *(NewMapping(30, 5), MappedName(30, 0, "a", 1), MappedName(30, 1, "b", 2), MappedFile(20, 30)),
        *(MappedFile(21, 30), MappedFile(23, 7)),
    ]


@pytest.mark.parametrize("names", [pytest.param(("a", "x"), id="one"), pytest.param(("x",), id="all")])
def test_names_that_the_table_does_not_know_are_refused(names: tuple[str, ...]) -> None:
    """PyIceberg could not read such a file."""
    with pytest.raises(BadRequest, match="'x', a name that the table does not know"):
        ColumnNames({"f": columns(*names)}).map_files(5, {20: taken("f")}, TABLE, IdAllocator(0, 30))


def test_columns_that_many_files_share_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is done under the lake's lock."""
    looked: list[str] = []
    look = module.find_names

    def count(path: str, *args: Any) -> Any:
        looked.append(path)
        return look(path, *args)

    monkeypatch.setattr(module, "find_names", count)
    shared, other = columns("a", "b"), columns("a", "b", field_id=1)
    footers = {str(number): shared if number % 2 else other for number in range(10)}
    rows = ColumnNames(footers).map_files(5, {number: taken(str(number)) for number in range(10)}, TABLE, IdAllocator(0, 30))
    assert len(looked) == len({id(each) for each in footers.values()})
    assert rows[3:] == [MappedFile(number, 30) for number in range(1, 10, 2)]


def test_a_file_that_nobody_looked_into_is_no_file_of_a_table_with_names() -> None:
    """DuckLake had a row of it when footers were read, and has none under the lock: DuckDB would read it by place."""
    table = replace(TABLE, properties={PROPERTY: "[]"})
    with pytest.raises(CommitFailed, match="forgotten"):
        ColumnNames({}).map_files(5, {20: taken("f")}, table, IdAllocator(0, 30))
