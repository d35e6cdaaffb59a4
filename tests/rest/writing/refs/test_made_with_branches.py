"""Tables whose first commit brings snapshots beside main: a create transaction that writes to a branch, or stages."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, creation, data_file, open_client, read_rows, set_ref
from tests.rest.writing.refs.maintenance import expire_everything, ids_at
from tests.rest.writing.refs.test_branches import put_rows, read_ids
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

ASSERT_CREATE = [{"type": "assert-create"}]
FIRST, SECOND, THIRD = 9_300_000_001, 9_300_000_002, 9_300_000_003


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of an empty lake."""
    return open_client(server, lake)


@pytest.fixture
def session(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return lake.duckdb()


def stage_table(client: Client, version: int) -> tuple[Any, list[Any]]:
    """The metadata of a table that is to be, and the updates that make it."""
    metadata = client.create(**{"stage-create": True, "properties": {"format-version": str(version)}}).json["metadata"]
    updates = creation(metadata)
    updates[1]["format-version"] = version
    return metadata, updates


@pytest.mark.whole
@pytest.mark.parametrize("version", long_after(1, [2, 3]))
def test_a_table_is_made_with_a_branch_beside_main(client: Client, lake: FreshLake, session: DuckDBPyConnection, version: int) -> None:
    """Main has its row, the branch that grew from it and a staged snapshot theirs; a retry is known; what DuckDB removes stays theirs."""
    metadata, updates = stage_table(client, version)
    main = client.add(metadata, FIRST, [put_rows(client, metadata, 1)])
    after = metadata | {"next-row-id": 1}
    branch = client.add(after, SECOND, [put_rows(client, metadata, 2)], parent=main)
    staged = client.add(after | {"next-row-id": 2}, THIRD, [put_rows(client, metadata, 3)], parent=main)
    updates += [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (main, branch, staged)]
    updates += [set_ref("main", FIRST, "branch"), set_ref("dev", SECOND, "branch")]
    done = client.commit(updates, ASSERT_CREATE)
    assert done.status == 200, done.body
    rows = read_rows(lake)
    assert client.commit(updates, ASSERT_CREATE).json == done.json
    assert read_rows(lake) == rows
    shown = [item for item in done.json["metadata"]["snapshots"] if "ducklake.alias-of" not in item["summary"]]
    assert [item["sequence-number"] for item in shown] == [shown[0]["sequence-number"] + step for step in range(3)]
    assert version == 3 or shown[0]["sequence-number"] == 1
    assert [item.get("parent-snapshot-id") for item in shown] == [None, shown[0]["snapshot-id"], shown[0]["snapshot-id"]]
    table = Served(lake, client.server).pyiceberg().catalog.load_table("main.t")
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(100, 120)")
    session.execute("DELETE FROM t WHERE id = 1")
    expire_everything(session)
    assert ids_at(table.refresh()) == read_ids(session) == [*range(100, 120)]
    for server in (client.server, None):
        with serve(make_settings(lake)) as other:
            found = Served(lake, server or other).pyiceberg().catalog.load_table("main.t")
            assert ids_at(found, "dev") == [1, 2]
    assert sorted(table.scan(snapshot_id=shown[2]["snapshot-id"]).to_arrow()["id"].to_pylist()) == [1, 3]
    assert client.commit([set_ref("main", table.refs()["dev"].snapshot_id, "branch")]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == [1, 2]


@pytest.mark.parametrize("version", long_after(1, [2, 3]))
@pytest.mark.parametrize("is_named", long_after(1, [True, False]), ids=["branch", "staged"])
def test_a_table_is_made_without_main(client: Client, lake: FreshLake, session: DuckDBPyConnection, is_named: bool, version: int) -> None:
    """Nothing for DuckDB, whose inserts are main's; what was written beside it is there, and may become main."""
    metadata, updates = stage_table(client, version)
    first = client.add(metadata, FIRST, [put_rows(client, metadata, 1, 2)])
    second = client.add(metadata | {"next-row-id": 2}, SECOND, [put_rows(client, metadata, 3)], parent=first)
    updates += [{"action": "add-snapshot", "snapshot": snapshot} for snapshot in (first, second)]
    done = client.commit([*updates, *([set_ref("dev", SECOND, "branch")] if is_named else [])], ASSERT_CREATE)
    assert done.status == 200, done.body
    shown = [item for item in done.json["metadata"]["snapshots"] if "ducklake.alias-of" not in item["summary"]]
    assert [item["sequence-number"] for item in shown] == [shown[0]["sequence-number"], shown[0]["sequence-number"] + 1]
    assert done.json["metadata"].get("current-snapshot-id") in (None, -1)
    assert read_ids(session) == []
    session.execute("INSERT INTO t SELECT range, 'y' FROM range(100, 120)")
    expire_everything(session)
    table = Served(lake, client.server).pyiceberg().catalog.load_table("main.t")
    target = shown[-1]["snapshot-id"]
    assert ids_at(table) == read_ids(session) == [*range(100, 120)]
    assert sorted(table.scan(snapshot_id=target).to_arrow()["id"].to_pylist()) == [1, 2, 3]
    assert client.commit([set_ref("main", target, "branch")]).status == 200
    assert ids_at(table.refresh()) == read_ids(session) == [1, 2, 3]
    session.execute("DELETE FROM t WHERE id = 2")
    assert ids_at(table.refresh()) == read_ids(session) == [1, 3]


def test_what_cannot_be_made_is_not_made(client: Client, lake: FreshLake) -> None:
    """Parents that nobody knows, files elsewhere, and no location to look in."""
    metadata, updates = stage_table(client, 2)
    good = client.add(metadata, FIRST, [data_file(metadata, "a")])
    alien = client.add(metadata, FIRST, [data_file({"location": "s3://elsewhere"}, "a")])
    orphan = good | {"parent-snapshot-id": 4711}
    rows = read_rows(lake)
    for snapshot, told in ((alien, updates), (orphan, updates), (good, updates[:-1])):
        refused = client.commit([*told, {"action": "add-snapshot", "snapshot": snapshot}, set_ref("dev", FIRST, "branch")], ASSERT_CREATE)
        assert refused.error == (400, "BadRequestException"), refused.body
    assert read_rows(lake) == rows
