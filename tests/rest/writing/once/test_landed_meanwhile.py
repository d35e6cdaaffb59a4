"""A request that is sent again while its first copy lands: it has landed, also where its manifests no longer fit the table."""

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from duckicelake.catalog.commits import prepare
from duckicelake.iceberg.manifest import DELETED, ManifestEntry, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.lake.writing.lookups import ReplayCheck
from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, data_file, make_header, open_client
from tests.support.lakes import FreshLake

FIRST, DELETE = 9_000_000_001, 9_000_000_002


def take_out(client: Client, base: Any) -> list[Any]:
    """The updates of a snapshot that removes the file `a`, as Spark writes it."""
    updates, header = client.append(base, DELETE, []), make_header(base)
    snapshot = updates[0]["snapshot"]
    entries = [ManifestEntry(DELETED, DELETE, 1, 1, data_file(base, "a"))]
    path, content = f"{base['location']}/metadata/{uuid4()}-m0.avro", encode_manifest(header, entries)
    client.objects.put_new(path, content)
    number = snapshot["sequence-number"]
    files = [build_manifest_file(header, entries, WrittenManifest(path, len(content), DELETE, number))]
    written = ManifestListHeader(DELETE, base["current-snapshot-id"], number, 2)
    list_path = f"{base['location']}/metadata/snap-{uuid4()}.avro"
    client.objects.put_new(list_path, encode_manifest_list(written, files))
    snapshot |= {"manifest-list": list_path, "summary": {"operation": "delete"}}
    return updates


@pytest.mark.parametrize("requires", [False, True], ids=["without requirements", "with a requirement that does not hold any more"])
def test_a_delete_that_lands_while_it_is_read_again_has_landed(
    server: Server, lake: FreshLake, monkeypatch: pytest.MonkeyPatch, requires: bool
) -> None:
    """Another server looked for the request before its first copy landed, and for the table after it."""
    client = open_client(server, lake)
    base = client.create().json["metadata"]
    assert client.commit(client.append(base, FIRST, [data_file(base, "a")])).status == 200
    updates = take_out(client, client.load())
    requirements = [assert_main(client.load()["current-snapshot-id"])] if requires else []
    read_past, answers = prepare.read_replay_check, list[int]()

    def read_before(conn: psycopg.Connection, schema_name: str, table_name: str, ids: list[int]) -> ReplayCheck:
        found = read_past(conn, schema_name, table_name, ids)
        monkeypatch.setattr(prepare, "read_replay_check", read_past)
        answers.append(client.commit(updates, requirements).status)
        return found

    with serve(make_settings(lake)) as other:
        monkeypatch.setattr(prepare, "read_replay_check", read_before)
        again = open_client(other, lake).commit(updates, requirements)
    assert (answers, again.status) == ([200], 200), again.body
    assert again.json["metadata"]["current-snapshot-id"] == client.load()["current-snapshot-id"]
