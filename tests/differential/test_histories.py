"""The heart of the proof: whatever DuckDB does to a lake, every reader shows exactly the rows of the model."""

import pytest
from hypothesis import given, seed

from tests.differential.clients.draws.duckdb_iceberg import DUCKDB_ICEBERG
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.draws.spark import SPARK
from tests.differential.generation import history_settings
from tests.differential.generator.histories import histories
from tests.differential.generator.kinds import SCALARS, SPARK_SCALARS
from tests.differential.generator.steps import History
from tests.differential.prove import prove
from tests.differential.sessions import Sessions
from tests.fix_histories import Block
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.spark import Spark


def run_block(block: Block, sessions: Sessions, spark: Spark | None, *clients: str) -> None:
    """Prove a block of histories; a failing one shrinks, and is printed as the SQL that replays it."""

    @seed(block.seed)
    @history_settings(block.count, shrink=True)
    @given(histories(types=SCALARS if spark is None else SPARK_SCALARS, clients=clients))
    def every_reader_agrees(history: History) -> None:
        with make_lake(sessions.stack) as lake, serve(make_settings(lake)) as server:
            prove(Served(lake, server), history, sessions, spark)

    every_reader_agrees()


@pytest.mark.whole
def test_every_reader_agrees_at_every_snapshot(block: Block, sessions: Sessions) -> None:
    """PyIceberg, DuckDB's iceberg extension, DuckDB itself and the model show the same rows, now and at all times."""
    run_block(block, sessions, None)


def test_every_reader_agrees_when_pyiceberg_writes_too(block: Block, sessions: Sessions) -> None:
    """The same, while PyIceberg makes, changes, fills, empties and drops tables between DuckDB's steps."""
    run_block(block, sessions, None, PYICEBERG)


@pytest.mark.long
def test_every_reader_agrees_when_duckdb_iceberg_writes_too(block: Block, sessions: Sessions) -> None:
    """The same, while DuckDB's iceberg extension writes between plain DuckDB's steps, and PyIceberg now and then."""
    run_block(block, sessions, None, DUCKDB_ICEBERG, DUCKDB_ICEBERG, PYICEBERG)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_agrees_at_every_snapshot(spark_block: Block, sessions: Sessions, spark: Spark) -> None:
    """Spark shows the same rows as the model, now and at every snapshot."""
    run_block(spark_block, sessions, spark)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_every_reader_agrees_when_spark_writes_too(spark_block: Block, sessions: Sessions, spark: Spark) -> None:
    """The same, while Spark writes between DuckDB's steps, and the other clients now and then."""
    run_block(spark_block, sessions, spark, SPARK, SPARK, SPARK, PYICEBERG, DUCKDB_ICEBERG)
