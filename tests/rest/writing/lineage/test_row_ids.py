"""Files of version 3 in which rows wait for their ids, as Spark's MERGE writes them: DuckDB and Iceberg clients know the same ids."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.catalog.incoming.file_changes import FileChange
from duckicelake.catalog.incoming.row_id_copies import RowIdWriter, WaitingFile, with_file_copies
from duckicelake.commands.check import remove_orphans
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DataFile
from duckicelake.store.row_ids import ROW_ID
from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, data_file, open_client, set_ref, write_file
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.going_on import check_going_on
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after

FIRST, SECOND, THIRD = 9_000_000_001, 9_000_000_002, 9_000_000_003
LONGER_AGO = timedelta(hours=73)
ALL_COUNTED = {1: 0, 2: 0}
MERGE = (
    "MERGE INTO lake.t t USING (SELECT unnest([11, 12, 13, 99]) AS id) s ON t.id = s.id"
    " WHEN MATCHED THEN UPDATE SET name = 'merged' WHEN NOT MATCHED THEN INSERT VALUES (s.id, 'new')"
)


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return lake.duckdb()


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t of version 3, which has the rows 0 to 9 in a file."""
    client = open_client(server, lake)
    base = client.create(properties={"format-version": "3"}).json["metadata"]
    columns = {1: pa.array(range(10)), 2: pa.array(["old"] * 10)}
    assert client.commit(client.append(base, FIRST, [write_file(client, base, "old", columns)])).status == 200
    return client


def write_waiting(client: Client, name: str, ids: Sequence[int], row_ids: Sequence[int | None], **more: Any) -> DataFile:
    """A file with rows of these ids, and of these row ids as far as they have some, of the table `t` unless told."""
    table = more.pop("table", "t")
    columns: Mapping[int, Any] = {1: pa.array(ids), 2: pa.array(["new"] * len(ids)), ROW_ID: pa.array(row_ids, pa.int64())}
    told = {"null_value_counts": {**ALL_COUNTED, ROW_ID: row_ids.count(None)}}
    return write_file(client, client.load(table), name, columns, **told | more)


def append(client: Client, snapshot_id: int, files: Sequence[DataFile], operation: str = "append") -> list[Any]:
    """What adds files in a snapshot that says so of itself."""
    updates = client.append(client.load(), snapshot_id, files)
    updates[0]["snapshot"]["summary"]["operation"] = operation
    return updates


def row_ids(session: DuckDBPyConnection) -> list[tuple[int, int | None]]:
    """By the column `id`, what DuckDB knows."""
    return session.execute("SELECT id, rowid FROM lake.t ORDER BY ALL").fetchall()


