"""Partition tuples of real DuckLake files: Iceberg's transform of every row in them, or no claim."""

import struct
from dataclasses import dataclass

import pytest

from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.transforms import apply_transform
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType
from duckicelake.lake.lake_format import V1_0, V1_1, LakeFormat
from duckicelake.translate.files import choose_spec
from duckicelake.translate.partitions import Partitioning, PublishedSpec, to_partition_keys, to_partitioning, to_spec
from duckicelake.translate.schemas import to_schemas
from tests.translate.support.room import Room, read_file, to_iceberg_values

NO_INLINING = "CALL lake.set_option('data_inlining_row_limit', '0', table_name => '{name}')"


@dataclass(frozen=True, slots=True)
class Placed:
    """What became of a table's files: the transforms claimed and the partition tuple, one a file."""

    transforms: list[tuple[str, ...]]
    tuples: list[tuple[object, ...]]
    partitioning: Partitioning
    default: tuple[str, ...]


def place(room: Room, name: str) -> Placed:
    """The partitions a table's files are published under; every one is proved row by row."""
    state = room.read(name)
    schemas = to_schemas(state, min((span.begin_snapshot for span in state.spans), default=0))
    partitioning = to_partitioning(state.partitions, schemas.current, state.notes.specs)
    transforms: list[tuple[str, ...]] = []
    tuples: list[tuple[object, ...]] = []
    for row in room.files(state):
        schema = schemas.at(row.begin_snapshot)
        spec, partition = choose_spec(row, partitioning, schema)
        assert len(partition) == len(spec.keys)
        rows = read_file(state, row)
        for key, claimed in zip(spec.keys, partition, strict=True):
            source = find_field(schema, key.source_id)
            assert source is not None
            assert isinstance(source.type, PrimitiveType)
            type_ = source.type
            real = [apply_transform(key.transform, type_, value) for value in to_iceberg_values(rows[source.name])]
            assert [bits(type_, value) for value in real] == [bits(type_, claimed)] * len(real), f"{key.transform} of {type_}"
        transforms.append(tuple(key.transform for key in spec.keys))
        tuples.append(partition)
    current = next(spec for spec in partitioning.specs if spec.spec_id == partitioning.default_spec_id)
    assert to_spec(current, schemas.current).spec_id == current.spec_id
    return Placed(transforms, tuples, partitioning, tuple(key.transform for key in current.keys))


def bits(type_: PrimitiveType, value: object) -> object:
    """What tells a value from all others: the zeros of floating numbers are two."""
    if isinstance(value, float):
        return struct.pack("<f" if type_.name == "float" else "<d", value)
    return value


