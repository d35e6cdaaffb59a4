"""Snapshots beside main, and ids that clients gave them."""

from typing import Any

from tests.rest.scans.plans import Planner, is_
from tests.rest.serving import Server
from tests.rest.writing.client import data_file, open_client, set_ref
from tests.support.lakes import FreshLake


def list_names(plan: Any) -> list[str]:
    """The names of a plan's files."""
    return sorted(task["data-file"]["file-path"].rpartition("/")[2] for task in plan["file-scan-tasks"])


def test_snapshots_are_known_by_the_ids_of_their_authors(server: Server, lake: FreshLake) -> None:
    """Of main, of a branch and staged: when they are new, and when only the catalog's own ids are told any more."""
    client, planner = open_client(server, lake), Planner(server)
    client.create()
    for number in (1001, 1002):
        metadata = client.load()
        assert client.commit(client.append(metadata, number, [data_file(metadata, f"f{number}")])).status == 200
    metadata = client.load()
    side = client.add(metadata, 2001, [data_file(metadata, "side")])
    assert client.commit([{"action": "add-snapshot", "snapshot": side}, set_ref("side", 2001, "branch")]).status == 200
    metadata = client.load()
    staged = client.add(metadata, 3001, [data_file(metadata, "staged")])
    staged["summary"]["wap.id"] = "w"
    assert client.commit([{"action": "add-snapshot", "snapshot": staged}]).status == 200
    for _ in range(2):
        assert list_names(planner.plan()) == list_names(planner.plan(snapshot_id=1002)) == ["f1001.parquet", "f1002.parquet"]
        assert list_names(planner.plan(snapshot_id=1001)) == ["f1001.parquet"]
        assert list_names(planner.plan(snapshot_id=2001)) == ["f1001.parquet", "f1002.parquet", "side.parquet"]
        assert list_names(planner.plan(snapshot_id=3001)) == ["f1001.parquet", "f1002.parquet", "staged.parquet"]
        assert list_names(planner.plan(start_snapshot_id=1001, end_snapshot_id=1002)) == ["f1002.parquet"]
        assert list_names(planner.plan(start_snapshot_id=1002, end_snapshot_id=2001)) == ["side.parquet"]
        branch = client.load()["refs"]["side"]["snapshot-id"]
        plan = planner.plan(snapshot_id=branch, filter=is_("id", "eq", 1))
        assert list_names(plan) == ["f1001.parquet", "f1002.parquet", "side.parquet"]
        # a commit that makes no snapshot: the newest one is told by the catalog's own id alone then
        assert client.commit([{"action": "set-properties", "updates": {"a": "b"}}]).status == 200
    assert {2001, 3001}.isdisjoint(snapshot["snapshot-id"] for snapshot in client.load()["snapshots"])
