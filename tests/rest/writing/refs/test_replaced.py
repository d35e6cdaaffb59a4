"""Tables that a client replaces with rows: the new snapshot has no parent, so no increment crosses it, and the past stays."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, open_client, write_file
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

REMOVE = {"action": "remove-snapshot-ref", "ref-name": "main"}


@pytest.fixture(params=long_after(1, [2, 3]))
def client(server: Server, lake: FreshLake, request: pytest.FixtureRequest) -> Client:
    """A client of a lake with the table main.t, with rows in a file and in Postgres, some deleted, in both format versions."""
    client = open_client(server, lake)
    assert client.create(properties={"format-version": str(request.param)}).status == 200
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("INSERT INTO t VALUES (100, 'inlined'), (101, 'inlined')")
    session.execute("DELETE FROM t WHERE id < 10 OR id = 100")
    return client


def replace_rows(client: Client, snapshot_id: int) -> Any:
    """Replace the table's rows as Java's replace transaction does, and return the answer's metadata."""
    metadata = client.load()
    file = write_file(client, metadata, f"new-{snapshot_id}", {1: pa.array([1, 2, 3], pa.int64()), 2: pa.array(["a", "b", "c"])})
    done = client.commit([REMOVE, *client.append(metadata | {"current-snapshot-id": None}, snapshot_id, [file])])
    assert done.status == 200, done.body
    return done.json["metadata"]


def list_entries(table: Table) -> list[tuple[str, int]]:
    """Name and record count of each entry of the current snapshot's manifests, deleted ones included."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False))
    return [(entry.status.name, entry.data_file.record_count) for entry in entries]


def test_a_replaced_table_begins_anew(client: Client, lake: FreshLake) -> None:
    """No parent, no entry of before, totals of its own rows alone; older snapshots and their rows stay where they are."""
    catalog = Served(lake, client.server).pyiceberg().catalog
    before = client.load()
    metadata = replace_rows(client, 77)
    newest = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])
    assert "parent-snapshot-id" not in newest
    assert (newest["summary"]["operation"], newest["summary"]["total-records"]) == ("append", "3")
    assert "deleted-records" not in newest["summary"]
    table = catalog.load_table("main.t")
    assert list_entries(table) == [("ADDED", 3)]
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    past = before["current-snapshot-id"]
    assert table.scan(snapshot_id=past).to_arrow().num_rows == 91
    assert [entry["snapshot-id"] for entry in metadata["snapshot-log"]][-2:] == [past, newest["snapshot-id"]]
    with pytest.raises(ValueError, match="ancestor"):
        table.incremental_append_scan(from_snapshot_id_exclusive=past).to_arrow()
    assert lake.duckdb().execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (3,)]
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()


def test_writing_goes_on_from_a_replaced_table(client: Client, lake: FreshLake) -> None:
    """The next snapshot's parent is the new one, in this server and in one that reads everything again."""
    root = replace_rows(client, 77)["current-snapshot-id"]
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(50)")
    session.execute("DELETE FROM t WHERE id = 2")
    shown = client.load()
    parents = {s["snapshot-id"]: s.get("parent-snapshot-id") for s in shown["snapshots"] if "ducklake.alias-of" not in s["summary"]}
    later = sorted(snapshot_id for snapshot_id in parents if snapshot_id >= root)
    assert [parents[snapshot_id] for snapshot_id in later] == [None, *later[:-1]]
    assert shown["snapshots"][-1]["summary"]["total-records"] == "53"
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == shown


def test_a_root_that_expired_still_cuts_the_history(client: Client, lake: FreshLake) -> None:
    """The next snapshot that is left stands for it, and has no parent either."""
    replace_rows(client, 77)
    root = client.load()["current-snapshot-id"]
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(50)")
    session.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{root}])")
    newest = client.load()["snapshots"][-1]
    assert ("parent-snapshot-id" in newest, newest["summary"]["total-records"]) == (False, "53")
    table = Served(lake, client.server).pyiceberg().catalog.load_table("main.t")
    assert sorted(list_entries(table)) == [("ADDED", 3), ("ADDED", 50)]
    expire_everything(session)
    assert table.refresh().scan().to_arrow().num_rows == 53


def test_a_replacement_that_keeps_files_goes_on_with_the_history(client: Client, lake: FreshLake) -> None:
    """A snapshot without a parent that carries files on would name them as its own."""
    metadata = client.load()
    file = write_file(client, metadata, "more", {1: pa.array([1], pa.int64()), 2: pa.array(["a"])})
    updates = client.append(metadata, 77, [file])
    del updates[0]["snapshot"]["parent-snapshot-id"]
    done = client.commit([REMOVE, *updates])
    assert done.status == 200, done.body
    newest = done.json["metadata"]["snapshots"][-1]
    assert newest["parent-snapshot-id"] == metadata["current-snapshot-id"]
    assert Served(lake, client.server).pyiceberg().catalog.load_table("main.t").scan().to_arrow().num_rows == 92