def fill(room: Room, column_type: str, clause: str, values: list[str]) -> str:
    """A table partitioned so, with one row per value."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k {column_type}, v INTEGER)", NO_INLINING.format(name=name))
    room.run(f"ALTER TABLE {name} SET PARTITIONED BY ({clause})")
    rows = ", ".join(f"({value}::{column_type}, 1)" for value in values)
    room.run(f"INSERT INTO {name} VALUES {rows}")
    return name


TEXT_UUID = "'550e8400-e29b-41d4-a716-446655440000'"
STAMPS = ["'1969-12-31 23:59:59.999'", "'1970-01-01'", "'2020-02-29 10:11:12.5'", "'0044-03-15 (BC) 10:00:00'", "'12000-01-01'"]
DAYS = ["'1969-12-31'", "'1970-01-01'", "'2020-02-29'", "'0044-03-15 (BC)'", "'12000-01-01'"]


@pytest.mark.parametrize(
    ("column_type", "values"),
    [
        pytest.param("BOOLEAN", ["true", "false", "NULL"], id="boolean"),
        pytest.param("TINYINT", ["'-128'", "127", "NULL"], id="tinyint"),
        pytest.param("USMALLINT", ["65535", "0"], id="usmallint"),
        pytest.param("INTEGER", ["'-5'", "5", "NULL"], id="integer"),
        pytest.param("BIGINT", ["'-9223372036854775808'", "1"], id="bigint"),
        pytest.param("FLOAT", ["0.1", "102264672", "NULL"], id="float"),
        pytest.param("DOUBLE", ["0.1", "1e300", "NULL"], id="double"),
        pytest.param("DECIMAL(9, 2)", ["-1.5", "14.2", "NULL"], id="decimal"),
        pytest.param("DECIMAL(38, 10)", ["1e20", "0.0000000001"], id="wide decimal"),
        pytest.param("VARCHAR", ["''", "'NULL'", "NULL", "'a/b=%c'", "'é'", "'__HIVE_DEFAULT_PARTITION__'"], id="varchar"),
        pytest.param("JSON", ["'{\"a\": 1}'", "NULL"], id="json"),
        pytest.param("BLOB", ["'\\x5Cx41'", "'\\x00\\x01'", "''", "'\\xC3\\xA9'", "NULL"], id="blob"),
        pytest.param("UUID", [TEXT_UUID, "NULL"], id="uuid"),
        pytest.param("DATE", [*DAYS, "NULL"], id="date"),
        pytest.param("TIME", ["'01:02:03.4'", "'23:59:59.999999'", "NULL"], id="time"),
        pytest.param("TIMESTAMP", [*STAMPS, "NULL"], id="timestamp"),
        pytest.param("TIMESTAMP_S", ["'1969-12-31 23:59:59'", "NULL"], id="seconds"),
        pytest.param("TIMESTAMP_MS", ["'1969-12-31 23:59:59.999'", "NULL"], id="milliseconds"),
        pytest.param("TIMESTAMPTZ", ["'2020-01-01 00:00:00+05:30'", "'0044-03-15 (BC) 10:00:00+00'", "NULL"], id="timestamptz"),
    ],
)
def test_identity_of_every_type(room: Room, column_type: str, values: list[str]) -> None:
    """DuckLake's text of the value is the value, null included; no file is left unclaimed."""
    placed = place(room, fill(room, column_type, "k", values))
    assert placed.transforms == [("identity",)] * len(values)
    assert placed.default == ("identity",)


@pytest.mark.parametrize(
    ("column_type", "values"),
    [
        pytest.param("DOUBLE", ["'-0.0'", "0.0", "'nan'", "'inf'", "'-inf'"], id="zeros, nan and infinities"),
        pytest.param("FLOAT", ["0.0", "'-0.0'"], id="zeros of float"),
        pytest.param("DATE", ["'infinity'", "'-infinity'"], id="infinite dates"),
        pytest.param("TIMESTAMP", ["'infinity'", "'-infinity'"], id="infinite timestamps"),
        pytest.param("INTEGER[]", ["[1]", "[]"], id="list"),
        pytest.param("STRUCT(a INTEGER)", ["{'a': 1}"], id="struct"),
    ],
)
def test_values_without_an_exact_tuple_claim_nothing(room: Room, column_type: str, values: list[str]) -> None:
    """DuckLake puts both zeros into one file, and Iceberg orders them; nested values are no partition at all."""
    placed = place(room, fill(room, column_type, "k", values))
    assert set(placed.transforms) == {()}
    assert placed.default == (("identity",) if "(" not in column_type and "[" not in column_type else ())


@pytest.mark.parametrize(
    ("column_type", "clause", "values", "expected"),
    [
        pytest.param("DATE", "year(k)", DAYS, ("year",), id="year of a date"),
        pytest.param("TIMESTAMP", "year(k)", STAMPS, ("year",), id="year"),
        pytest.param("DATE", "year(k), month(k)", DAYS, ("month",), id="month of a date"),
        pytest.param("TIMESTAMP", "month(k), year(k)", STAMPS, ("month",), id="month, turned round"),
        pytest.param("DATE", "day(k), year(k), month(k)", DAYS, ("day",), id="day of a date, mixed up"),
        pytest.param("TIMESTAMP", "year(k), month(k), day(k)", STAMPS, ("day",), id="day"),
        pytest.param("TIMESTAMP", "hour(k), day(k), month(k), year(k)", STAMPS, ("hour",), id="hour, turned round"),
        pytest.param("DATE", "year(k), month(k), day(k), hour(k)", DAYS, ("day",), id="a date has no hour"),
        pytest.param("TIMESTAMP", "year(k), day(k)", STAMPS, ("year",), id="a day without its month"),
        pytest.param("TIMESTAMP_MS", "year(k), month(k)", STAMPS[:3], ("month",), id="milliseconds"),
        pytest.param("TIMESTAMP", "month(k)", STAMPS, (), id="a month of no year"),
        pytest.param("TIMESTAMP", "hour(k)", STAMPS, (), id="an hour of no day"),
        pytest.param("TIMESTAMPTZ", "year(k)", ["'2019-12-31 23:00:00+00'"], (), id="timestamptz depends on the zone"),
        pytest.param("TIMESTAMP", "year(k), month(k), k", STAMPS, ("month", "identity"), id="month and identity"),
    ],
)
def test_calendar_components(room: Room, column_type: str, clause: str, values: list[str], expected: tuple[str, ...]) -> None:
    """Components become Iceberg's ordinals when all coarser ones are there, in any order, before 1970 too."""
    placed = place(room, fill(room, column_type, clause, values))
    assert set(placed.transforms) == {expected}
    assert placed.default == expected


