"""Manifests that are not what they should be: 400 that names the file, and nothing changes."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import fastavro
import pytest

from duckicelake.iceberg.manifest import ADDED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.requests.updates import LAST_ADDED
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.store.objects import StoreSettings, open_objects
from tests.rest.hostile.target import TABLES, Range, Target
from tests.rest.serving import Answer
from tests.rest.writing.client import COLUMNS, Client, data_file, make_header
from tests.support.readers import Served

SNAPSHOT_ID = 8_000_000_001


@dataclass(frozen=True, slots=True)
class Draft:
    """A snapshot of the table `t` in the making: whatever a test changes of it is what is wrong."""

    target: Target
    table: Any
    header: ManifestHeader
    entries: list[ManifestEntry]

    def write(self, content: bytes, name: str = "m0") -> str:
        """Write bytes where manifests of the table lie."""
        path = f"{self.table['location']}/metadata/{uuid4()}-{name}.avro"
        self.target.client.objects.put_new(path, content)
        return path

    def manifest(self, path: str | None = None) -> ManifestFile:
        """Write the manifest, or name another one, as a list describes it."""
        content = encode_manifest(self.header, self.entries)
        written = WrittenManifest(path or self.write(content), len(content), SNAPSHOT_ID, self.number)
        return build_manifest_file(self.header, self.entries, written)

    @property
    def number(self) -> int:
        """The snapshot's sequence number."""
        return self.table["last-sequence-number"] + 1

    def list(self, *files: ManifestFile) -> str:
        """Write a list of manifests."""
        header = ManifestListHeader(SNAPSHOT_ID, self.table["current-snapshot-id"], self.number, 2)
        return self.write(encode_manifest_list(header, files), "list")

    def send(self, list_path: str, **more: Any) -> Answer:
        """Commit the snapshot of a list."""
        snapshot = {
            "snapshot-id": SNAPSHOT_ID,
            "parent-snapshot-id": self.table["current-snapshot-id"],
            "sequence-number": self.number,
            "timestamp-ms": 1,
            "summary": {"operation": "append"},
            "manifest-list": list_path,
            **more,
        }
        ref = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": SNAPSHOT_ID}
        updates = [{"action": "set-properties", "updates": {"x": "y"}}, {"action": "add-snapshot", "snapshot": snapshot}, ref]
        return self.target.post(f"{TABLES}/t", {"requirements": [], "updates": updates})


@pytest.fixture
def draft(targets: Range) -> Draft:
    """A sound snapshot of one file."""
    target = targets.target()
    table = target.made["t"]
    file = ManifestEntry(ADDED, SNAPSHOT_ID, None, None, data_file(table, "new"))
    return Draft(target, table, make_header(table), [file])


def test_the_draft_is_sound(draft: Draft) -> None:
    """What the others break is taken whole."""
    answer = draft.send(draft.list(draft.manifest()))
    assert answer.status == 200
    draft.target.check(answer)


def other(draft: Draft) -> Any:
    """The other table."""
    return draft.target.made["u"]


def with_file(draft: Draft, **more: Any) -> str:
    """A list whose one data file says something else."""
    entry = draft.entries[0]
    return draft.list(replace(draft, entries=[replace(entry, data_file=replace(entry.data_file, **more))]).manifest())


def with_spec(draft: Draft, spec: PartitionSpec, partition: tuple[object, ...] = ()) -> str:
    """A list whose one manifest is of another spec."""
    entry = draft.entries[0]
    entries = [replace(entry, data_file=replace(entry.data_file, partition=partition))]
    return draft.list(replace(draft, header=replace(draft.header, spec=spec), entries=entries).manifest())


def foreign_manifest(draft: Draft) -> str:
    """A list that names a manifest of somebody with other columns, whose values are of other types."""
    schema = {"type": "record", "name": "r", "fields": [{"name": "status", "type": "string", "field-id": 0}]}
    sink = io.BytesIO()
    fastavro.writer(
        sink, schema, [{"status": "x"}], metadata={"schema": json.dumps({"type": "struct", "fields": []}), "partition-spec": "[]"}
    )
    return draft.list(draft.manifest(draft.write(sink.getvalue())))


