"""DuckLake columns as Iceberg fields: types, promotions, defaults, and what is refused."""

import re

import pytest

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField
from duckicelake.translate.schemas import Schemas, to_schemas
from duckicelake.translate.types import to_primitive
from tests.translate.support.room import Room


def publish(room: Room, name: str) -> Schemas:
    """The schemas a table is published with."""
    state = room.read(name)
    begins = [span.begin_snapshot for span in state.spans]
    begins += [row[1] for table in state.inlined_tables for row in table.rows if isinstance(row[1], int)]
    return to_schemas(state, min(begins, default=state.position.lake_snapshot_id))


def field(schema: Schema, name: str) -> NestedField | None:
    """A root column by name."""
    return next((item for item in schema.fields if item.name == name), None)


@pytest.mark.parametrize(
    ("ducklake", "iceberg"),
    [
        ("BOOLEAN", "boolean"),
        ("TINYINT", "int"),
        ("SMALLINT", "int"),
        ("INTEGER", "int"),
        ("BIGINT", "long"),
        ("UTINYINT", "int"),
        ("USMALLINT", "int"),
        ("FLOAT", "float"),
        ("DOUBLE", "double"),
        ("DECIMAL(9, 2)", "decimal(9, 2)"),
        ("DECIMAL(38, 0)", "decimal(38, 0)"),
        ("VARCHAR", "string"),
        ("JSON", "string"),
        ("BLOB", "binary"),
        ("UUID", "uuid"),
        ("DATE", "date"),
        ("TIME", "time"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMP_S", "timestamp"),
        ("TIMESTAMP_MS", "timestamp"),
        ("TIMESTAMPTZ", "timestamptz"),
    ],
)
def test_published_types(room: Room, ducklake: str, iceberg: str) -> None:
    """What DuckLake stores the type as is known by its Iceberg name."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k {ducklake} NOT NULL, n {ducklake})")
    schema = publish(room, name).current
    assert [(item.field_id, item.name, str(item.type), item.required) for item in schema.fields] == [
        (1, "k", iceberg, True),
        (2, "n", iceberg, False),
    ]


UNPUBLISHED = {
    "UINTEGER": "4294967295",
    "UBIGINT": "18446744073709551615",
    "HUGEINT": "12345678901234567890",
    "UHUGEINT": "12345678901234567890",
    "TIMESTAMP_NS": "'2020-01-01 00:00:00.123456'",
    "TIMETZ": "'01:02:03+02'",
    "INTERVAL": "'1 month 2 days'",
    "GEOMETRY": "'POINT (1 2)'",
    "VARIANT": "'a'",
}


@pytest.mark.parametrize("ducklake", UNPUBLISHED)
def test_the_remedy_for_an_unpublished_type_works(room: Room, ducklake: str) -> None:
    """The refusal names column, type and a type to copy into; after copying and dropping the table publishes."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, k {ducklake})", f"INSERT INTO {name} VALUES (1, {UNPUBLISHED[ducklake]}::{ducklake})")
    with pytest.raises(Unsupported, match="Column 'k' has the DuckLake type") as refusal:
        publish(room, name)
    remedy = re.search(r"new column of type (.+) and drop it", refusal.value.message)
    assert remedy is not None
    for number, type_name in enumerate(remedy[1].split(" or ")):
        room.run(f"ALTER TABLE {name} ADD COLUMN k{number} {type_name}", f"UPDATE {name} SET k{number} = k::{type_name}")
        assert room.duckdb.execute(f"SELECT count(k{number}) FROM {name}").fetchall() == [(1,)]
    room.run(f"ALTER TABLE {name} DROP COLUMN k")
    schemas = publish(room, name)
    assert all(field(schema, "k") is None for schema in schemas.all())


def test_an_unpublished_type_deep_inside_is_named_by_its_path(room: Room) -> None:
    """Lists, maps and structs lead to it."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s STRUCT(a INTEGER, l MAP(VARCHAR, UBIGINT[])))")
    with pytest.raises(Unsupported, match=r"Column 's\.l\.value\.element' has the DuckLake type 'uint64'"):
        publish(room, name)


def test_nested_columns(room: Room) -> None:
    """Every node has DuckLake's column id; only root columns can be required; comments are docs."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (s STRUCT(a INTEGER, l INTEGER[]) NOT NULL, m MAP(VARCHAR, STRUCT(x DOUBLE)))")
    room.run(
        f"COMMENT ON COLUMN {name}.s IS 'why'", f"ALTER TABLE {name} ADD COLUMN s.b BIGINT", f"ALTER TABLE {name} RENAME COLUMN s.a TO z"
    )
    told = repr(publish(room, name).current.fields)
    assert re.findall(r"NestedField\(field_id=(\d+), name='(\w+)'", told) == [
        ("1", "s"),
        ("2", "z"),
        ("3", "l"),
        ("9", "b"),
        ("5", "m"),
        ("8", "x"),
    ]
    assert told.count("required=True") == 1
    assert "doc='why'" in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TINYINT", "INTEGER"),
        ("UTINYINT", "SMALLINT"),
        ("INTEGER", "BIGINT"),
        ("TINYINT", "BIGINT"),
        ("FLOAT", "DOUBLE"),
        ("DECIMAL(5, 2)", "DECIMAL(9, 2)"),
        ("VARCHAR", "JSON"),
        ("TIMESTAMP_S", "TIMESTAMP"),
        ("TIMESTAMP_MS", "TIMESTAMP"),
    ],
)
def test_promotions_that_iceberg_knows(room: Room, old: str, new: str) -> None:
    """Old files are read by the new type."""
    name = room.name()
    room.run(
        f"CREATE TABLE {name} (k {old}, i INTEGER)", f"INSERT INTO {name} VALUES (NULL, 1)", f"ALTER TABLE {name} ALTER COLUMN k TYPE {new}"
    )
    schemas = publish(room, name)
    assert len(schemas.all()) == (1 if find_type(schemas.timeline[0][1]) == find_type(schemas.current) else 2)