@pytest.mark.parametrize("value", ["NULL", "'infinity'"])
def test_a_null_component_may_be_an_infinite_date(room: Room, value: str) -> None:
    """DuckDB has no year for infinity, so null proves nothing: a reader would skip the file and lose the row."""
    assert place(room, fill(room, "DATE", "year(k)", [value, "'2020-01-01'"])).transforms.count(("year",)) == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    ("column_type", "value", "is_alike"),
    [
        pytest.param("TINYINT", "'-34'", True, id="tinyint"),
        pytest.param("SMALLINT", "34", True, id="smallint"),
        pytest.param("INTEGER", "34", True, id="integer"),
        pytest.param("BIGINT", "34", True, id="bigint"),
        pytest.param("VARCHAR", "'iceberg é'", True, id="varchar"),
        pytest.param("JSON", "'{\"a\": 1}'", True, id="json"),
        pytest.param("BLOB", "'\\x00\\xFF'", True, id="blob"),
        pytest.param("DATE", "'2017-11-16'", True, id="date"),
        pytest.param("TIME", "'22:31:08.5'", True, id="time"),
        pytest.param("TIMESTAMP", "'1969-11-16 22:31:08.5'", True, id="timestamp"),
        pytest.param("TIMESTAMPTZ", "'2017-11-16 22:31:08+05'", True, id="timestamptz"),
        pytest.param("UTINYINT", "34", False, id="utinyint"),
        pytest.param("USMALLINT", "34", False, id="usmallint"),
        pytest.param("TIMESTAMP_S", "'2017-11-16 22:31:08'", False, id="seconds"),
        pytest.param("TIMESTAMP_MS", "'2017-11-16 22:31:08.5'", False, id="milliseconds"),
        pytest.param("BOOLEAN", "true", False, id="boolean"),
        pytest.param("FLOAT", "1.5", False, id="float"),
        pytest.param("DECIMAL(9, 2)", "14.20", False, id="decimal"),
        pytest.param("UUID", TEXT_UUID, False, id="uuid"),
    ],
)
def test_buckets_of_every_type(room: Room, column_type: str, value: str, is_alike: bool) -> None:
    """DuckLake's buckets are Iceberg's for some types only; a null is in no bucket."""
    placed = place(room, fill(room, column_type, "bucket(1000, k)", [value, "NULL"]))
    assert placed.transforms == [("bucket[1000]",) if is_alike else ()] * 2


def test_a_bucket_column_that_was_widened_keeps_its_first_type_in_mind(room: Room) -> None:
    """Files written before the promotion were hashed as another type."""
    name = fill(room, "UTINYINT", "bucket(1000, k)", ["34"])
    room.run(f"ALTER TABLE {name} ALTER COLUMN k TYPE INTEGER", f"INSERT INTO {name} VALUES (34, 1)")
    assert place(room, name).transforms == [(), ()]


def test_a_float_that_became_a_double_is_claimed_where_both_read_its_text_alike(room: Room) -> None:
    """A rewrite puts the FLOAT's text beside a file of DOUBLEs: `0.1` is another value as the one and as the other, `0.5` is not."""
    name = fill(room, "FLOAT", "k", ["0.1"])
    room.run(f"INSERT INTO {name} SELECT unnest([0.1, 0.5]), i FROM range(4) r(i)", f"ALTER TABLE {name} ALTER COLUMN k TYPE DOUBLE")
    room.run(f"DELETE FROM {name} WHERE v = 2", f"CALL ducklake_rewrite_data_files('lake', '{name}', delete_threshold => 0.01)")
    room.run(f"INSERT INTO {name} VALUES (0.1, 5), (0.5, 5), (1e300, 5)")
    placed = place(room, name)
    widened = 0.10000000149011612
    assert sorted(placed.tuples) == [(), (), (widened,), (widened,), *[(0.5,)] * 3, (1e300,)]
    assert placed.default == ("identity",)


