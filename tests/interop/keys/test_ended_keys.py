"""What PyIceberg and DuckDB do when their keys are over. Spark and Trino: where they are tested."""

import duckdb
import pytest
from pyiceberg.io import load_file_io

from tests.interop.keys.accounts import guard_with_dead_keys
from tests.interop.keys.test_duckdb_iceberg import attach
from tests.interop.keys.test_pyiceberg import ROWS, open_catalog
from tests.support.lakes import FreshLake
from tests.support.shared_stack import SharedStack


def test_pyiceberg_goes_on_with_keys_that_it_is_told_to_ask_for(stack: SharedStack, lake: FreshLake) -> None:
    """It asks for none by itself, whatever an answer says of refreshing; `load_credentials` gives newer ones for a loaded table."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        catalog = open_catalog(guarded, "reader")
        table = catalog.load_table(ROWS)
        with pytest.raises(OSError):
            table.scan().to_arrow()
        assert given.living == 0
        table.io = load_file_io({**table.io.properties, **catalog.load_credentials(ROWS, table.location())}, table.location())
        assert table.scan().to_arrow().num_rows == 50_000
        assert given.living == 1


def test_duckdb_goes_on_by_itself(stack: SharedStack, lake: FreshLake) -> None:
    """A query and a write whose keys are over load the table once more and go on; those of a table in the making are not to be had."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        given.most_dead = 1
        assert attach(guarded, "reader").execute("SELECT count(*), sum(i) FROM ice.a.rows").fetchone() == (50_000, 1_249_975_000)
        assert (given.dead, given.living) == (1, 1)
        given.most_dead = 2
        writer = attach(guarded, "writer")
        writer.execute("INSERT INTO ice.a.rows VALUES (-1)")
        assert (given.dead, given.living) == (2, 2)
        given.most_dead = 3
        with pytest.raises(duckdb.HTTPException, match="refresh"):
            writer.execute("CREATE TABLE ice.a.made AS FROM ice.a.rows")
        given.most_dead = 4
        writer.execute("CREATE TABLE ice.a.made (i BIGINT)")
        writer.execute("INSERT INTO ice.a.made FROM ice.a.rows")
        assert (given.dead, given.living) == (4, 3)
        truth = lake.duckdb()
        for name in ("rows", "made"):
            assert truth.execute(f"SELECT count(*), sum(i) FROM lake.a.{name}").fetchone() == (50_001, 1_249_974_999)


def test_duckdbs_transaction_outlives_its_keys(stack: SharedStack, lake: FreshLake) -> None:
    """It keeps the keys it began with until they are refused, and has newer ones then: to read, to write and to commit."""
    with guard_with_dead_keys(stack, lake) as (guarded, given):
        given.most_dead, given.life_s = 0, 3
        writer = attach(guarded, "writer")
        # what was read once would be there without any keys
        writer.execute("SET enable_external_file_cache = false; BEGIN")
        assert writer.execute("SELECT count(*) FROM ice.a.rows").fetchone() == (50_000,)
        given.wait_over()
        given.life_s = 600
        assert writer.execute("SELECT sum(i) FROM ice.a.rows").fetchone() == (1_249_975_000,)
        assert given.living == 2
        writer.execute("INSERT INTO ice.a.rows VALUES (-1); COMMIT")
        assert lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_001,)
