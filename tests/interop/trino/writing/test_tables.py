"""Trino makes, replaces, renames and drops namespaces and tables."""

import pytest

from tests.interop.trino.writing.story import Story

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

SOURCE = "SELECT k AS id, 'n' || cast(k % 3 AS varchar) AS name FROM UNNEST(sequence(1, 12)) AS q(k)"


def list_tables(story: Story) -> list[tuple[str, str]]:
    """The lake's tables, as DuckDB lists them."""
    return story.ask("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'lake' ORDER BY ALL")


@pytest.mark.long
def test_namespaces(story: Story) -> None:
    """With a location, nested, dropped when empty or with all that is in them; one that is not empty stays."""
    location = f"{story.served.lake.iceberg_path}placed"
    story.run(f"CREATE SCHEMA {{c}}.placed WITH (location = '{location}')")
    assert story.served.server.get("namespaces/placed").json["properties"] == {"location": location}
    assert location in story.run("SHOW CREATE SCHEMA {c}.placed")[0][0]
    story.run("CREATE SCHEMA IF NOT EXISTS {c}.placed")
    story.refuse("CREATE SCHEMA {c}.placed", "SCHEMA_ALREADY_EXISTS")
    story.run('CREATE SCHEMA {c}."ns.deep"')
    story.run('CREATE TABLE {c}."ns.deep".t AS SELECT 1 AS x')
    story.run("CREATE TABLE {c}.placed.t AS SELECT 1 AS x")
    assert story.ask("FROM lake.placed.t") == [(1,)]
    story.refuse("DROP SCHEMA {c}.placed", "SCHEMA_NOT_EMPTY")
    story.refuse("ALTER SCHEMA {c}.placed RENAME TO elsewhere", "renameNamespace is not supported")
    assert [row[0] for row in story.run("SHOW SCHEMAS FROM {c}")] == [
        "information_schema",
        "main",
        "ns",
        "ns.deep",
        "other",
        "placed",
        "system",
    ]
    for name in ('"ns.deep"', "placed", "other", "ns"):
        story.run(f"DROP SCHEMA {{c}}.{name} CASCADE")
    assert list_tables(story) == []
    assert story.ask("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake'") == [("main",)]


@pytest.mark.long
def test_tables_are_described_as_they_were_made(story: Story) -> None:
    """Comments, NOT NULL, partitions, order and properties come back, and DuckDB knows what it has words for."""
    story.run(
        "CREATE TABLE {t} (id integer NOT NULL COMMENT 'the key', name varchar, at timestamp(6)) COMMENT 'hello' WITH (format_version = 3,"
        " partitioning = ARRAY['bucket(id, 4)', 'truncate(name, 2)', 'day(at)'], sorted_by = ARRAY['id DESC NULLS LAST'],"
        " compression_codec = 'ZSTD', max_commit_retry = 7, object_store_layout_enabled = true,"
        " extra_properties = MAP(ARRAY['owner'], ARRAY['ann']))"
    )
    story.run("INSERT INTO {t} VALUES (3, 'c', timestamp '2020-01-01 00:00:00'), (1, 'a', NULL)")
    assert story.check() == 2
    ((shown,),) = story.run("SHOW CREATE TABLE {t}")
    for part in (
        "integer NOT NULL COMMENT 'the key'",
        "COMMENT 'hello'",
        "['bucket(id, 4)','truncate(name, 2)','day(at)']",
        "['id DESC NULLS LAST']",
    ):
        assert part in shown
    for part in ("compression_codec = 'ZSTD'", "format_version = 3", "max_commit_retry = 7", "object_store_layout_enabled = true"):
        assert part in shown
    columns = story.ask("SELECT column_name, comment, is_nullable FROM duckdb_columns() WHERE schema_name = 'ns'")
    assert columns == [("id", "the key", False), ("name", None, True), ("at", None, True)]
    assert story.ask("SELECT comment, tags['owner'] FROM duckdb_tables() WHERE schema_name = 'ns'") == [("hello", "ann")]
    story.refuse("INSERT INTO {t} (name) VALUES ('x')", "NULL value not allowed for NOT NULL column")