def of_columns(draft: Draft) -> str:
    """A list whose manifest splits by a column that the table does not have."""
    spec = PartitionSpec(0, (PartitionField(9, 1000, "p", "identity"),))
    schema = Schema(0, (NestedField(9, "other", PrimitiveType("int"), False),))
    entry = draft.entries[0]
    entries = [replace(entry, data_file=replace(entry.data_file, partition=(1,)))]
    return draft.list(replace(draft, header=replace(draft.header, spec=spec, schema=schema), entries=entries).manifest())


Break = Callable[[Draft], str]
LISTS: list[Any] = [
    pytest.param(lambda d: f"{d.table['location']}/metadata/none.avro", "is missing", id="missing list"),
    pytest.param(lambda d: d.write(b""), "no valid Avro file", id="empty list"),
    pytest.param(lambda d: d.write(bytes(100_000)), "no valid Avro file", id="list of zeros"),
    pytest.param(lambda d: d.write(encode_manifest(d.header, d.entries)), "no field 500", id="manifest for a list"),
    pytest.param(lambda d: other(d)["snapshots"][0]["manifest-list"], "does not lie in the table's location", id="list of another table"),
    pytest.param(lambda d: f"{d.target.lake.data_path}x.avro", "does not lie in the table's location", id="list in DATA_PATH"),
    pytest.param(lambda d: "s3://elsewhere/x.avro", "does not lie in the table's location", id="list in another bucket"),
    pytest.param(lambda d: "file:///etc/passwd", "does not lie in the table's location", id="list on the server's disk"),
    pytest.param(lambda d: f"{d.table['location']}/../x.avro", "does not lie in the table's location", id="list by a way around"),
    pytest.param(lambda d: "", "has no manifest list", id="no list"),
]
MANIFESTS: list[Any] = [
    pytest.param(lambda d: d.list(d.manifest(f"{d.table['location']}/metadata/none.avro")), "is missing", id="missing"),
    pytest.param(lambda d: d.list(d.manifest(d.write(encode_manifest(d.header, d.entries)[:-40]))), "no valid Avro file", id="truncated"),
    pytest.param(lambda d: d.list(d.manifest(d.write(bytes(100_000)))), "no valid Avro file", id="zeros"),
    pytest.param(lambda d: d.list(d.manifest("s3://elsewhere/x.avro")), "does not lie in the table's location", id="in another bucket"),
    pytest.param(lambda d: d.list(d.manifest(f"{other(d)['location']}/metadata/x.avro")), "does not lie in", id="of another table"),
    pytest.param(foreign_manifest, "of its schema is a string", id="other types"),
    pytest.param(of_columns, "is not the table's", id="other columns"),
    pytest.param(lambda d: with_spec(d, PartitionSpec(7, ())), "no partition spec 7", id="unknown spec"),
    pytest.param(lambda d: d.list(replace(d.manifest(), partition_spec_id=1)), "its list says 1", id="another spec than its list says"),
    pytest.param(lambda d: d.list(replace(d.manifest(), added_files_count=2)), "its list says", id="another count of files"),
    pytest.param(lambda d: d.list(replace(d.manifest(), added_rows_count=10**9)), "its list says", id="another count of rows"),
    pytest.param(lambda d: d.list(replace(d.manifest(), content=1)), "its list says 1", id="data for deletes"),
    pytest.param(lambda d: d.list(replace(d, entries=d.entries * 2).manifest()), "twice", id="a file twice"),
    pytest.param(lambda d: d.list(d.manifest(), d.manifest()), "twice", id="a file in two manifests"),
]
FILES: list[Any] = [
    pytest.param(lambda d: with_file(d, file_path=f"{other(d)['location']}/data/x.parquet"), "does not lie in", id="in another table"),
    pytest.param(lambda d: with_file(d, file_path="s3://elsewhere/x.parquet"), "does not lie in", id="in another bucket"),
    pytest.param(lambda d: with_file(d, file_path=f"{d.target.lake.data_path}x.parquet"), "does not lie in", id="in DATA_PATH"),
    pytest.param(lambda d: with_file(d, file_path=f"{d.table['location']}/data/../../x.parquet"), "does not lie in", id="by a way around"),
    pytest.param(lambda d: with_file(d, file_path="x\0y"), "does not lie in", id="a path with NUL"),
    pytest.param(lambda d: with_file(d, record_count=2**63 - 1), "", id="more rows than Postgres counts"),
    pytest.param(lambda d: with_file(d, file_size_in_bytes=0), "in 0 bytes", id="no bytes"),
    pytest.param(lambda d: with_file(d, file_format="avro"), "AVRO", id="Avro"),
    pytest.param(lambda d: with_file(d, content=1), "write two manifests", id="deletes among data"),
    pytest.param(lambda d: with_file(d, sort_order_id=2**40), "out of range", id="a sort order out of range"),
]


