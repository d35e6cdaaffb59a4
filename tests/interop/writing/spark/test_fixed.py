"""Spark beside DuckDB on a column of the type `fixed`: both read each other's rows, and Spark's rewriting lets PyIceberg read DuckDB's."""

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema
from pyiceberg.types import FixedType, LongType, NestedField

from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.long]

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False), NestedField(2, "f", FixedType(4), required=False))


@pytest.mark.parametrize("format_version", ["2", "3"])
def test_all_read_what_each_wrote(served: Served, spark: Spark, format_version: str) -> None:
    """Files of PyIceberg, Spark and DuckDB, inlined rows, deletes of both, and DuckDB's after clients rewrote them."""
    catalog, duck, reader = served.pyiceberg().catalog, served.lake.duckdb(), served.spark(spark)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA, properties={"format-version": format_version})
    table_name = f"{reader.catalog}.ns.t"

    def check(*ids: int) -> None:
        rows = [(row["id"], row["f"]) for row in spark.arrow(f"SELECT id, f FROM {table_name} ORDER BY id").to_pylist()]
        assert rows == duck.execute("SELECT id, f FROM lake.ns.t ORDER BY id").fetchall()
        assert [row[0] for row in rows] == list(ids)

    if format_version == "2":
        table.append(pa.table({"id": [1], "f": [b"abcd"]}, schema=SCHEMA.as_arrow()))
    else:
        spark.arrow(f"INSERT INTO {table_name} VALUES (1, X'61626364')")
    spark.arrow(f"INSERT INTO {table_name} VALUES (2, X'00FF805C'), (3, NULL)")
    duck.execute("INSERT INTO lake.ns.t VALUES (4, 'efgh'), (5, NULL)")
    check(1, 2, 3, 4, 5)
    duck.execute("CALL ducklake_flush_inlined_data('lake')")
    duck.execute("INSERT INTO lake.ns.t SELECT range, 'ijkl' FROM range(6, 26)")
    check(*range(1, 26))
    with pytest.raises(ResolveError, match="fixed"):
        catalog.load_table("ns.t").scan().to_arrow()
    spark.arrow(f"CALL {reader.catalog}.system.rewrite_data_files(table => 'ns.t', options => map('rewrite-all', 'true'))")
    spark.arrow(f"DELETE FROM {table_name} WHERE f = X'65666768'")
    duck.execute("DELETE FROM lake.ns.t WHERE id = 1")
    left = [2, 3, *range(5, 26)]
    check(*left)
    mine = catalog.load_table("ns.t").scan().to_arrow().sort_by("id")
    assert [(row["id"], row["f"]) for row in mine.to_pylist()] == duck.execute("SELECT id, f FROM lake.ns.t ORDER BY id").fetchall()
