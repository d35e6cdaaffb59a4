"""Manifests whose headers do not say what they hold, as ClickHouse 26.9 writes them: the manifest list says it."""

import io
from collections.abc import Mapping

import fastavro
import pyarrow as pa

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import ManifestListHeader, encode_manifest_list
from duckicelake.store.parquet import encode_position_deletes
from tests.rest.serving import Server
from tests.rest.writing.client import Client, open_client, write_file
from tests.support.lakes import FreshLake

KEPT = {"format-version", "partition-spec", "schema"}
FIRST_ID = 7_000_000_000_000_000_001


def strip_headers(client: Client, snapshot: Mapping[str, str | int]) -> None:
    """Put manifests with short headers into the place of those that a snapshot not yet sent lists as its own."""
    path, stripped = str(snapshot["manifest-list"]), []
    for listed in decode_manifest_list(client.objects.read(path)):
        if listed.added_snapshot_id == snapshot["snapshot-id"]:
            source = fastavro.reader(io.BytesIO(client.objects.read(listed.manifest_path)))
            assert source.writer_schema is not None
            told = {key: text for key, text in source.metadata.items() if key in KEPT}
            sink = io.BytesIO()
            fastavro.writer(sink, source.writer_schema, list(source), metadata={**told, "partition_spec_id": "0"})
            client.objects.delete(listed.manifest_path)
            client.objects.put_new(listed.manifest_path, sink.getvalue())
        stripped.append(listed)
    client.objects.delete(path)
    header = ManifestListHeader(2, int(snapshot["snapshot-id"]), None, int(snapshot["sequence-number"]))
    client.objects.put_new(path, encode_manifest_list(header, stripped))


def write(client: Client, number: int, files: list[DataFile], deletes: list[DataFile], **shape: int) -> int:
    """Commit a snapshot whose manifests say little; return the answer's status."""
    updates = client.append(client.load(), FIRST_ID + number, files, deletes, **shape)
    strip_headers(client, updates[0]["snapshot"])
    return client.commit(updates).status


def test_the_list_says_what_a_silent_header_does_not(server: Server, lake: FreshLake) -> None:
    """Files of the table's second spec, and then deletes in them, which Iceberg's own readers take so, too."""
    client = open_client(server, lake)
    client.create(properties={"format-version": "2"})
    field = {"source-id": 1, "name": "id", "transform": "identity"}
    client.commit([{"action": "add-spec", "spec": {"spec-id": 9, "fields": [field]}}, {"action": "set-default-spec", "spec-id": -1}])
    metadata = client.load()
    assert metadata["default-spec-id"] == 1
    rows = {1: pa.array([7, 7, 7]), 2: pa.array(["a", "b", "c"])}
    file = write_file(client, metadata, "seven", rows, partition=(7,))
    assert write(client, 0, [file], []) == 200
    path, content = f"{metadata['location']}/data/seven-deletes.parquet", encode_position_deletes(file.file_path, [1])
    client.objects.put_new(path, content)
    gone = DataFile(1, path, "PARQUET", (7,), 1, len(content))
    assert write(client, 1, [], [gone]) == 200
    assert lake.duckdb().execute("SELECT id, name FROM t ORDER BY name").fetchall() == [(7, "a"), (7, "c")]
    [_, spec_id] = [one["spec-id"] for one in client.load()["partition-specs"]]
    listed = decode_manifest_list(client.objects.read(client.load()["snapshots"][-1]["manifest-list"]))
    assert {(one.content, one.partition_spec_id) for one in listed} == {(0, spec_id), (1, spec_id)}