@pytest.mark.parametrize(("broken", "said"), [*LISTS, *MANIFESTS, *FILES])
def test_what_is_wrong_with_a_snapshot_is_said(draft: Draft, broken: Break, said: str) -> None:
    """By 400, with every row as it was; the property that the same commit sets is not set either."""
    answer = draft.send(broken(draft))
    draft.target.check(answer)
    assert answer.status == 400, answer.body
    assert said in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param({"snapshot-id": 2**63}, "64-bit", id="an id out of range"),
        pytest.param({"snapshot-id": LAST_ADDED}, "", id="the id that means none"),
        pytest.param({"schema-id": 99}, "schema 99 is unknown", id="unknown schema"),
        pytest.param({"sequence-number": 2**63 - 1}, "", id="a sequence number far ahead"),
        pytest.param({"summary": {"operation": "explode"}}, "explode", id="unknown operation"),
        pytest.param({"summary": {}}, "operation", id="no operation"),
        pytest.param({"timestamp-ms": "now"}, "timestamp-ms", id="no time"),
    ],
)
def test_what_a_snapshot_says_of_itself_is_checked(draft: Draft, more: dict[str, Any], said: str) -> None:
    """Refused, or counted for nothing where the server gives the number itself."""
    answer = draft.send(draft.list(draft.manifest()), **more)
    draft.target.check(answer)
    assert answer.status == 200 or said in answer.json["error"]["message"]
    if said:
        assert answer.status == 400, answer.body


def test_unknown_files_are_not_removed(draft: Draft) -> None:
    """A snapshot that removes a file that the table has not grew from another state, whatever parent it names."""
    gone = DataFile(0, f"{draft.table['location']}/data/never.parquet", "PARQUET", (), 2, 10)
    entries = [*draft.entries, ManifestEntry(2, SNAPSHOT_ID, None, None, gone)]
    answer = draft.send(draft.list(replace(draft, entries=entries).manifest()))
    draft.target.check(answer)
    assert answer.error == (409, "CommitFailedException")


@pytest.mark.parametrize("is_list", [True, False], ids=["list", "manifest"])
def test_two_gigabytes_of_zeros_are_not_read(served_locally: Served, is_list: bool) -> None:
    """They are refused by their size. What that takes of memory is measured with the bombs."""
    server, objects = served_locally.server, open_objects(StoreSettings(None, None, None, None))
    target = Target(served_locally.lake, Client(server, objects), served_locally.lake.duckdb(), served_locally.lake.psycopg(), {})
    target.post("namespaces", {"namespace": ["ns"]})
    table = target.post(TABLES, {"name": "t", "schema": COLUMNS}).json["metadata"] | {"current-snapshot-id": None}
    draft = Draft(target, table, make_header(table), [])
    zeros = draft.write(b"")
    os.truncate(zeros.removeprefix("file://"), 2 * 1024**3)
    answer = draft.send(zeros if is_list else draft.list(draft.manifest(zeros)), **{"parent-snapshot-id": None})
    assert answer.error == (400, "BadRequestException")
    assert "has 2147483648 bytes" in answer.json["error"]["message"]
    assert "x" not in server.get(f"{TABLES}/t").json["metadata"]["properties"]
