"""Objects that nothing names: found in the locations of live tables, and removed when they are old enough."""

import json
import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.catalog.cleanup import list_current_since
from duckicelake.catalog.commits import commit
from duckicelake.commands.check import list_lost_objects, remove_orphans
from duckicelake.iceberg.manifest import DataFile
from duckicelake.lake.writing.waiting_sessions import LockYielded
from duckicelake.store.parquet import encode_position_deletes
from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, set_ref, write_file
from tests.rest.writing.queueing import begin, locked, wait_for_queue
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after
from tests.support.waiting import count_waiting, wait_for

GRACE = timedelta(hours=72)
MINE = 9_000_000_001


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return lake.duckdb()


@pytest.fixture
def client(server: Server, lake: FreshLake, session: DuckDBPyConnection) -> Client:
    """A client of a lake with the table main.t, which has rows of DuckDB's in a file and in Postgres, and deletes."""
    client = open_client(server, lake)
    assert client.create(properties={"write.metadata.previous-versions-max": "1"}).status == 200
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("INSERT INTO t VALUES (100, 'y')")
    session.execute("DELETE FROM t WHERE id < 50")
    client.load()
    return client


def sweep(lake: FreshLake, *, later: timedelta = GRACE + timedelta(hours=1)) -> set[str]:
    """Remove what was written longer ago than the grace, that much later; what it was, by its name."""
    [settings] = make_settings(lake).lakes()
    return {uri.rpartition("/")[2] for uri in remove_orphans(settings, datetime.now(UTC) + later - GRACE)}


def list_names(client: Client) -> set[str]:
    """What lies in the table's location, by its name."""
    return {uri.rpartition("/")[2] for uri, _ in client.objects.list_under(client.load()["location"])}


def write_rows(client: Client, name: str, *ids: int) -> DataFile:
    """A data file with rows of these ids."""
    return write_file(client, client.load(), name, {1: pa.array(ids), 2: pa.array(["new"] * len(ids))})


def write_deletes(client: Client, path: str, name: str) -> DataFile:
    """A position delete file of a client for the first row of a file."""
    content = encode_position_deletes(path, np.array([0]))
    uri = f"{client.load()['location']}/data/{name}.parquet"
    client.objects.put_new(uri, content)
    return DataFile(1, uri, "PARQUET", (), 1, len(content))


def read_ids(served: Served, snapshot_id: int | None = None) -> list[int]:
    """The column `id` as PyIceberg reads it, sorted."""
    return sorted(served.pyiceberg().read(("main", "t"), snapshot_id)["id"].to_pylist())


@pytest.fixture
def readable(client: Client, lake: FreshLake) -> Generator[Served]:
    """The lake with its readers; every published object is there in the end, and every snapshot is readable."""
    served = Served(lake, client.server)
    yield served
    assert list_lost_objects(lake.psycopg(), client.objects) == []
    for snapshot in client.load()["snapshots"]:
        read_ids(served, snapshot["snapshot-id"])


def test_what_is_named_stays(client: Client, lake: FreshLake, readable: Served) -> None:
    """Nothing of a table that only ever did what it was asked goes, but for manifests its clients wrote for themselves."""
    before = list_names(client)
    assert sweep(lake) == set()
    assert list_names(client) == before
    base = client.load()
    updates = client.append(base, MINE, [write_rows(client, "mine", 1000)])
    clients_own = list_names(client) - before - {"mine.parquet"}
    assert client.commit(updates).status == 200
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).status == 200
    assert client.commit([{"action": "set-properties", "updates": {"k": "w"}}]).status == 200
    assert sweep(lake) >= clients_own
    assert 1000 in read_ids(readable)


def test_a_refused_commit_leaves_nothing_for_long(client: Client, lake: FreshLake, session: DuckDBPyConnection, readable: Served) -> None:
    """Its files go when they are old, and not before: its author may yet ask again. It is refused before delete files are made for it."""
    base, before = client.load(), list_names(client)
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    updates = client.append(base, MINE, [write_rows(client, "late", 1000)], [write_deletes(client, path, "late-deletes")])
    assert client.commit(updates, [assert_main(7)]).status == 409
    left = list_names(client) - before
    assert {"late.parquet", "late-deletes.parquet"} < left
    assert not any(name.startswith("ducklake-") for name in left)
    assert sweep(lake, later=timedelta(0)) == set()
    assert sweep(lake) == left
    assert list_names(client) == before
    assert len(read_ids(readable)) == 51


