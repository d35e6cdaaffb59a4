"""DuckLake columns as Iceberg fields: types, promotions, defaults, and what is refused."""

import re

import pytest

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField
from duckicelake.translate.schemas import Schemas, to_schemas
from duckicelake.translate.types import find_primitive
from tests.support.tiers import whole_after
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
        ("UINTEGER", "long"),
        ("HUGEINT", "double"),
        ("UHUGEINT", "double"),
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
        ("TIMETZ", "time"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMP_S", "timestamp"),
        ("TIMESTAMP_MS", "timestamp"),
        ("TIMESTAMP_NS", "timestamp_ns"),
        ("TIMESTAMPTZ", "timestamptz"),
        ("GEOMETRY", "geometry"),
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


@pytest.mark.parametrize(("ducklake", "version"), [("TIMESTAMP", 2), ("TIMESTAMP_NS[]", 3), ("STRUCT(g GEOMETRY)", 3), ("VARIANT", 3)])
def test_some_types_need_format_version_3(room: Room, ducklake: str, version: int) -> None:
    """Iceberg has them since then only, wherever they stand."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, k {ducklake})")
    assert publish(room, name).format_version == version


def replace_column(room: Room, refusal: str) -> None:
    """Paste the SQL of a refusal into DuckDB."""
    found = re.search(r"Replace it with DuckDB, going on only as long as nothing fails: (.+;)$", refusal)
    assert found is not None, refusal
    room.run(*found[1].rstrip(";").split("; "))


UNPUBLISHED = {
    "UBIGINT": ("18446744073709551615", "uint64", "decimal(20, 0)"),
    "INTERVAL": ("'1 month 2 days'", "interval", "string"),
    "UBIGINT[]": ("[18446744073709551615, NULL]", "uint64", "decimal(20, 0)"),
    "MAP(VARCHAR, INTERVAL)": ("MAP {'a': INTERVAL 1 DAY}", "interval", "string"),
}


@pytest.mark.parametrize("ducklake", UNPUBLISHED)
def test_the_remedy_for_an_unpublished_type_works(room: Room, ducklake: str) -> None:
    """The refusal names column, type and the SQL that gives the column a published type; run as it stands, the table publishes."""
    name, (value, leaf, published) = room.name(), UNPUBLISHED[ducklake]
    room.run(f'CREATE TABLE {name} (i INTEGER, k_ INTEGER, "k" {ducklake})', f"INSERT INTO {name} VALUES (1, 2, {value}::{ducklake})")
    before = room.duckdb.execute(f"SELECT k::VARCHAR, count(*) FROM {name} GROUP BY ALL").fetchall()
    with pytest.raises(Unsupported, match=rf"Column 'k.*' has the DuckLake type '{leaf}'") as refusal:
        publish(room, name)
    replace_column(room, refusal.value.message)
    assert room.duckdb.execute(f"SELECT k::VARCHAR, count(*) FROM {name} GROUP BY ALL").fetchall() == before
    schemas = publish(room, name)
    shown = [field(schema, "k") for _, schema in schemas.timeline]
    assert shown[0] is None
    assert published in str(shown[-1])


def test_an_unpublished_type_deep_inside_is_named_by_its_path(room: Room) -> None:
    """Lists, maps and structs lead to it, and the remedy keeps all that is around it."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s STRUCT(a INTEGER, l MAP(VARCHAR, UBIGINT[])))")
    with pytest.raises(Unsupported, match=r"Column 's\.l\.value\.element' has the DuckLake type 'uint64'") as refusal:
        publish(room, name)
    assert 'ADD COLUMN "s_" STRUCT("a" INTEGER, "l" MAP(VARCHAR, DECIMAL(20, 0)[]))' in refusal.value.message
    replace_column(room, refusal.value.message)
    assert "decimal(20, 0)" in repr(publish(room, name).current)


LARGE = "(4294967295), (2147483648), (0), (NULL)"


@pytest.mark.parametrize("ducklake", ["UINTEGER", "UINTEGER[]"])
def test_numbers_that_signed_readers_would_mistake_refuse_the_table(room: Room, ducklake: str) -> None:
    """Java and Trino read Parquet's unsigned 32 bits as signed, so a file may hold no number from 2^31 on. The remedy works."""
    name, wrap = room.name(), "[v]" if ducklake.endswith("[]") else "v"
    room.run(f"CREATE TABLE {name} (i INTEGER, k {ducklake})", f"INSERT INTO {name} SELECT 1, {wrap} FROM (VALUES (2147483647)) t(v)")
    room.flush(name)
    assert publish(room, name).current.fields[1].field_id == 2
    room.run(f"INSERT INTO {name} SELECT 1, {wrap} FROM (VALUES {LARGE}) t(v)")
    publish(room, name)
    room.flush(name)
    with pytest.raises(Unsupported, match=r"Column 'k(\.element)?' \(uint32\) holds numbers above 2147483647") as refusal:
        publish(room, name)
    room.run(f"ALTER TABLE {name} RENAME i TO j")
    replace_column(room, refusal.value.message)
    room.flush(name)
    schemas = publish(room, name)
    assert [field(schema, "k") is None for _, schema in schemas.timeline] == [True, True, True, True, False]


