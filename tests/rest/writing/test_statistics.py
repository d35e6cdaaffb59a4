"""Statistics files of snapshots, set and removed by clients."""

from typing import Any

import pytest

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, data_file, open_client, read_rows
from tests.support.lakes import FreshLake


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, whose one snapshot it calls 9000000001."""
    client = open_client(server, lake)
    base = client.create().json["metadata"]
    client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]))
    return client


def describe(client: Client, snapshot_id: int, name: str = "s") -> dict[str, Any]:
    """A statistics file of that snapshot."""
    blob = {"type": "apache-datasketches-theta-v1", "snapshot-id": snapshot_id, "sequence-number": 1, "fields": [1]}
    path = f"{client.load()['location']}/metadata/{name}.stats"
    sizes = {"file-size-in-bytes": 100, "file-footer-size-in-bytes": 10}
    return {"snapshot-id": snapshot_id, "statistics-path": path, **sizes, "blob-metadata": [{**blob, "properties": {"ndv": "2"}}]}


def of_partitions(file: dict[str, Any]) -> dict[str, Any]:
    """The same as a file of partition statistics."""
    return {key: file[key] for key in ("snapshot-id", "statistics-path", "file-size-in-bytes")}


def set_both(file: dict[str, Any]) -> list[Any]:
    """Updates that set both kinds."""
    both = ("set-statistics", file), ("set-partition-statistics", of_partitions(file))
    return [{"action": action, "snapshot-id": file["snapshot-id"], kind: found} for kind, (action, found) in zip(KINDS, both, strict=True)]


KINDS = ("statistics", "partition-statistics")


def test_statistics_are_kept_with_their_snapshot(client: Client, lake: FreshLake) -> None:
    """Under our id, whichever the client gave; one file a snapshot; other servers show them, and so does the next change."""
    assert client.commit(set_both(describe(client, 9_000_000_001))).status == 200
    ours = client.load()["current-snapshot-id"]
    for name in ("s", "newer"):
        wanted = describe(client, ours, name)
        metadata = client.commit(set_both(wanted)).json["metadata"]
        assert [metadata[kind] for kind in KINDS] == [[wanted], [of_partitions(wanted)]]
    lake.duckdb().execute("INSERT INTO t VALUES (1, 'x')")
    later = client.load()
    assert [later[kind] for kind in KINDS] == [metadata[kind] for kind in KINDS]
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == later


def test_statistics_are_removed(client: Client) -> None:
    """By either id; removing what is not there is no error."""
    client.commit(set_both(describe(client, 9_000_000_001)))
    removals = [{"action": f"remove-{kind}", "snapshot-id": 9_000_000_001} for kind in KINDS]
    for _ in range(2):
        done = client.commit(removals)
        assert done.status == 200
        assert [done.json["metadata"][kind] for kind in KINDS] == [[], []]


def test_statistics_elsewhere_are_refused(client: Client, lake: FreshLake) -> None:
    """A file outside the table's location, and one of no snapshot: 400, and nothing changes."""
    away = describe(client, 9_000_000_001) | {"statistics-path": "s3://elsewhere/x.stats"}
    unknown = describe(client, 77)
    rows = read_rows(lake)
    for file in (away, unknown):
        for update in set_both(file):
            assert client.commit([update]).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