def test_tables_are_made_of_queries(story: Story) -> None:
    """With rows and without, once, like another; what would be refused leaves the lake as it was."""
    story.run(f"CREATE TABLE {{t}} WITH (format_version = 3) AS {SOURCE}")
    assert story.check() == 12
    assert story.run(f"CREATE TABLE IF NOT EXISTS {{t}} AS {SOURCE}") == [(0,)]
    story.refuse(f"CREATE TABLE {{t}} AS {SOURCE}", "TABLE_ALREADY_EXISTS")
    story.run(f"CREATE TABLE {{c}}.ns.bare AS {SOURCE} WITH NO DATA")
    assert story.check("bare") == 0
    story.run("CREATE TABLE {c}.ns.alike (LIKE {t}, more varchar)")
    assert [row[0] for row in story.ask("DESCRIBE lake.ns.alike")] == ["id", "name", "more"]
    before = list_tables(story)
    story.refuse("CREATE TABLE {c}.ns.alike2 (LIKE {t} INCLUDING PROPERTIES)", "Failed to create transaction")
    story.refuse("CREATE TABLE {c}.ns.odd (a timestamp(9) with time zone) WITH (format_version = 3)", "Failed to create transaction")
    story.refuse("CREATE TABLE {c}.ns.odd (row_id integer)", "Failed to create transaction")
    assert list_tables(story) == before
    story.run("CREATE TABLE {c}.ns.nanos WITH (format_version = 3) AS SELECT TIMESTAMP '2026-01-02 03:04:05.123456789' AS a")
    assert story.ask("SELECT epoch_ns(a) % 1000000000 FROM lake.ns.nanos") == [(123456789,)]


@pytest.mark.long
def test_variants_of_both_are_read_by_both(story: Story) -> None:
    """Trino does not mark variants in its files, so they come in as copies that do; what DuckDB wrote is NULL where DuckDB reads NULL."""
    story.run("CREATE TABLE {c}.ns.v (i integer, v variant) WITH (format_version = 3)")
    story.run("""INSERT INTO {c}.ns.v VALUES (1, CAST(JSON '{"b":1,"a":[1,null]}' AS variant)), (2, NULL), (3, CAST(7 AS variant))""")
    story.served.lake.duckdb().execute(
        "INSERT INTO lake.ns.v VALUES (4, {'q': 1, 'b': {'z': 1, 'a': NULL}}::VARIANT), (5, NULL), (6, 'x'::VARIANT)"
    )
    story.run("UPDATE {c}.ns.v SET v = CAST('u' AS variant) WHERE i IN (3, 6)")
    story.run("DELETE FROM {c}.ns.v WHERE i = 2")
    story.run("CREATE TABLE {c}.ns.w WITH (format_version = 3) AS SELECT * FROM {c}.ns.v")
    expected = [(1, '{"a":[1,null],"b":1}'), (3, '"u"'), (4, '{"b":{"a":null,"z":1},"q":1}'), (5, None), (6, '"u"')]
    for table in ("v", "w"):
        assert story.run(f"SELECT i, json_format(CAST(v AS json)) FROM {{c}}.ns.{table} ORDER BY i") == expected
        assert story.ask(f"SELECT i, CASE WHEN v IS NOT NULL THEN v::JSON::VARCHAR END FROM lake.ns.{table} ORDER BY i") == expected


@pytest.mark.long
def test_small_types_become_those_that_iceberg_has(story: Story) -> None:
    """Trino itself says so: whole numbers of 32 bits, texts of any length, microseconds."""
    story.run("CREATE TABLE {t} (a tinyint, b smallint, c char(3), d varchar(5), e timestamp(3), f time(3), g timestamp(0) with time zone)")
    kinds = [row[1] for row in story.ask("DESCRIBE {t}")]
    assert kinds == ["INTEGER", "INTEGER", "VARCHAR", "VARCHAR", "TIMESTAMP", "TIME", "TIMESTAMP WITH TIME ZONE"]


@pytest.mark.long
def test_locations_are_those_asked_for(story: Story) -> None:
    """Within ICEBERG_PATH, and data within the table's location; any other is refused."""
    location = f"{story.served.lake.iceberg_path}mine"
    story.run(f"CREATE TABLE {{t}} WITH (location = '{location}', data_location = '{location}/within') AS {SOURCE}")
    assert story.load()["location"] == location
    assert {path.startswith(f"{location}/within/") for (path,) in story.run('SELECT file_path FROM {c}.ns."t$files"')} == {True}
    story.refuse(f"CREATE TABLE {{c}}.ns.u (id integer) WITH (location = '{location}')", "Failed to create transaction")
    story.refuse("CREATE TABLE {c}.ns.u (id integer) WITH (location = 's3://lake/elsewhere')", "Failed to create transaction")
    beside = f"data_location = '{story.served.lake.iceberg_path}beside'"
    story.refuse(f"CREATE TABLE {{c}}.ns.u (id integer) WITH ({beside})", "Failed to create transaction")


