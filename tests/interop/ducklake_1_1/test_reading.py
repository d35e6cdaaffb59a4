"""Lakes of DuckLake 1.1: what ducklakepy writes, PyIceberg reads over REST, at every snapshot."""

from datetime import date
from decimal import Decimal
from itertools import product

import pyarrow as pa
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.partitioning import epoch_day, epoch_hour, epoch_month, epoch_year
from ducklakepy.schema import Column, Schema
from ducklakepy.types import (
    DateType,
    DecimalType,
    Float32Type,
    Int32Type,
    Int64Type,
    ListType,
    NullType,
    StructType,
    TimestampType,
    TimestampTzNsType,
    TimestampTzType,
    VarcharType,
)

from tests.support.ducklake_1_1 import check_same
from tests.support.readers import Served

SCHEMA = Schema(
    Column("row_id", Int64Type(), required=True),
    Column("name", VarcharType()),
    Column("price", DecimalType(9, 2)),
    Column("day", DateType()),
    Column("at", TimestampType()),
    Column("f", Float32Type()),
    Column("place", StructType((Column("x", Int32Type()), Column("tags", ListType(Column("element", VarcharType())))))),
)


def make_rows(first: int, count: int) -> pa.Table:
    """Rows of SCHEMA."""
    ids = range(first, first + count)
    return pa.table(
        {
            "row_id": pa.array(ids, pa.int64()),
            "name": pa.array([None if i % 5 == 4 else f"name {i}" for i in ids], pa.string()),
            "price": pa.array([Decimal(i) / 4 for i in ids], pa.decimal128(9, 2)),
            "day": pa.array([date(1969, 12, 30 + i % 2) for i in ids]),
            "at": pa.array([(i - 5) * 86_400_000_000 for i in ids], pa.timestamp("us")),
            "f": pa.array([i / 2 for i in ids], pa.float32()),
            "place": pa.array(
                [{"x": i, "tags": [str(i)] * (i % 3)} for i in ids],
                pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))]),
            ),
        }
    )


def test_every_snapshot_is_the_same(made: tuple[Served, DuckLakeCatalog]) -> None:
    """Files and inlined rows, deletes of both, updates, columns added, renamed and dropped, a flush and a merge; a column `row_id`."""
    served, catalog = made
    ident = ("main", "t")
    table = catalog.create_table(ident, schema=SCHEMA)
    table.append(make_rows(0, 30))
    table.append(make_rows(30, 3))
    catalog.load_table(ident).delete(col("row_id") == 31)
    catalog.load_table(ident).delete(col("row_id").isin([1, 2, 3]))
    assert check_same(served, catalog, ident) == 4
    table = catalog.load_table(ident)
    table.update_schema().add_column("more", Int32Type(), default=7).rename_column("name", "label").drop_column("f").commit()
    catalog.load_table(ident).append(make_rows(40, 4).drop_columns("f").rename_columns({"name": "label"}))
    catalog.load_table(ident).update(col("row_id") < 10, {"label": "changed"})
    assert check_same(served, catalog, ident) >= 6
    catalog.flush_inlined_data(ident)
    catalog.merge_adjacent_files()
    catalog.load_table(ident).append(make_rows(60, 20).drop_columns("f").rename_columns({"name": "label"}))
    assert check_same(served, catalog, ident) >= 7


def test_types_of_the_version(made: tuple[Served, DuckLakeCatalog]) -> None:
    """`null` is `unknown`, and `timestamptz_ns` has its own name; inlined and in files; both need format version 3."""
    served, catalog = made
    ident = ("main", "t")
    fields = (Column("x", Int32Type()), Column("none", NullType()))
    schema = Schema(Column("i", Int64Type()), Column("n", NullType()), Column("at", TimestampTzNsType()), Column("s", StructType(fields)))
    kind = pa.struct([("x", pa.int32()), ("none", pa.null())])

    def rows(count: int) -> pa.Table:
        nanos = [index * 86_400_000_000_001 - 5 for index in range(count)]
        parts = {"n": pa.nulls(count), "at": pa.array(nanos, pa.timestamp("ns", tz="UTC"))}
        return pa.table({"i": range(count), **parts, "s": pa.array([{"x": index} for index in range(count)], kind)})

    catalog.create_table(ident, schema=schema).append(rows(20))
    catalog.create_table(("main", "flat"), schema=Schema(*schema.fields[:3])).append(rows(3).drop_columns("s"))
    with served.pyiceberg().catalog as opened:
        published = opened.load_table(ident)
        assert published.format_version == 3
        assert [str(field.field_type) for field in published.schema().fields[:3]] == ["long", "unknown", "timestamptz_ns"]
        assert list(to_nanos(opened.load_table(("main", "flat")).scan().to_arrow())) == list(to_nanos(rows(3)))
        assert list(to_nanos(published.scan().to_arrow())) == list(to_nanos(rows(20)))
        assert published.scan().to_arrow()["s"].to_pylist() == rows(20)["s"].to_pylist()


