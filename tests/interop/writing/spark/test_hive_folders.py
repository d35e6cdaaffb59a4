"""Spark's own `add_files` over a folder as Hive leaves it: what it adds is read by all, or refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.transfer.ferry import WITHOUT_STORE
from tests.rest.serving import make_settings, serve
from tests.support.going_on import check_going_on
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def lake(stack: SharedStack, tmp_path: Path) -> Iterator[Served]:
    """A lake on the disk that takes files of a folder beside it."""
    with (
        make_lake(stack, str(tmp_path / "lake")) as lake,
        serve(make_settings(lake, allowed_locations=(str(tmp_path / "hive"),), **WITHOUT_STORE)) as server,
    ):
        yield Served(lake, server)


def add(lake: Served, spark: Spark, folder: Path, columns: str) -> str:
    """Write a folder split by the last two columns, make a table of it, and add its files; the table's name in Spark."""
    catalog = lake.spark(spark).catalog
    spark.session.conf.set(f"spark.sql.catalog.{catalog}.io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
    frame = spark.session.sql(f"SELECT id, CAST(id AS string) AS name, {columns} FROM range(6)")
    frame.coalesce(1).write.partitionBy(*frame.columns[-2:]).parquet(str(folder))
    kinds = ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)
    spark.arrow(f"CREATE NAMESPACE {catalog}.ns")
    spark.arrow(f"CREATE TABLE {catalog}.ns.t ({kinds}) USING iceberg PARTITIONED BY ({', '.join(frame.columns[-2:])})")
    spark.arrow(f"CALL {catalog}.system.add_files(table => 'ns.t', source_table => '`parquet`.`{folder}`')")
    return f"{catalog}.ns.t"


@pytest.mark.long
def test_folders_that_spark_adds_are_read_by_all(lake: Served, spark: Spark, tmp_path: Path) -> None:
    """Dates, texts with spaces and escapes, and NULL; DuckDB goes on with them."""
    columns = (
        "DATE'2026-01-01' + CAST(id % 2 AS int) AS day, element_at(array('a b', '50%', 'a/b', '12:30', 'x', NULL), CAST(id AS int) + 1)"
    )
    name = add(lake, spark, tmp_path / "hive" / "t", f"{columns} AS text")
    texts = ("a b", "50%", "a/b", "12:30", "x", None)
    wanted: list[tuple[Any, ...]] = [(i, f"2026-01-0{1 + i % 2}", texts[i]) for i in range(6)]
    query = "SELECT id, CAST(day AS {}) AS day, text FROM {} ORDER BY id"
    assert [tuple(row.values()) for row in spark.arrow(query.format("string", name)).to_pylist()] == wanted
    assert lake.lake.duckdb().execute(query.format("VARCHAR", "lake.ns.t")).fetchall() == wanted
    rows = lake.pyiceberg().catalog.load_table("ns.t").scan().to_arrow().to_pylist()
    assert sorted((row["id"], str(row["day"]), row["text"]) for row in rows) == wanted
    check_going_on(lake, ("ns", "t"))


@pytest.mark.long
def test_folders_that_duckdb_would_read_otherwise_are_refused(lake: Served, spark: Spark, tmp_path: Path) -> None:
    """With the file and the column; the table stays empty."""
    with pytest.raises(Exception, match="has the column 'half' in its path alone"):
        add(lake, spark, tmp_path / "hive" / "t", "id % 2 AS part, CAST(id AS double) / 2 AS half")
    assert lake.lake.duckdb().execute("SELECT count(*) FROM lake.ns.t").fetchall() == [(0,)]
