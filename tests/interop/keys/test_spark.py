"""Spark with an id and a secret and no other keys, set up as `connect` prints it."""

import re

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.interop.keys.accounts import add_spark, check_going_on_without_account, guard_with_dead_keys
from tests.rest.auth.principals import Guarded
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark, find_causes

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

DENIED = re.compile(r"has no right|Access ?Denied")
WRITES = (
    "INSERT INTO {c}.a.rows VALUES (1, 'mine')",
    "DELETE FROM {c}.a.rows WHERE i = 20",
    "UPDATE {c}.a.rows SET s = 'mine' WHERE i = 20",
    "MERGE INTO {c}.a.rows t USING (SELECT 20 AS i) s ON t.i = s.i WHEN MATCHED THEN DELETE",
    "ALTER TABLE {c}.a.rows ADD COLUMN more INT",
    "ALTER TABLE {c}.a.rows RENAME TO {c}.a.mine",
    "CREATE TABLE {c}.a.mine (i BIGINT)",
    "CREATE TABLE {c}.a.mine AS SELECT 1 AS i",
    "CREATE VIEW {c}.a.mine AS SELECT 1 AS i",
    "DROP TABLE {c}.a.rows",
    "CREATE NAMESPACE {c}.mine",
)


@pytest.mark.long
def test_a_reader_reads_and_is_refused_each_write(guarded: Guarded, spark: Spark) -> None:
    """With what the catalog hands out alone; each refusal says why, and nothing is changed."""
    name, truth = add_spark(spark, guarded, "reader"), guarded.lake.duckdb()
    before = truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone()
    [row] = spark.arrow(f"SELECT count(*) AS c, sum(i) AS s FROM {name}.a.rows").to_pylist()
    assert (row["c"], row["s"]) == before
    for write in WRITES:
        with pytest.raises((Py4JJavaError, PySparkException)) as refused:
            spark.session.sql(write.format(c=name))
        assert DENIED.search(find_causes(refused.value)), write
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone() == before
    assert truth.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'mine'").fetchone() == (0,)
    with pytest.raises((Py4JJavaError, PySparkException), match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.session.sql(f"SELECT * FROM {name}.b.t")


def test_a_writer_writes(guarded: Guarded, spark: Spark) -> None:
    """Into a table of DuckDB's and into tables of its own, each kind of change, and DuckDB sees the rows."""
    name, truth = add_spark(spark, guarded, "writer"), guarded.lake.duckdb()
    for statement in (
        "INSERT INTO {c}.a.rows VALUES (-7, 'seven'), (-8, 'eight')",
        "DELETE FROM {c}.a.rows WHERE i = -8",
        "UPDATE {c}.a.rows SET s = 'seventh' WHERE i = -7",
        "CREATE TABLE {c}.a.made AS SELECT i, s FROM {c}.a.rows WHERE i BETWEEN 10 AND 19",
        "MERGE INTO {c}.a.made t USING (SELECT 10 AS i UNION ALL SELECT 99) s ON t.i = s.i "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (i, s) VALUES (s.i, 'new')",
        "CALL {c}.system.rewrite_data_files(table => 'a.made', options => map('rewrite-all', 'true'))",
    ):
        spark.session.sql(statement.format(c=name))
    assert truth.execute("SELECT i, s FROM lake.a.rows WHERE i < -1").fetchall() == [(-7, "seventh")]
    assert truth.execute("SELECT count(*), sum(i) FROM lake.a.made").fetchone() == (10, sum(range(11, 20)) + 99)
    check_going_on_without_account(guarded, "made", travels_after_merge=False)
    spark.session.sql(f"DROP TABLE {name}.a.made")


@pytest.mark.long
def test_keys_that_are_over_are_refreshed(stack: SharedStack, lake: FreshLake, spark: Spark) -> None:
    """By `client.refresh-credentials-endpoint`, to read and to write: a job outlives the keys that it began with."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        name = add_spark(spark, guarded, "writer")
        assert spark.arrow(f"SELECT count(*) AS c FROM {name}.a.rows").to_pylist() == [{"c": 50_000}]
        assert given.dead >= 1
        assert given.living >= 1
        spark.session.sql(f"INSERT INTO {name}.a.rows VALUES (-1)")
        assert lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_001,)