@pytest.mark.parametrize("keyed", whole_after(1, [False, True]), ids=["without a key", "with a key"])
def test_a_copy_of_a_commit_leaves_no_delete_file(client: Client, lake: FreshLake, session: DuckDBPyConnection, keyed: bool) -> None:
    """Each copy has written one before its turn, and once more because the table had changed by then."""
    base = client.load()
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    updates = client.append(base, MINE, [], [write_deletes(client, path, "mine")])
    headers = {"Idempotency-Key": "018f3a1e-0000-7000-8000-00000000000b"} if keyed else {}
    before = list_names(client)
    with ThreadPoolExecutor(3) as pool:
        with locked(lake):
            first = begin(client, lake, pool)
            copies = [pool.submit(client.commit, updates, (), "t", headers) for _ in range(2)]
            wait_for_queue(client, 2)
        assert [answer.result().status for answer in (first, *copies)] == [200] * 3
    assert len({name for name in list_names(client) - before if name.startswith("ducklake-")}) == 1


def test_a_commit_that_lost_its_first_races_names_what_is_there(
    client: Client, session: DuckDBPyConnection, readable: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written for them is removed with the last one, and the commit in the turn between servers writes its own."""
    base, before = client.load(), list_names(client)
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    commit_once: Callable[..., Any] = vars(commit)["_commit_once"]
    lost: list[int] = []

    def lose_races(*args: Any, **more: Any) -> Any:
        if len(lost) < commit.WITHOUT_TURN.count:
            lost.append(len(lost))
            raise LockYielded
        return commit_once(*args, **more)

    monkeypatch.setattr(commit, "_commit_once", lose_races)
    updates = client.append(base, MINE, [], [write_deletes(client, path, "mine")])
    assert client.commit(updates).status == 200
    assert len(lost) == commit.WITHOUT_TURN.count
    assert len({name for name in list_names(client) - before if name.startswith("ducklake-")}) == 1


@pytest.mark.whole
def test_a_transaction_that_is_refused_at_its_second_table_leaves_no_delete_file(client: Client, session: DuckDBPyConnection) -> None:
    """One was written for the first table before the manifests of the second turned out to be missing."""
    assert client.create("u").status == 200
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    updates = {
        "t": client.append(client.load(), MINE, [], [write_deletes(client, path, "mine")]),
        "u": client.append(client.load("u"), MINE + 1, []),
    }
    client.objects.delete(updates["u"][0]["snapshot"]["manifest-list"])
    changes = [{"identifier": {"namespace": ["main"], "name": name}, "requirements": [], "updates": updates[name]} for name in updates]
    before = list_names(client)
    assert client.post("transactions/commit", {"table-changes": changes}).status == 400
    assert list_names(client) == before


@pytest.mark.whole
def test_a_commit_to_a_table_that_went_leaves_no_delete_file(client: Client, lake: FreshLake, session: DuckDBPyConnection) -> None:
    """DuckDB renames the table while the commit waits for its turn."""
    base = client.load()
    [(path,)] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    updates = client.append(base, MINE, [], [write_deletes(client, path, "mine")])
    before = list_names(client)
    with ThreadPoolExecutor(3) as pool:
        with locked(lake):
            first = begin(client, lake, pool)
            renamed = pool.submit(session.execute, "ALTER TABLE t RENAME TO u")
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 2, "DuckDB to wait for the lake")
            late = pool.submit(client.commit, updates)
            wait_for_queue(client, 1)
        renamed.result()
        assert first.result().status in (200, 404)
        assert late.result().status == 404
    location = client.load("u")["location"]
    left = {uri.rpartition("/")[2] for uri, _ in client.objects.list_under(location)} - before
    assert not any(name.startswith("ducklake-") for name in left)


def test_a_branch_keeps_its_files(client: Client, lake: FreshLake, session: DuckDBPyConnection, readable: Served) -> None:
    """Whatever DuckLake expires; they go when its snapshot has gone and no metadata file that is still read names it."""
    base = client.load()
    added = client.add(base, MINE, [write_rows(client, "beside", 1000)])
    assert client.commit([{"action": "add-snapshot", "snapshot": added}, set_ref("b", MINE, "branch")]).status == 200
    expire_everything(session)
    assert "beside.parquet" not in sweep(lake)
    snapshot_id = client.load()["refs"]["b"]["snapshot-id"]
    assert 1000 in read_ids(readable, snapshot_id)
    removals = [{"action": "remove-snapshot-ref", "ref-name": "b"}, {"action": "remove-snapshots", "snapshot-ids": [snapshot_id]}]
    assert client.commit(removals).status == 200
    assert "beside.parquet" not in sweep(lake)
    for value in ("v", "w"):
        assert client.commit([{"action": "set-properties", "updates": {"k": value}}]).status == 200
    assert "beside.parquet" not in sweep(lake, later=timedelta(0))
    assert "beside.parquet" in sweep(lake)


@pytest.mark.whole
def test_a_branch_does_not_keep_the_files_of_another(client: Client, lake: FreshLake, readable: Served) -> None:
    """What was committed to one that is gone goes, while another stands, whose own files and those of snapshots before it stay."""
    branches = {"gone": 1000, "left": 2000, "on-left": 3000}
    for number, (name, row_id) in enumerate(branches.items()):
        base = client.load()
        parent = base["refs"]["left"]["snapshot-id"] if name == "on-left" else base["current-snapshot-id"]
        added = client.add({**base, "current-snapshot-id": parent}, MINE + number, [write_rows(client, name, row_id)])
        assert client.commit([{"action": "add-snapshot", "snapshot": added}, set_ref(name, MINE + number, "branch")]).status == 200
    refs = {name: ref["snapshot-id"] for name, ref in client.load()["refs"].items()}
    removals = [{"action": "remove-snapshot-ref", "ref-name": name} for name in ("gone", "left")]
    assert client.commit([*removals, {"action": "remove-snapshots", "snapshot-ids": [refs["gone"], refs["left"]]}]).status == 200
    for value in ("v", "w"):
        assert client.commit([{"action": "set-properties", "updates": {"k": value}}]).status == 200
    swept = sweep(lake)
    assert "gone.parquet" in swept
    assert not {"left.parquet", "on-left.parquet"} & swept
    assert set(read_ids(readable, refs["on-left"])) >= {2000, 3000}


@pytest.mark.whole
def test_a_running_server_knows_what_was_removed(client: Client, lake: FreshLake, session: DuckDBPyConnection, readable: Served) -> None:
    """It made a delete file that nothing names any more; the sweep takes it, and a file that comes back needs it again."""
    rows: list[Any] = session.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    made = {name for name in list_names(client) if name.startswith("deletes-")}
    session.execute("CALL ducklake_flush_inlined_data('lake')")
    session.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    for value in ("v", "w"):
        assert client.commit([{"action": "set-properties", "updates": {"k": value}}]).status == 200
    assert sweep(lake) >= made
    session.execute("CALL ducklake_add_data_files('lake', 't', ?)", rows[0])
    session.execute("DELETE FROM t WHERE id < 50")
    assert list_names(client) >= made
    assert len(read_ids(readable)) == 101


@pytest.mark.parametrize("moves", whole_after(1, [pytest.param("back", id="rolled back"), pytest.param("on", id="published")]))
def test_where_main_was_put_needs_nothing_unnamed(
    client: Client, lake: FreshLake, session: DuckDBPyConnection, readable: Served, moves: str
) -> None:
    """A snapshot that clients never see writes nothing: servers that see the table first write nothing that a sweep finds again.

    The server that put main there has all that the next snapshot names.
    """
    target, expected = client.load()["snapshots"][1]["snapshot-id"], set(range(101))
    if moves == "on":
        added = client.add(client.load(), MINE, [write_rows(client, "staged", 1000)])
        assert client.commit([{"action": "add-snapshot", "snapshot": added}]).status == 200
        target, expected = MINE, {*range(50, 101), 1000}
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    for value in ("v", "w"):
        assert client.commit([{"action": "set-properties", "updates": {"k": value}}]).status == 200
    sweep(lake)
    assert sweep(lake) == set()
    assert list_lost_objects(lake.psycopg(), client.objects) == []
    session.execute("INSERT INTO t VALUES (5000, 'z')")
    client.load()
    assert list_lost_objects(lake.psycopg(), client.objects) == []
    assert set(read_ids(readable)) == {*expected, 5000}


def test_a_table_that_was_at_the_same_place_keeps_everything(client: Client, lake: FreshLake) -> None:
    """Where two tables have been, nothing is removed: the first may be registered again."""
    location = client.load()["location"]
    client.objects.put_new(f"{location}/data/stray.parquet", b"x")
    assert client.server.ask("DELETE", "namespaces/main/tables/t").status == 204
    assert client.create("u", location=location).status == 200
    assert sweep(lake) == set()


def test_a_broken_metadata_file_keeps_everything(client: Client, lake: FreshLake) -> None:
    """What cannot be read may name anything."""
    location: Any = client.load()["location"]
    client.objects.put_new(f"{location}/data/stray.parquet", b"x")
    client.objects.put_new(f"{location}/metadata/v99.metadata.json", b"{")
    assert sweep(lake) == set()


@pytest.mark.whole
def test_what_a_copy_was_staged_by_goes(client: Client, lake: FreshLake, readable: Served) -> None:
    """Its metadata files, whole or not, are no versions of the table; what it wrote of rows goes unless they are the table's."""
    location = client.load()["location"]
    own = write_file(client, client.load(), f"copy-{'0' * 16}/own", {1: pa.array([1000]), 2: pa.array(["new"])})
    assert client.commit(client.append(client.load(), MINE, [own])).status == 200
    sweep(lake)
    folder = f"{location}/metadata/copy-{'0' * 16}"
    left = {
        f"{folder}/staged.metadata.json",
        f"{folder}/00001-a.metadata.json",
        f"{folder}/a-m0.avro",
        f"{location}/data/copy-{'1' * 16}/b",
    }
    for uri in left:
        client.objects.put_new(uri, b"{")
    other = f"{location}/metadata/other/v0.metadata.json"
    client.objects.put_new(other, client.objects.read(f"{location}/metadata/v1.metadata.json"))
    assert sweep(lake, later=timedelta(0)) == set()
    assert sweep(lake) == {uri.rpartition("/")[2] for uri in left}
    assert client.objects.exists(other)
    assert 1000 in read_ids(readable)


@pytest.mark.whole
def test_a_metadata_file_of_a_copy_that_was_registered_stays(client: Client, lake: FreshLake) -> None:
    """It is in the table's log then."""
    staged = client.create("u", **{"stage-create": True}).json["metadata"]
    uri = f"{staged['location']}/metadata/copy-{'0' * 16}/00001-a.metadata.json"
    client.objects.put_new(uri, json.dumps(staged).encode())
    assert client.post("namespaces/main/register", {"name": "u", "metadata-location": uri}).status == 200
    assert "00001-a.metadata.json" not in sweep(lake)
    assert client.objects.exists(uri)


def test_files_that_a_crash_left_unfinished_go(local_lake: FreshLake) -> None:
    """On a local disk they have names of their own."""
    without = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
    settings = make_settings(local_lake, **without)
    local_lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(10)")
    with serve(settings) as server:
        location: Any = server.get("namespaces/main/tables/t").json["metadata"]["location"]
    unfinished = Path(location.removeprefix("file://")) / "metadata" / ".part-abc.tmp"
    unfinished.write_bytes(b"half")
    [lake] = settings.lakes()
    assert remove_orphans(lake, datetime.now(UTC) - GRACE) == []
    old = (datetime.now(UTC) - GRACE - timedelta(hours=1)).timestamp()
    os.utime(unfinished, (old, old))
    assert remove_orphans(lake, datetime.now(UTC) - GRACE) == [f"file://{unfinished}"]
    assert not unfinished.exists()


@pytest.mark.parametrize("form", ["v{}.metadata.json", "{:05}-x.metadata.json"])
def test_of_versions_of_one_moment_the_number_tells_the_newest(form: str) -> None:
    """Not the order of names, by which the ninth follows the tenth: what an older one names would stay until the table changes."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    versions = {f"s3://b/t/metadata/{form.format(number)}": at for number in sorted(range(1, 12), key=str)}
    assert list_current_since(versions, at + GRACE) == [f"s3://b/t/metadata/{form.format(11)}"]
