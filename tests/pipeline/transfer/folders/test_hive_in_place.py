"""Folders of Parquet files become tables without a copy: their files stay where they are, and all readers show the same rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.holding import clear_up, list_files
from tests.pipeline.transfer.ferry import Ferry, check_compared, check_signed, describe
from tests.rest.writing.refs.maintenance import EVERYTHING
from tests.support.going_on import check_going_on

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
GIVEN = {"form": "hive", "mode": "register"}
TEXTS = ("plain", "two words", "50%", "a/b", "12:30", "a=b", "é", 'say "x"', None)
ROWS = """
SELECT id, CAST(id AS string) AS name, CAST(id AS double) / 2 AS half, DATE'2026-01-01' + CAST(id % 2 AS int) AS day,
       IF(id = 8, NULL, id % 3) AS part, {texts} AS text
  FROM range(9)
"""


def write_orders(ferry: Ferry, place: Path) -> None:
    """A folder as Spark leaves it, split by a date, a number and a text."""
    texts = "CASE id " + " ".join(f"WHEN {number} THEN '{text}'" for number, text in enumerate(TEXTS) if text is not None) + " END"
    frame = ferry.spark.session.sql(ROWS.format(texts=texts))
    frame.coalesce(1).write.partitionBy("day", "part", "text").parquet(str(place))


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file and what is in it."""
    return {path: Path(path).read_bytes() for path in list_files(folder)}


def read_duckdb(ferry: Ferry, table: str) -> list[tuple[Any, ...]]:
    """Its rows."""
    return ferry.ask_duckdb(f"SELECT id, name, half, day::VARCHAR, part, text FROM lake.{table} ORDER BY id")


def read_spark(ferry: Ferry, table: str, where: str = "true") -> list[tuple[Any, ...]]:
    """The same as Spark shows them."""
    rows = ferry.run(f"SELECT id, name, half, CAST(day AS string) AS day, part, text FROM {{h}}.{table} WHERE {where} ORDER BY id")
    return [tuple(row.values()) for row in rows]


def read_pyiceberg(ferry: Ferry, table: str) -> list[tuple[Any, ...]]:
    """The same as PyIceberg shows them."""
    rows = ferry.served.pyiceberg().catalog.load_table(table).scan().to_arrow().to_pylist()
    names = ("id", "name", "half", "day", "part", "text")
    return sorted(tuple(str(row[name]) if name == "day" else row[name] for name in names) for row in rows)


def test_files_become_a_table_where_they_are(ferry: Ferry) -> None:
    """At once, whole, and known again; every reader shows their rows, and DuckDB goes on with them as with its own."""
    place = ferry.folder / "shop.db" / "orders"
    write_orders(ferry, place)
    before = read_files(ferry.folder)
    plan = ferry.bring("import", str(ferry.folder), dry_run=True, **GIVEN)
    assert describe(plan) == [("shop.orders", "planned", 9)], plan.describe()
    assert ferry.list_here("shop") == []
    report = ferry.bring("import", str(ferry.folder), **GIVEN)
    assert describe(report) == [("shop.orders", "done", 9)], report.describe()
    check_compared(report, "rows", "checksums")
    again = ferry.bring("import", str(ferry.folder), **GIVEN)
    assert describe(again) == [("shop.orders", "already-there", 9)], again.describe()
    wanted = [(i, str(i), i / 2, f"2026-01-0{1 + i % 2}", None if i == 8 else i % 3, text) for i, text in enumerate(TEXTS)]
    for read in (read_duckdb, read_spark, read_pyiceberg):
        assert read(ferry, "shop.orders") == wanted
    for i, text in enumerate(TEXTS):
        told = "text IS NULL" if text is None else f"text = '{text}'"
        assert read_spark(ferry, "shop.orders", told) == [wanted[i]]
        assert ferry.ask_duckdb(f"SELECT id FROM lake.shop.orders WHERE {told}") == [(i,)]
    loaded = ferry.load_here("shop", "orders")
    assert [(one["name"], one["transform"]) for one in loaded["partition-specs"][0]["fields"]] == [
        *(("day", "identity"), ("part", "identity"), ("text", "identity"))
    ]
    check_signed(report, loaded)
    named = ferry.run("SELECT file_path FROM {h}.shop.orders.files")
    assert {row["file_path"].removeprefix("file://") for row in named} == {path for path in before if path.endswith(".parquet")}
    assert clear_up(ferry.served.lake) == []
    assert read_files(ferry.folder) == before
    check_going_on(ferry.served, ("shop", "orders"))