def test_a_column_that_became_wider_may_hold_large_numbers(room: Room) -> None:
    """What counts is the type that a file was written with."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (k UINTEGER)", f"INSERT INTO {name} VALUES (7)")
    room.flush(name)
    room.run(f"ALTER TABLE {name} ALTER COLUMN k TYPE BIGINT", f"INSERT INTO {name} VALUES (4294967295)")
    room.flush(name)
    assert find_type(publish(room, name).current) == "long"


@pytest.mark.parametrize("ducklake", ["HUGEINT", "UHUGEINT", "TIMETZ", "UINTEGER"])
def test_a_dropped_column_of_a_type_published_in_part_is_in_no_schema(room: Room, ducklake: str) -> None:
    """Whatever its values were, they refuse nothing any more."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, k {ducklake})", f"INSERT INTO {name} VALUES (1, NULL)")
    assert field(publish(room, name).current, "k") is not None
    room.run(f"ALTER TABLE {name} DROP COLUMN k")
    schemas = publish(room, name)
    assert (schemas.hidden, [field(schema, "k") for schema in schemas.all()]) == ({2}, [None])


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
        ("UTINYINT", "UINTEGER"),
        ("UINTEGER", "BIGINT"),
        ("HUGEINT", "DOUBLE"),
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
    whole_after(
        3,
        [
            ("INTEGER", "DOUBLE"),
            ("BIGINT", "FLOAT"),
            ("INTEGER", "DECIMAL(18, 0)"),
            ("BOOLEAN", "INTEGER"),
            ("DECIMAL(5, 2)", "DECIMAL(9, 4)"),
            ("DATE", "TIMESTAMP"),
            ("TIMESTAMP", "TIMESTAMPTZ"),
            ("TIMESTAMP", "TIMESTAMP_NS"),
        ],
    ),
)
def test_other_promotions_are_refused_until_the_column_is_replaced(room: Room, old: str, new: str) -> None:
    """The refusal names both types. After the remedy no published schema reads old files by the wrong type."""
    name = room.name()
    room.run(
        f"CREATE TABLE {name} (k {old}, i INTEGER)", f"INSERT INTO {name} VALUES (NULL, 1)", f"ALTER TABLE {name} ALTER COLUMN k TYPE {new}"
    )
    with pytest.raises(Unsupported, match="Column 'k' was changed from") as refusal:
        publish(room, name)
    room.run(f"INSERT INTO {name} VALUES (NULL, 2)")
    replace_column(room, refusal.value.message)
    schemas = publish(room, name)
    shown = [field(schema, "k") for _, schema in schemas.timeline]
    assert [None if item is None else str(item.type) for item in (shown[0], *shown[-2:])] == [type_of(old), None, type_of(new)]


def type_of(sql_type: str) -> str:
    """The name of the Iceberg type of a SQL type."""
    names = {"INTEGER": "int32", "BIGINT": "int64", "DOUBLE": "float64", "FLOAT": "float32"}
    return str(find_primitive(names.get(sql_type, sql_type).lower()))


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
        pytest.param("HUGEINT", "5", 5.0, 5.0, id="hugeint"),
        pytest.param(
            "TIMESTAMP_NS",
            "'2020-01-01 10:00:00.123456789'",
            "2020-01-01T10:00:00.123456789",
            "2020-01-01T10:00:00.123456789",
            id="timestamp_ns",
        ),
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


UNSAYABLE_DEFAULTS = [("DATE", "'infinity'"), ("DOUBLE", "'nan'"), ("HUGEINT", "'9007199254740993'"), ("TIMETZ", "'01:00:00+02'")]


@pytest.mark.parametrize(("column_type", "default"), whole_after(3, UNSAYABLE_DEFAULTS))
def test_the_remedy_for_an_unsayable_default_works(room: Room, column_type: str, default: str) -> None:
    """The refusal names the column; copied and dropped, it stands in no published schema."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER)", f"INSERT INTO {name} VALUES (1)")
    room.run(f"ALTER TABLE {name} ADD COLUMN k {column_type} DEFAULT {default}")
    with pytest.raises(Unsupported, match="Column 'k' has the default") as refusal:
        publish(room, name)
    replace_column(room, refusal.value.message)
    assert room.duckdb.execute(f"SELECT i, k IS NULL FROM {name}").fetchall() == [(1, False)]
    assert [field(schema, "k") is None for _, schema in publish(room, name).timeline][-2:] == [True, False]