def test_a_table_changes_its_mind(room: Room) -> None:
    """Every spec keeps its id; files stay under the one they were written by, also after a rename and a drop."""
    name = fill(room, "TIMESTAMP", "year(k)", STAMPS[:2])
    room.run(f"ALTER TABLE {name} SET PARTITIONED BY (v)", f"INSERT INTO {name} VALUES ('2020-01-01', 7)")
    room.run(f"ALTER TABLE {name} SET PARTITIONED BY (year(k))", f"INSERT INTO {name} VALUES ('2021-01-01', 7)")
    room.run(f"ALTER TABLE {name} RENAME COLUMN k TO kk")
    placed = place(room, name)
    assert placed.transforms == [("year",), ("year",), ("identity",), ("year",)]
    assert [spec.spec_id for spec in placed.partitioning.specs] == [0, 1, 2]
    assert placed.partitioning.default_spec_id == 1
    room.run(f"ALTER TABLE {name} RESET PARTITIONED BY", f"INSERT INTO {name} VALUES ('2022-01-01', 8)")
    placed = place(room, name)
    assert placed.transforms == [("year",), ("year",), ("identity",), ("year",), ()]
    assert placed.default == ()
    room.run(f"ALTER TABLE {name} DROP COLUMN kk")
    assert place(room, name).transforms == [(), (), ("identity",), (), ()]


def test_several_keys_of_one_column(room: Room) -> None:
    """Each is a field of its own, with a name and an id of its own."""
    placed = place(room, fill(room, "INTEGER", "bucket(4, k), bucket(8, k), k, v", ["1", "2", "NULL"]))
    assert set(placed.transforms) == {("bucket[4]", "bucket[8]", "identity", "identity")}
    spec: PublishedSpec = placed.partitioning.specs[-1]
    assert spec.field_ids == (1000, 1001, 1002, 1003)


COLUMNS = Schema(
    0,
    (
        NestedField(1, "at", PrimitiveType("timestamptz"), required=False),
        NestedField(2, "on", PrimitiveType("date"), required=False),
        NestedField(3, "s", StructType((NestedField(4, "x", PrimitiveType("int"), required=False),)), required=False),
        NestedField(5, "n", PrimitiveType("decimal(20, 0)"), required=False),
    ),
)
COLUMN_TYPES = {1: ["timestamptz"], 2: ["date"], 3: ["struct"], 4: ["int32"], 5: ["uint64"]}
HOURLY = [(1, "hour"), (2, "identity")]


@pytest.mark.parametrize(
    ("fields", "lake_format", "keys"),
    [
        pytest.param(HOURLY, V1_1, [(1, "epoch_hour"), (2, "identity")], id="exact"),
        pytest.param([(1, "void"), *HOURLY], V1_1, [(1, "epoch_hour"), (2, "identity")], id="void"),
        pytest.param(HOURLY, V1_0, [], id="DuckLake 1.0"),
        pytest.param([*HOURLY, (2, "bucket[4]")], V1_1, [], id="bucket"),
        pytest.param([*HOURLY, (2, "truncate[4]")], V1_1, [], id="truncate"),
        pytest.param([(4, "identity")], V1_1, [], id="nested"),
        pytest.param([(5, "identity")], V1_1, [], id="values that DuckDB's texts do not prove"),
        pytest.param([(9, "void")], V1_1, [], id="no field"),
    ],
)
def test_ducklake_partitions_as_a_client_or_not_at_all(
    fields: list[tuple[int, str]], lake_format: LakeFormat, keys: list[tuple[int, str]]
) -> None:
    """A spec is taken whole or not: a table that DuckLake partitions by a part of it would get files of another spec."""
    spec = PartitionSpec(0, tuple(PartitionField(source, 1000 + i, f"f{i}", transform) for i, (source, transform) in enumerate(fields)))
    assert to_partition_keys(spec, COLUMNS, COLUMN_TYPES, lake_format) == keys
