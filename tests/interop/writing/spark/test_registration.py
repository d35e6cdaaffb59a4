"""Tables of a Hadoop catalog, made by Spark with Iceberg's own runtime, registered: Spark and DuckDB read them alike and write on."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.rest.serving import make_settings, serve
from tests.support.going_on import check_going_on
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

MERGE_ON_READ = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read'"


@dataclass(frozen=True, slots=True)
class World:
    """A Hadoop catalog and a served lake, both known to Spark, on the local disk."""

    spark: Spark
    served: Served
    there: str
    here: str
    folder: Path

    def run(self, statement: str) -> list[dict[str, Any]]:
        """Run SQL in which `{t}` is the Hadoop catalog's table, `{h}` the lake's, and `{c}` the lake's catalog."""
        named = statement.format(t=f"{self.there}.ns.t", h=f"{self.here}.ns.t", c=self.here)
        return self.spark.arrow(named).to_pylist()

    def register(self) -> None:
        """Register the newest metadata file of the Hadoop catalog's table."""
        folder = self.folder / "ns" / "t" / "metadata"
        newest = max(folder.glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
        self.run(f"CALL {{c}}.system.register_table(table => 'ns.t', metadata_file => 'file:{newest}')")

    def both(self) -> list[str]:
        """The lake's rows, which Spark and DuckDB must agree on."""
        mine = sorted(str(list(row.values())) for row in self.run("SELECT * FROM {h}"))
        found = self.served.lake.duckdb().execute("FROM lake.ns.t").fetchall()
        assert sorted(str(list(row)) for row in found) == mine
        return mine


@pytest.fixture
def world(stack: SharedStack, spark: Spark, tmp_path: Path) -> Iterator[World]:
    """Both, each with the namespace `ns`."""
    folder = tmp_path / "hadoop"
    options = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": f"file:{folder}", ".cache-enabled": "false"}
    with make_lake(stack, str(tmp_path / "lake")) as lake, serve(make_settings(lake, allowed_locations=(str(folder),))) as server:
        served = Served(lake, server)
        here = served.spark(spark).catalog
        there = f"hadoop_{here}"
        for key, value in options.items():
            spark.session.conf.set(f"spark.sql.catalog.{there}{key}", value)
        spark.session.conf.set(f"spark.sql.catalog.{here}.io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
        world = World(spark, served, there, here, folder)
        world.run("CREATE NAMESPACE {c}.ns")
        yield world
        world.run("DROP TABLE {t}")


@pytest.mark.long
@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_table_of_spark_comes_along(world: World, version: int) -> None:
    """Rows, history, row lineage, partitions, deletes; then every statement leaves both with the same rows."""
    mode = "" if version == 1 else f", {MERGE_ON_READ}"
    world.run(f"CREATE TABLE {{t}} (id int, name string) USING iceberg TBLPROPERTIES ('format-version' = '{version}'{mode})")
    for statement in [
        "INSERT INTO {t} SELECT cast(id AS int), concat('n', id) FROM range(10)",
        "ALTER TABLE {t} ADD PARTITION FIELD bucket(3, id)",
        "INSERT INTO {t} SELECT cast(id + 10 AS int), concat('n', id) FROM range(10)",
        "DELETE FROM {t} WHERE id IN (1, 2, 12)",
        "ALTER TABLE {t} ADD COLUMN extra struct<a: int, b: array<string>>",
        "UPDATE {t} SET extra = named_struct('a', id, 'b', array(name)) WHERE id < 5",
        "ALTER TABLE {t} ALTER COLUMN id TYPE bigint",
        "ALTER TABLE {t} RENAME COLUMN name TO title",
        "ALTER TABLE {t} CREATE TAG early",
        "INSERT INTO {t} VALUES (3000000000, 'big', NULL)",
        "DELETE FROM {t} WHERE id = 11",
    ]:
        world.run(statement)
    world.register()
    lineage = ", _row_id, _last_updated_sequence_number" if version == 3 else ""
    wanted = f"SELECT *{lineage} FROM {{}} ORDER BY id"
    assert world.run(wanted.format("{h}")) == world.run(wanted.format("{t}"))
    world.both()
    for row in world.run("SELECT snapshot_id FROM {t}.snapshots"):
        at = f"SELECT * FROM {{}} VERSION AS OF {row['snapshot_id']} ORDER BY id"
        assert world.run(at.format("{h}")) == world.run(at.format("{t}"))
    assert world.run("SELECT * FROM {h} VERSION AS OF 'early' ORDER BY id") == world.run(
        "SELECT * FROM {t} VERSION AS OF 'early' ORDER BY id"
    )
    assert world.run("SELECT * FROM {h}.history") == world.run("SELECT * FROM {t}.history")
    before = world.run(wanted.format("{h}"))
    world.run("INSERT INTO {h} VALUES (50, 'n50', NULL)")
    kept = [row for row in world.run(wanted.format("{h}")) if row["id"] != 50]
    assert kept == before
    for statement in [
        "UPDATE {h} SET title = 'changed' WHERE id IN (3, 13)",
        "DELETE FROM {h} WHERE id IN (4, 14)",
        "MERGE INTO {h} t USING (SELECT 5L AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET title = 'merged'",
        "CALL {c}.system.rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))",
        "ALTER TABLE {h} DROP COLUMN extra",
        "INSERT INTO {h} VALUES (60, 'n60')",
    ]:
        world.run(statement)
        world.both()
    duck = world.served.lake.duckdb()
    duck.execute("UPDATE lake.ns.t SET title = 'duck' WHERE id < 8")
    duck.execute("CALL ducklake_merge_adjacent_files('lake')")
    assert len(world.both()) == 17
    check_going_on(world.served, ("ns", "t"), travels_after_merge=False)


@pytest.mark.long
def test_rows_that_spark_deleted_by_vectors_stay_deleted(world: World) -> None:
    """In version 3, files with vectors are updated by both sides afterwards, and row ids stay each row's own."""
    world.run(f"CREATE TABLE {{t}} (id bigint, name string) USING iceberg TBLPROPERTIES ('format-version' = '3', {MERGE_ON_READ})")
    world.run("INSERT INTO {t} SELECT id, concat('n', id) FROM range(100)")
    world.run("DELETE FROM {t} WHERE id % 10 = 3")
    world.run("UPDATE {t} SET name = 'x' WHERE id % 10 = 4")
    world.register()
    world.served.lake.duckdb().execute("DELETE FROM lake.ns.t WHERE id % 10 = 5")
    world.run("DELETE FROM {h} WHERE id % 10 = 6")
    assert len(world.both()) == 70
    ids = [row["_row_id"] for row in world.run("SELECT _row_id FROM {h}")]
    assert len(set(ids)) == 70
    check_going_on(world.served, ("ns", "t"), travels_after_merge=False)
