"""The types of format version 3 in stock clients: what works is what docs/compatibility.md says."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import IntegerType, NestedField, TimestampNanoType

from duckicelake.pyiceberg_v3 import install
from tests.interop.types.v3_types import (
    DUCKDB,
    EXTENSION,
    NANOS,
    NONE,
    PYICEBERG,
    SPARK,
    TYPES,
    WORKS,
    ByPyIceberg,
    BySpark,
    BySql,
    Client,
    format_table,
    list_working,
)
from tests.support.readers import Served
from tests.support.spark import Spark


@pytest.fixture
def shim() -> Iterator[None]:
    """PyIceberg writes version 3."""
    uninstall = install()
    yield
    uninstall()


PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"


def check(served: Served, client: Client, name: str) -> None:
    """The client does with each type what the table says."""
    lake = served.lake.duckdb()
    assert {kind: list_working(client, lake, kind, f"t_{kind}") for kind in TYPES} == {
        kind: WORKS.get((kind, name), NONE) for kind in TYPES
    }


def test_the_page_has_the_table() -> None:
    """As the tests have it."""
    assert format_table() in PAGE.read_text()


@pytest.mark.usefixtures("shim")
def test_pyiceberg(served: Served) -> None:
    """With the shim, which writes version 3."""
    check(served, ByPyIceberg(served.pyiceberg()), PYICEBERG)


def test_duckdb_iceberg(served: Served) -> None:
    """DuckDB's `iceberg` extension, and then DuckDB itself, the lake's own client."""
    check(served, BySql(served.duckdb_iceberg().conn, "ice"), EXTENSION)
    lake = served.lake.duckdb()
    works = {kind: list_working(BySql(lake, "lake"), lake, kind, f"u_{kind}") for kind in TYPES}
    assert works == {kind: WORKS.get((kind, DUCKDB), NONE) for kind in TYPES}


@pytest.mark.usefixtures("shim")
def test_both_sides_change_nanoseconds(served: Served) -> None:
    """A client's partitions by day, rows that DuckDB changes, merges and adds inlined: the same rows at each snapshot, and by filters."""
    catalog, duck, extension = served.pyiceberg().catalog, served.lake.duckdb(), served.duckdb_iceberg()
    schema = Schema(NestedField(1, "i", IntegerType(), required=False), NestedField(2, "seen", TimestampNanoType(), required=False))
    spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "seen_day"))
    table = catalog.create_table("main.t", schema, partition_spec=spec, properties={"format-version": "3"})
    days = [NANOS + n * 86_400_000_000_000 for n in range(3)]
    for first in (0, 3):
        rows = {"i": pa.array([first, first + 1, first + 2], pa.int32()), "seen": pa.array(days, pa.timestamp("ns"))}
        catalog.load_table("main.t").append(pa.table(rows))
    duck.execute("UPDATE t SET seen = make_timestamp_ns(epoch_ns(seen) + 1000) WHERE i = 4")
    duck.execute("INSERT INTO t VALUES (6, NULL); DELETE FROM t WHERE i = 0")
    duck.execute("CALL ducklake_flush_inlined_data('lake'); CALL ducklake_merge_adjacent_files('lake')")
    catalog.load_table("main.t").delete("i = 5")
    for snapshot in table.refresh().snapshots():
        at = f"AT (VERSION => {snapshot.snapshot_id})"
        expected = duck.execute(f"SELECT i, seen::VARCHAR FROM lake.main.t {at} ORDER BY i").fetchall()
        assert extension.conn.execute(f"SELECT i, seen::VARCHAR FROM ice.main.t {at} ORDER BY i").fetchall() == expected
        found = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().sort_by("i").to_pylist()
        assert [(row["i"], None if row["seen"] is None else str(row["seen"])) for row in found] == expected
    wanted = "2017-07-15 02:40:00.123457789"
    assert duck.execute(f"SELECT i FROM t WHERE seen = TIMESTAMP_NS '{wanted}'").fetchall() == [(4,)]
    assert extension.conn.execute(f"SELECT i FROM ice.main.t WHERE seen = TIMESTAMP_NS '{wanted}'").fetchall() == [(4,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark(served: Served, spark: Spark, iceberg: str | None) -> None:
    """Spark 4.1 with Iceberg 1.12, of which the page speaks; a run with an older Iceberg has nothing to compare."""
    if iceberg is not None:
        return
    reader = served.spark(spark)
    spark.session.conf.set("spark.sql.geospatial.enabled", "true")
    check(served, BySpark(reader), SPARK)
