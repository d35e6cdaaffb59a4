"""A client that sends exactly the JSON it is told to, and writes manifests of data files that need not exist."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from duckicelake.iceberg.decoding.manifests import decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, WrittenManifest, describe_manifest, encode_manifest_list
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from tests.rest.serving import Answer, Server
from tests.support.lakes import FreshLake

COLUMNS: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": False, "type": "long"},
        {"id": 2, "name": "name", "required": False, "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True)
class Client:
    """Speaks to one server about tables of the namespace `main`."""

    server: Server
    objects: Objects

    def post(self, path: str, body: Any) -> Answer:
        """Send JSON."""
        return self.server.ask("POST", path, {"content-type": "application/json"}, json.dumps(body).encode())

    def create(self, name: str = "t", **more: Any) -> Answer:
        """Make a table."""
        return self.post("namespaces/main/tables", {"name": name, "schema": COLUMNS, **more})

    def load(self, name: str = "t") -> Any:
        """Return a table's metadata."""
        return self.server.get(f"namespaces/main/tables/{name}").json["metadata"]

    def commit(self, updates: Sequence[Any], requirements: Sequence[Any] = (), name: str = "t") -> Answer:
        """Send a commit."""
        return self.post(f"namespaces/main/tables/{name}", {"requirements": list(requirements), "updates": list(updates)})

    def append(self, metadata: Any, snapshot_id: int, files: Sequence[DataFile]) -> list[Any]:
        """Write the manifests of an append to what is there and return its updates."""
        location, current = metadata["location"], metadata.get("current-snapshot-id")
        schema: Schema = parse_schema(metadata["schemas"][-1])
        header = ManifestHeader(schema, PartitionSpec(0), 2, 0)
        entries = [ManifestEntry(ADDED, snapshot_id, None, None, file) for file in files]
        content = encode_manifest(header, entries)
        path = f"{location}/metadata/{uuid4()}-m0.avro"
        self.objects.put_new(path, content)
        number = metadata["last-sequence-number"] + 1
        manifests = [describe_manifest(header, entries, WrittenManifest(path, len(content), snapshot_id, number))]
        manifests += [file for parent in metadata["snapshots"] if parent["snapshot-id"] == current for file in self._read_list(parent)]
        list_path = f"{location}/metadata/snap-{uuid4()}.avro"
        self.objects.put_new(list_path, encode_manifest_list(ManifestListHeader(snapshot_id, current, number, 2), manifests))
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": 1,
            "manifest-list": list_path,
            "summary": {"operation": "append", "mine": "yes"},
            "schema-id": metadata["current-schema-id"],
        } | ({} if current is None else {"parent-snapshot-id": current})
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        return [{"action": "add-snapshot", "snapshot": snapshot}, ref]

    def _read_list(self, snapshot: Any) -> list[ManifestFile]:
        return decode_manifest_list(self.objects.read(snapshot["manifest-list"]))


def open_client(server: Server, lake: FreshLake) -> Client:
    """Return a client of a served lake."""
    keys = lake.store
    return Client(server, open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)))


def data_file(metadata: Any, name: str, **more: Any) -> DataFile:
    """A data file in a table's location that need not exist."""
    known: dict[str, Any] = {"content": 0, "file_format": "PARQUET", "partition": (), "record_count": 2, "file_size_in_bytes": 10}
    return DataFile(file_path=f"{metadata['location']}/data/{name}.parquet", **known | more)


def set_ref(name: str, snapshot_id: int, kind: str, **more: int) -> dict[str, Any]:
    """The update that lets a branch or tag point there."""
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id, **more}


def assert_ref(name: str, snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that a ref is there, or (None) is not there at all."""
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def assert_main(snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that main is there."""
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": snapshot_id}


def read_rows(lake: FreshLake) -> dict[str, list[Any]]:
    """Every row of DuckLake's and our tables that a commit may change: refused requests leave them alone."""
    conn = lake.psycopg()
    names = [row[0] for row in conn.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", [lake.metadata_schema])]
    return {name: [row[0] for row in conn.execute(f"SELECT x::text FROM {name} x ORDER BY 1")] for name in names}  # pyright: ignore
