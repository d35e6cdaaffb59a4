"""A client that sends exactly the JSON it is told to, and writes manifests of data files that need not exist."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from duckicelake.embedded.object_store import StoreAccess
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DELETED, EXISTING, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import (
    ManifestFile,
    ManifestListHeader,
    WrittenManifest,
    build_manifest_file,
    encode_manifest_list,
    inherit_from_list,
)
from duckicelake.iceberg.partition import parse_spec
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from tests.rest.serving import Answer, Server
from tests.support.lakes import FreshLake

FIRST_WITH_ROW_IDS = 3
NO_HEADERS: Mapping[str, str] = {}
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
    numbers: Mapping[int, int] = field(default_factory=dict[int, int])
    """Sequence numbers that the files of a content have of their own when they are added."""

    def post(self, path: str, body: Any, headers: Mapping[str, str] = NO_HEADERS) -> Answer:
        """Send JSON."""
        return self.server.ask("POST", path, {"content-type": "application/json", **headers}, json.dumps(body).encode())

    def create(self, name: str = "t", **more: Any) -> Answer:
        """Make a table."""
        return self.post("namespaces/main/tables", {"name": name, "schema": COLUMNS, **more})

    def load(self, name: str = "t") -> Any:
        """Return a table's metadata."""
        return self.server.get(f"namespaces/main/tables/{name}").json["metadata"]

    def commit(
        self, updates: Sequence[Any], requirements: Sequence[Any] = (), name: str = "t", headers: Mapping[str, str] = NO_HEADERS
    ) -> Answer:
        """Send a commit."""
        return self.post(f"namespaces/main/tables/{name}", {"requirements": list(requirements), "updates": list(updates)}, headers)

    def read_file(self, answer: Answer) -> Any:
        """The metadata file that an answer names."""
        return json.loads(self.objects.read(answer.json["metadata-location"]))

    def append(
        self, metadata: Any, snapshot_id: int, files: Sequence[DataFile], deletes: Sequence[DataFile] = (), **shape: int
    ) -> list[Any]:
        """Write the manifests of files added to what is there and return its updates; `shape` as `make_header` takes it."""
        added = self.add(metadata, snapshot_id, files, deletes, **shape)
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        return [{"action": "add-snapshot", "snapshot": added}, ref]

    def add(
        self, metadata: Any, snapshot_id: int, files: Sequence[DataFile], deletes: Sequence[DataFile] = (), parent: Any = None, **shape: int
    ) -> dict[str, Any]:
        """Write the manifests of a snapshot that adds files to its parent, the current one unless told, and return it."""
        current = parent or next((s for s in metadata["snapshots"] if s["snapshot-id"] == metadata.get("current-snapshot-id")), None)
        number = (metadata if parent is None else {}).get("last-sequence-number", (parent or {}).get("sequence-number", 0)) + 1
        header = make_header(metadata, **shape)
        added = snapshot_id, number
        first_row_id = metadata["next-row-id"] if header.format_version == FIRST_WITH_ROW_IDS else None
        manifests = [replace(self._write_manifest(metadata, added, header, files), first_row_id=first_row_id)] if files else []
        manifests += [self._write_manifest(metadata, added, replace(header, content=1), deletes)] if deletes else []
        manifests += self._read_list(current) if current else []
        list_path = f"{metadata['location']}/metadata/snap-{uuid4()}.avro"
        parent_id = None if current is None else current["snapshot-id"]
        written = ManifestListHeader(snapshot_id, parent_id, number, header.format_version, first_row_id)
        self.objects.put_new(list_path, encode_manifest_list(written, manifests))
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": 1,
            "manifest-list": list_path,
            "summary": {"operation": "append", "mine": "yes"} | ({"operation": "delete", **count_deletes(deletes)} if deletes else {}),
            "schema-id": metadata["current-schema-id"],
        }
        if header.format_version == FIRST_WITH_ROW_IDS:
            snapshot |= {"first-row-id": metadata["next-row-id"], "added-rows": sum(file.record_count for file in files)}
        return snapshot | ({} if current is None else {"parent-snapshot-id": parent_id})

    def _write_manifest(self, metadata: Any, added: tuple[int, int], header: ManifestHeader, files: Sequence[DataFile]) -> ManifestFile:
        entries = [ManifestEntry(ADDED, added[0], self.numbers.get(file.content), None, file) for file in files]
        return self._put_manifest(metadata, added, header, entries)

    def rewrite(self, metadata: Any, snapshot_id: int, parent: Any, content: int, staying: Sequence[int] | None = None) -> dict[str, Any]:
        """Write each manifest of data or of deletes that a snapshot added again, and return the snapshot that has these instead.

        Files at the places `staying` stay, in this order, and the others are removed; without it all stay.
        """
        added = [file for file in self._read_list(parent) if file.added_snapshot_id == parent["snapshot-id"]]
        own = [file for file in added if file.content == content]
        made = self.add(metadata, snapshot_id, [], parent=parent)
        manifests = [file for file in self._read_list(parent) if file not in own]
        for file in own:
            header, entries = decode_manifest(self.objects.read(file.manifest_path), file)
            inherited = list(inherit_from_list(entries, file))
            stay = range(len(inherited)) if staying is None else staying
            found = [replace(inherited[place], status=EXISTING) for place in stay]
            gone = [entry for place, entry in enumerate(inherited) if place not in stay]
            found += [replace(entry, status=DELETED, snapshot_id=snapshot_id) for entry in gone]
            listed = self._put_manifest(metadata, (snapshot_id, made["sequence-number"]), header, found)
            manifests.append(replace(listed, first_row_id=file.first_row_id))
        version, first_row_id = metadata["format-version"], made.get("first-row-id")
        written = ManifestListHeader(snapshot_id, parent["snapshot-id"], made["sequence-number"], version, first_row_id)
        list_path = f"{metadata['location']}/metadata/snap-{uuid4()}.avro"
        self.objects.put_new(list_path, encode_manifest_list(written, manifests))
        return made | {"manifest-list": list_path, "summary": {"operation": "replace"}}

    def read_entries(self, snapshot: Any) -> list[ManifestEntry]:
        """The live entries of a snapshot's data manifests, with what they inherit."""
        data = [file for file in self._read_list(snapshot) if file.content == 0]
        decoded = [(decode_manifest(self.objects.read(file.manifest_path), file)[1], file) for file in data]
        return [entry for entries, file in decoded for entry in inherit_from_list(entries, file) if entry.status != DELETED]

    def list_manifests(self, snapshot: Any, author: int) -> list[ManifestFile]:
        """The manifests of a snapshot that another one added."""
        return [file for file in self._read_list(snapshot) if file.added_snapshot_id == author]

    def _put_manifest(
        self, metadata: Any, added: tuple[int, int], header: ManifestHeader, entries: Sequence[ManifestEntry]
    ) -> ManifestFile:
        encoded = encode_manifest(header, entries)
        path = f"{metadata['location']}/metadata/{uuid4()}-m0.avro"
        self.objects.put_new(path, encoded)
        return build_manifest_file(header, entries, WrittenManifest(path, len(encoded), *added))

    def _read_list(self, snapshot: Any) -> list[ManifestFile]:
        return decode_manifest_list(self.objects.read(snapshot["manifest-list"]))


