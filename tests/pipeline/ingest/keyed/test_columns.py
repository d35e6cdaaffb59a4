"""Rows by key whose columns are of kinds that Spark does not compare by itself, or have names that mean something to it."""

import pyarrow as pa
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.common.spark_sql import parse_order, parse_partitions
from duckicelake.pipeline.ingest.options import Evolve, IngestMode
from tests.pipeline.ingest.mill import TABLE, Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]

TAGS = pa.map_(pa.string(), pa.list_(pa.map_(pa.int32(), pa.float64())))
"""Maps within lists within maps."""


def write(mill: Mill, name: str, seen: int, *tags: list[tuple[str, list[list[tuple[int, float]]]]] | None) -> None:
    """Rows of one moment and one key, but for their tags."""
    columns = {"count": pa.array([1] * len(tags), pa.int64()), "seen": pa.array([seen] * len(tags), pa.int64())}
    mill.write_parquet(name, **columns, tags=pa.array(tags, TAGS))


@pytest.mark.long
@pytest.mark.parametrize("mode", [IngestMode.upsert, pytest.param(IngestMode.scd2, marks=pytest.mark.long)])
def test_maps_are_compared_by_their_entries(mill: Mill, mode: IngestMode) -> None:
    """In whatever order these come: rows that are the same are one row and no new version, and others are others. The key is a `count`."""
    one, other = [("a", [[(1, 0.5), (2, 0.25)]]), ("b", [])], [("b", []), ("a", [[(2, 0.25), (1, 0.5)]])]
    write(mill, "a.parquet", 5, one, other, one)
    first = mill.run(mode=mode, key=("count",), order_by="seen")
    assert (first.rows_in, first.rows_out, first.rows_superseded) == (3, 1, 2)
    write(mill, "b.parquet", 6, other)
    write(mill, "c.parquet", 7, [("a", [[(1, 0.5)]])])
    mill.run(mode=mode, key=("count",), order_by="seen")
    assert mill.rows(columns="seen, tags['a'][1][2]") == ([(5, 0.25), (7, None)] if mode is IngestMode.scd2 else [(7, None)])
    write(mill, "d.parquet", 8, one, None)
    with pytest.raises(BadRequest, match="do not differ in seen|hold from the same seen"):
        mill.run(mode=mode, key=("count",), order_by="seen")


@pytest.mark.long
def test_a_uuid_in_capitals_is_the_same(mill: Mill) -> None:
    """Of the table, and of a row before it; the validity's columns may be what the table is partitioned by."""
    known = "5a8e6c5c-0000-4000-8000-00000000000a"
    mill.ask("CREATE SCHEMA raw")
    mill.ask("CREATE TABLE raw.trips (id UUID, v INT, seen INT)")
    mill.ask(f"INSERT INTO raw.trips VALUES ('{known}', 0, 1)")
    mill.write("a.csv", f"id,v,seen\n{known.upper()},1,2\n{known},2,3\n")
    report = mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen")
    assert (report.rows_out, report.rows_superseded) == (1, 1)
    assert mill.rows(columns="id::VARCHAR, v, seen") == [(known, 2, 3)]
    options = {"mode": IngestMode.scd2, "key": ("id",), "order_by": "seen", "partition_by": parse_partitions("is_current")}
    assert "partitioned by `is_current`" in mill.run(dry_run=True, table=TABLE.with_suffix("_2"), **options).plan


@pytest.mark.long
def test_the_validity_is_widened_with_its_column(mill: Mill) -> None:
    """In the same run; and where an earlier one died between the two."""
    mill.write_parquet("a.parquet", id=pa.array([1], pa.int64()), seen=pa.array([5], pa.int32()), note=["a"])
    mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    mill.ask("ALTER TABLE raw.trips ALTER COLUMN seen TYPE BIGINT")
    mill.write_parquet("b.parquet", id=pa.array([1], pa.int64()), seen=pa.array([5_000_000_000], pa.int64()), note=["b"])
    report = mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    assert report.plan[2:4] == ("widen valid_from bigint in raw.trips", "widen valid_to bigint in raw.trips")
    assert mill.rows(columns="note, valid_from, valid_to") == [("a", 5, 5_000_000_000), ("b", 5_000_000_000, None)]


@pytest.mark.long
def test_the_validity_is_widened_in_one_run(mill: Mill) -> None:
    """Where it is asked for."""
    mill.write_parquet("a.parquet", id=pa.array([1], pa.int64()), seen=pa.array([5], pa.int32()), note=["a"])
    mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    mill.write_parquet("b.parquet", id=pa.array([1], pa.int64()), seen=pa.array([5_000_000_000], pa.int64()), note=["b"])
    mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen", evolve=Evolve.widen)
    assert mill.rows(columns="note, valid_from, valid_to") == [("a", 5, 5_000_000_000), ("b", 5_000_000_000, None)]


@pytest.mark.long
def test_a_column_that_spark_takes_for_its_own_is_refused(mill: Mill) -> None:
    """Before anything is made."""
    mill.write_parquet("a.parquet", _METADATA=pa.array([1], pa.int64()))
    with pytest.raises(BadRequest, match="column _METADATA has the name"):
        mill.run()
    assert open_rest(mill.served.rest_catalog()).load(TABLE) is None


@pytest.mark.long
def test_a_column_of_the_order_may_be_new(mill: Mill) -> None:
    """The table's rows have no value in it, so none is newer."""
    mill.write_parquet("a.parquet", id=[1, 2], name=["a", "b"])
    mill.run(mode=IngestMode.upsert, key=("id",))
    mill.write_parquet("b.parquet", id=[1, 3], name=["c", "d"], at=[5, 6])
    done = mill.run(mode=IngestMode.upsert, key=("id",), order_by="at", evolve=Evolve.add)
    assert (done.rows_in, done.rows_out, done.rows_superseded) == (2, 2, 0)
    assert mill.rows() == [(1, "c", 5), (2, "b", None), (3, "d", 6)]


@pytest.mark.long
@pytest.mark.parametrize("mode", [IngestMode.upsert, pytest.param(IngestMode.scd2, marks=pytest.mark.long)])
def test_options_name_columns_in_any_case(mill: Mill, mode: IngestMode) -> None:
    """Before there is a table, when it has rows, and in what is told of rows that contradict each other."""
    shape = {"partition_by": parse_partitions("bucket(2, ID)"), "sort_by": parse_order("NOTE desc")}
    how = {"mode": mode, "key": ("ID",), "order_by": "SEEN", **shape}
    mill.write_parquet("a.parquet", Id=[1, 2], seen=[5, 5], note=["a", "b"])
    first = mill.run(**how)
    assert (first.rows_out, first.plan[2:4]) == (2, ("partitioned by bucket(2, `Id`)", "ordered by `note` DESC"))
    mill.write_parquet("b.parquet", Id=[1], seen=[6], note=["c"])
    assert mill.run(**how).rows_out == 1
    kept = [(1, 5, "a")] if mode is IngestMode.scd2 else []
    assert mill.rows(columns='"Id", seen, note') == [*kept, (1, 6, "c"), (2, 5, "b")]
    mill.write_parquet("c.parquet", Id=[1, 1], seen=[7, 7], note=["d", "e"])
    with pytest.raises(BadRequest, match="of Id = 1 hold from the same seen|have the key Id = 1: they do not differ in seen"):
        mill.run(**how)
