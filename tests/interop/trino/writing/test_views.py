"""Trino makes views: they are kept whole, DuckDB lists them, and says whose they are."""

import duckdb
import pytest

from tests.interop.trino.writing.story import Rows, Story

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]


def list_views(story: Story) -> Rows:
    """The lake's views, as DuckDB lists them, with their comments."""
    return story.ask(
        "SELECT schema_name, view_name, comment FROM duckdb_views() WHERE database_name = 'lake' AND NOT internal ORDER BY ALL"
    )


def test_views_are_made_replaced_renamed_and_dropped(story: Story) -> None:
    """With comments on both levels, across namespaces; never over a table, nor a table over one."""
    story.run("CREATE TABLE {t} AS SELECT k AS id, 'n' || cast(k % 3 AS varchar) AS name FROM UNNEST(sequence(1, 12)) AS q(k)")
    story.run("CREATE VIEW {c}.ns.v COMMENT 'a view' AS SELECT id, name AS label FROM {t} WHERE id < 3")
    assert sorted(story.run("SELECT * FROM {c}.ns.v")) == [(1, "n1"), (2, "n2")]
    assert list_views(story) == [("ns", "v", "a view")]
    with pytest.raises(duckdb.Error, match="its dialects: trino"):
        story.ask("FROM lake.ns.v")
    story.run("COMMENT ON VIEW {c}.ns.v IS 'told'")
    story.run("COMMENT ON COLUMN {c}.ns.v.label IS 'a label'")
    assert list_views(story) == [("ns", "v", "told")]
    assert [row[3] for row in story.run("SHOW COLUMNS FROM {c}.ns.v")] == ["", "a label"]
    story.run("CREATE OR REPLACE VIEW {c}.ns.v COMMENT 'told' AS SELECT count(*) AS n FROM {t}")
    story.ask("INSERT INTO {t} VALUES (13, 'duck')")
    assert story.run("SELECT * FROM {c}.ns.v") == [(13,)]
    assert "COMMENT 'told'" in story.run("SHOW CREATE VIEW {c}.ns.v")[0][0]
    for statement in ("CREATE VIEW {c}.ns.v AS SELECT 1 AS one", "CREATE VIEW {t} AS SELECT 1 AS one", "CREATE TABLE {c}.ns.v (a integer)"):
        story.refuse(statement, "already exists")
    story.run("ALTER VIEW {c}.ns.v RENAME TO {c}.other.w")
    assert story.run("SELECT * FROM {c}.other.w") == [(13,)]
    kinds = story.run("SELECT table_name, table_type FROM {c}.information_schema.tables WHERE table_schema = 'other'")
    assert kinds == [("w", "VIEW")]
    story.refuse("DROP TABLE {c}.other.w", "a view with that name exists")
    story.refuse("DROP SCHEMA {c}.other", "SCHEMA_NOT_EMPTY")
    story.run("DROP VIEW {c}.other.w")
    story.run("DROP SCHEMA {c}.other")
    assert list_views(story) == []


@pytest.mark.long
def test_views_of_duckdb_are_listed_and_dropped(story: Story) -> None:
    """Trino reads those in its own dialect alone, and says so; other views and tables are not affected."""
    story.run("CREATE TABLE {t} AS SELECT 1 AS id")
    story.ask("CREATE VIEW lake.ns.d AS SELECT id FROM lake.ns.t")
    story.run("CREATE VIEW {c}.ns.v AS SELECT id FROM {t}")
    story.refuse("SELECT * FROM {c}.ns.d", "Cannot read unsupported dialect 'duckdb'")
    assert story.run("SELECT * FROM {c}.ns.v") == [(1,)]
    assert {row[0] for row in story.run("SHOW TABLES FROM {c}.ns")} >= {"t", "v"}
    story.run("DROP VIEW {c}.ns.d")
    assert list_views(story) == [("ns", "v", None)]


@pytest.mark.long
def test_materialized_views_are_refused_by_trino(story: Story) -> None:
    """Its connector has none over REST; nothing is left behind."""
    story.refuse("CREATE MATERIALIZED VIEW {c}.ns.m AS SELECT 1 AS one", "createMaterializedView is not supported for Iceberg REST catalog")
    assert story.run("SHOW TABLES FROM {c}.ns") == []
    assert list_views(story) == []
