"""The ids that clients choose for their snapshots: only the answer to a commit of Iceberg's Java library shows them."""

from typing import Any

import pytest

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, data_file, open_client
from tests.support.lakes import FreshLake

JAVA = {"X-Client-Version": "Apache Iceberg 1.11.0 (commit 0123456789)"}
OTHERS = {
    "none": {},
    "pyiceberg": {"X-Client-Version": "PyIceberg 0.12.0", "User-Agent": "PyIceberg/0.12.0"},
    "iceberg-go": {"X-Client-Version": "0.14.1", "User-Agent": "GoIceberg/v0.4.0"},
}
TABLE = "namespaces/main/tables/t"
FIRST, SECOND = 9_000_000_001, 9_000_000_002


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t."""
    client = open_client(server, lake)
    assert client.create().status == 200
    return client


def append(client: Client, snapshot_id: int, headers: dict[str, str]) -> Answer:
    """Append a file in a commit with those headers."""
    base = client.load()
    updates = client.append(base, snapshot_id, [data_file(base, f"f{snapshot_id}")])
    done = client.commit(updates, [assert_main(base.get("current-snapshot-id"))], headers=headers)
    assert done.status == 200
    return done


def list_ids(metadata: Any) -> list[int]:
    """The ids of a table's snapshots, as they stand there."""
    return [snapshot["snapshot-id"] for snapshot in metadata["snapshots"]]


@pytest.mark.parametrize("headers", OTHERS.values(), ids=list(OTHERS))
def test_other_clients_see_history_alone(client: Client, headers: dict[str, str]) -> None:
    """The answer to each commit, the load and the file have each snapshot once, in the order of sequence numbers."""
    for number, snapshot_id in enumerate((FIRST, SECOND), 1):
        done = append(client, snapshot_id, headers)
        loaded = client.server.get(TABLE, headers)
        metadata = done.json["metadata"]
        assert metadata == loaded.json["metadata"] == client.read_file(done)
        assert done.headers["etag"] == loaded.headers["etag"]
        assert [snapshot["sequence-number"] for snapshot in metadata["snapshots"]] == list(range(1, number + 1))
        assert list_ids(metadata)[-1] == metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"]
        assert not {FIRST, SECOND} & set(list_ids(metadata))


def test_java_finds_its_snapshot_in_the_answer(client: Client) -> None:
    """After the history, with a manifest list of its own, which Java may delete; no ref and no later snapshot names it."""
    first = list_ids(append(client, FIRST, JAVA).json["metadata"])
    assert first[1:] == [FIRST]
    done = append(client, SECOND, JAVA)
    metadata = done.json["metadata"]
    assert list_ids(metadata) == [first[0], metadata["current-snapshot-id"], SECOND]
    real, alias = metadata["snapshots"][1:]
    assert alias["summary"] == real["summary"] | {"ducklake.alias-of": str(real["snapshot-id"])}
    same = "sequence-number", "timestamp-ms", "schema-id", "parent-snapshot-id"
    assert [alias[key] for key in same] == [real[key] for key in same]
    assert alias["manifest-list"] != real["manifest-list"]
    assert client.list_manifests(alias, real["snapshot-id"]) == client.list_manifests(real, real["snapshot-id"]) != []
    client.objects.delete_many([alias["manifest-list"]])
    assert len(client.read_entries(client.load()["snapshots"][-1])) == 2


def test_no_load_and_no_file_has_it(client: Client) -> None:
    """Neither for Java nor for others: its author keeps the answer as long as the table has the same metadata file."""
    done = append(client, FIRST, JAVA)
    head = done.json["metadata"]["current-snapshot-id"]
    assert list_ids(client.read_file(done)) == [head]
    for path in (TABLE, f"{TABLE}?snapshots=all", f"{TABLE}?snapshots=refs"):
        loaded = client.server.get(path, JAVA)
        assert list_ids(loaded.json["metadata"]) == [head]
        assert loaded.json["metadata-location"] == done.json["metadata-location"]
        assert loaded.headers["etag"] != done.headers["etag"]


