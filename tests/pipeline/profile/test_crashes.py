"""`profile` killed (-9) anywhere: running again leaves one statistics file for the snapshot, and orphans go."""

import random
from pathlib import Path

import pytest

from duckicelake.pipeline.common.reports import Verdict
from tests.pipeline.dying import AT_WORK, Moment, Span, draw, is_told
from tests.pipeline.holding import check_cleared
from tests.pipeline.maintain.doomed import kill
from tests.pipeline.profile.measurer import Measurer

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261122
MODULE = "tests.pipeline.profile.doomed"
STEPS = ["look at the catalog", "compute main.t", "scan main.t"]
LONG_KILLS = 20
SPANS = (Span(), Span(1.2, has_tasks=True), Span())
"""The last one only reads."""


def check_whole(measurer: Measurer, told: list[str]) -> None:
    """The table has its one statistics file, after another run if it needs one; what a dead run left is an orphan."""
    found = measurer.measure("t")
    assert found.verdict is (Verdict.nothing if STEPS[-1] in told else found.verdict)
    assert [column.distinct for column in found.columns] == [300, 7]
    [named] = measurer.load("t")["statistics"]
    assert measurer.measure("t", dry_run=True).statistics_path == named["statistics-path"]
    check_cleared(measurer.checker.served)
    folder = named["statistics-path"].rpartition("/")[0]
    assert measurer.ask(f"SELECT file FROM glob('{folder}/*.stats')") == [(named["statistics-path"],)]
    assert measurer.ask("SELECT count(*) FROM t") == [(300,)]


def fill(measurer: Measurer) -> None:
    """One table of one snapshot."""
    measurer.checker.run("CREATE TABLE t AS SELECT i AS id, 'n' || i % 7 AS name FROM range(300) r(i)")


@pytest.mark.long
def test_a_killed_job_is_run_again(measurer: Measurer, tmp_path: Path) -> None:
    """While executors count, chosen by lot."""
    fill(measurer)
    told = kill(measurer.checker.served, tmp_path, Moment(1, random.Random(SEED).uniform(0.0, 0.2), stage=0), MODULE)
    assert told == [*STEPS[:2], AT_WORK]
    check_whole(measurer, told)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_a_job_may_be_killed_anywhere(measurer: Measurer, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    fill(measurer)
    moment = draw(number, SEED, SPANS)
    told = kill(measurer.checker.served, tmp_path, moment, MODULE)
    assert is_told(told, STEPS[: moment.step + 1]), told
    check_whole(measurer, told)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS // 2))
def test_partitions_may_be_killed_as_they_are_counted(measurer: Measurer, tmp_path: Path, number: int) -> None:
    """Their file is there once, too."""
    measurer.checker.run(
        "CREATE TABLE t (id BIGINT, name VARCHAR)",
        "ALTER TABLE t SET PARTITIONED BY (name)",
        "INSERT INTO t SELECT i, 'n' || i % 7 FROM range(300) r(i)",
    )
    moment = Moment(2, random.Random(SEED + number).uniform(0.0, 0.3) if number else 0.0)
    told = kill(measurer.checker.served, tmp_path, moment, MODULE, {"partitions": True})
    assert is_told(told, [*STEPS[:2], "compute partitions of main.t"]), told
    measurer.measure("t", partitions=True)
    metadata = measurer.load("t")
    assert [len(metadata[kind]) for kind in ("statistics", "partition-statistics")] == [1, 1]
    [named] = metadata["partition-statistics"]
    assert measurer.measure("t", partitions=True, dry_run=True).verdict is Verdict.nothing
    check_cleared(measurer.checker.served)
    folder = named["statistics-path"].rpartition("/")[0]
    assert measurer.ask(f"SELECT file FROM glob('{folder}/partition-stats-*')") == [(named["statistics-path"],)]
