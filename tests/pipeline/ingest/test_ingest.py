"""`ingest` on real Spark, against the real server: each file once, every row somewhere, all tables at once."""

from importlib.metadata import version
from pathlib import Path

import pytest

from duckicelake.pipeline.ingest.options import Status
from tests.pipeline.ingest.mill import Mill
from tests.support.spark import Spark
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
LOOK_UPS = 32
"""By how many tasks Spark is to look up files, however many they are."""


def test_files_are_taken_once(mill: Mill) -> None:
    """A second run takes the new file alone, and removes what a dead one left; the ledger has one row for each."""
    mill.write("a b[1].csv", "id,name\n1,a\n2,b\n")
    mill.write("deep/c%20.csv", "id,name\n3,ł\n")
    first = mill.run()
    assert (first.status, first.files, first.rows_in, first.rows_out, first.rows_quarantined) == (Status.done, 2, 3, 3, 0)
    mill.write("d.csv", "id,name\n4,\n")
    mill.spark.session.sql(f"ALTER TABLE {mill.catalog}.raw.trips CREATE BRANCH ingest_20200101T000000_dead_1")
    second = mill.run()
    assert (second.files, second.rows_out) == (1, 1)
    for table in ("trips", "trips__ingested"):
        mill.spark.session.sql(f"ALTER TABLE {mill.catalog}.raw.{table} CREATE BRANCH ingest_20200101T000000_dead_1")
    assert mill.run().status == Status.nothing_new
    assert mill.rows() == [(1, "a"), (2, "b"), (3, "ł"), (4, None)]
    assert [row[:2] for row in mill.rows("trips__ingested", "rows, run_id")] == [
        *[(1, run) for run in sorted((first.run_id, second.run_id))],
        (2, first.run_id),
    ]
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


def test_every_snapshot_names_its_run(mill: Mill) -> None:
    """Also the empty one that Iceberg makes for a branch of a table that has none, in the ledger and the quarantine too."""
    mill.write("a.csv", "id\n1\nx\n")
    done = mill.run(schema="id BIGINT")
    assert (done.rows_out, done.rows_quarantined) == (1, 1)
    wanted = {"job": "ingest", "run-id": done.run_id} | {f"version.{name}": version(name) for name in ("duckicelake", "pyspark")}
    for table in ("trips", "trips__ingested", "trips__quarantine"):
        snapshots = mill.served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]["snapshots"]
        told = [{name: text for name, text in one["summary"].items() if name.startswith("duckicelake.")} for one in snapshots]
        assert told == [{f"duckicelake.{name}": text for name, text in wanted.items()}] * 2, table


@pytest.mark.long
def test_names_are_never_filled_in(mill: Mill) -> None:
    """Spark would put its settings and our environment in the place of `${…}`, in names of columns too, where everybody reads them."""
    names = ["${env:HOME}", "${spark.sql.session.timeZone}", "${system:user.home}"]
    mill.write_parquet("a.parquet", **{name: [number] for number, name in enumerate(names)})
    assert mill.run().rows_out == 1
    assert mill.ask("SELECT column_name FROM (DESCRIBE raw.trips)") == [(name,) for name in names]
    assert mill.rows() == [(0, 1, 2)]


@pytest.mark.long
def test_files_named_one_by_one_are_looked_up_by_few_tasks(spark: Spark, tmp_path: Path) -> None:
    """Not by one for each, of which every one costs as much as a file's rows."""
    paths = [tmp_path / f"{number}.txt" for number in range(2 * LOOK_UPS)]
    for path in paths:
        path.write_text("one\n")
    context, group = spark.session.sparkContext, tmp_path.name
    context.setJobGroup(group, "look up")
    try:
        lines = spark.session.read.text([str(path) for path in paths])
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    tracker = context.statusTracker()

    def count_tasks() -> list[int]:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return [stage.numTasks for stage in stages if stage is not None]

    # Spark hears of its jobs a little later.
    assert wait_for(lambda: count_tasks() or None, "the job to be known") == [LOOK_UPS]
    assert lines.count() == len(paths)