@pytest.mark.long
def test_rows_of_such_files_change_and_go(ferry: Ferry) -> None:
    """By Spark and by DuckDB, under other names and beside another column; the files stay as they are until DuckLake lets them go."""
    place = ferry.folder / "ns" / "t"
    write_orders(ferry, place)
    before = read_files(ferry.folder)
    assert ferry.bring("import", str(ferry.folder), **GIVEN).status == 0
    ferry.run(
        "UPDATE {h}.ns.t SET text = 'new' WHERE part = 1",
        "DELETE FROM {h}.ns.t WHERE day = DATE'2026-01-02' AND part = 2",
        "ALTER TABLE {h}.ns.t ADD COLUMN more int",
        "ALTER TABLE {h}.ns.t RENAME COLUMN part TO piece",
    )
    ferry.ask_duckdb("UPDATE lake.ns.t SET more = 7 WHERE text = 'plain'")
    ferry.ask_duckdb("DELETE FROM lake.ns.t WHERE piece IS NULL")
    wanted = [(0, 0, "plain", 7), (1, 1, "new", None), (2, 2, "50%", None), (3, 0, "a/b", None), (4, 1, "new", None), (6, 0, "é", None)]
    wanted.append((7, 1, "new", None))
    query = "SELECT id, piece, text, more FROM {}ns.t ORDER BY id"
    assert ferry.ask_duckdb(query.format("lake.")) == wanted
    assert [tuple(row.values()) for row in ferry.run(query.format("{h}."))] == wanted
    assert read_files(ferry.folder) == before
    for statement in EVERYTHING:
        ferry.ask_duckdb(statement)
        assert ferry.ask_duckdb(query.format("lake.")) == wanted
    assert [tuple(row.values()) for row in ferry.run(query.format("{h}."))] == wanted


def write(place: Path, **columns: Any) -> None:
    """A file of these columns."""
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), place)


@pytest.mark.long
def test_what_readers_would_not_read_alike_is_refused(ferry: Ferry) -> None:
    """Table by table, with the file or column, before anything is made; `--mode copy` takes them."""
    root = ferry.folder
    write(root / "ns" / "nested" / "a.parquet", id=[1], spot=[{"x": 1}])
    write(root / "ns" / "both" / "day=1" / "a.parquet", id=[1], day=[2])
    write(root / "ns" / "cases" / "a.parquet", id=[1])
    write(root / "ns" / "cases" / "b.parquet", ID=[1])
    write(root / "ns" / "moments" / "at=2026-03-01 10%3A00%3A00" / "a.parquet", id=[1])
    write(root / "ns" / "halves" / "half=0.5" / "a.parquet", id=[1])
    write(root / "ns" / "nulls" / "text=null" / "a.parquet", id=[1])
    write(root / "ns" / "odd" / "text=%C3%A9" / "a.parquet", id=[1])
    old = root / "ns" / "old" / "a.parquet"
    old.parent.mkdir()
    pq.write_table(pa.table({"at": pa.array([1], pa.timestamp("us", "UTC"))}), old, use_deprecated_int96_timestamps=True)
    field = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
    pq.write_table(pa.Table.from_arrays([pa.array([1])], schema=pa.schema([field])), root / "ns" / "ids.parquet")
    (root / "ns" / "ids").mkdir()
    (root / "ns" / "ids.parquet").rename(root / "ns" / "ids" / "a.parquet")
    before = read_files(root)
    report = ferry.bring("import", str(root), **GIVEN)
    told = {one.subject.removeprefix("ns."): one.message for one in report.moved}
    words = {
        "nested": "column spot is nested",
        "both": "a.parquet has the column day",
        "cases": "b.parquet has a column ID",
        "moments": "'at=2026-03-01 10%3A00%3A00'",
        "halves": "'half=0.5'",
        "nulls": "'text=null'",
        "odd": "'text=%C3%A9'",
        "old": "a.parquet' holds timestamp[ns",
        "ids": "a.parquet carries a field id for its column id",
    }
    assert report.status == 1
    for name, word in words.items():
        assert word in told[name]
        assert "--mode copy" in told[name]
    assert ferry.list_here("ns") == []
    assert read_files(root) == before
    assert list_files(Path(ferry.served.lake.iceberg_path)) == set()


@pytest.mark.long
def test_files_go_when_ducklake_lets_them_go(ferry: Ferry) -> None:
    """They are the table's from then on: a purge leaves them, and DuckLake's own cleaning takes what no snapshot has any more."""
    write(ferry.folder / "ns" / "t" / "part=1" / "a.parquet", id=[1])
    write(ferry.folder / "ns" / "t" / "_not" / "part=1" / "b.parquet", id=[1])
    before = read_files(ferry.folder)
    assert ferry.bring("import", str(ferry.folder), **GIVEN).status == 0
    ferry.served.pyiceberg().catalog.purge_table("ns.t")
    assert ferry.list_here("ns") == []
    assert clear_up(ferry.served.lake) == []
    assert read_files(ferry.folder) == before
    for statement in EVERYTHING:
        ferry.ask_duckdb(statement)
    assert {path.rpartition("/")[2] for path in read_files(ferry.folder)} == {"b.parquet"}


@pytest.mark.long
def test_a_server_that_takes_no_such_files_says_so(ferry: Ferry, tmp_path: Path) -> None:
    """And nothing is left of the attempt."""
    write(tmp_path / "elsewhere" / "ns" / "t" / "part=1" / "a.parquet", id=[1])
    report = ferry.bring("import", str(tmp_path / "elsewhere"), **GIVEN)
    assert describe(report) == [("ns.t", "failed", None)]
    assert "allowed_locations" in report.moved[0].message
    assert "--mode copy" in report.moved[0].message
    assert ferry.list_here("ns") == []
    assert list_files(Path(ferry.served.lake.iceberg_path)) == set()
