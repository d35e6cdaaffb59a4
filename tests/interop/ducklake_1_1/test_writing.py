"""Commits of Iceberg clients to lakes of DuckLake 1.1, as ducklakepy reads them."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.schema import Column
from ducklakepy.schema import Schema as LakeSchema
from ducklakepy.types import Int64Type, VarcharType
from pyiceberg.exceptions import BadRequestError
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, MonthTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzNanoType, TimestamptzType, UnknownType

from duckicelake.pyiceberg_v3 import install
from tests.support.ducklake_1_1 import check_same, read_at, to_rows
from tests.support.readers import Served
from tests.support.tiers import whole_after

IDENT = ("main", "t")
SYSTEM_COLUMNS = ["_ducklake_row_id", "_ducklake_begin_snapshot", "_ducklake_end_snapshot"]

SELECT_FIRST_COLUMNS = """
SELECT i.table_name, ARRAY(SELECT a.attname::text FROM pg_attribute a
                            WHERE a.attrelid = to_regclass(quote_ident(i.table_name)) AND a.attnum BETWEEN 1 AND 3 ORDER BY a.attnum)
  FROM ducklake_inlined_data_tables i ORDER BY 1
"""


def test_clients_write_and_ducklakepy_reads(made: tuple[Served, DuckLakeCatalog]) -> None:
    """Append, delete and a schema change of a table with inlined rows; the other client goes on with it, inlined and in files."""
    served, lake = made
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", None]})
    lake.create_table(IDENT, schema=LakeSchema(Column("id", Int64Type()), Column("name", VarcharType()))).append(rows)
    with served.pyiceberg().catalog as catalog:
        table = catalog.load_table(IDENT)
        table.append(pa.table({"id": pa.array(range(10, 40), pa.int64()), "name": ["x"] * 30}))
        # Row 2 is inlined in DuckLake; the others are in the client's file.
        table.delete(EqualTo("id", 2))
        table.delete(EqualTo("id", 20))
        with table.update_schema() as update:
            update.add_column("row_id", IntegerType()).rename_column("name", "label")
        assert len(table.scan().to_arrow()) == 31
        assert to_rows(table.scan().to_arrow()) == to_rows(lake.load_table(IDENT).to_arrow())
        more = pa.table({"id": pa.array([50, 51], pa.int64()), "label": ["y", "z"], "row_id": pa.array([5, None], pa.int32())})
        lake.load_table(IDENT).append(more)
        lake.load_table(IDENT).delete(col("row_id") == 5)
        table.refresh()
        table.append(more)
    conn = served.lake.psycopg()
    found = conn.execute(SELECT_FIRST_COLUMNS).fetchall()
    assert len(found) == 2
    assert [columns for _, columns in found] == [SYSTEM_COLUMNS] * 2
    assert check_same(served, lake, IDENT) == 7


def test_a_client_makes_a_table(made: tuple[Served, DuckLakeCatalog]) -> None:
    """With a column that DuckLake 1.0 reserves; names that DuckLake 1.1 reserves are refused, at the top level."""
    served, lake = made
    with served.pyiceberg().catalog as catalog:
        schema = Schema(NestedField(1, "begin_snapshot", LongType(), required=True), NestedField(2, "name", StringType()))
        table = catalog.create_table("main.t", schema)
        table.append(pa.table({"begin_snapshot": [1, 2], "name": ["a", "b"]}, schema=schema.as_arrow()))
        with pytest.raises(BadRequestError, match="reserves"):
            catalog.create_table("main.u", Schema(NestedField(1, "_Ducklake_x", LongType())))
        lake.load_table(IDENT).append(pa.table({"begin_snapshot": pa.array([3], pa.int64()), "name": ["c"]}))
        lake.load_table(IDENT).update(col("begin_snapshot") == 3, {"name": "d"})
        lake.load_table(IDENT).delete(col("begin_snapshot") == 1)
        assert table.refresh().scan().to_arrow().sort_by("begin_snapshot").to_pylist() == [
            {"begin_snapshot": 2, "name": "b"},
            {"begin_snapshot": 3, "name": "d"},
        ]
        assert to_rows(read_at(lake, IDENT, lake.current_snapshot().snapshot_id)) == to_rows(table.scan().to_arrow())
    assert check_same(served, lake, IDENT) == 4


def test_unknown_is_null(made: tuple[Served, DuckLakeCatalog]) -> None:
    """A client makes a column of the type `unknown`, and adds one; the other client writes to the table, inlined and in files."""
    served, lake = made
    with served.pyiceberg().catalog as catalog:
        schema = Schema(NestedField(1, "i", LongType()), NestedField(2, "n", UnknownType()))
        table = catalog.create_table("main.t", schema, properties={"format-version": "3"})
        with table.update_schema() as update:
            update.add_column("m", UnknownType())
        assert [str(column.field_type) for column in lake.load_table(IDENT).schema().fields] == ["int64", "null", "null"]
        for count in (2, 20):
            lake.load_table(IDENT).append(pa.table({"i": pa.array(range(count), pa.int64()), "n": pa.nulls(count), "m": pa.nulls(count)}))
        assert check_same(served, lake, IDENT) == 2
        found = table.refresh().scan().to_arrow()
        assert (len(found), found["n"].null_count, found["m"].null_count) == (22, 22, 22)


@pytest.fixture
def version_3() -> Iterator[None]:
    """Let PyIceberg write format version 3."""
    uninstall = install()
    yield
    uninstall()


@pytest.mark.usefixtures("version_3")
def test_nanoseconds_in_utc_are_written(made: tuple[Served, DuckLakeCatalog]) -> None:
    """`timestamptz_ns` is a type of DuckLake 1.1: a client makes a column, adds one, and appends; the other client goes on."""
    served, lake = made
    kind = pa.timestamp("ns", tz="UTC")
    with served.pyiceberg().catalog as catalog:
        schema = Schema(NestedField(1, "i", LongType()), NestedField(2, "at", TimestamptzNanoType()))
        table = catalog.create_table("main.t", schema, properties={"format-version": "3"})
        with table.update_schema() as update:
            update.add_column("later", TimestamptzNanoType())
        assert [str(column.field_type) for column in lake.load_table(IDENT).schema().fields] == [
            "int64",
            "timestamptz_ns",
            "timestamptz_ns",
        ]
        nanos = [1_500_000_000_123_456_789, None, -1]
        for first, append in ((0, table.append), (3, lake.load_table(IDENT).append)):
            ids = pa.array(range(first, first + 3), pa.int64())
            append(pa.table({"i": ids, "at": pa.array(nanos, kind), "later": pa.array(nanos, kind)}))
        found = table.refresh().scan().to_arrow().sort_by("i")
        assert found["at"].cast(pa.int64()).to_pylist() == nanos * 2
    assert check_same(served, lake, IDENT) == 2


@pytest.mark.usefixtures("version_3")
def test_files_without_field_ids_join_a_table_with_null_columns(made: tuple[Served, DuckLakeCatalog]) -> None:
    """A file that lacks the column of the type `null`, added by a client with the table's name mapping."""
    served, lake = made
    with served.pyiceberg().catalog as catalog:
        schema = Schema(NestedField(1, "i", LongType()), NestedField(2, "n", UnknownType()))
        table = catalog.create_table("main.t", schema, properties={"format-version": "3"})
        path = f"{table.location()}/data/plain.parquet"
        with table.io.new_output(path).create() as out:
            pq.write_table(pa.table({"i": pa.array([1, 2], pa.int64())}), out)
        table.add_files([path])
        assert table.refresh().scan().to_arrow().to_pylist() == [{"i": 1, "n": None}, {"i": 2, "n": None}]
    assert check_same(served, lake, IDENT) == 1


