"""Trino's metadata tables against DuckDB and against each other."""

from collections import Counter

import pytest

from tests.interop.rich_lake import RichLake
from tests.interop.trino.reader import TrinoReader
from tests.support.tiers import long_but
from tests.support.trino.server import TrinoRefused

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

DATA = 0
NAMES = ["trips", "visits", "measures"]


def count_rows(rich: RichLake, name: str) -> int:
    """How many rows DuckDB sees."""
    return len(rich.truth.read(("main", name)))


def list_snapshot_ids(reader: TrinoReader, name: str) -> list[int]:
    """The table's snapshots in order."""
    return [row["snapshot_id"] for row in reader.find_rows(f'SELECT snapshot_id FROM {{}}.main."{name}$snapshots" ORDER BY 1')]


@pytest.mark.parametrize("name", long_but(NAMES, "trips"))
def test_snapshots_and_history_are_one_line(rich: RichLake, trino_reader: TrinoReader, name: str) -> None:
    """Each snapshot names the one before as its parent, at DuckDB's time; totals count DuckDB's rows."""
    ids = list_snapshot_ids(trino_reader, name)
    snapshots = trino_reader.find_rows(f'SELECT * FROM {{}}.main."{name}$snapshots" ORDER BY snapshot_id')
    times = dict(rich.truth.conn.execute("SELECT snapshot_id, epoch_ms(snapshot_time) FROM lake.snapshots()").fetchall())
    assert [row["parent_id"] for row in snapshots] == [None, *ids[:-1]]
    assert [round(row["committed_at"].timestamp() * 1000) for row in snapshots] == [times[snapshot_id] for snapshot_id in ids]
    summary = dict(snapshots[-1]["summary"])
    assert int(summary["total-records"]) - int(summary["total-position-deletes"]) == count_rows(rich, name)
    history = trino_reader.find_rows(f'SELECT * FROM {{}}.main."{name}$history" ORDER BY snapshot_id')
    assert [(row["snapshot_id"], row["parent_id"]) for row in history] == list(zip(ids, [None, *ids[:-1]], strict=True))
    assert all(row["is_current_ancestor"] for row in history)


@pytest.mark.long
@pytest.mark.parametrize("name", long_but(NAMES, "trips"))
def test_main_is_the_only_ref(trino_reader: TrinoReader, name: str) -> None:
    """It names the newest snapshot."""
    refs = trino_reader.find_rows(f'SELECT name, type, snapshot_id FROM {{}}.main."{name}$refs"')
    assert refs == [{"name": "main", "type": "BRANCH", "snapshot_id": list_snapshot_ids(trino_reader, name)[-1]}]


@pytest.mark.parametrize("name", long_but(NAMES, "measures"))
def test_files_and_manifests_add_up(rich: RichLake, trino_reader: TrinoReader, name: str) -> None:
    """The live files hold DuckDB's rows and those that deletes take away; manifests count the same files."""
    files = trino_reader.find_rows(f'SELECT content, file_path, record_count FROM {{}}.main."{name}$files"')
    rows = sum(row["record_count"] if row["content"] == DATA else -row["record_count"] for row in files)
    assert rows == count_rows(rich, name)
    assert rich.list_files(name).keys() <= {row["file_path"] for row in files if row["content"] == DATA}
    counts = "added_data_files_count + existing_data_files_count"
    counted = trino_reader.find_rows(f'SELECT content, sum({counts}) AS files FROM {{}}.main."{name}$manifests" GROUP BY content')
    assert {row["content"]: row["files"] for row in counted} == Counter(row["content"] for row in files)


@pytest.mark.parametrize("name", long_but(["visits", "measures"], "visits"))
def test_entries_tell_of_the_files(trino_reader: TrinoReader, name: str) -> None:
    """Those that live are the files; in all snapshots together, each data file was added once, by a snapshot of the table."""
    files = trino_reader.find_rows(f'SELECT file_path FROM {{}}.main."{name}$files"')
    live = trino_reader.find_rows(f'SELECT data_file.file_path AS path FROM {{}}.main."{name}$entries" WHERE status <> 2')
    assert sorted(row["path"] for row in live) == sorted(row["file_path"] for row in files)
    added = trino_reader.find_rows(
        f'SELECT DISTINCT snapshot_id, data_file.file_path AS path FROM {{}}.main."{name}$all_entries" '
        "WHERE status = 1 AND data_file.content = 0"
    )
    paths = [row["path"] for row in added]
    assert len(paths) == len(set(paths)) > 1
    assert {row["snapshot_id"] for row in added} <= set(list_snapshot_ids(trino_reader, name))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["entries", "all_entries"])
