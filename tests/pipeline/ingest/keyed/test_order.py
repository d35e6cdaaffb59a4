"""Rows by key in the order that a column says: no row of the table is made older."""

import pyarrow as pa
import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Mode
from tests.pipeline.ingest.mill import Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]


def test_no_row_is_made_older(mill: Mill) -> None:
    """One that is as old is taken, and no value is before all others."""
    rows = {1: (5, "five"), 2: (5, "five"), 3: (5, "five"), 4: (None, "none"), 5: (None, "none"), 6: (None, "none")}
    write(mill, "a.parquet", rows)
    mill.run(mode=Mode.upsert, key=("id",))
    later = {1: (4, "older"), 2: (5, "as old"), 3: (6, "newer"), 4: (None, "as old"), 5: (1, "newer"), 7: (0, "new")}
    write(mill, "b.parquet", later)
    report = mill.run(mode=Mode.upsert, key=("id",), order_by="seen")
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
    assert mill.run(mode=Mode.upsert, key=("id",), order_by="seen").rows_superseded == 1
    assert mill.rows()[2] == (3, 6, "newer")


def write(mill: Mill, name: str, rows: dict[int, tuple[int | None, str]]) -> None:
    """Rows by key."""
    seen, notes = zip(*rows.values(), strict=True)
    mill.write_parquet(name, id=pa.array(list(rows), pa.int64()), seen=pa.array(seen, pa.int64()), note=list(notes))


def test_files_without_the_order_are_refused(mill: Mill) -> None:
    """Nobody could say which of the two rows is the later one."""
    write(mill, "a.parquet", {1: (5, "five")})
    mill.run(mode=Mode.upsert, key=("id",), order_by="seen")
    mill.write_parquet("b.parquet", id=pa.array([1], pa.int64()), note=["when?"])
    with pytest.raises(BadRequest, match=r"b\.parquet has no column seen to order rows by; nothing was taken"):
        mill.run(mode=Mode.upsert, key=("id",), order_by="seen")
    assert mill.rows() == [(1, 5, "five")]