def make_header(metadata: Any, *, format_version: int | None = None, spec_id: int | None = None) -> ManifestHeader:
    """What data manifests of a table say of it, of its own version and spec unless told."""
    schema: Schema = parse_schema(metadata["schemas"][-1])
    wanted = metadata["default-spec-id"] if spec_id is None else spec_id
    [spec] = [parse_spec(spec) for spec in metadata["partition-specs"] if spec["spec-id"] == wanted]
    return ManifestHeader(schema, spec, format_version or metadata["format-version"], 0)


def count_deletes(files: Sequence[DataFile]) -> dict[str, str]:
    """What a summary says of delete files."""
    counts = {content: sum(file.record_count for file in files if file.content == content) for content in (1, 2)}
    names = {1: "position-deletes", 2: "equality-deletes"}
    counted = {f"{kind}-{names[content]}": str(count) for content, count in counts.items() if count for kind in ("added", "total")}
    return {"added-delete-files": str(len(files)), **counted}


def open_client(server: Server, lake: FreshLake) -> Client:
    """Return a client of a served lake."""
    return Client(server, open_store(lake.store))


@cache
def open_store(keys: StoreAccess) -> Objects:
    """Return the objects of the shared store, opened once in each process."""
    return open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))


def data_file(metadata: Any, name: str, **more: Any) -> DataFile:
    """A data file in a table's location that need not exist."""
    known: dict[str, Any] = {"content": 0, "file_format": "PARQUET", "partition": (), "record_count": 2, "file_size_in_bytes": 10}
    return DataFile(file_path=f"{metadata['location']}/data/{name}.parquet", **known | more)


def write_file(client: Client, metadata: Any, name: str, columns: Mapping[int, Any], **more: Any) -> DataFile:
    """A Parquet file in the table's location, its columns named by their field ids."""
    fields = [pa.field(f"c{i}", column.type, metadata={"PARQUET:field_id": str(i)}) for i, column in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    path, content = f"{metadata['location']}/data/{name}.parquet", sink.getvalue()
    client.objects.put_new(path, content)
    known: dict[str, Any] = {"content": 0, "file_format": "PARQUET", "partition": ()}
    return DataFile(file_path=path, record_count=table.num_rows, file_size_in_bytes=len(content), **known | more)


def creation(metadata: Any) -> list[Any]:
    """What makes the table of a staged create."""
    return [
        {"action": "assign-uuid", "uuid": metadata["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": metadata["schemas"][0], "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": metadata["location"]},
    ]


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
