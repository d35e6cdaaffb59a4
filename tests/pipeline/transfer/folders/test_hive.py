"""Folders of Parquet files, as Spark and Hive leave them, become tables."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.transfer.parquet_folders import find_partitions
from tests.pipeline.transfer.ferry import Ferry, describe

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
GIVEN = {"form": "hive", "mode": "copy"}


@pytest.mark.long
def test_a_folder_without_a_value_is_named() -> None:
    """Spark takes it for a bug of its own; a value may end in what stands before one."""
    assert find_partitions("x", ["day=a=/b.parquet"]) == ["day"]
    with pytest.raises(BadRequest, match=r"x/day=/a\.parquet lies in a folder without a value"):
        find_partitions("x", ["day=/a.parquet", "day=1/a.parquet"])


def test_folders_become_partitioned_tables(ferry: Ferry) -> None:
    """Values in names of folders are columns and partitions; the same files are taken once, and other ones are told."""
    root = ferry.folder / "hi{v}e[1]*"
    ferry.spark.session.sql(
        "SELECT id, CAST(id AS string) AS name, DATE'2026-01-01' + CAST(id AS int) AS day, IF(id = 0, NULL, id % 2) AS part FROM range(6)"
    ).write.partitionBy("day", "part").parquet(str(root / "shop.db" / "orders"))
    (root / "plain" / "_SUCCESS").parent.mkdir()
    (root / "plain" / "_SUCCESS").touch()
    pq.write_table(pa.table({"id": pa.array([1], pa.int16())}), root / "plain" / "000000_0")
    pq.write_table(pa.table({"id": pa.array([2], pa.int16()), "later": ["x"]}), root / "plain" / "000001_0")
    (root / "broken").mkdir()
    (root / "broken" / "part-0.parquet").write_bytes(b"no Parquet")
    (root / "nanos").mkdir()
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), root / "nanos" / "a.parquet")
    (root / "none").mkdir()
    pq.write_table(pa.table({}), root / "none" / "a.parquet")
    (root / "mixed").mkdir()
    for name, kind in (("a", pa.int32()), ("b", pa.int64())):
        pq.write_table(pa.table({"id": pa.array([1], kind)}), root / "mixed" / f"{name}.parquet")
    (root / "stray" / "sub").mkdir(parents=True)
    for place in (root / "stray" / "a.parquet", root / "stray" / "sub" / "b.parquet"):
        pq.write_table(pa.table({"id": [1]}), place)
    report = ferry.bring("import", str(root), into="lake_of", **GIVEN)
    assert describe(report) == [
        ("lake_of.broken", "failed", None),
        ("lake_of.mixed", "failed", None),
        ("lake_of.nanos", "failed", None),
        ("lake_of.none", "failed", None),
        ("lake_of.plain", "done", 2),
        ("lake_of.stray", "failed", None),
        ("lake_of.shop.orders", "done", 6),
    ], report.describe()
    assert report.moved[1].message.startswith("column id is ")
    assert report.moved[2].message.startswith(f"{root}/nanos/a.parquet: column t is a timestamp in nanoseconds, which")
    assert report.moved[3].message.startswith(f"{root}/none/a.parquet has no column")
    assert report.moved[5].message.startswith(f"{root}/stray/sub/b.parquet lies elsewhere")
    assert ferry.ask_duckdb('SELECT * FROM lake."lake_of".plain ORDER BY id') == [(1, None), (2, "x")]
    assert ferry.ask_duckdb('SELECT count(*), count(part), max(day)::VARCHAR FROM lake."lake_of␟shop".orders') == [(6, 5, "2026-01-06")]
    spec = ferry.load_here("lake_of%1Fshop", "orders")["partition-specs"][0]
    assert [(field["name"], field["transform"]) for field in spec["fields"]] == [("day", "identity"), ("part", "identity")]
    again = ferry.bring("import", str(root), "plain", "shop.orders", into="lake_of", **GIVEN)
    assert describe(again) == [("lake_of.plain", "already-there", 2), ("lake_of.shop.orders", "already-there", 6)]
    pq.write_table(pa.table({"id": pa.array([3], pa.int16())}), root / "plain" / "000002_0")
    late = ferry.bring("import", str(root), "plain", into="lake_of", **GIVEN)
    assert (late.status, "an older state" in late.moved[0].message) == (1, True)
