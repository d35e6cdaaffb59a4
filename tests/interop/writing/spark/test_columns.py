"""Spark's ALTER TABLE, every form that is about columns: DuckDB has the same columns and rows after each statement, and goes on."""

from typing import Any

import pytest

from tests.interop.writing.spark.story import Story, alter
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.long]

COLUMNS = (
    "ADD COLUMN s struct<a: int, b: string>",
    "ADD COLUMN l array<struct<x: int>>",
    "INSERT INTO {t} SELECT id, 'n', named_struct('a', id, 'b', 'b'), array(named_struct('x', 1)) FROM range(20)",
    "ADD COLUMN first boolean FIRST",
    "ADD COLUMNS (mid double COMMENT 'in between' AFTER id, last decimal(9, 2))",
    "ADD COLUMN s.zero int FIRST",
    "ADD COLUMN s.c string COMMENT 'nested' AFTER a",
    "ADD COLUMN l.element.y string",
    "INSERT INTO {t} SELECT true, id, 0.5, 'm', named_struct('zero', 0, 'a', id, 'c', 'c', 'b', 'b'),"
    " array(named_struct('x', 1, 'y', 'y')), 1.25 FROM range(20, 40)",
    "ALTER COLUMN name FIRST",
    "ALTER COLUMN mid AFTER name",
    "ALTER COLUMN s.b FIRST",
    "ALTER COLUMN s.a TYPE bigint",
    "ALTER COLUMN last TYPE decimal(12, 2)",
    "ALTER COLUMN name COMMENT 'told'",
    "ALTER COLUMN s.b COMMENT 'within'",
    "RENAME COLUMN mid TO middle",
    "RENAME COLUMN s.b TO bb",
    "UPDATE {t} SET middle = 9 WHERE id % 7 = 0",
    "DROP COLUMN first",
    "DROP COLUMN s.zero",
    "SET IDENTIFIER FIELDS id",
    "DROP IDENTIFIER FIELDS id",
    "ALTER COLUMN id DROP NOT NULL",
    "DELETE FROM {t} WHERE id IN (3, 23)",
)
"""As `alter` takes them."""


def current_schema(metadata: Any) -> Any:
    """The fields of the current schema by name."""
    (schema,) = (schema for schema in metadata["schemas"] if schema["schema-id"] == metadata["current-schema-id"])
    return {field["name"]: field for field in schema["fields"]}


@pytest.mark.parametrize("format_version", [2, 3])
def test_columns_change(served: Served, spark: Spark, format_version: int) -> None:
    """Added, moved, widened, described, renamed and dropped, within structs and lists too; rows identified, and no longer."""
    story = Story(served, spark, "", f"'format-version' = '{format_version}'")
    story.run("DROP TABLE {t}")
    story.run(f"CREATE TABLE {{t}} (id bigint NOT NULL, name string) USING iceberg TBLPROPERTIES ('format-version' = '{format_version}')")
    fields = current_schema(alter(story, COLUMNS))
    assert list(fields) == ["name", "middle", "id", "s", "l", "last"]
    assert [(inner["name"], inner["type"]) for inner in fields["s"]["type"]["fields"]] == [("bb", "string"), ("a", "long"), ("c", "string")]
    assert [fields["name"]["doc"], fields["middle"]["doc"]] == ["told", "in between"]
    assert [inner.get("doc") for inner in fields["s"]["type"]["fields"]] == ["within", None, "nested"]
    assert (fields["id"]["required"], fields["last"]["type"]) == (False, "decimal(12, 2)")
    story.duck.execute("ALTER TABLE lake.ns.t ADD COLUMN duck INTEGER")
    story.duck.execute("INSERT INTO lake.ns.t (id, duck) VALUES (1000, 1)")
    story.check(39)
    check_going_on(served, ("ns", "t"), travels_after_merge=False)