@pytest.mark.long
@pytest.mark.parametrize("file_format", ["ORC", pytest.param("AVRO", marks=pytest.mark.long)])
def test_other_formats_of_files_are_refused_by_name(story: Story, file_format: str) -> None:
    """Trino makes the table first: it is there and empty, until it gets Parquet."""
    story.refuse(
        f"CREATE TABLE {{t}} WITH (format = '{file_format}') AS {SOURCE}", f"has the format {file_format}; DuckLake holds Parquet only"
    )
    assert story.check() == 0
    story.run("ALTER TABLE {t} SET PROPERTIES format = 'PARQUET'")
    story.run(f"INSERT INTO {{t}} {SOURCE}")
    assert story.check() == 12


@pytest.mark.long
def test_tables_are_replaced(story: Story) -> None:
    """CREATE OR REPLACE, with and without rows, gives other columns under the same uuid; the past stays readable; DuckDB's tables too."""
    story.run(f"CREATE TABLE {{t}} WITH (partitioning = ARRAY['name']) AS {SOURCE}")
    uuid, (first, *_) = story.load()["table-uuid"], story.list_snapshots()
    story.run("CREATE OR REPLACE TABLE {t} (other varchar)")
    assert story.check() == 0
    story.run("CREATE OR REPLACE TABLE {t} WITH (format_version = 3) AS SELECT 1 AS id, 2 AS z")
    assert story.ask("FROM {t}") == [(1, 2)]
    assert story.load()["table-uuid"] == uuid
    assert len(story.run(f"SELECT * FROM {{t}} FOR VERSION AS OF BIGINT '{first}'")) == 12
    assert story.ask(f"SELECT count(*) FROM {{t}} AT (VERSION => {first})") == [(12,)]
    story.refuse("CREATE OR REPLACE TABLE {t} AS SELECT 1 AS z", "Cannot downgrade v3 table to v2")
    story.ask("CREATE TABLE lake.ns.d AS SELECT range AS i FROM range(50)")
    story.run("CREATE OR REPLACE TABLE {c}.ns.d AS SELECT 'x' AS s")
    assert story.ask("FROM lake.ns.d") == [("x",)]
    story.check_going_on()


@pytest.mark.long
def test_tables_of_the_first_version_grow_up(story: Story) -> None:
    """From 1 to 2 to 3, with rows of each; row lineage begins with the last."""
    story.run("CREATE TABLE {t} WITH (format_version = 1) AS SELECT 1 AS id")
    story.refuse("DELETE FROM {t} WHERE id = 2", "require at least format version 2")
    story.run("ALTER TABLE {t} SET PROPERTIES format_version = 2")
    story.run("INSERT INTO {t} VALUES 2, 3")
    story.run("DELETE FROM {t} WHERE id = 3")
    story.run("ALTER TABLE {t} SET PROPERTIES format_version = 3")
    story.run("INSERT INTO {t} VALUES 4, 5")
    story.run("DELETE FROM {t} WHERE id = 4")
    assert story.check() == 3
    rows = story.run('SELECT id, "$row_id", "$last_updated_sequence_number" FROM {t}')
    assert len({row[1] for row in rows}) == 3
    assert None not in {row[2] for row in rows}
    assert len(story.check_past()) == 5
    story.check_going_on()


def test_tables_are_renamed_and_dropped(story: Story) -> None:
    """Within a namespace and into another, with rows and history; never onto one that is there."""
    story.run(f"CREATE TABLE {{t}} AS {SOURCE}")
    story.run("ALTER TABLE {t} RENAME TO {c}.ns.u")
    story.run("ALTER TABLE {c}.ns.u RENAME TO {c}.other.u")
    assert list_tables(story) == [("other", "u")]
    story.run("CREATE TABLE {t} (a integer)")
    story.refuse("ALTER TABLE {c}.other.u RENAME TO {t}", "already exists")
    story.run("DROP TABLE {t}")
    story.run("ALTER TABLE {c}.other.u RENAME TO {t}")
    story.run("INSERT INTO {t} VALUES (13, 'later')")
    assert story.check() == 13
    story.check_going_on()
    story.run("DROP TABLE {t}")
    story.refuse("DROP TABLE {t}", "does not exist")
    story.run("DROP TABLE IF EXISTS {t}")
    assert list_tables(story) == []
