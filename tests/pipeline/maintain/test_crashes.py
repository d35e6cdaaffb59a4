"""`maintain` killed (-9) anywhere: no row is lost, and running again does what was left."""

import random
from pathlib import Path

import pyarrow as pa
import pytest

from duckicelake.pipeline.common.reports import Verdict
from tests.pipeline.dying import AT_WORK, Moment, Span, draw, is_told
from tests.pipeline.holding import check_cleared
from tests.pipeline.maintain.doomed import GROUP_BYTES, kill
from tests.pipeline.maintain.keeper import AT_ONCE, DEAD, Keeper, grow_branch

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261122
STEPS = [
    *("look at the catalog", "drop branches of main.t", "flush main.t", "compact main.t"),
    *("expire", "forget 1 of", "clean-up", "orphans"),
]
"""What a run tells of the lake below, or how that begins."""
LONG_KILLS = 20
COMPACT = 3
WAYS = {
    "sort": {"strategy": "sort", "order": "name"},
    "z-order": {"strategy": "zorder", "order": "id, name"},
    "piece by piece": {GROUP_BYTES: 2000},
}
"""Compactions that are not put together at once."""
SPANS = (Span(), Span(0.05), Span(0.5), Span(2.0, has_tasks=True), Span(0.6), Span(0.02), Span(0.3), Span(0.2))


def fill(keeper: Keeper) -> None:
    """Small files, deletes and inlined rows, a tag on an older snapshot, one where main was moved to, what a dead run left, and orphans."""
    keeper.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR)")
    for start in range(0, 240, 40):
        keeper.checker.run(f"INSERT INTO t SELECT i, 'n' || i FROM range({start}, {start + 40}) r(i)")
    keeper.checker.run("DELETE FROM t WHERE id % 3 = 0")
    keeper.checker.ask_spark("ALTER TABLE {c}.main.t CREATE TAG kept")
    table = keeper.checker.served.pyiceberg().catalog.load_table("main.t")
    grow_branch(table, DEAD, pa.table({"id": [7], "name": ["dead"]}))
    grow_branch(table, "staged", pa.table({"id": [2000], "name": ["staged"]}))
    staged = table.refs()["staged"].snapshot_id
    table.manage_snapshots().set_current_snapshot(staged).remove_branch("staged").commit()
    keeper.checker.run("INSERT INTO t VALUES (1000, 'inlined')", "DELETE FROM t WHERE id = 1")
    for place in (keeper.checker.served.lake.data_path, f"{table.location()}/data"):
        keeper.checker.run(f"COPY (SELECT 7 AS id) TO '{place.rstrip('/')}/orphan.parquet'")


def check_whole(keeper: Keeper) -> None:
    """Every row is there once, now, at the tag and at every snapshot that is left."""
    at_tag = keeper.checker.spark.arrow(f"SELECT count(*) AS n FROM {keeper.checker.catalog}.main.t VERSION AS OF 'kept'")
    assert at_tag["n"].to_pylist() == [160]
    assert keeper.ask("SELECT count(*), count(DISTINCT id), max(id) FROM t") == [(161, 161, 2000)]
    keeper.check_same()


def finish(keeper: Keeper) -> None:
    """Run again until there is nothing to do: at once. When the grace is over, the store holds what is named, and nothing else."""
    ages = {name.replace("-", "_"): age for name, age in AT_ONCE.items()}
    assert keeper.run(**ages).status == 0
    again = keeper.run(**ages)
    assert [step.describe() for step in again.steps if step.removed or step.verdict is Verdict.failed] == []
    assert keeper.count_files("t") == 1
    check_cleared(keeper.checker.served)
    check_whole(keeper)


def test_a_killed_job_is_run_again(keeper: Keeper, tmp_path: Path) -> None:
    """While executors read and write, chosen by lot: as if it had been run once."""
    fill(keeper)
    told = kill(keeper.checker.served, tmp_path, Moment(3, random.Random(SEED).uniform(0.0, 0.2), stage=0))
    assert told == [*STEPS[:4], AT_WORK]
    check_whole(keeper)
    finish(keeper)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_a_job_may_be_killed_anywhere(keeper: Keeper, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    fill(keeper)
    moment = draw(number, SEED, SPANS)
    told = kill(keeper.checker.served, tmp_path, moment)
    assert is_told(told, STEPS[: moment.step + 1]), told
    check_whole(keeper)
    finish(keeper)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS // 2))
@pytest.mark.parametrize("way", WAYS)
def test_a_compaction_of_any_kind_may_be_killed(keeper: Keeper, tmp_path: Path, way: str, number: int) -> None:
    """While it is sorted, or some pieces are in the table and others are not."""
    fill(keeper)
    moment = Moment(COMPACT, random.Random(SEED + number).uniform(0.0, SPANS[COMPACT].seconds), stage=0)
    told = kill(keeper.checker.served, tmp_path, moment, options=WAYS[way])
    assert is_told(told, STEPS[: COMPACT + 1]), told
    check_whole(keeper)
    finish(keeper)
