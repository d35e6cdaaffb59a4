"""Rows by key in a table whose columns were altered since its last rows came: they are known by what the columns are now."""

import pyarrow as pa
import pytest

from duckicelake.pipeline.ingest.options import Evolve, IngestMode
from tests.pipeline.ingest.mill import Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]

CURRENT = "SELECT * EXCLUDE (valid_from, valid_to, is_current) FROM raw.trips WHERE is_current ORDER BY ALL"


def write(mill: Mill, file: str, at: list[int], key: str = "id", note: str = "note", **more: list[str]) -> None:
    """Rows 1 and 2, with these times; the first one's text is of its time."""
    notes = [f"first {at[0]}", "second"]
    mill.write_parquet(file, **{key: pa.array([1, 2], pa.int64()), "seen": pa.array(at, pa.int64()), note: notes}, **more)


@pytest.mark.long
def test_a_key_that_was_renamed_is_the_key(mill: Mill) -> None:
    """What is older than the table's row stays out, and what is counted is what is merged."""
    write(mill, "a.parquet", [5, 5])
    mill.run(mode=IngestMode.upsert, key=("id",), order_by="seen")
    mill.ask("ALTER TABLE raw.trips RENAME COLUMN id TO k")
    mill.ask("ALTER TABLE raw.trips RENAME COLUMN seen TO told")
    (mill.folder / "a.parquet").unlink()
    mill.write_parquet(
        "b.parquet", k=pa.array([1, 2], pa.int64()), told=pa.array([6, 4], pa.int64()), note=["newer", "older"], more=["m", "m"]
    )
    report = mill.run(mode=IngestMode.upsert, key=("k",), order_by="told", evolve=Evolve.add)
    assert (report.rows_in, report.rows_out, report.rows_superseded) == (2, 1, 1)
    assert mill.rows() == [(1, 6, "newer", "m"), (2, 5, "second", None)]


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), [("id", "k"), ("note", "text")])
def test_versions_go_on_under_other_names(mill: Mill, old: str, new: str) -> None:
    """A row that has not changed makes no version, and the one that has ends the one before it."""
    write(mill, "a.parquet", [1, 1])
    mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    mill.ask(f"ALTER TABLE raw.trips RENAME COLUMN {old} TO {new}")
    key, note = ("k", "note") if old == "id" else ("id", "text")
    write(mill, "b.parquet", [2, 2], key, note)
    report = mill.run(mode=IngestMode.scd2, key=(key,), order_by="seen")
    assert (report.rows_out, report.rows_superseded) == (1, 1)
    assert mill.ask(CURRENT) == [(1, 2, "first 2"), (2, 1, "second")]
    assert mill.ask("SELECT count(*) FROM raw.trips") == [(3,)]


@pytest.mark.long
@pytest.mark.parametrize("has_column", [pytest.param(True, marks=pytest.mark.long), False])
def test_versions_have_what_a_new_column_says_of_older_rows(mill: Mill, has_column: bool) -> None:
    """Its default is their value: a file that says the same changes nothing, and one without the column leaves it."""
    write(mill, "a.parquet", [1, 1])
    mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    mill.ask("ALTER TABLE raw.trips ADD COLUMN region VARCHAR DEFAULT 'EU'")
    write(mill, "b.parquet", [2, 2], **({"region": ["EU", "EU"]} if has_column else {}))
    report = mill.run(mode=IngestMode.scd2, key=("id",), order_by="seen")
    assert (report.rows_out, report.rows_superseded) == (1, 1)
    assert mill.ask(CURRENT) == [(1, 2, "first 2", "EU"), (2, 1, "second", "EU")]