def test_trino_shows_no_entries_after_a_column_was_dropped(trino_reader: TrinoReader, kind: str) -> None:
    """A defect of Trino 483: it looks up the type of each bound among the columns that are left."""
    with pytest.raises(TrinoRefused, match='"type" is null'):
        trino_reader.find_rows(f'SELECT * FROM {{}}.main."trips${kind}"')


def test_partitions_hold_duckdbs_rows(rich: RichLake, trino_reader: TrinoReader) -> None:
    """By country as DuckDB groups them; Trino counts the entries of delete files with the rows. The rest is in no partition."""
    found = trino_reader.find_rows(
        'SELECT partition.country AS country, sum(record_count) AS n FROM {}.main."visits$partitions" GROUP BY 1'
    )
    by_country = {row["country"]: row["n"] for row in found}
    before_deletes = list_snapshot_ids(trino_reader, "visits")[-2]
    written, left = (
        dict(rich.truth.conn.execute(f"SELECT country, count(*) FROM {visits} WHERE id BETWEEN 100 AND 999 GROUP BY ALL").fetchall())
        for visits in (f"lake.visits AT (VERSION => {before_deletes})", "lake.visits")
    )
    assert {country: by_country[country] for country in written} == {country: 2 * written[country] - left[country] for country in written}


@pytest.mark.long
@pytest.mark.parametrize(("name", "version"), [("trips", "2"), ("measures", "3")])
def test_properties_tell_the_version(trino_reader: TrinoReader, name: str, version: str) -> None:
    """What the catalog says of the table, the lake snapshot it shows among it."""
    found = {row["key"]: row["value"] for row in trino_reader.find_rows(f'SELECT key, value FROM {{}}.main."{name}$properties"')}
    assert found["format-version"] == version
    assert found["ducklake.snapshot-id"] == str(list_snapshot_ids(trino_reader, name)[-1])


@pytest.mark.long
def test_a_bound_is_a_value_of_the_file(rich: RichLake, trino_reader: TrinoReader) -> None:
    """`$files` shows readable metrics; the first file's are those of the numbers 0 to 999."""
    (first,) = trino_reader.find_rows(
        "SELECT json_extract_scalar(readable_metrics, '$.id.lower_bound') AS low, "
        "json_extract_scalar(readable_metrics, '$.id.upper_bound') AS high "
        'FROM {}.main."trips$files" WHERE record_count = 1000 AND content = 0'
    )
    truth = rich.truth.conn.execute("SELECT min(id), max(id) FROM lake.trips AT (VERSION => 2) WHERE id < 1000").fetchone()
    assert (int(first["low"]), int(first["high"])) == truth


@pytest.mark.long
def test_an_empty_table_has_no_snapshots(trino_reader: TrinoReader) -> None:
    """Where Trino 483 asks for the current snapshot without looking whether there is one, it says so."""
    for kind in ("snapshots", "history", "refs", "manifests", "entries"):
        assert trino_reader.find_rows(f'SELECT * FROM {{}}.main."empty${kind}"') == [], kind
    with pytest.raises(TrinoRefused, match="snapshot"):
        trino_reader.find_rows('SELECT * FROM {}.main."empty$files"')


@pytest.mark.long
def test_columns_are_described_as_duckdb_does(rich: RichLake, trino_reader: TrinoReader) -> None:
    """Names, types and NOT NULL."""
    found = trino_reader.find_rows(
        "SELECT column_name, data_type, is_nullable FROM {}.information_schema.columns "
        "WHERE table_schema = 'main' AND table_name = 'trips' ORDER BY ordinal_position"
    )
    assert [row["column_name"] for row in found] == rich.truth.read(("main", "trips")).column_names
    assert found[0] == {"column_name": "id", "data_type": "integer", "is_nullable": "NO"}
    assert {row["is_nullable"] for row in found[1:]} == {"YES"}
