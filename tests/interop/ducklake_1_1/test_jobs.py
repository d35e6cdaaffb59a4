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
from tests.pipeline.maintain.keeper import Keeper
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.verify.checker import Checker
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake, open_duckdb
from tests.support.readers import Served
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
    """`ingest`, `profile` and the rewriting of `maintain` work; `maintain` passes over the flush, and `verify` needs a newer DuckDB."""
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
    with pytest.raises(EmbeddedError, match="which has DuckLake 1.1: use a DuckDB from 2.0 on"):
        checker.verify("main.t", open_lake=attach)
    with served.pyiceberg().catalog as catalog:
        assert [catalog.load_table(name).scan().count() for name in ("main.t", "raw.trips")] == [601, 2]