def test_a_copy_of_the_request_is_answered_alike(client: Client, lake: FreshLake) -> None:
    """By the server that committed it and by another one; after the table's next change the id is known and not shown."""
    base = client.load()
    updates = client.append(base, FIRST, [data_file(base, "a")])
    first = client.commit(updates, [assert_main(None)], headers=JAVA)
    assert client.commit(updates, [assert_main(None)], headers=JAVA).json == first.json
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).commit(updates, [assert_main(None)], headers=JAVA).json == first.json
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}], headers=JAVA).status == 200
    later = client.commit(updates, [assert_main(None)], headers=JAVA)
    assert (later.status, list_ids(later.json["metadata"])) == (200, [first.json["metadata"]["current-snapshot-id"]])


def test_an_answer_shows_the_ids_of_its_request_alone(client: Client) -> None:
    """Two snapshots in one request are shown both; a change of properties shows none, though its commit is the newest."""
    base = client.load()
    first = client.add(base, FIRST, [data_file(base, "a")])
    second = client.add(base, SECOND, [data_file(base, "b")], parent=first)
    ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": SECOND}
    updates = [{"action": "add-snapshot", "snapshot": first}, {"action": "add-snapshot", "snapshot": second}, ref]
    metadata = client.commit(updates, headers=JAVA).json["metadata"]
    assert list_ids(metadata)[2:] == [FIRST, SECOND]
    assert [snapshot["sequence-number"] for snapshot in metadata["snapshots"]] == [1, 2, 1, 2]
    assert client.commit([], headers=JAVA).json["metadata"] == client.load()


def test_an_author_without_an_answer_finds_its_snapshot(client: Client, lake: FreshLake) -> None:
    """A server stopped before it wrote the metadata file, so it gave no answer: the author may look for its snapshot elsewhere.

    Java does so by loading again a table that it knows. Nobody else sees the id, nor anybody after the next change or answer.
    """
    base = client.load()
    updates = client.append(base, FIRST, [data_file(base, "a")])
    done = client.commit(updates, [assert_main(None)], headers=JAVA)
    head = done.json["metadata"]["current-snapshot-id"]
    client.objects.delete_many([done.json["metadata-location"]])
    with serve(make_settings(lake)) as server:
        other = open_client(server, lake)
        for headers, query, ids in (
            ({}, "", [head]),
            (JAVA, "", [head, FIRST]),
            (JAVA, "?snapshots=all", [head]),
            (OTHERS["pyiceberg"], "", [head]),
            (JAVA, "", [head, FIRST]),
        ):
            loaded = server.get(TABLE + query, headers)
            assert list_ids(loaded.json["metadata"]) == ids
            assert list_ids(other.read_file(loaded)) == [head]
        assert other.commit(updates, [assert_main(None)], headers=JAVA).json == done.json
        assert list_ids(server.get(TABLE, JAVA).json["metadata"]) == [head]


def test_nobody_looks_for_an_answer_for_ever(client: Client, lake: FreshLake) -> None:
    """An hour after the commit its table is loaded like any other: without the id, and from the answers that are ready."""
    base = client.load()
    updates = client.append(base, FIRST, [data_file(base, "a")])
    done = client.commit(updates, [assert_main(None)], headers=JAVA)
    head = done.json["metadata"]["current-snapshot-id"]
    client.objects.delete_many([done.json["metadata-location"]])
    with lake.psycopg() as conn:
        conn.execute("UPDATE ducklake_snapshot SET snapshot_time = snapshot_time - interval '2 hours'")
    with serve(make_settings(lake)) as server:
        for _ in range(2):
            assert list_ids(server.get(TABLE, JAVA).json["metadata"]) == [head]
        assert server.count("duckicelake_table_cache_total", outcome="hit") == 1
