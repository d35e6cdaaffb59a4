"""Files taken in by `ducklake_add_data_files`: names instead of field ids."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.lake.rows import NameMappingRow
from duckicelake.translate.name_mapping import FileColumns, check_mapped_file, parse_name_mapping, to_name_mapping
from tests.translate.support.room import Room


def add(room: Room, name: str, path: Path, table: pa.Table, options: str = "") -> None:
    """Have DuckDB take a foreign file into a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    room.run(f"CALL ducklake_add_data_files('lake', '{name}', '{path}'{options})")


def test_names_of_foreign_files_lead_to_columns(room: Room, tmp_path: Path) -> None:
    """Every spelling and every level, as Iceberg's readers want it told."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i BIGINT, s STRUCT(a BIGINT, l BIGINT[]), m MAP(VARCHAR, BIGINT))")
    kinds = pa.schema(
        [
            ("I", pa.int64()),
            ("s", pa.struct([("A", pa.int64()), ("l", pa.list_(pa.int64()))])),
            ("m", pa.map_(pa.string(), pa.int64())),
        ]
    )
    add(room, name, tmp_path / "a.parquet", pa.table({"I": [1], "s": [{"A": 2, "l": [3]}], "m": [[("k", 4)]]}, schema=kinds))
    add(room, name, tmp_path / "b.parquet", pa.table({"i": pa.array([5])}), ", allow_missing => true")
    state = room.read(name)
    mapping = to_name_mapping(state.name_mappings, state.columns)
    told = mapping.format()
    assert told is not None
    assert json.loads(told) == [
        {"field-id": 1, "names": ["I", "i"]},
        {
            "field-id": 2,
            "names": ["s"],
            "fields": [
                {"field-id": 3, "names": ["A"]},
                {"field-id": 4, "names": ["l"], "fields": [{"field-id": 5, "names": ["element"]}]},
            ],
        },
        {"field-id": 6, "names": ["m"], "fields": [{"field-id": 7, "names": ["key"]}, {"field-id": 8, "names": ["value"]}]},
    ]


def test_a_table_without_foreign_files_maps_nothing(room: Room) -> None:
    """DuckLake's own files carry ids."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i BIGINT)", f"INSERT INTO {name} SELECT range FROM range(100)")
    state = room.read(name)
    assert to_name_mapping(state.name_mappings, state.columns).format() is None


def test_a_column_that_is_only_in_the_path_is_told_apart(room: Room, tmp_path: Path) -> None:
    """It has no name in the file; its value is a partition's."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i BIGINT, k BIGINT)", f"ALTER TABLE {name} SET PARTITIONED BY (k)")
    add(room, name, tmp_path / "k=7" / "a.parquet", pa.table({"i": [1]}), ", hive_partitioning => true")
    state = room.read(name)
    mapping = to_name_mapping(state.name_mappings, state.columns)
    assert list(mapping.hive_columns.values()) == [frozenset({2})]
    assert mapping.format() == '[{"field-id":1,"names":["i"]}]'
    (row,) = room.files(state)
    assert row.partition_values == ["7"]


def test_one_name_for_two_columns_is_refused(room: Room, tmp_path: Path) -> None:
    """Iceberg has one mapping for all files: after a rename the same name means another column."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i BIGINT, j BIGINT)")
    add(room, name, tmp_path / "a.parquet", pa.table({"i": [1], "j": [2]}))
    room.run(f"ALTER TABLE {name} RENAME COLUMN i TO x", f"ALTER TABLE {name} RENAME COLUMN j TO i")
    add(room, name, tmp_path / "b.parquet", pa.table({"x": [1], "i": [2]}))
    state = room.read(name)
    with pytest.raises(Unsupported, match=r"the name 'i' for two columns, 'x' \(int64\) of field id 1 and 'i' \(int64\) of field id 2"):
        to_name_mapping(state.name_mappings, state.columns)


OWN = [NameMappingRow(1, 1, "i", 1, None, False), NameMappingRow(1, 2, "j", 2, None, False)]


@pytest.mark.parametrize(
    ("columns", "is_fine"),
    [
        pytest.param({("i",): None, ("j",): None}, True, id="names"),
        pytest.param({("i",): 1, ("j",): 2}, True, id="the same ids"),
        pytest.param({("i",): None}, True, id="a column is missing"),
        pytest.param({("i",): 2, ("j",): 1}, False, id="ids the other way round"),
        pytest.param({("i",): 1, ("j",): None}, False, id="an id for one only"),
        pytest.param({("i",): None, ("extra",): None}, True, id="a column nobody maps"),
        pytest.param({("i",): 9, ("j",): 9}, False, id="ids of no column"),
        pytest.param({("I",): None}, True, id="a spelling nobody maps"),
    ],
)
def test_a_file_is_refused_when_readers_would_differ(columns: dict[tuple[str, ...], int | None], is_fine: bool) -> None:
    """Iceberg goes by the ids in the file when there are any, DuckLake by its own mapping."""
    mapping = to_name_mapping(OWN, [])
    mapping = type(mapping)(mapping.by_mapping, mapping.merged, mapping.hive_columns, frozenset({1, 2}))
    if is_fine:
        check_mapped_file("f", 1, FileColumns(columns), mapping)
    else:
        with pytest.raises(Unsupported, match="CREATE TABLE"):
            check_mapped_file("f", 1, FileColumns(columns), mapping)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("{", id="no JSON"),
        pytest.param('[{"names": ["a"], "field-id": 1e999}]', id="endless id"),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('[{"names": ["a"], "field-id": "one"}]', id="no number"),
    ],
)
def test_what_is_no_name_mapping_is_refused(text: str) -> None:
    """Clients may set the property to anything."""
    with pytest.raises(BadRequest, match="holds no name mapping"):
        parse_name_mapping(text)
