"""Files of Parquet and ORC whose columns Spark does not read, or that have none."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyarrow import orc

from duckicelake.errors import BadRequest, CatalogError
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
NANOS = pa.timestamp("ns")
UNREAD: dict[str, tuple[str, str, Any, str]] = {
    "nanoseconds": ("parquet", "v", pa.array([1], NANOS), "a timestamp in nanoseconds, .* coerce_timestamps='us'.* --conf spark"),
    "inside": (
        "parquet",
        "v.list.element.t",
        pa.array([[{"t": 1}]], pa.list_(pa.struct([("t", NANOS)]))),
        "a timestamp in nanoseconds",
    ),
    "time of day": ("parquet", "v", pa.array([1], pa.time64("us")), "a time of day, .* write it as a text"),
    "time in milliseconds": ("parquet", "v", pa.array([1], pa.time32("ms")), "a time of day"),
    "half": ("parquet", "v", pa.array([1.5], pa.float16()), "a float of 16 bits, .* write it as one of 32"),
    "digits": ("parquet", "v", pa.array([1], pa.decimal256(50, 2)), "a decimal of more than 38 digits"),
    "zoned in ORC": ("orc", "v", pa.array([1], pa.timestamp("us", "UTC")), "a timestamp with a time zone, .* write it without one"),
}


@pytest.mark.parametrize("name", long_but(UNREAD, "nanoseconds"))
def test_a_column_that_spark_does_not_read_is_named(mill: Mill, name: str) -> None:
    """With its file, among others, and what to do; nothing is made."""
    kind, column, values, message = UNREAD[name]
    writer: Any = pq if kind == "parquet" else orc
    writer.write_table(pa.table({"id": [1]}), mill.folder / f"a.{kind}")
    writer.write_table(pa.table({"id": [2], "v": values}), mill.folder / f"b.{kind}")
    with pytest.raises(BadRequest, match=rf"/b\.{kind}: column {column} is {message}"):
        mill.run()
    assert mill.served.server.get("namespaces/raw").status == 404


@pytest.mark.long
def test_what_is_advised_for_nanoseconds_works(mill: Mill) -> None:
    """Microseconds as pyarrow writes them, and whole numbers."""
    rows = pa.table({"v": pa.array([1_000_001_000], NANOS)})
    pq.write_table(rows, mill.folder / "a.parquet", coerce_timestamps="us")
    assert mill.run().rows_out == 1
    assert mill.rows(columns="epoch_us(v)") == [(1_000_001,)]
    pq.write_table(rows, mill.folder / "longs.parquet")
    mill.spark.session.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
    try:
        mill.run(source=str(mill.folder / "longs.parquet"), table=TABLE.with_suffix("_2"))
    finally:
        mill.spark.session.conf.unset("spark.sql.legacy.parquet.nanosAsLong")
    assert mill.rows("trips_2") == [(1_000_001_000,)]


@pytest.mark.long
def test_files_without_a_column_are_named(mill: Mill) -> None:
    """They are no table, and Spark does not read them beside others."""
    pq.write_table(pa.table({}), mill.folder / "a.parquet")
    with pytest.raises(BadRequest, match=r"/a\.parquet has no column"):
        mill.run()
    mill.write_parquet("b.parquet", id=[1])
    # Spark 3.5 does not say which file it was.
    is_named = not pyspark.__version__.startswith("3.")
    with pytest.raises(
        CatalogError, match=r"/a\.parquet has no column: leave it out" if is_named else "(?s)out of bounds.*Nothing was taken"
    ):
        mill.run()
    assert mill.served.server.get("namespaces/raw/tables/trips").status == 404
