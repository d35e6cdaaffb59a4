"""Branches and staged snapshots of version 1 tables, whose manifest entries name the snapshot that added each file."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, creation, open_client, set_ref
from tests.rest.writing.refs.maintenance import expire_everything, ids_at
from tests.rest.writing.refs.test_branches import branch_off, put_rows, read_ids, rows_of
from tests.support.lakes import FreshLake
from tests.support.readers import Served

FIRST, SECOND, THIRD, FOURTH = 9_300_000_001, 9_300_000_002, 9_300_000_003, 9_300_000_004


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the version 1 table main.t, which has the rows 1 and 2."""
    client = open_client(server, lake)
    base = client.create(properties={"format-version": "1"}).json["metadata"]
    assert base["format-version"] == 1
    assert client.commit(client.append(base, FIRST, [put_rows(client, base, 1, 2)])).status == 200
    return client


@pytest.fixture
def catalog(client: Client, lake: FreshLake) -> RestCatalog:
    """PyIceberg on the same server."""
    return Served(lake, client.server).pyiceberg().catalog


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return lake.duckdb()


def find_authors(table: Table, snapshot_id: int) -> set[int]:
    """The snapshots that the entries of a snapshot's manifests name."""
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    return {entry.snapshot_id for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}


def test_a_branch_is_written_to(client: Client, catalog: RestCatalog, session: DuckDBPyConnection, lake: FreshLake) -> None:
    """Appends and overwrites are the branch's; its entries name snapshots that the table has; main goes on, and takes it over."""
    table = branch_off(catalog)
    table.append(rows_of(table, 7001, 7002), branch="dev")
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(100, 120)")
    table.refresh().overwrite(rows_of(table, 7003), EqualTo("id", 7001), branch="dev")
    expire_everything(session)
    with serve(make_settings(lake)) as other:
        found = Served(lake, other).pyiceberg().catalog.load_table("main.t")
        assert ids_at(found) == read_ids(session) == [1, 2, *range(100, 120)]
        assert ids_at(found, "dev") == [1, 2, 7002, 7003]
    table.refresh()
    dev = table.refs()["dev"].snapshot_id
    assert dev in find_authors(table, dev)
    assert all(author < FIRST for author in find_authors(table, dev))
    assert client.commit([set_ref("main", dev, "branch")]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == [1, 2, 7002, 7003]


def test_a_staged_snapshot_is_published(client: Client, catalog: RestCatalog, session: DuckDBPyConnection) -> None:
    """No ref shows it until main moves there."""
    metadata = client.load()
    staged = client.add(metadata, SECOND, [put_rows(client, metadata, 3)])
    answer = client.commit([{"action": "add-snapshot", "snapshot": staged}])
    assert answer.status == 200, answer.body
    [shown] = [item for item in client.load()["snapshots"] if item["snapshot-id"] != metadata["current-snapshot-id"] and is_own(item)]
    assert shown.get("sequence-number") == metadata["snapshots"][0].get("sequence-number")
    table = catalog.load_table("main.t")
    assert ids_at(table) == read_ids(session) == [1, 2]
    assert find_authors(table, shown["snapshot-id"]) == {shown["snapshot-id"], metadata["current-snapshot-id"]}
    assert client.commit([set_ref("main", shown["snapshot-id"], "branch")]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == [1, 2, 3]


def is_own(snapshot: Any) -> bool:
    """Tell whether a snapshot is not shown a second time under its client's id."""
    return "ducklake.alias-of" not in snapshot["summary"]


def test_a_request_adds_several_snapshots_beside_main(client: Client, catalog: RestCatalog) -> None:
    """One grows from another of the same request: each file is of the snapshot that added it."""
    metadata = client.load()
    second = client.add(metadata, SECOND, [put_rows(client, metadata, 3)])
    third = client.add(metadata, THIRD, [put_rows(client, metadata, 4)], parent=second)
    updates = [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (second, third)]
    answer = client.commit([*updates, set_ref("dev", THIRD, "branch")])
    assert answer.status == 200, answer.body
    assert client.commit([*updates, set_ref("dev", THIRD, "branch")]).json == answer.json
    table = catalog.load_table("main.t")
    dev = table.refs()["dev"].snapshot_id
    ours = {item["snapshot-id"] for item in client.load()["snapshots"] if is_own(item)}
    assert ids_at(table, "dev") == [1, 2, 3, 4]
    assert find_authors(table, dev) == ours
    metadata = client.load()
    [parent] = [item for item in metadata["snapshots"] if item["snapshot-id"] == dev]
    more = client.add(metadata, FOURTH, [put_rows(client, metadata, 5)], parent=parent)
    assert client.commit([{"action": "add-snapshot", "snapshot": more}, set_ref("dev", FOURTH, "branch")]).status == 200
    assert ids_at(table.refresh(), "dev") == [1, 2, 3, 4, 5]


def test_a_table_is_made_with_a_branch(server: Server, lake: FreshLake) -> None:
    """A create transaction that writes to main and to a branch."""
    client = open_client(server, lake)
    metadata = client.create(**{"stage-create": True, "properties": {"format-version": "1"}}).json["metadata"]
    updates = creation(metadata)
    updates[1]["format-version"] = 1
    main = client.add(metadata, FIRST, [put_rows(client, metadata, 1)])
    branch = client.add(metadata, SECOND, [put_rows(client, metadata, 2)], parent=main)
    updates += [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (main, branch)]
    updates += [set_ref("main", FIRST, "branch"), set_ref("dev", SECOND, "branch")]
    answer = client.commit(updates, [{"type": "assert-create"}])
    assert answer.status == 200, answer.body
    table = Served(lake, server).pyiceberg().catalog.load_table("main.t")
    assert table.format_version == 1
    assert (ids_at(table), ids_at(table, "dev")) == ([1], [1, 2])
