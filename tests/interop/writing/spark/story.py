"""Spark and DuckDB on one table, each statement's rows compared."""

from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection

from tests.support.readers import Served
from tests.support.spark import Spark

MERGE_ON_READ = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read'"
OWN = "summary['ducklake.alias-of'] IS NULL"

Rows = list[tuple[Any, ...]]


class Story:
    """Spark and DuckDB on the table ns.t of one lake."""

    def __init__(self, served: Served, spark: Spark, columns: str, properties: str) -> None:
        self.served, self.spark, self.catalog = served, spark, served.spark(spark).catalog
        self.duck: DuckDBPyConnection = served.lake.duckdb()
        self.run("CREATE NAMESPACE {c}.ns")
        self.run(f"CREATE TABLE {{t}} (id bigint, name string) USING iceberg {columns} TBLPROPERTIES ({properties})")

    def run(self, statement: str) -> Rows:
        """Have Spark run a statement: `{t}` is the table, `{c}` the catalog."""
        found = self.spark.arrow(statement.replace("{t}", f"{self.catalog}.ns.t").replace("{c}", self.catalog))
        return [tuple(row.values()) for row in found.to_pylist()]

    def call(self, procedure: str) -> Rows:
        """Call a procedure of the catalog."""
        return self.run(f"CALL {{c}}.system.{procedure}")

    def check(self, count: int, name: str = "t") -> None:
        """Both sides have that many rows, the same ones."""
        names = [row[0] for row in self.duck.execute(f"DESCRIBE lake.ns.{name}").fetchall()]
        mine = sorted(self.run(f"SELECT {', '.join(f'`{one}`' for one in names)} FROM {{c}}.ns.{name}"), key=repr)
        assert mine == sorted(self.duck.execute(f"FROM lake.ns.{name}").fetchall(), key=repr)
        assert len(mine) == count


def fill(story: Story) -> list[int]:
    """Rows of both sides with deletes of both; returns the snapshots."""
    for start in (0, 10):
        story.run(f"INSERT INTO {{t}} SELECT id, concat('n', id) FROM range({start}, {start + 10})")
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'duck' FROM range(100, 120)")
    story.run("DELETE FROM {t} WHERE id IN (3, 13, 103)")
    story.duck.execute("DELETE FROM lake.ns.t WHERE id = 104")
    story.check(36)
    return [row[0] for row in story.run(f"SELECT snapshot_id FROM {{t}}.snapshots WHERE {OWN} ORDER BY snapshot_id")]


def alter(story: Story, statements: tuple[str, ...]) -> Any:
    """Run them, `{t}` in each, or what comes after ALTER TABLE: after each, both have the same columns and rows. Returns the metadata."""
    for statement in statements:
        story.run(statement if "{t}" in statement else f"ALTER TABLE {{t}} {statement}")
        mine = story.spark.arrow(f"SELECT * FROM {story.catalog}.ns.t")
        duck = story.duck.execute("FROM lake.ns.t").to_arrow_table()
        assert sorted(mine.column_names) == sorted(duck.column_names), statement
        assert in_order(mine) == in_order(duck), statement
    return story.served.server.get("namespaces/ns/tables/t").json["metadata"]


def in_order(table: pa.Table) -> list[Any]:
    """The rows by id."""
    return sorted(table.to_pylist(), key=lambda row: row["id"])
