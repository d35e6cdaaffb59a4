"""Trino changes columns, comments, properties and partitions: DuckDB has the same after each, and goes on."""

import pytest

from tests.interop.trino.writing.story import Story

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

MADE = "id integer NOT NULL, name varchar, s row(a integer, b varchar), r real, de decimal(9,2), l array(row(x integer))"
ROWS = "(1, 'a', ROW(1, 'x'), real '1.5', 1.25, ARRAY[ROW(1)]), (2, 'b', NULL, NULL, NULL, ARRAY[NULL])"
COLUMNS = [
    "ADD COLUMN extra integer COMMENT 'more'",
    "ADD COLUMN first boolean FIRST",
    "ADD COLUMN mid boolean AFTER id",
    "ADD COLUMN s.c integer",
    "ADD COLUMN l.element.y bigint",
    "RENAME COLUMN s.c TO cc",
    "RENAME COLUMN name TO title",
    "ALTER COLUMN extra SET DATA TYPE bigint",
    "ALTER COLUMN r SET DATA TYPE double",
    "ALTER COLUMN de SET DATA TYPE decimal(12,2)",
    "ALTER COLUMN s.a SET DATA TYPE bigint",
    "ALTER COLUMN s SET DATA TYPE row(a bigint, cc integer, d varchar)",
    "ALTER COLUMN id DROP NOT NULL",
    "DROP COLUMN first",
    "DROP COLUMN s.cc",
]
REFUSED = [
    ("ALTER TABLE {t} ADD COLUMN c integer NOT NULL", "does not support adding not null columns"),
    ("ALTER TABLE {t} ADD COLUMN id integer", "already exists"),
    ("ALTER TABLE {t} ADD COLUMN row_id integer", "has a name that DuckLake reserves"),
    ("ALTER TABLE {t} ALTER COLUMN title SET DATA TYPE integer", "Failed to set column type"),
    ("ALTER TABLE {t} RENAME COLUMN mid TO begin_snapshot", "has a name that DuckLake reserves"),
    ("ALTER TABLE {t} SET PROPERTIES partitioning = ARRAY['nowhere']", "Cannot find source column: nowhere"),
    ("ALTER TABLE {t} SET PROPERTIES format_version = 1", "Failed to set new property values"),
]