AT = pa.timestamp("us", tz="UTC")
MICROS = [-1, 0, 86_399_999_999, 86_400_000_000, 1_772_326_799_999_999]
DAYS = [-1, 0, 0, 1, 20513]

SELECT_PARTITIONINGS = """
SELECT string_agg(c.transform, ',' ORDER BY c.partition_key_index), i.end_snapshot IS NULL
  FROM ducklake_partition_info i LEFT JOIN ducklake_partition_column c USING (partition_id, table_id)
 GROUP BY i.partition_id, i.end_snapshot ORDER BY i.partition_id
"""


def make_times(first: int) -> pa.Table:
    """Rows of five times in two regions."""
    return pa.table({"id": pa.array(range(first, first + 5), pa.int64()), "at": pa.array(MICROS, AT), "region": list("eenne")})


def list_partitions(table: Table, spec_id: int) -> list[tuple[object, ...]]:
    """The partition tuples of a table's files of one spec."""
    tuples = [task.file.partition for task in table.scan().plan_files() if task.file.spec_id == spec_id]
    return sorted(tuple(found[i] for i in range(len(found))) for found in tuples)


@pytest.mark.parametrize("version", whole_after(1, ["1", "2"]))
def test_the_spec_of_a_client_is_ducklakes(made: tuple[Served, DuckLakeCatalog], version: str) -> None:
    """Both writers partition alike, under the client's spec; a filter finds the rows of both, also after a merge, and after each change.

    In version 1 a removed field becomes void, which partitions nothing. Fields that DuckLake has not end its partitioning.
    """
    served, lake = made
    lake.set_option("data_inlining_row_limit", 0)
    conn = served.lake.psycopg()
    with served.pyiceberg().catalog as catalog:
        schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestamptzType()), NestedField(3, "region", StringType()))
        spec = PartitionSpec(PartitionField(2, 1000, DayTransform(), "on"), PartitionField(3, 1001, IdentityTransform(), "where"))
        table = catalog.create_table("main.t", schema, partition_spec=spec, properties={"format-version": version})
        assert conn.execute(SELECT_PARTITIONINGS).fetchall() == [("epoch_day,identity", True)]
        expected = sorted(zip(DAYS, "eenne", strict=True))
        lake.load_table(IDENT).append(make_times(0))
        assert (table.refresh().spec(), list_partitions(table, 0)) == (spec, expected)
        table.append(make_times(5))
        assert list_partitions(table.refresh(), 0) == sorted(expected * 2)
        assert table.scan("at >= '1970-01-02T00:00:00+00:00' and region = 'e'").to_arrow()["id"].sort().to_pylist() == [4, 9]
        assert sorted(lake.load_table(IDENT).scan(row_filter=col("region") == "n").to_arrow()["id"].to_pylist()) == [2, 3, 7, 8]
        with table.update_spec() as update:
            update.remove_field("where").add_field("at", MonthTransform(), "monthly")
        assert conn.execute(SELECT_PARTITIONINGS).fetchall()[1:] == [("epoch_day,epoch_month", True)]
        lake.load_table(IDENT).append(make_times(10))
        months = {(-1, -1), (0, 0), (1, 0), (20513, 674)}
        assert list_partitions(table.refresh(), 1) == sorted(
            (day, None, month) if version == "1" else (day, month) for day, month in months
        )
        lake.merge_adjacent_files(IDENT)
        assert len(table.refresh().scan("at < '1970-01-01T00:00:00+00:00'").to_arrow()) == 3
        with table.update_spec() as update:
            update.rename_field("monthly", "m")
        assert [field.name for field in table.refresh().spec().fields][-1] == "m"
        with table.update_spec() as update:
            update.add_field("id", BucketTransform(4), "bucket")
        lake.load_table(IDENT).append(make_times(15))
        assert list_partitions(table.refresh(), table.spec().spec_id) == []
        assert [is_live for _, is_live in conn.execute(SELECT_PARTITIONINGS)] == [False, False, False]
        assert len(table.scan().to_arrow()) == 20
    assert check_same(served, lake, IDENT) >= 4