def find_type(schema: Schema) -> str:
    """The type of the first column."""
    return str(schema.fields[0].type)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("INTEGER", "DOUBLE"),
        ("BIGINT", "FLOAT"),
        ("INTEGER", "DECIMAL(18, 0)"),
        ("BOOLEAN", "INTEGER"),
        ("DECIMAL(5, 2)", "DECIMAL(9, 4)"),
        ("DATE", "TIMESTAMP"),
        ("TIMESTAMP", "TIMESTAMPTZ"),
    ],
)
def test_other_promotions_are_refused_until_the_column_is_replaced(room: Room, old: str, new: str) -> None:
    """The refusal names both types. After the remedy no published schema reads old files by the wrong type."""
    name = room.name()
    room.run(
        f"CREATE TABLE {name} (k {old}, i INTEGER)", f"INSERT INTO {name} VALUES (NULL, 1)", f"ALTER TABLE {name} ALTER COLUMN k TYPE {new}"
    )
    with pytest.raises(Unsupported, match="Column 'k' was changed from"):
        publish(room, name)
    room.run(f"INSERT INTO {name} VALUES (NULL, 2)", f"ALTER TABLE {name} ADD COLUMN k2 {new}", f"UPDATE {name} SET k2 = k")
    room.run(f"ALTER TABLE {name} DROP COLUMN k")
    schemas = publish(room, name)
    shown = [field(schema, "k") for _, schema in schemas.timeline]
    assert shown[0] is not None
    assert {str(item.type) for item in shown if item is not None} == {str(to_primitive_of(old))}


def to_primitive_of(sql_type: str) -> object:
    """The Iceberg type of a SQL type."""
    names = {"INTEGER": "int32", "BIGINT": "int64"}
    return to_primitive(names.get(sql_type, sql_type).lower().replace(" ", ""), "k")


def test_an_older_type_does_not_matter_when_no_row_is_left_of_it(room: Room) -> None:
    """A table that was empty, or whose older rows have gone for good, may have had any type."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k INTEGER)", f"ALTER TABLE {name} ALTER COLUMN k TYPE DOUBLE", f"INSERT INTO {name} VALUES (1.5)")
    assert str(publish(room, name).current.fields[0].type) == "double"


@pytest.mark.parametrize(
    ("column_type", "default", "initial", "write"),
    [
        pytest.param("INTEGER", "5", 5, 5, id="integer"),
        pytest.param("VARCHAR", "'it''s'", "it's", "it's", id="varchar"),
        pytest.param("VARCHAR", "''", "", "", id="empty"),
        pytest.param("VARCHAR", "'NULL'", "NULL", None, id="the word NULL"),
        pytest.param("DECIMAL(9, 2)", "1.5", "1.50", "1.5", id="decimal"),
        pytest.param("DATE", "'2020-02-29'", "2020-02-29", "2020-02-29", id="date"),
        pytest.param("BOOLEAN", "1", True, True, id="boolean"),
        pytest.param("BLOB", "'\\x00A'", "0041", "0041", id="blob"),
        pytest.param(
            "TIMESTAMPTZ",
            "'2020-01-01 10:00:00+05'",
            "2020-01-01T05:00:00.000000+00:00",
            "2020-01-01T05:00:00.000000+00:00",
            id="timestamptz",
        ),
    ],
)
def test_defaults_of_older_rows(room: Room, column_type: str, default: str, initial: object, write: object) -> None:
    """A column added with a default shows it in rows that lack it: that takes format version 3."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER)", f"INSERT INTO {name} VALUES (1)")
    assert publish(room, name).format_version == 2
    room.run(f"ALTER TABLE {name} ADD COLUMN k {column_type} DEFAULT {default}")
    schemas = publish(room, name)
    item = field(schemas.current, "k")
    assert item is not None
    assert (schemas.format_version, item.initial_default) == (3, initial)
    assert str(item.write_default).removesuffix("0") == str(write).removesuffix("0")


def test_a_default_of_rows_that_are_not_there_is_no_default(room: Room) -> None:
    """No row lacks the column, so format version 2 is enough."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER DEFAULT 5)", f"ALTER TABLE {name} ADD COLUMN k INTEGER DEFAULT 6")
    room.run(f"INSERT INTO {name} VALUES (1, 2)", f"ALTER TABLE {name} ADD COLUMN plain INTEGER")
    schemas = publish(room, name)
    assert (schemas.format_version, [item.initial_default for item in schemas.current.fields]) == (2, [None, None, None])


@pytest.mark.parametrize(("column_type", "default"), [("DATE", "'infinity'"), ("DOUBLE", "'nan'")])
def test_the_remedy_for_an_unsayable_default_works(room: Room, column_type: str, default: str) -> None:
    """The refusal names the column; copied and dropped, it stands in no published schema."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER)", f"INSERT INTO {name} VALUES (1)")
    room.run(f"ALTER TABLE {name} ADD COLUMN k {column_type} DEFAULT {default}")
    with pytest.raises(Unsupported, match="Column 'k' has the default"):
        publish(room, name)
    room.run(f"ALTER TABLE {name} ADD COLUMN k2 {column_type}", f"UPDATE {name} SET k2 = k", f"ALTER TABLE {name} DROP COLUMN k")
    assert all(field(schema, "k") is None for schema in publish(room, name).all())