@pytest.mark.parametrize("format_version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_columns_come_change_and_go(story: Story, format_version: int) -> None:
    """At every level, with rows from before each change; refusals change nothing."""
    story.run(f"CREATE TABLE {{t}} ({MADE}) WITH (format_version = {format_version})")
    story.run(f"INSERT INTO {{t}} VALUES {ROWS}")
    for change in COLUMNS:
        story.run(f"ALTER TABLE {{t}} {change}")
        assert story.check() == 2, change
    story.run("INSERT INTO {t} (id, title, extra) VALUES (NULL, 'later', 5000000000)")
    kinds = dict(story.ask("SELECT column_name, column_type FROM (DESCRIBE {t})"))
    assert list(kinds) == ["id", "title", "s", "r", "de", "l", "extra", "mid"]
    assert [row[0] for row in story.run("SHOW COLUMNS FROM {t}")] == ["id", "mid", "title", "s", "r", "de", "l", "extra"]
    assert kinds["s"] == "STRUCT(a BIGINT, d VARCHAR)"
    before = story.load()
    for statement, why in REFUSED:
        story.refuse(statement, why)
    assert story.load() == before
    assert story.check() == 3
    story.check_going_on()


@pytest.mark.long
def test_a_struct_without_any_column_of_its_file(story: Story) -> None:
    """Trino 483 takes it for NULL; DuckDB knows that it is there."""
    story.run("CREATE TABLE {t} (id integer, s row(a integer))")
    story.run("INSERT INTO {t} VALUES (1, ROW(1)), (2, NULL)")
    story.run("ALTER TABLE {t} ADD COLUMN s.b integer")
    story.run("ALTER TABLE {t} DROP COLUMN s.a")
    assert sorted(story.ask("FROM {t}")) == [(1, {"b": None}), (2, None)]
    assert sorted(story.run("SELECT id, s IS NULL FROM {t}")) == [(1, True), (2, True)]


@pytest.mark.long
def test_defaults_of_version_three(story: Story) -> None:
    """Rows from before read as the first default, new ones of both sides as the newest."""
    story.run("CREATE TABLE {t} (id integer, made varchar DEFAULT 'here') WITH (format_version = 3)")
    story.run("INSERT INTO {t} (id) VALUES 1")
    story.run("ALTER TABLE {t} ADD COLUMN extra integer DEFAULT 7")
    story.run("ALTER TABLE {t} ALTER COLUMN extra SET DEFAULT 8")
    story.run("INSERT INTO {t} (id) VALUES 2")
    story.ask("INSERT INTO {t} (id) VALUES (3)")
    story.run("ALTER TABLE {t} ALTER COLUMN extra DROP DEFAULT")
    story.run("INSERT INTO {t} (id) VALUES 4")
    assert story.check() == 4
    assert sorted(story.ask("FROM {t}")) == [(1, "here", 7), (2, "here", 8), (3, "here", 8), (4, "here", None)]
    story.check_going_on()


@pytest.mark.long
def test_comments(story: Story) -> None:
    """On the table and its columns, set and taken away, both ways."""
    story.run("CREATE TABLE {t} (id integer, name varchar)")
    story.run("COMMENT ON TABLE {t} IS 'a table'")
    story.run("COMMENT ON COLUMN {t}.id IS 'a key'")
    comments = "SELECT t.comment, c.comment FROM duckdb_tables() t JOIN duckdb_columns() c USING (table_oid) WHERE column_name = 'id'"
    assert story.ask(comments) == [("a table", "a key")]
    story.ask("COMMENT ON COLUMN {t}.name IS 'of DuckDB'")
    assert [row[3] for row in story.run("SHOW COLUMNS FROM {t}")] == ["a key", "of DuckDB"]
    story.run("COMMENT ON TABLE {t} IS NULL")
    story.run("COMMENT ON COLUMN {t}.id IS NULL")
    assert story.ask(comments) == [(None, None)]


@pytest.mark.long
def test_partitions_order_and_properties_change(story: Story) -> None:
    """New files follow, old ones stay where they are, and filters find rows of both."""
    story.run("CREATE TABLE {t} WITH (partitioning = ARRAY['name']) AS SELECT 1 AS id, 'a' AS name, DATE '2020-01-01' AS day")
    for parts in ("'bucket(id, 3)', 'name'", "'truncate(name, 1)', 'year(day)'", "'month(day)'", ""):
        story.run(f"ALTER TABLE {{t}} SET PROPERTIES partitioning = ARRAY[{parts}]")
        story.run("INSERT INTO {t} SELECT max(id) + 1, 'b', DATE '2021-02-03' FROM {t}")
        assert len(story.run("SELECT 1 FROM {t} WHERE name = 'b' AND day > DATE '2020-06-01'")) == story.check() - 1
    story.run(
        "ALTER TABLE {t} SET PROPERTIES sorted_by = ARRAY['id ASC NULLS FIRST'], extra_properties = MAP(ARRAY['owner'], ARRAY['ann'])"
    )
    story.run("INSERT INTO {t} VALUES (11, 'c', NULL), (10, 'c', NULL)")
    assert story.ask("SELECT tags['owner'] FROM duckdb_tables() WHERE schema_name = 'ns'") == [("ann",)]
    story.refuse("ALTER TABLE {t} SET PROPERTIES location = 's3://lake/elsewhere'", "cannot be updated|not supported")
    story.run("UPDATE {t} SET name = 'd' WHERE id IN (1, 2, 10)")
    story.run("DELETE FROM {t} WHERE day = DATE '2021-02-03' AND id > 4")
    assert story.check() == 6
    assert len(story.load()["partition-specs"]) == 5
    story.check_going_on()
