"""The Spark jobs on a lake that was migrated to DuckLake 1.1: those that need no DuckDB work, the others say what is not possible."""

from pathlib import Path

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.commands.prepare import find_s3_keys
from duckicelake.embedded.ducklake import EmbeddedError, LakeAddress, attach_lake
from duckicelake.lake.writing.migrate import migrate
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.ingest.options import Status
from duckicelake.pipeline.maintain.lake_access import read_facts
from duckicelake.pipeline.maintain.planning import StepKind
from duckicelake.pipeline.maintain.policy import Policy
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.maintain.keeper import AT_ONCE, Keeper
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.transfer.ferry import check_compared, describe, open_ferry
from tests.pipeline.verify.checker import Checker
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake, open_duckdb
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark


def fill(lake: FreshLake) -> None:
    """Small files, inlined rows of two inserts, and deletes."""
    with lake.duckdb() as duck:
        duck.execute("CREATE TABLE t AS SELECT range AS i, 'n' || range AS s FROM range(100)")
        for number in range(5):
            duck.execute(f"INSERT INTO t SELECT range, 'm' FROM range({number * 100}, {number * 100 + 100})")
        duck.execute("INSERT INTO t VALUES (-1, 'inlined'), (-2, NULL)")
        duck.execute("INSERT INTO t VALUES (-3, 'again')")
        duck.execute("DELETE FROM t WHERE i = 5")


def test_a_plan_of_maintenance_counts_the_same_after_the_migration(lake: FreshLake) -> None:
    """Files, inlined rows and deletes; DuckDB 1.5 cannot flush them any more, so they count as small files."""
    fill(lake)
    conn = lake.psycopg()
    before = read_facts(conn, 1, Policy())
    migrate(conn, lake.metadata_schema)
    after = read_facts(conn, 1, Policy())
    assert (after.groups, after.inlined_rows, after.inlined_batches, after.inlined_deletes) == (
        *(before.groups, before.inlined_rows, before.inlined_batches, before.inlined_deletes),
    )
    assert (before.inlined_rows, before.inlined_batches, before.inlined_deletes) == (3, 2, 2)
    assert (before.withheld, after.withheld) == ("", "the lake has DuckLake 1.1, which DuckDB attaches from version 2.0 on")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.xdist_group("pipeline")
def test_jobs_work_or_say_why_not(served: Served, spark: Spark, tmp_path: Path) -> None:
    """`ingest`, `profile` and the rewriting of `maintain` work; the flush is passed over; the others need a newer DuckDB."""
    lake = served.lake
    fill(lake)
    migrate(lake.psycopg(), lake.metadata_schema)
    [settings] = make_settings(lake).lakes()

    def attach() -> DuckDBPyConnection:
        conn = open_duckdb()
        attach_lake(conn, LakeAddress(lake.dsn, lake.metadata_schema), find_s3_keys(settings))
        return conn

    checker = Checker(served, spark, spark.add(served.rest_catalog()), duckdb.connect())
    (tmp_path / "a.csv").write_text("id,name\n1,x\n2,y\n")
    taken = Mill(served, spark, checker.catalog, tmp_path, checker.duck).run()
    assert (taken.status, taken.rows_out) == (Status.done, 2)
    [profiled] = Measurer(checker).run("main.t").tables
    assert profiled.total is not None and profiled.total.rows == 601
    steps = {step.kind: step for step in Keeper(checker).run("main.t").steps}
    assert (steps[StepKind.flush].verdict, steps[StepKind.compact].verdict) == (Verdict.skipped, Verdict.done)
    assert "DuckDB attaches from version 2.0 on" in steps[StepKind.flush].message
    report = Keeper(checker, open_lake=attach).run(**AT_ONCE)
    failed = {step.kind: step.message for step in report.steps if step.verdict is Verdict.failed}
    assert failed.keys() == {StepKind.expire, StepKind.orphans}
    assert all("which has DuckLake 1.1: use a DuckDB from 2.0 on" in message for message in failed.values())
    with pytest.raises(EmbeddedError, match="which has DuckLake 1.1: use a DuckDB from 2.0 on"):
        checker.verify("main.t", open_lake=attach)
    with served.pyiceberg().catalog as catalog:
        assert [catalog.load_table(name).scan().count() for name in ("main.t", "raw.trips")] == [601, 2]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.xdist_group("pipeline")
def test_tables_are_exported_and_imported(stack: SharedStack, spark: Spark, tmp_path: Path) -> None:
    """Out into a Hadoop warehouse with inlined rows and deletes, in again registered, and copied, partitioned as in the warehouse."""
    with open_ferry(stack, spark, tmp_path) as ferry:
        lake = ferry.served.lake
        fill(lake)
        migrate(lake.psycopg(), lake.metadata_schema)
        exported = ferry.bring("export", str(ferry.folder), "main.t")
        assert describe(exported) == [("main.t", "done", 601)], exported.describe()
        registered = ferry.take("main.t", mode="register", into="again")
        assert describe(registered) == [("again.main.t", "done", 601)], registered.describe()
        ferry.run(
            "CREATE TABLE {t}.shop.days (id bigint, at timestamp) USING iceberg PARTITIONED BY (hours(at))",
            "INSERT INTO {t}.shop.days VALUES (1, timestamp'2026-01-01 10:00:00'), (2, NULL), (3, timestamp'1969-12-31 23:59:59')",
        )
        copied = ferry.take("shop.days")
        assert describe(copied) == [("shop.days", "done", 3)], copied.describe()
        check_compared(copied, "rows", "checksums")
        assert lake.psycopg().execute("SELECT transform FROM ducklake_partition_column").fetchall() == [("epoch_hour",)]
