"""A client that sends JSON over one connection and writes the manifests of data files that need not exist."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import count
from select import select
from typing import Any
from uuid import uuid4

from bench.stand import REQUEST_SECONDS, Stand
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.manifest import ADDED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.iceberg.partition import parse_spec
from duckicelake.iceberg.schema import parse_schema
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store_settings import read_store_settings

COLUMNS: Mapping[str, str] = {
    "id": "long",
    "customer": "long",
    "quantity": "int",
    "price": "decimal(9, 2)",
    "weight": "double",
    "active": "boolean",
    "day": "date",
    "seen_at": "timestamp",
    "city": "string",
    "note": "string",
}
FILE_ROWS = 100
FIRST_SNAPSHOT_ID = 7_000_000_000_000_000_000
"""Clients choose ids at random; these are far from lake snapshots."""
LOWEST, HIGHEST = (0).to_bytes(8, "little"), FILE_ROWS.to_bytes(8, "little")


class Refused(RuntimeError):
    """A request was refused."""

    def __init__(self, path: str, status: int, said: str) -> None:
        super().__init__(f"{path} was answered {status}: {said}")
        self.status = status


@dataclass(slots=True)
class Client:
    """Speaks to one server about one table; `metadata` is what the last answer said."""

    port: int
    path: str
    objects: Objects
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    answer_bytes: bytes = b""
    connection: HTTPConnection | None = None
    ids: Any = field(default_factory=lambda: count(FIRST_SNAPSHOT_ID + uuid4().int % 10**15))

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        """Send a request and keep the metadata of its answer. Raises RuntimeError when it is refused."""
        if self.connection is None:
            self.connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        # The server closes connections that are idle for long, while other tables are measured.
        if self.connection.sock is not None and select([self.connection.sock], [], [], 0)[0]:
            self.connection.close()
        content = None if body is None else json.dumps(body).encode()
        self.connection.request(method, path, content, {"content-type": "application/json"})
        response = self.connection.getresponse()
        self.answer_bytes = response.read()
        if response.status not in (200, 204):
            raise Refused(path, response.status, self.answer_bytes[:400].decode("utf-8", "replace"))

    def keep(self) -> None:
        """Read the metadata of the last answer, which costs the client alone."""
        self.metadata = json.loads(self.answer_bytes)["metadata"]

    def load(self, query: str = "") -> None:
        """Load the table."""
        self.send("GET", self.path + query)
        self.keep()

    def commit(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Commit updates, as engines do: only to the table they read."""
        self.send("POST", self.path, self._ask(updates))

    def try_commit(self, updates: Sequence[Mapping[str, Any]]) -> bool:
        """Commit updates, and return False if the server refuses them because of other commits."""
        try:
            self.commit(updates)
        except Refused as refused:
            if refused.status not in (409, 429):
                raise
            return False
        return True

    def commit_unanswered(self, updates: Sequence[Mapping[str, Any]]) -> None:
        """Commit updates by the operation for several tables: it does the same for one, and its answer has no body."""
        lake, _, rest = self.path.partition("/namespaces/")
        namespace, _, table = rest.partition("/tables/")
        identifier = {"namespace": [namespace], "name": table}
        self.send("POST", f"{lake}/transactions/commit", {"table-changes": [{"identifier": identifier, **self._ask(updates)}]})

    def _ask(self, updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        uuid = {"type": "assert-table-uuid", "uuid": self.metadata["table-uuid"]}
        current = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": self.metadata.get("current-snapshot-id")}
        return {"requirements": [uuid, current], "updates": list(updates)}

    def set_property(self) -> list[dict[str, Any]]:
        """Return the update that gives one property a new value."""
        return [{"action": "set-properties", "updates": {"owner": str(uuid4())}}]

    def append(self, files: int = 1) -> list[dict[str, Any]]:
        """Write one manifest of new files beside those that are there, and return the updates that commit it."""
        return self.add([self.data_file() for _ in range(files)], [])

    def add(self, files: Sequence[DataFile], deletes: Sequence[DataFile]) -> list[dict[str, Any]]:
        """Write manifests of files and delete files beside those that are there, and return the updates that commit them."""
        metadata, snapshot_id = self.metadata, next(self.ids)
        known = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
        current = known.get(metadata.get("current-snapshot-id"))
        parent = None if current is None else current["snapshot-id"]
        number, version = metadata["last-sequence-number"] + 1, metadata["format-version"]
        listed = [] if current is None else decode_manifest_list(self.objects.read(current["manifest-list"]))
        for content, members in enumerate((files, deletes)):
            if members:
                header = self._header(content)
                encoded = encode_manifest(header, entries := [ManifestEntry(ADDED, snapshot_id, None, None, file) for file in members])
                path = f"{metadata['location']}/metadata/{uuid4()}-m0.avro"
                self.objects.put_new(path, encoded)
                listed.insert(0, build_manifest_file(header, entries, WrittenManifest(path, len(encoded), snapshot_id, number)))
        uri = f"{metadata['location']}/metadata/snap-{snapshot_id}-{uuid4()}.avro"
        self.objects.put_new(uri, encode_manifest_list(ManifestListHeader(snapshot_id, parent, number, version), listed))
        snapshot = {
            "snapshot-id": snapshot_id,
            "sequence-number": number,
            "timestamp-ms": time.time_ns() // 1_000_000,
            "manifest-list": uri,
            "summary": {"operation": "overwrite" if deletes else "append", "added-data-files": str(len(files))},
            "schema-id": metadata["current-schema-id"],
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
        return [{"action": "add-snapshot", "snapshot": snapshot | ({} if parent is None else {"parent-snapshot-id": parent})}, ref]

    def data_file(self) -> DataFile:
        """Return a file of the table's location with what writers say of their columns."""
        counts = dict.fromkeys(range(1, len(COLUMNS) + 1), FILE_ROWS)
        uri = f"{self.metadata['location']}/data/{uuid4()}.parquet"
        return DataFile(
            0, uri, "PARQUET", (), FILE_ROWS, 9000, counts, counts, dict.fromkeys(counts, 0), None, {1: LOWEST}, {1: HIGHEST}, (4,)
        )

    def _header(self, content: int) -> ManifestHeader:
        metadata = self.metadata
        [schema] = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
        [spec] = [one for one in metadata["partition-specs"] if one["spec-id"] == metadata["default-spec-id"]]
        return ManifestHeader(parse_schema(schema), parse_spec(spec), metadata["format-version"], content)


def open_client(stand: Stand, table: str) -> Client:
    """Return a client of a table that is there, which it has loaded."""
    client = Client(stand.server.port, stand.table_path(table), open_objects(read_store_settings(stand.lake)))
    client.load()
    return client


def create_table(stand: Stand, table: str) -> Client:
    """Make a table as Iceberg clients make one, and return a client of it."""
    assert stand.duckdb, "makes the namespace"
    client = Client(stand.server.port, stand.table_path(table), open_objects(read_store_settings(stand.lake)))
    fields = [{"id": number, "name": name, "type": kind, "required": False} for number, (name, kind) in enumerate(COLUMNS.items(), 1)]
    path = stand.table_path(table).rpartition("/")[0]
    client.send("POST", path, {"name": table, "schema": {"type": "struct", "schema-id": 0, "fields": fields}})
    client.keep()
    return client
