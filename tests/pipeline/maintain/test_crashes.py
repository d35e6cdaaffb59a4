"""`maintain` killed (-9) anywhere: no row is lost, and running again does what was left."""

import random
from pathlib import Path

import pytest

from duckicelake.pipeline.reports import Verdict
from tests.pipeline.holding import check_cleared
from tests.pipeline.maintain.doomed import kill
from tests.pipeline.maintain.keeper import AT_ONCE, Keeper

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261122
STEPS = ["look at the catalog", "flush main.t", "compact main.t", "lake snapshots", "clean-up"]
"""What a run tells of the lake below; while Spark works it tells nothing, so some kills come later."""
LONG_KILLS = 20
LONGEST_DELAY = 6.0


def fill(keeper: Keeper) -> None:
    """Small files, deletes and inlined rows, and a tag on an older snapshot."""
    keeper.checker.run("CREATE TABLE t (id BIGINT, name VARCHAR)")
    for start in range(0, 240, 40):
        keeper.checker.run(f"INSERT INTO t SELECT i, 'n' || i FROM range({start}, {start + 40}) r(i)")
    keeper.checker.run("DELETE FROM t WHERE id % 3 = 0")
    keeper.checker.ask_spark("ALTER TABLE {c}.main.t CREATE TAG kept")
    keeper.checker.run("INSERT INTO t VALUES (1000, 'inlined')", "DELETE FROM t WHERE id = 1")


def check_whole(keeper: Keeper) -> None:
    """Every row is there once, now, at the tag and at every snapshot that is left."""
    at_tag = keeper.checker.spark.arrow(f"SELECT count(*) AS n FROM {keeper.checker.catalog}.main.t VERSION AS OF 'kept'")
    assert at_tag["n"].to_pylist() == [160]
    assert keeper.ask("SELECT count(*), count(DISTINCT id), max(id) FROM t") == [(160, 160, 1000)]
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
    """While Spark writes or commits, chosen by lot: as if it had been run once."""
    fill(keeper)
    told = kill(keeper.checker.served, tmp_path, STEPS.index("compact main.t"), random.Random(SEED).uniform(0.0, LONGEST_DELAY))
    assert told[2] == "compact main.t"
    check_whole(keeper)
    finish(keeper)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_a_job_may_be_killed_anywhere(keeper: Keeper, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    fill(keeper)
    delay = 0.0 if number < len(STEPS) else random.Random(SEED + number).uniform(0.0, LONGEST_DELAY)
    kill(keeper.checker.served, tmp_path, number % len(STEPS), delay)
    check_whole(keeper)
    finish(keeper)
