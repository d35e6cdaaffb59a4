"""Delta tables become tables without a copy: the files that their logs have now stay where they are."""

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from duckicelake.errors import Unsupported
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.pipeline.transfer.delta import parse_partition
from tests.pipeline.holding import clear_up, list_files
from tests.pipeline.transfer.ferry import Ferry, check_signed, describe
from tests.pipeline.transfer.folders.test_delta import lay_out
from tests.support.going_on import check_going_on

GIVEN = {"form": "delta", "mode": "register"}
ROWS = pa.table(
    {
        "id": pa.array(range(6), pa.int64()),
        "name": ["a", None, "c", "d", "e", "f"],
        "part": ["a b", "50%", "x/y", "ü:1", None, "x=y"],
        "day": [date(2026, 1, 1), None, date(1900, 1, 1), date(2026, 1, 2), date(2026, 1, 3), date(2026, 1, 3)],
        "price": pa.array([Decimal(text) if text else None for text in ("1.10", "", "-3", "2.5", "0", "9.99")], pa.decimal128(9, 2)),
        "size": pa.array([1, 2, None, 4, 5, 6], pa.int32()),
    }
)


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file and what is in it."""
    return {path: Path(path).read_bytes() for path in list_files(folder)}


def to_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows."""
    return [(*row.values(),) for row in table.to_pylist()]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_delta_tables_become_tables_where_they_are(ferry: Ferry) -> None:
    """Whole, by what their logs have now; every reader shows their rows, and DuckDB goes on with them as with its own."""
    place = ferry.folder / "shop" / "t"
    write_deltalake(place, ROWS.slice(0, 3).drop_columns(["size"]), partition_by=["part", "day", "price"])
    write_deltalake(place, ROWS.slice(2), mode="append", schema_mode="merge", partition_by=["part", "day", "price"])
    DeltaTable(place).delete("id = 2")
    write_deltalake(place, ROWS.slice(2, 1), mode="append")
    write_deltalake(ferry.folder / "shop" / "empty", ROWS.schema.empty_table(), partition_by=["part"])
    before = read_files(ferry.folder)
    plan = ferry.bring("import", str(ferry.folder), dry_run=True, **GIVEN)
    assert describe(plan) == [("shop.empty", "planned", 0), ("shop.t", "planned", 6)], plan.describe()
    report = ferry.bring("import", str(ferry.folder), **GIVEN)
    assert describe(report) == [("shop.empty", "done", 0), ("shop.t", "done", 6)], report.describe()
    check_signed(report, ferry.load_here("shop", "t"))
    again = ferry.bring("import", str(ferry.folder), **GIVEN)
    assert describe(again) == [("shop.empty", "already-there", 0), ("shop.t", "already-there", 6)], again.describe()
    wanted = [(*row[:5], None if row[0] < 2 else row[5]) for row in to_rows(ROWS)]
    query = "SELECT id, name, part, day, price, size FROM {}shop.t ORDER BY id"
    assert ferry.ask_duckdb(query.format("lake.")) == wanted
    assert [tuple(row.values()) for row in ferry.run(query.format("{h}."))] == wanted
    rows = ferry.served.pyiceberg().catalog.load_table("shop.t").scan().to_arrow().sort_by("id").select(ROWS.column_names)
    assert to_rows(rows) == wanted
    named = {row["file_path"].removeprefix("file://") for row in ferry.run("SELECT file_path FROM {h}.shop.t.files")}
    assert len(named) < len([path for path in list_files(place) if path.endswith(".parquet")])
    assert named <= set(before)
    assert clear_up(ferry.served.lake) == []
    assert read_files(ferry.folder) == before
    check_going_on(ferry.served, ("shop", "t"))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_delta_tables_of_more_than_files_are_refused(ferry: Ferry) -> None:
    """Table by table, with what is in the way; nothing is made and nothing is touched."""
    lay_out(ferry.folder / "d", ["mapped", "vectors", "widened"])
    write_deltalake(ferry.folder / "d" / "nested", pa.table({"id": [1], "tags": [["a"]]}))
    write_deltalake(ferry.folder / "d" / "halves", pa.table({"id": [1], "half": [0.5]}), partition_by=["half"])
    # Its folder is called `part=`, which DuckDB reads as a text.
    write_deltalake(ferry.folder / "d" / "nothing", pa.table({"id": [1], "part": [""]}), partition_by=["part"])
    before = read_files(ferry.folder)
    report = ferry.bring("import", str(ferry.folder), **GIVEN)
    told = {one.subject: one.message for one in report.moved}
    assert [one.verdict for one in report.moved] == ["failed"] * 6
    words = {"mapped": "its columns are mapped by", "nested": "column tags is nested", "halves": "of the type double", "nothing": "'part='"}
    words |= {"vectors": "deleted by vectors", "widened": "holds decimal128(5, 2) in the column 'd'"}
    for name, word in words.items():
        assert word in told[f"d.{name}"]
        assert "--mode copy" in told[f"d.{name}"]
    assert ferry.list_here("d") == []
    assert read_files(ferry.folder) == before


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("string", "", None),
        ("string", None, None),
        ("string", "a", "a"),
        ("int", "7", 7),
        ("date", "-1", -1),
        ("boolean", "true", True),
        ("boolean", "false", False),
        ("decimal(6, 2)", "-1.50", Decimal("-1.50")),
    ],
)
def test_values_of_partitions_are_those_of_the_log(type_: str, text: str | None, value: object) -> None:
    """As Iceberg has them."""
    assert parse_partition(PrimitiveType(type_), text) == value


def test_values_without_one_text_are_refused() -> None:
    """By their type."""
    with pytest.raises(Unsupported, match="of the type double"):
        parse_partition(PrimitiveType("double"), "0.5")
