"""Requests about what Iceberg alone knows of a table: branches, tags, staged snapshots, properties, statistics."""

from collections.abc import Sequence
from typing import Any

from duckdb import DuckDBPyConnection

from tests.crashes.asked import BASE_ROWS, FRESH_ROWS, Asked, Fact, Rows, Stand, new_id, require_main, table_path, to_body
from tests.rest.serving import Server
from tests.rest.writing.client import assert_ref, set_ref


def load(server: Server, name: str) -> Any:
    """A table's metadata, None when there is no such table."""
    answer = server.get(table_path(name))
    return answer.json["metadata"] if answer.status == 200 else None


def list_refs(name: str) -> Fact:
    """The names of a table's refs, and where main was put by clients."""

    def find(server: Server, _: DuckDBPyConnection) -> Rows:
        return sorted(load(server, name)["refs"])

    return find


def list_added(name: str) -> Fact:
    """The snapshots that clients made of a table, by what they call themselves."""

    def find(server: Server, _: DuckDBPyConnection) -> Rows:
        shown = [item["summary"] for item in load(server, name)["snapshots"]]
        return [own["mine"] for own in shown if "mine" in own and "ducklake.alias-of" not in own]

    return find


def find_current(name: str) -> Fact:
    """The id of the snapshot that main is on."""

    def find(server: Server, _: DuckDBPyConnection) -> Rows:
        metadata = load(server, name)
        assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"]
        return [metadata["current-snapshot-id"]]

    return find


def list_told(name: str, kind: str) -> Fact:
    """What clients said of a table: properties, statistics."""

    def find(server: Server, duck: DuckDBPyConnection) -> Rows:
        found = load(server, name).get(kind, [])
        return [item["statistics-path"] for item in found] if isinstance(found, list) else [found.get("k")]

    return find


def ask(name: str, updates: Sequence[Any], requirements: Sequence[Any], rows: tuple[Rows, Rows], **more: Any) -> Asked:
    """A commit, the table's rows before and after it, and by their names other facts: how to find one, before, after."""
    facts, changed = {}, {key: more.pop(key) for key in list(more) if isinstance(more[key], tuple)}
    before, after = {name: rows[0]}, {name: rows[1]}
    for key, (find, old, new) in changed.items():
        facts[key], before[key], after[key] = find, old, new
    return Asked("POST", table_path(name), to_body(updates, requirements), before, after, facts=facts, **more)


SAME = BASE_ROWS, BASE_ROWS


def set_property(stand: Stand, name: str) -> Asked:
    """DuckLake knows it as a tag."""
    stand.make(name)
    updates = [{"action": "set-properties", "updates": {"k": "v"}}]
    return ask(name, updates, [], SAME, properties=(list_told(name, "properties"), [None], ["v"]))


def set_statistics(stand: Stand, name: str) -> Asked:
    """A file that says something of a snapshot."""
    base = stand.make(name)
    path, snapshot_id = f"{base['location']}/metadata/s.stats", base["current-snapshot-id"]
    sizes = {"file-size-in-bytes": 100, "file-footer-size-in-bytes": 10, "blob-metadata": []}
    file = {"snapshot-id": snapshot_id, "statistics-path": path, **sizes}
    updates = [{"action": "set-statistics", "snapshot-id": snapshot_id, "statistics": file}]
    return ask(name, updates, [], SAME, statistics=(list_told(name, "statistics"), [], [path]))


def set_tag(stand: Stand, name: str) -> Asked:
    """On the current snapshot."""
    base = stand.make(name)
    updates, requirements = [set_ref("v1", base["current-snapshot-id"], "tag")], [assert_ref("v1", None)]
    refs = list_refs(name), ["main"], ["main", "v1"]
    return ask(name, updates, requirements, SAME, refs=refs, lake_snapshots=0, is_known=False)


def write_branch(stand: Stand, name: str) -> Asked:
    """Rows that main does not have."""
    base = stand.make(name)
    head, added = base["current-snapshot-id"], new_id()
    assert stand.client.commit([set_ref("dev", head, "branch")], name=name).status == 200
    snapshot = stand.client.add(base, added, [stand.write(base)])
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, set_ref("dev", added, "branch")]
    made = list_added(name), [], ["yes"]
    return ask(name, updates, [assert_ref("dev", head)], SAME, snapshots=made)


def stage_snapshot(stand: Stand, name: str) -> Asked:
    """Beside every branch, to be published later."""
    base = stand.make(name)
    snapshot = stand.client.add(base, new_id(), [stand.write(base)])
    made = list_added(name), [], ["yes"]
    return ask(name, [{"action": "add-snapshot", "snapshot": snapshot}], [require_main(base)], SAME, snapshots=made)


def publish_snapshot(stand: Stand, name: str) -> Asked:
    """One that was staged: main goes there."""
    base = stand.make(name)
    snapshot = stand.client.add(base, new_id(), [stand.write(base)])
    assert stand.client.commit([{"action": "add-snapshot", "snapshot": snapshot}], name=name).status == 200
    updates = [set_ref("main", snapshot["snapshot-id"], "branch")]
    rows = BASE_ROWS, [*BASE_ROWS, *FRESH_ROWS]
    return ask(name, updates, [require_main(base)], rows, is_known=False)


def roll_back(stand: Stand, name: str) -> Asked:
    """Main goes to the snapshot before."""
    base = stand.make(name)
    first, second = (snapshot["snapshot-id"] for snapshot in base["snapshots"])
    updates = [set_ref("main", first, "branch")]
    current = find_current(name), [second], [first]
    return ask(name, updates, [require_main(base)], (BASE_ROWS, BASE_ROWS[:-1]), current=current, is_known=False)


NOTE_KINDS = (set_property, set_statistics, set_tag, write_branch, stage_snapshot, publish_snapshot, roll_back)
