"""PyIceberg's metadata tables against what DuckDB tells of the same table."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from tests.interop.rich_lake import RichLake
from tests.support.readers import PyIcebergReader

ADDED, DELETED = 1, 2
DATA, POSITION_DELETES = 0, 1


@pytest.fixture(params=["trips", "visits", "measures"])
def table(pyiceberg: PyIcebergReader, request: pytest.FixtureRequest) -> Table:
    """One table of the rich lake."""
    return pyiceberg.catalog.load_table(("main", request.param))


def count_rows(rich: RichLake, table: Table, snapshot_id: int | None = None) -> int:
    """How many rows DuckDB sees."""
    return len(rich.truth.read(("main", table.name()[1]), snapshot_id))


def total(rows: list[dict[str, Any]], column: str) -> int:
    """The sum of a column."""
    return sum(row[column] for row in rows)


def split_by_content(files: pa.Table) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Data files and delete files."""
    rows = files.to_pylist()
    return [row for row in rows if row["content"] == DATA], [row for row in rows if row["content"] == POSITION_DELETES]


def test_snapshots_are_the_lakes(rich: RichLake, table: Table) -> None:
    """Ids and times are DuckDB's, each names the one before as its parent, and totals count DuckDB's rows."""
    snapshots = table.inspect.snapshots().to_pylist()
    times = dict(rich.truth.conn.execute("SELECT snapshot_id, epoch_ms(snapshot_time) FROM lake.snapshots()").fetchall())
    ids = [row["snapshot_id"] for row in snapshots]
    assert ids == sorted(ids)
    assert [row["parent_id"] for row in snapshots] == [None, *ids[:-1]]
    for row, snapshot in zip(snapshots, table.snapshots(), strict=True):
        assert snapshot.timestamp_ms == times[row["snapshot_id"]]
        summary = dict(row["summary"])
        records, deleted = int(summary["total-records"]), int(summary["total-position-deletes"])
        assert records - deleted == count_rows(rich, table, row["snapshot_id"])


def test_history_is_one_line(table: Table) -> None:
    """Every snapshot was current once and is an ancestor of the current one."""
    history = table.inspect.history().to_pylist()
    assert [row["snapshot_id"] for row in history] == [snapshot.snapshot_id for snapshot in table.snapshots()]
    assert all(row["is_current_ancestor"] for row in history)


def test_main_is_the_only_ref(table: Table) -> None:
    """It names the newest snapshot."""
    refs = [(row["name"], row["type"], row["snapshot_id"]) for row in table.inspect.refs().to_pylist()]
    assert refs == [("main", "BRANCH", table.snapshots()[-1].snapshot_id)]


def test_files_are_duckdbs(rich: RichLake, table: Table) -> None:
    """DuckDB's own files where they are, besides files of inlined rows; counts add up to DuckDB's."""
    files, deletes = split_by_content(table.inspect.files())
    own = rich.list_files(table.name()[1])
    published = {row["file_path"] for row in files}
    assert own.keys() <= published
    assert all(path.startswith(table.location()) for path in published - own.keys())
    assert total(files, "record_count") - total(deletes, "record_count") == count_rows(rich, table)


def test_entries_are_the_history_of_files(rich: RichLake, table: Table) -> None:
    """An entry is added in the snapshot that its number says, and those that live are the files."""
    entries = table.inspect.entries().to_pylist()
    live = [entry for entry in entries if entry["status"] != DELETED]
    assert {entry["data_file"]["file_path"] for entry in live} == set(table.inspect.files()["file_path"].to_pylist())
    for entry in entries:
        assert entry["file_sequence_number"] <= entry["sequence_number"] <= entry["snapshot_id"] or entry["status"] == DELETED
        if entry["status"] == ADDED:
            assert entry["sequence_number"] == entry["snapshot_id"]
    at_first = table.inspect.entries(table.snapshots()[0].snapshot_id).to_pylist()
    assert total([entry["data_file"] for entry in at_first], "record_count") == count_rows(rich, table, table.snapshots()[0].snapshot_id)


def test_manifests_count_their_entries(table: Table) -> None:
    """Counts of the list are those of the manifests in it."""
    manifests = table.inspect.manifests().to_pylist()
    assert {row["content"] for row in manifests} == {DATA, POSITION_DELETES}
    files, deletes = split_by_content(table.inspect.files())
    for kind, found in (("data", files), ("delete", deletes)):
        counted = total(manifests, f"added_{kind}_files_count") + total(manifests, f"existing_{kind}_files_count")
        assert counted == len(found), kind


def test_partitions_hold_duckdbs_rows(rich: RichLake, pyiceberg: PyIcebergReader) -> None:
    """By country and month as DuckDB groups them; rows without a partition are those that are in no partition's file."""
    found = pyiceberg.catalog.load_table(("main", "visits")).inspect.partitions().to_pylist()
    counts = {
        (row["partition"]["country"], row["partition"]["day_month"]): row["record_count"] - row["position_delete_record_count"]
        for row in found
        if row["spec_id"] == 1
    }
    truth = rich.truth.conn.execute(
        "SELECT country, 12 * (year(day) - 1970) + month(day) - 1, count(*) FROM lake.visits WHERE id BETWEEN 100 AND 999 GROUP BY ALL"
    ).fetchall()
    assert counts == {(country, month): count for country, month, count in truth}
    (rest,) = (row["record_count"] - row["position_delete_record_count"] for row in found if row["spec_id"] == 0)
    assert rest == len(rich.ask("FROM lake.visits WHERE id NOT BETWEEN 100 AND 999"))


def test_the_metadata_log_ends_with_the_current_file(table: Table) -> None:
    """The newest entry is what the catalog calls the metadata location."""
    last = table.inspect.metadata_log_entries().to_pylist()[-1]
    assert last["file"] == table.metadata_location
    assert last["latest_snapshot_id"] == table.snapshots()[-1].snapshot_id


def test_an_empty_table_has_a_log_and_nothing_else(rich: RichLake, pyiceberg: PyIcebergReader) -> None:
    """One metadata file, and no snapshots, refs or files."""
    table = pyiceberg.catalog.load_table(("main", "empty"))
    assert table.inspect.metadata_log_entries().num_rows == 1
    assert [table.inspect.snapshots().num_rows, table.inspect.refs().num_rows, table.inspect.files().num_rows] == [0, 0, 0]
    assert count_rows(rich, table) == 0