def to_nanos(table: pa.Table) -> list[tuple[int, int | None]]:
    """The ids, and the times as nanoseconds."""
    assert table["n"].null_count == len(table)
    return sorted(zip(table["i"].to_pylist(), table["at"].cast(pa.int64()).to_pylist(), strict=True))


TIMES = (epoch_year("at"), epoch_month("at"), epoch_day("at"), epoch_hour("at"))


def test_epoch_partitions_are_icebergs(made: tuple[Served, DuckLakeCatalog]) -> None:
    """Times before 1970 are rounded down, and those with a zone go by UTC: files are partitioned, and filters find all rows."""
    served, catalog = made
    catalog.set_option("data_inlining_row_limit", 0)
    micros = [-1, 0, 1, -86_400_000_000, -86_400_000_001, 1_772_323_200_000_000, 1_772_326_799_999_999, None]
    with served.pyiceberg().catalog as opened:
        for key, (zone, kind) in product(TIMES, ((None, TimestampType()), ("UTC", TimestampTzType()))):
            ident = ("main", f"{key.transform.value}_{zone}")
            catalog.create_table(ident, schema=Schema(Column("i", Int64Type()), Column("at", kind))).set_partitioning(key)
            catalog.load_table(ident).append(pa.table({"i": range(8), "at": pa.array(micros, pa.timestamp("us", tz=zone))}))
            published = opened.load_table(ident)
            [field] = published.spec().fields
            assert str(field.transform) == str(key.transform.value).removeprefix("epoch_")
            # Only the file of the row without a time is unpartitioned.
            assert sum(file["record_count"] for file in published.inspect.files().to_pylist() if file["spec_id"] == 0) == 1
            ends = "+00:00" if zone else ""
            assert published.scan(f"at < '1970-01-01T00:00:00{ends}'").to_arrow()["i"].sort().to_pylist() == [0, 3, 4]
            assert published.scan(f"at >= '2026-03-01T00:00:00{ends}'").to_arrow()["i"].sort().to_pylist() == [5, 6]
            assert len(published.scan().to_arrow()) == 8


def test_deletion_vectors_of_several_snapshots(made: tuple[Served, DuckLakeCatalog]) -> None:
    """A Puffin file with a cumulative vector for each snapshot is read at each; a client deletes more of the same file."""
    served, catalog = made
    ident = ("main", "t")
    catalog.set_option("write_deletion_vectors", True)
    catalog.set_option("data_inlining_row_limit", 0)
    catalog.create_table(ident, schema=Schema(Column("i", Int64Type()), Column("s", VarcharType()))).append(
        pa.table({"i": range(100), "s": [str(index) for index in range(100)]})
    )
    for upper in (3, 20, 41):
        catalog.load_table(ident).delete(col("i") < upper)
    found = (
        served.lake.psycopg().execute("SELECT format, footer_size > 0 FROM ducklake_delete_file ORDER BY delete_file_id DESC").fetchall()
    )
    assert found[0] == ("puffin", True)
    assert check_same(served, catalog, ident) == 4
    with served.pyiceberg().catalog as opened:
        opened.load_table(ident).delete("i = 50")
        assert sorted(opened.load_table(ident).scan().to_arrow()["i"].to_pylist()) == [*range(41, 50), *range(51, 100)]
    assert check_same(served, catalog, ident) == 5
