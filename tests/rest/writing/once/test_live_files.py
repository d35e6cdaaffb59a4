"""A file is in a table once: rows of a path that was there twice would be others to DuckDB than to Iceberg clients."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from duckicelake.iceberg.manifest import DataFile
from tests.rest.serving import Server
from tests.rest.writing.client import Client, data_file, open_client, read_rows, set_ref, write_file
from tests.support.lakes import FreshLake


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, which has the file `a`."""
    client = open_client(server, lake)
    base = client.create().json["metadata"]
    columns = {1: pa.array([1, 2], pa.int64()), 2: pa.array(["x", "y"])}
    assert client.commit(client.append(base, 9_000_000_001, [write_file(client, base, "a", columns)])).status == 200
    return client


def spell(file: DataFile, how: str) -> DataFile:
    """The same file by another spelling of its path."""
    path = file.file_path
    match how:
        case "s3a" | "s3n":
            path = f"{how}://{path.removeprefix('s3://')}"
        case "empty part":
            path = path.replace("/data/", "//data///")
        case _:
            assert how == "same"
    return replace(file, file_path=path)


def refuse(client: Client, lake: FreshLake, updates: list[Any], path: str) -> None:
    """A commit is refused for a path, and changes nothing."""
    rows = read_rows(lake)
    answer = client.commit(updates)
    assert answer.error == (400, "BadRequestException")
    assert path in answer.json["error"]["message"]
    assert read_rows(lake) == rows


def test_a_live_file_is_added_no_more(client: Client, lake: FreshLake) -> None:
    """By whatever spelling, and not beside others either."""
    base = client.load()
    for how in ("same", "s3a", "s3n", "empty part"):
        again = spell(data_file(base, "a"), how)
        refuse(client, lake, client.append(base, 9_000_000_002, [data_file(base, "b"), again]), again.file_path)


def test_one_commit_adds_a_file_once(client: Client, lake: FreshLake) -> None:
    """Neither in one snapshot, nor in two of them, on main or on a branch."""
    base = client.load()
    file = data_file(base, "b")
    for again in (file, spell(file, "s3a")):
        refuse(client, lake, client.append(base, 9_000_000_002, [file, again]), again.file_path)
        first = client.add(base, 9_000_000_002, [file])
        second = client.add(base, 9_000_000_003, [again], parent=first)
        added = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
        for name in ("main", "dev"):
            refuse(client, lake, [*added, set_ref(name, 9_000_000_003, "branch")], "/data/b.parquet")


def test_a_file_without_a_row_left_is_live(client: Client, lake: FreshLake) -> None:
    """DuckDB's TRUNCATE leaves it in the table with all its rows deleted: they would stay so for Iceberg clients."""
    lake.duckdb().execute("TRUNCATE t")
    base = client.load()
    file = data_file(base, "a")
    refuse(client, lake, client.append(base, 9_000_000_002, [file]), file.file_path)


def test_inlined_rows_are_there_already(client: Client, lake: FreshLake) -> None:
    """The file that is derived from them may be read by clients, and is no other file to add."""
    session = lake.duckdb()
    session.execute("INSERT INTO t VALUES (3, 'inlined')")
    base = client.load()
    [path] = [uri for uri, _ in client.objects.list_under(f"{base['location']}/data") if "/inlined-" in uri]
    derived = replace(data_file(base, "a"), file_path=path, record_count=1)
    refuse(client, lake, client.append(base, 9_000_000_002, [derived]), path)


def test_a_file_that_has_ended_comes_again(client: Client, lake: FreshLake) -> None:
    """Whoever takes it out first, or in the same commit by a snapshot before, may add it."""
    base = client.load()
    file = replace(data_file(base, "a"), record_count=2)
    empty = client.add(base | {"current-snapshot-id": None}, 9_000_000_002, [data_file(base, "b")])
    again = client.add(base, 9_000_000_003, [file], parent=empty)
    updates: list[Any] = [{"action": "remove-snapshot-ref", "ref-name": "main"}]
    updates += [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (empty, again)]
    assert client.commit([*updates, set_ref("main", 9_000_000_003, "branch")]).status == 200
    live = lake.psycopg().execute("SELECT path FROM ducklake_data_file WHERE end_snapshot IS NULL ORDER BY path").fetchall()
    assert [path.rpartition("/")[2] for (path,) in live] == ["a.parquet", "b.parquet"]


def stage(client: Client, snapshot_id: int, base: Any, file: DataFile, parent: Any = None) -> list[Any]:
    """The updates that write a file to the branch `dev`."""
    added = client.add(base, snapshot_id, [file], parent=parent)
    return [{"action": "add-snapshot", "snapshot": added}, set_ref("dev", snapshot_id, "branch")]


def test_a_branch_has_a_file_once(client: Client, lake: FreshLake) -> None:
    """Neither a file of main's that it grew from, nor one of its own, by whatever spelling."""
    base = client.load()
    main, own = data_file(base, "a"), data_file(base, "own")
    for file in (main, spell(main, "s3a"), spell(main, "empty part")):
        refuse(client, lake, stage(client, 9_000_000_002, base, file), file.file_path)
    assert client.commit(stage(client, 9_000_000_003, base, own)).status == 200
    later = client.load()
    dev = next(item for item in later["snapshots"] if item["snapshot-id"] == later["refs"]["dev"]["snapshot-id"])
    refuse(client, lake, stage(client, 9_000_000_004, later, own, dev), own.file_path)
    assert client.commit(stage(client, 9_000_000_005, later, data_file(base, "more"), dev)).status == 200


def test_main_goes_to_a_branch_whose_file_it_took_over(client: Client, lake: FreshLake) -> None:
    """A cherry-pick adds a file of a staged snapshot to main as well; main then goes to that snapshot, and has the file once."""
    base = client.load()
    own = data_file(base, "own")
    assert client.commit(stage(client, 9_000_000_002, base, own)).status == 200
    later = client.load()
    assert client.commit(client.append(later, 9_000_000_003, [own])).status == 200
    assert client.commit([set_ref("main", later["refs"]["dev"]["snapshot-id"], "branch")]).status == 200
    live = lake.psycopg().execute("SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL").fetchone()
    assert live == (2,)
