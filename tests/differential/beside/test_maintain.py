"""The proof while `maintain` is at work: nothing is removed that an unexpired snapshot of either side needs."""

from contextlib import closing

import pytest
from hypothesis import given, seed

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.maintain.planning import StepKind
from tests.differential.beside.rounds import Stage, make_eager_desk, run_round
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.ref_operations import MakeRef, WriteToBranch
from tests.differential.clients.writer import PyIcebergWriter
from tests.differential.generation import history_settings
from tests.differential.generator.histories import histories
from tests.differential.generator.kinds import NARROW, SPARK_SCALARS
from tests.differential.generator.steps import History
from tests.differential.prove import prove_end
from tests.differential.replay import replay
from tests.differential.sessions import Sessions
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.spark import Spark

DRAWN = 20
CHOSEN = (215, 216)
"""Between them, every kind of step of `maintain` has something to do; the second one has inlined rows to flush."""

MORE = [first for first in range(217, 233) if first != 227]
"""In that one DuckDB 1.5.5 itself fails within CHECKPOINT."""

TYPES = tuple(name for name in SPARK_SCALARS if name not in NARROW)
"""Compaction would widen narrow columns at moments that the model does not know."""

POLICY = {"snapshot-count": 2, "keep-refs": False}
"""Little is kept but what refs need, of each table alone."""


def choose(first: int) -> History:
    """Of some histories the one in which clients make most refs before the last changes."""
    drawn: list[History] = []

    @seed(first)
    @history_settings(DRAWN)
    @given(histories(types=TYPES, wide=True, clients=(PYICEBERG, PYICEBERG)))
    def draw(history: History) -> None:
        drawn.append(history)

    draw()
    return max(drawn, key=_count_refs)


def _count_refs(history: History) -> tuple[int, int]:
    early = [operation for step in history.steps[:-3] for operation in step.operations]
    return sum(isinstance(operation, MakeRef | WriteToBranch) for operation in early), len(history.steps)


def prove_beside(history: History, sessions: Sessions, spark: Spark) -> list[str]:
    """Play a history, a step before each effect of `maintain`, until it is over; what the job did, and to how much."""
    said: list[str] = []
    with make_lake(sessions.stack) as lake, serve(make_settings(lake)) as server, sessions.on_lake(lake) as writer:
        served = Served(lake, server)
        reader = served.pyiceberg()
        steps = replay(writer.conn, history, lake.data_path.replace("/data/", "/outside/"), {PYICEBERG: PyIcebergWriter(reader.catalog)})
        with closing(steps):
            stage = Stage(served, sessions, history, reader, writer, steps)
            while stage.go_on():
                stage.leave()
                done = run_round(make_eager_desk(served, spark), POLICY, stage.hear)
                assert not (failed := [step for step in done if step.verdict is Verdict.failed]), failed
                said += [f"{step.subject} {step.kind} {step.removed or step.rows}" for step in done if step.verdict is Verdict.done]
                stage.check()
        prove_end(served, history.vector_tables, stage.read_past().all_moments, sessions)
    return said


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_nothing_is_removed_that_anybody_needs(sessions: Sessions, spark: Spark) -> None:
    """Histories go on between all that rounds of the job do, and every reader shows their rows at every snapshot that is left."""
    said = [line for first in CHOSEN for line in prove_beside(choose(first), sessions, spark)]
    for kind in StepKind:
        assert any(f" {kind} " in line and not line.endswith(" 0") for line in said), (kind, said)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.parametrize("first", MORE)
def test_nothing_is_removed_that_anybody_needs_in_more_histories(sessions: Sessions, spark: Spark, first: int) -> None:
    """The same with others."""
    prove_beside(choose(first), sessions, spark)