def told_row_ids(client: Client) -> list[tuple[int, int]]:
    """The same as Iceberg has it: from the files of the newest snapshot, which have deletes of no kind."""
    metadata = client.load()
    found: list[tuple[Any, int]] = []
    [newest] = [s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"]]
    for listed in decode_manifest_list(client.objects.read(newest["manifest-list"])):
        first = listed.first_row_id
        assert first is not None
        for entry in decode_manifest(client.objects.read(listed.manifest_path), listed.manifest_path)[1]:
            file = entry.data_file
            start = file.first_row_id if file.first_row_id is not None else first
            first += file.record_count if file.first_row_id is None else 0
            content = client.objects.read(file.file_path)
            assert len(content) == file.file_size_in_bytes
            table = pq.read_table(io.BytesIO(content))
            ids = table.column(0).to_pylist()
            own: list[Any] = table.column(2).to_pylist() if table.num_columns > 2 else [None] * len(ids)
            found += [(i, start + n if told is None else told) for n, (i, told) in enumerate(zip(ids, own, strict=True))]
    return sorted(found)


def list_files(client: Client) -> set[str]:
    """The names of data files in the table's location."""
    return {uri.rpartition("/")[2] for uri, _ in client.objects.list_under(f"{client.load()['location']}/data")}


def live_paths(session: DuckDBPyConnection) -> list[str]:
    """The names of the files that DuckLake has."""
    return [row[0].rpartition("/")[2] for row in session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()]


@pytest.mark.whole
def test_both_sides_know_the_ids(client: Client, lake: FreshLake, server: Server, session: DuckDBPyConnection) -> None:
    """Those that rows brought, and those that they were to get: DuckDB's MERGE finds all of them, and goes on with the table."""
    mixed = write_waiting(client, "mixed", [3, 11, 12], [3, None, None])
    fresh = write_waiting(client, "fresh", [13, 14], [None, None])
    assert client.commit(append(client, SECOND, [mixed, fresh])).status == 200
    expected = [*((i, i) for i in range(4)), (3, 3), *((i, i) for i in range(4, 10)), (11, 11), (12, 12), (13, 13), (14, 14)]
    assert row_ids(session) == told_row_ids(client) == sorted(expected)
    session.execute("DELETE FROM lake.t WHERE id = 3")
    assert session.execute(MERGE).fetchall() == [(4,)]
    assert [i for i, _ in row_ids(session)] == [0, 1, 2, *range(4, 10), 11, 12, 13, 14, 99]
    assert len({row_id for _, row_id in row_ids(session)}) == 14
    check_going_on(Served(lake, server), ("main", "t"))


def test_ids_stay_when_snapshots_expire(client: Client, session: DuckDBPyConnection) -> None:
    """The first snapshot that is left gets a lower `first-row-id` than before; each file keeps its own, which readers use."""
    for number, snapshot_id in ((20, FIRST + 10), (30, FIRST + 11)):
        base = client.load()
        columns = {1: pa.array([number, number + 1]), 2: pa.array(["new"] * 2)}
        assert client.commit(client.append(base, snapshot_id, [write_file(client, base, f"more-{number}", columns)])).status == 200
    before = told_row_ids(client)
    assert before == row_ids(session)
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert len({snapshot["sequence-number"] for snapshot in client.load()["snapshots"]}) == 1
    assert told_row_ids(client) == before == row_ids(session)


def test_the_copy_takes_the_place_of_the_file(client: Client, lake: FreshLake, session: DuckDBPyConnection) -> None:
    """The client's own is nobody's then, and goes with what else is nobody's; the copy stays, and goes when DuckLake removes it."""
    assert client.commit(append(client, SECOND, [write_waiting(client, "mixed", [11], [None])])).status == 200
    [copy] = list_files(client) - {"old.parquet", "mixed.parquet"}
    assert sorted(live_paths(session)) == sorted(["old.parquet", copy])
    [settings] = make_settings(lake).lakes()
    gone = {uri.rpartition("/")[2] for uri in remove_orphans(settings, datetime.now(UTC) + LONGER_AGO)}
    assert "mixed.parquet" in gone
    assert copy not in gone
    assert row_ids(session)[-1] == (11, 10)
    session.execute("DELETE FROM lake.t WHERE id > 10")
    expire_everything(session)
    client.load()
    assert copy not in list_files(client)


def test_a_repeated_request_copies_nothing(client: Client, session: DuckDBPyConnection) -> None:
    """It is answered with what is there; so is one that is too late, with what it is told."""
    updates = append(client, SECOND, [write_waiting(client, "mixed", [11], [None])])
    late = append(client, THIRD, [write_waiting(client, "late", [12], [None])])
    before = client.load()["current-snapshot-id"]
    first = client.commit(updates, [assert_main(before)])
    there = list_files(client)
    again = client.commit(updates, [assert_main(before)])
    assert (first.status, again.status) == (200, 200)
    assert first.json["metadata"]["current-snapshot-id"] == again.json["metadata"]["current-snapshot-id"]
    assert client.commit(late, [assert_main(before)]).status == 409
    assert list_files(client) == there
    assert row_ids(session)[-1] == (11, 10)


def test_ids_are_counted_from_the_table_as_it_is_then(client: Client, lake: FreshLake, session: DuckDBPyConnection) -> None:
    """A server remembers the table, and another one has given ids to a branch since; a copy with the wrong ids is removed."""
    updates = append(client, SECOND, [write_waiting(client, "mixed", [11, 12], [None, None])])
    updates[0]["snapshot"]["sequence-number"] = 1000
    beside = client.add(client.load(), THIRD, [write_waiting(client, "beside", [50, 51, 52], [None] * 3)])
    with serve(make_settings(lake)) as other:
        added = [{"action": "add-snapshot", "snapshot": beside}, set_ref("side", THIRD, "branch")]
        assert open_client(other, lake).commit(added).status == 200
    assert client.commit(updates).status == 200
    assert row_ids(session)[-2:] == [(11, 13), (12, 14)]
    assert len(list_files(client) - {"old.parquet", "mixed.parquet", "beside.parquet"}) == 2


def test_a_late_commit_leaves_nothing(client: Client, session: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are not copied where its requirements say so, and the copies go where it is seen under the lock."""
    updates = append(client, SECOND, [write_waiting(client, "mixed", [11, 12], [None, None])])
    session.execute("INSERT INTO lake.t SELECT 100 + range, 'duck' FROM range(20)")
    before = list_files(client)
    for number in (updates[0]["snapshot"]["sequence-number"], 1000):
        updates[0]["snapshot"]["sequence-number"] = number
        assert client.commit(updates).error == (409, "CommitFailedException")
        with monkeypatch.context() as patched:
            patched.setattr("duckicelake.catalog.commits.prepare.RowIdWriter", None)
            assert client.commit(updates, [assert_main(FIRST)]).error == (409, "CommitFailedException")
        assert list_files(client) == before


def test_files_are_looked_into_where_nobody_tells(client: Client, session: DuckDBPyConnection) -> None:
    """Of an overwrite without counts; where counts tell of all columns but that one, it is not in the file."""
    untold = write_waiting(client, "untold", [11], [None], null_value_counts=None)
    # Whoever says too little is taken at his word, and an append tells enough.
    wrong = write_waiting(client, "wrong", [12], [None], null_value_counts=ALL_COUNTED)
    assert client.commit(append(client, SECOND, [untold, wrong], "overwrite")).status == 200
    plain = write_waiting(client, "plain", [13], [None], null_value_counts=None)
    assert client.commit(append(client, THIRD, [plain])).status == 200
    assert row_ids(session)[-3:] == [(11, 10), (12, None), (13, None)]


def test_other_files_are_not_even_read(client: Client, session: DuckDBPyConnection) -> None:
    """Files that are nowhere are taken as before: of appends, with every row's id, and those that somebody says nonsense of."""
    base = client.load()
    counts = [None, {**ALL_COUNTED, ROW_ID: 0}, {**ALL_COUNTED, ROW_ID: 2}]
    files = [data_file(base, f"f{place}", null_value_counts=each) for place, each in enumerate(counts)]
    short = replace(write_waiting(client, "short", [11, 12], [None, None]), record_count=3)
    assert client.commit(append(client, SECOND, [*files, short])).status == 200
    assert sorted(live_paths(session)) == ["f0.parquet", "f1.parquet", "f2.parquet", "old.parquet", "short.parquet"]
    assert list_files(client) == {"old.parquet", "short.parquet"}


def test_version_two_has_no_row_ids(client: Client, session: DuckDBPyConnection) -> None:
    """What a column of that id holds there is the client's."""
    base = client.create("two").json["metadata"]
    file = write_waiting(client, "mixed", [11], [None], table="two")
    assert client.commit(client.append(base, SECOND, [file]), name="two").status == 200
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 'two')").fetchall()
    assert path == file.file_path


def test_two_snapshots_of_one_request(client: Client, session: DuckDBPyConnection) -> None:
    """Ids go on from one to the next, over those of a branch too."""
    base = client.load()
    first = client.add(base, SECOND, [write_waiting(client, "a", [11, 12], [None, None])])
    beside = client.add(base, FIRST + 100, [write_waiting(client, "beside", [50, 51, 52], [None] * 3)])
    second = client.add(base, THIRD, [write_waiting(client, "b", [13], [None])], parent=first | {"schema-id": 0})
    updates = [*({"action": "add-snapshot", "snapshot": each} for each in (first, beside, second))]
    updates += [set_ref("main", THIRD, "branch"), set_ref("side", FIRST + 100, "branch")]
    assert client.commit(updates).status == 200
    assert row_ids(session)[-3:] == [(11, 10), (12, 11), (13, 15)]
    assert told_row_ids(client) == row_ids(session)
    assert client.commit([set_ref("main", client.load()["refs"]["side"]["snapshot-id"], "branch")]).status == 200
    assert row_ids(session)[-3:] == [(50, 12), (51, 13), (52, 14)]


def test_a_branch_has_copies_from_the_start(client: Client, session: DuckDBPyConnection) -> None:
    """What main takes over from it later is the same file, with the same ids; commits to main between take others."""
    base = client.load()
    beside = client.add(base, SECOND, [write_waiting(client, "a", [3, 11], [3, None]), write_waiting(client, "b", [12], [None])])
    assert client.commit([{"action": "add-snapshot", "snapshot": beside}, set_ref("side", SECOND, "branch")]).status == 200
    side = client.load()["refs"]["side"]["snapshot-id"]
    copies = list_files(client) - {"old.parquet", "a.parquet", "b.parquet"}
    assert len(copies) == 2
    later = append(client, THIRD, [write_waiting(client, "c", [13], [None])])
    later[-1]["ref-name"] = "other"
    assert client.commit(later).status == 200
    assert client.commit([set_ref("main", side, "branch")], [assert_main(base["current-snapshot-id"])]).status == 200
    assert set(live_paths(session)) == {"old.parquet", *copies}
    assert row_ids(session)[-2:] == [(11, 11), (12, 12)]
    assert told_row_ids(client) == row_ids(session)
    assert client.commit(append(client, FIRST + 100, [write_waiting(client, "d", [14], [None])])).status == 200
    assert told_row_ids(client) == row_ids(session)
    session.execute("DELETE FROM lake.t WHERE id = 3")
    assert len({row_id for _, row_id in row_ids(session)}) == len(row_ids(session)) == 12
    assert session.execute(MERGE).fetchall() == [(4,)]
    assert [i for i, _ in row_ids(session)][-5:] == [11, 12, 13, 14, 99]


def beside_files(client: Client, name: str) -> list[DataFile]:
    """The data files that the newest snapshot of a branch has of its own kind: all but those of main."""
    metadata = client.load()
    [snapshot] = [s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["refs"][name]["snapshot-id"]]
    listed = decode_manifest_list(client.objects.read(snapshot["manifest-list"]))
    manifests = [decode_manifest(client.objects.read(file.manifest_path), file.manifest_path)[1] for file in listed if not file.content]
    return [entry.data_file for entries in manifests for entry in entries if not entry.data_file.file_path.endswith("/old.parquet")]


@pytest.mark.parametrize("is_vector", whole_after(1, [pytest.param(True, id="vector"), pytest.param(False, id="positions")]))
def test_a_file_that_a_branch_deletes_from_stays(client: Client, *, is_vector: bool) -> None:
    """Its delete file goes on naming it, on every branch of the request: a copy would have the deleted rows again."""
    base = client.load()
    file = write_waiting(client, "a", [11, 12], [None, None])
    told: dict[str, Any] = {"content": 1, "file_format": "PARQUET", "record_count": 1}
    if is_vector:
        told |= {"file_format": "PUFFIN", "referenced_data_file": file.file_path, "content_offset": 4, "content_size_in_bytes": 40}
    first = client.add(base, SECOND, [file])
    second = client.add(base, THIRD, [], [data_file(base, "deletes", **told)], parent=first | {"schema-id": 0})
    updates: list[Any] = [{"action": "add-snapshot", "snapshot": each} for each in (first, second)]
    assert client.commit([*updates, set_ref("one", SECOND, "branch"), set_ref("two", THIRD, "branch")]).status == 200
    assert list_files(client) == {"old.parquet", "a.parquet"}
    assert [[each.file_path for each in beside_files(client, name)] for name in ("one", "two")] == [[file.file_path]] * 2


def test_what_was_said_of_open_ids_is_not_said_of_a_copy(client: Client) -> None:
    """It has others: a branch's manifests, which are the client's, say no bounds of them, and that none is NULL."""
    bounds = {1: (11).to_bytes(8, "little"), ROW_ID: (3).to_bytes(8, "little")}
    file = write_waiting(client, "a", [11, 12], [3, None], lower_bounds=bounds, upper_bounds=bounds, column_sizes={1: 5, ROW_ID: 5})
    beside = client.add(client.load(), SECOND, [file])
    assert client.commit([{"action": "add-snapshot", "snapshot": beside}, set_ref("side", SECOND, "branch")]).status == 200
    [copy] = beside_files(client, "side")
    assert copy.file_path != file.file_path
    assert (copy.lower_bounds, copy.upper_bounds, copy.column_sizes) == ({1: bounds[1]}, {1: bounds[1]}, {1: 5})
    assert copy.null_value_counts == {**ALL_COUNTED, ROW_ID: 0}


def test_what_landed_elsewhere_is_not_copied(client: Client, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that remembers the table asks before it copies."""
    updates = append(client, SECOND, [write_waiting(client, "mixed", [11], [None])])
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).commit(updates).status == 200
    monkeypatch.setattr("duckicelake.catalog.commits.prepare.RowIdWriter", None)
    assert client.commit(updates).status == 200


def test_a_file_is_added_once(client: Client) -> None:
    """Twice in one request is refused as for any other file, by whatever spelling."""
    file = write_waiting(client, "mixed", [11], [None])
    again = replace(file, file_path=f"s3a://{file.file_path.removeprefix('s3://')}")
    assert client.commit(append(client, SECOND, [file, again])).error == (400, "BadRequestException")


def test_large_files_are_copied_in_parts(client: Client, session: DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, and a few bytes of them at a time."""
    monkeypatch.setattr("duckicelake.catalog.incoming.row_id_copies.SMALL_ROWS", 1)
    monkeypatch.setattr("duckicelake.store.row_ids.STEP_BYTES", 100)
    assert client.commit(append(client, SECOND, [write_waiting(client, "mixed", [11, 12], [None, 3])])).status == 200
    assert row_ids(session)[-2:] == [(11, 10), (12, 3)]
    assert told_row_ids(client) == row_ids(session)


def test_no_more_is_copied_than_there_is_room_for(client: Client) -> None:
    """The others stay as they are, large and small ones alike."""
    files = [write_waiting(client, f"f{number}", [number], [None]) for number in range(3)]
    size_bytes = files[0].file_size_in_bytes
    writer = RowIdWriter(client.objects, client.load()["location"], [], 2 * size_bytes)
    writer.copy([WaitingFile(file, 0) for file in files])
    assert writer.copies.keys() == {files[0].file_path}


def test_a_change_speaks_of_the_copies() -> None:
    """Wherever it names a file: what comes, what goes, and whose rows are deleted."""
    file, other = (DataFile(0, f"s3://b/{name}", "PARQUET", (), 2, 10) for name in ("file", "other"))
    copy = replace(file, file_path="s3://b/copy", file_size_in_bytes=20)
    specs, deletes = {"s3://b/file": 1, "s3://b/other": 2}, {"s3://b/file": np.array([1])}
    change = with_file_copies(FileChange([file, other], specs, ["s3://b/file"], deletes, [file]), {"s3://b/file": copy})
    assert (change.added, change.returned, change.removed) == ([copy, other], [copy], ["s3://b/copy"])
    assert (change.spec_ids, change.deletes) == ({"s3://b/copy": 1, "s3://b/other": 2}, {"s3://b/copy": np.array([1])})
