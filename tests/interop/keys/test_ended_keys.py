"""What PyIceberg and DuckDB do when their keys are over. Spark and Trino: where they are tested."""

import time

import duckdb
import pytest
from pyiceberg.io import load_file_io

from duckicelake.embedded.object_store import ROLE_ARN
from tests.interop.keys.accounts import add_spark, guard_with_dead_keys
from tests.interop.keys.test_duckdb_iceberg import attach
from tests.interop.keys.test_pyiceberg import ROWS, open_catalog
from tests.rest.auth.principals import guard
from tests.rest.auth.vended import is_refused, load_with_keys
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark
from tests.support.waiting import wait_for

SHORTEST_LIFE_S = 900
"""No token service gives keys for less, and MinIO takes no token of its own that was changed."""


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


@pytest.mark.whole
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


@pytest.mark.whole
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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_clients_go_on_after_a_quarter_of_an_hour_on_minio(minio_stack: SharedStack, spark: Spark) -> None:
    """Keys end there by time alone: a transaction of DuckDB's, a frame of Spark's and a table of PyIceberg's outlive theirs."""
    with make_lake(minio_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN, vended_lifetime_s=SHORTEST_LIFE_S) as guarded:
        lake.duckdb().execute("CREATE TABLE a.rows AS SELECT range AS i FROM range(50000)")
        first = load_with_keys(guarded, "reader", "namespaces/a/tables/rows")
        told = {"Bucket": "lake", "Key": f"{lake.name}/data/a/rows/none"}
        prefix = {"Bucket": "lake", "Prefix": f"{lake.name}/data/a/rows/"}
        assert first.s3.list_objects_v2(**prefix)["KeyCount"] == 1
        writer, catalog, name = attach(guarded, "writer"), open_catalog(guarded, "reader"), add_spark(spark, guarded, "writer")
        writer.execute("SET enable_external_file_cache = false; BEGIN")
        assert writer.execute("SELECT count(*) FROM ice.a.rows").fetchone() == (50_000,)
        table, frame = catalog.load_table(ROWS), spark.session.table(f"{name}.a.rows")
        assert (table.scan().to_arrow().num_rows, frame.count()) == (50_000, 50_000)
        ends_s = int(first.config["s3.session-token-expires-at-ms"]) / 1000
        assert SHORTEST_LIFE_S - 60 < ends_s - time.time() <= SHORTEST_LIFE_S
        wait_for(lambda: time.time() > ends_s - 2, "the last seconds of the keys", SHORTEST_LIFE_S)
        wait_for(lambda: is_refused(first.s3.get_object, **told), "their end", 30)
        assert time.time() >= ends_s - 1
        assert is_refused(first.s3.list_objects_v2, **prefix)
        assert writer.execute("SELECT sum(i) FROM ice.a.rows").fetchone() == (1_249_975_000,)
        writer.execute("INSERT INTO ice.a.rows VALUES (-1); COMMIT")
        with pytest.raises(OSError):
            table.scan().to_arrow()
        table.io = load_file_io({**table.io.properties, **catalog.load_credentials(ROWS, table.location())}, table.location())
        assert table.scan().to_arrow().num_rows == 50_000
        assert frame.count() == 50_001
        spark.session.sql(f"INSERT INTO {name}.a.rows VALUES (-2)")
        assert lake.duckdb().execute("SELECT count(*) FROM lake.a.rows").fetchone() == (50_002,)
        assert load_with_keys(guarded, "reader", "namespaces/a/tables/rows").s3.list_objects_v2(**prefix)["KeyCount"] == 1
