"""Rows by key in the order that a column says: no row of the table is made older."""

from typing import Any

import pyarrow as pa
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Evolve, IngestMode
from tests.pipeline.ingest.mill import Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]


@pytest.mark.long
def test_no_row_is_made_older(mill: Mill) -> None:
    """One that is as old is taken, and no value is before all others."""
    rows = {1: (5, "five"), 2: (5, "five"), 3: (5, "five"), 4: (None, "none"), 5: (None, "none"), 6: (None, "none")}
    write(mill, "a.parquet", rows)
    mill.run(mode=IngestMode.upsert, key=("id",))
    later = {1: (4, "older"), 2: (5, "as old"), 3: (6, "newer"), 4: (None, "as old"), 5: (1, "newer"), 7: (0, "new")}
    write(mill, "b.parquet", later)
    report = mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen")
    assert (report.rows_in, report.rows_out, report.rows_quarantined, report.rows_superseded) == (6, 5, 0, 1)
    assert mill.rows() == [
        (1, 5, "five"),
        (2, 5, "as old"),
        (3, 6, "newer"),
        (4, None, "as old"),
        (5, 1, "newer"),
        (6, None, "none"),
        (7, 0, "new"),
    ]
    write(mill, "c.parquet", {3: (None, "older")})
    assert mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen").rows_superseded == 1
    assert mill.rows()[2] == (3, 6, "newer")


def write(mill: Mill, name: str, rows: dict[int, tuple[int | None, str]]) -> None:
    """Rows by key."""
    seen, notes = zip(*rows.values(), strict=True)
    mill.write_parquet(name, id=pa.array(list(rows), pa.int64()), seen=pa.array(seen, pa.int64()), note=list(notes))


@pytest.mark.long
def test_files_without_the_order_are_refused(mill: Mill) -> None:
    """Nobody could say which of the two rows is the later one."""
    write(mill, "a.parquet", {1: (5, "five")})
    mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen")
    mill.write_parquet("b.parquet", id=pa.array([1], pa.int64()), note=["when?"])
    with pytest.raises(BadRequest, match=r"b\.parquet has no column seen to order rows by; nothing was taken"):
        mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen")
    assert mill.rows() == [(1, 5, "five")]


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param(IngestMode.upsert, marks=pytest.mark.long), IngestMode.scd2])
def test_a_merge_that_leaves_other_rows_than_were_counted_is_refused(mill: Mill, mode: IngestMode) -> None:
    """Here somebody else writes to the branch of the run, so that it has a row more; nothing of that is seen."""
    how: dict[str, Any] = {"mode": mode, "key": ("id",), "order_by": "seen"}
    write(mill, "a.parquet", {1: (5, "five"), 2: (5, "five")})
    mill.run(**how)
    before = mill.rows()
    mill.write_parquet("b.parquet", id=pa.array([2, 3], pa.int64()), seen=pa.array([6, 6], pa.int64()), note=["six", "six"], more=[1, 1])

    def tell(step: str) -> None:
        if step == "write raw.trips":
            (branch,) = (ref for ref in mill.list_refs("trips") if ref != "main")
            table = f"{mill.catalog}.raw.trips"
            mill.spark.session.sql(f"INSERT INTO {table}.branch_{branch} SELECT * FROM {table} WHERE id = 1")

    with pytest.raises(BadRequest, match="was to have . rows more, and would have .; nothing was taken"):
        mill.run(tell=tell, evolve=Evolve.add, **how)
    assert mill.list_refs("trips") == ["main"]
    assert [row[:3] for row in mill.rows()] == [row[:3] for row in before]
    assert mill.run(**how).rows_out == 2
