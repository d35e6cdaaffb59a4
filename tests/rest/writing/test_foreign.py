"""Metadata files written by hand, registered: deletes of all kinds, numbers, and what cannot be taken changes nothing."""

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pytest

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import ManifestListHeader, encode_manifest_list, inherit_from_list
from duckicelake.store.parquet import encode_position_deletes
from tests.rest.serving import Answer, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, data_file, open_client, read_rows, write_file
from tests.rest.writing.views.requests import COLUMNS as VIEW_COLUMNS
from tests.rest.writing.views.requests import version
from tests.support.lakes import FreshLake

FIRST_ID = 7_000_000_000_000_000_001


@dataclass(slots=True)
class Elsewhere:
    """A table that no catalog has: its metadata, grown snapshot by snapshot."""

    client: Client
    metadata: dict[str, Any]
    written: list[str] = field(default_factory=list[str])

    def add(self, files: Sequence[DataFile], deletes: Sequence[DataFile] = (), **shape: int) -> None:
        """Add a snapshot to main."""
        known = self.metadata
        added = self.client.add(known, FIRST_ID + len(known["snapshots"]), files, deletes, **shape)
        added["timestamp-ms"] = 1_700_000_000_000 + len(known["snapshots"])
        known["snapshots"].append(added)
        known["snapshot-log"].append({"timestamp-ms": added["timestamp-ms"], "snapshot-id": added["snapshot-id"]})
        known["last-sequence-number"] = added["sequence-number"]
        known["current-snapshot-id"] = added["snapshot-id"]
        known["refs"] = {"main": {"snapshot-id": added["snapshot-id"], "type": "branch"}}

    def put(self, content: bytes | None = None, suffix: str = ".metadata.json") -> str:
        """Write the metadata file, or other content in its place."""
        uri = f"{self.metadata['location']}/metadata/{uuid4()}{suffix}"
        self.client.objects.put_new(uri, json.dumps(self.metadata).encode() if content is None else content)
        return uri

    def register(self, uri: str | None = None, name: str = "t", **more: Any) -> Answer:
        """Register the table in the namespace `main`."""
        return self.client.post("namespaces/main/register", {"name": name, "metadata-location": uri or self.put(), **more})


@pytest.fixture
def root(lake: FreshLake) -> str:
    """A folder that the server opens."""
    return lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/other"


@pytest.fixture
def there(lake: FreshLake, root: str) -> Iterator[Elsewhere]:
    """A table in version 2, without rows, and a server that may take it."""
    with serve(make_settings(lake, allowed_locations=(root,))) as server:
        yield Elsewhere(open_client(server, lake), new_metadata(f"{root}/t"))


def new_metadata(location: str, **more: Any) -> dict[str, Any]:
    """What a metadata file says of a table without rows."""
    return {
        "format-version": 2,
        "table-uuid": str(uuid4()),
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 1_700_000_000_000,
        "last-column-id": 2,
        "schemas": [dict(COLUMNS)],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "properties": {"k": "v"},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "refs": {},
        **more,
    }


def ids(*values: int) -> Mapping[int, Any]:
    """The columns of a data file with these ids."""
    return {1: pa.array(values, pa.int64()), 2: pa.array([f"n{value}" for value in values])}


def position_deletes(there: Elsewhere, data: str, *positions: int) -> DataFile:
    """A position-delete file of one data file."""
    path, content = f"{there.metadata['location']}/data/{uuid4()}-d.parquet", encode_position_deletes(data, positions)
    there.client.objects.put_new(path, content)
    return DataFile(
        content=1, file_path=path, file_format="PARQUET", partition=(), record_count=len(positions), file_size_in_bytes=len(content)
    )


def equality_deletes(there: Elsewhere, *values: int) -> DataFile:
    """A file that deletes rows by their ids."""
    columns = {1: pa.array(values, pa.int64())}
    return write_file(there.client, there.metadata, f"{uuid4()}-eq", columns, content=2, equality_ids=(1,))


def read_ids(lake: FreshLake, name: str = "t", at: int | None = None) -> list[int]:
    """The ids that DuckDB reads."""
    when = "" if at is None else f" AT (VERSION => {at})"
    return [row[0] for row in lake.duckdb().execute(f"SELECT id FROM {name}{when} ORDER BY id").fetchall()]


def test_position_deletes_come_along(there: Elsewhere, lake: FreshLake) -> None:
    """Those of several files for one data file are one; deletes older than a file's rows do not count for it."""
    a, b = (write_file(there.client, there.metadata, name, ids(*range(start, start + 5))) for name, start in (("a", 0), ("b", 10)))
    there.add([a], [position_deletes(there, b.file_path, 0)])
    there.add([b], [position_deletes(there, a.file_path, 1, 3)])
    there.add([], [position_deletes(there, a.file_path, 3, 4), position_deletes(there, b.file_path, 2)])
    made = there.register()
    assert made.status == 200
    assert read_ids(lake) == [0, 2, 10, 11, 13, 14]
    assert made.json["metadata"]["current-snapshot-id"] == FIRST_ID + 2
    session = lake.duckdb()
    assert session.execute("SELECT count(*) FROM t").fetchone() == (6,)
    session.execute("DELETE FROM t WHERE id IN (0, 10)")
    session.execute("INSERT INTO t VALUES (20, 'x')")
    assert read_ids(lake) == [2, 11, 13, 14, 20]
    numbers = [snapshot["sequence-number"] for snapshot in there.client.load()["snapshots"]]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)


def test_equality_deletes_become_positions(there: Elsewhere, lake: FreshLake) -> None:
    """For older rows alone; the table gets a snapshot of its own that has them so, and its past keeps them as they were."""
    a, b = (write_file(there.client, there.metadata, name, ids(1, 2, 3)) for name in ("a", "b"))
    there.add([a])
    there.add([b], [equality_deletes(there, 1, 2)])
    there.add([], [position_deletes(there, b.file_path, 2)])
    made = there.register()
    assert made.status == 200
    assert read_ids(lake) == [1, 2, 3]
    now = made.json["metadata"]
    head = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert (now["current-snapshot-id"],) == head
    newest = now["snapshots"][-1]
    assert (newest["parent-snapshot-id"], newest["summary"]["operation"]) == (FIRST_ID + 2, "replace")
    assert [s["snapshot-id"] for s in now["snapshots"]] == [FIRST_ID, FIRST_ID + 1, FIRST_ID + 2, now["current-snapshot-id"]]
    assert there.client.commit(there.client.append(now, 5, [write_file(there.client, now, "c", ids(4))])).status == 200
    assert read_ids(lake) == [1, 2, 3, 4]


def test_small_foreign_ids_are_passed_over(there: Elsewhere, lake: FreshLake) -> None:
    """Lake snapshots go on above the ids and sequence numbers that the table brings, so that none comes twice."""
    there.add([write_file(there.client, there.metadata, "a", ids(1))])
    [snapshot] = there.metadata["snapshots"]
    for part in (snapshot, there.metadata["snapshot-log"][0], there.metadata["refs"]["main"]):
        part["snapshot-id"] = 5_000
    there.metadata |= {"current-snapshot-id": 5_000, "last-sequence-number": 6_000}
    snapshot["sequence-number"] = 6_000
    assert there.register().status == 200
    session = lake.duckdb()
    session.execute("INSERT INTO t VALUES (2, 'n2')")
    assert session.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone() == (6_001,)
    assert [s["sequence-number"] for s in there.client.load()["snapshots"]] == [6_000, 6_001]
    session.execute("CREATE TABLE u AS SELECT 1 AS i")
    assert lake.duckdb().execute("SELECT count(*) FROM t AT (VERSION => 6000)").fetchone() == (1,)


@pytest.mark.whole
def test_a_jump_of_snapshot_ids_is_seen_by_open_transactions(there: Elsewhere, lake: FreshLake) -> None:
    """An open DELETE of DuckDB conflicts with a delete committed after the jump: without a row at head + 1 it would lose that one."""
    session = lake.duckdb()
    session.execute("CREATE TABLE other AS SELECT range AS id FROM range(100)")
    head = read_snapshot_ids(lake)[-1]
    session.execute("BEGIN")
    session.execute("DELETE FROM other WHERE id < 30")
    there.metadata["last-sequence-number"] = head + 5000
    assert there.register().status == 200
    lake.duckdb().execute("DELETE FROM other WHERE id >= 20 AND id < 60")
    with pytest.raises(duckdb.TransactionException, match="conflict"):
        session.execute("COMMIT")
    assert read_snapshot_ids(lake)[-3:] == [head + 1, head + 5000, head + 5001]
    assert read_ids(lake, "other") == [*range(20), *range(60, 100)]
    changes = f"FROM ducklake_table_changes('lake', 'main', 'other', {head + 1}, {head + 5001})"
    assert lake.duckdb().execute(f"SELECT count(*) {changes}").fetchone() == (40,)


def test_an_open_insert_goes_on_above_a_jump(there: Elsewhere, lake: FreshLake) -> None:
    """DuckDB tries again above the jump, and its rows get ids of their own; a jump by one has nothing to bridge."""
    session = lake.duckdb()
    session.execute("CREATE TABLE other AS SELECT range AS id FROM range(100)")
    head = read_snapshot_ids(lake)[-1]
    there.metadata["last-sequence-number"] = head + 1
    assert there.register(name="t").status == 200
    session.execute("BEGIN")
    session.execute("INSERT INTO other SELECT range + 100 FROM range(50)")
    there.metadata |= {"last-sequence-number": head + 3, "table-uuid": str(uuid4()), "location": f"{there.metadata['location']}2"}
    assert there.register(name="u").status == 200
    session.execute("COMMIT")
    assert read_snapshot_ids(lake)[-4:] == [head + 1, head + 2, head + 3, head + 4]
    assert lake.duckdb().execute("SELECT count(*), count(DISTINCT rowid) FROM other").fetchone() == (150, 150)


def read_snapshot_ids(lake: FreshLake) -> list[int]:
    """The ids of all lake snapshots, in order."""
    return [row[0] for row in lake.psycopg().execute("SELECT snapshot_id FROM ducklake_snapshot ORDER BY snapshot_id").fetchall()]


def test_files_keep_their_sequence_numbers(there: Elsewhere, lake: FreshLake) -> None:
    """In the manifests that the lake writes for them too: with the next snapshot, and when all is written again."""
    for name in ("a", "b"):
        there.add([write_file(there.client, there.metadata, name, ids(1))])
    assert there.register().status == 200
    lake.duckdb().execute("INSERT INTO t VALUES (2, 'n2')")
    now = there.client.load()
    current = next(item for item in now["snapshots"] if item["snapshot-id"] == now["current-snapshot-id"])
    numbers: dict[str, tuple[int | None, int | None]] = {}
    for listed in decode_manifest_list(there.client.objects.read(current["manifest-list"])):
        _, entries = decode_manifest(there.client.objects.read(listed.manifest_path))
        for entry in inherit_from_list(entries, listed):
            numbers[entry.data_file.file_path.rpartition("/")[2]] = entry.sequence_number, entry.file_sequence_number
    assert (numbers["a.parquet"], numbers["b.parquet"]) == ((1, 1), (2, 2))


def test_a_table_comes_once(there: Elsewhere, lake: FreshLake) -> None:
    """Under one name: its uuid is known then; another one at its place is refused too."""
    uri = there.put()
    assert there.register(uri).status == 200
    rows = read_rows(lake)
    assert there.register(uri).error == (409, "AlreadyExistsException")
    assert there.register(uri, "u").error == (409, "AlreadyExistsException")
    there.metadata["table-uuid"] = str(uuid4())
    assert there.register(name="u").error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    assert there.register(name="T", overwrite=True).status == 200
    assert there.client.load()["table-uuid"] == there.metadata["table-uuid"]


def test_a_table_comes_into_no_views_place(there: Elsewhere, lake: FreshLake, root: str) -> None:
    """Once the view is dropped it may."""
    made = {"name": "v", "schema": VIEW_COLUMNS, "view-version": version({"spark": "SELECT 1 AS i, 'a' AS name"}), "properties": {}}
    assert there.client.post("namespaces/main/views", {**made, "location": f"{root}/t/v"}).status == 200
    rows = read_rows(lake)
    uri = there.put()
    assert there.register(uri).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    assert there.client.server.ask("DELETE", "namespaces/main/views/v").status == 204
    assert there.register(uri).status == 200


BROKEN: Mapping[str, Any] = {
    "no JSON": b"{",
    "nothing": b"",
    "another version": {"format-version": 4},
    "no version": {"format-version": None},
    "no schema": {"schemas": []},
    "an unknown schema": {"current-schema-id": 7},
    "an unknown snapshot": {"current-snapshot-id": 7},
    "no uuid": {"table-uuid": "t"},
    "a type DuckLake has not": {
        "schemas": [{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "a", "required": False, "type": "fixed[0]"}]}]
    },
    "names that differ by case": {
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [{"id": i, "name": name, "required": False, "type": "int"} for i, name in ((1, "a"), (2, "A"))],
            }
        ]
    },
    "names that are one to Iceberg": {
        "schemas": [
            {
                "type": "struct",
                "schema-id": 0,
                "fields": [
                    {"id": 1, "name": "a.b", "required": False, "type": "int"},
                    {
                        "id": 2,
                        "name": "a",
                        "required": False,
                        "type": {"type": "struct", "fields": [{"id": 3, "name": "b", "required": False, "type": "int"}]},
                    },
                ],
            }
        ]
    },
    "a far sequence number": {"last-sequence-number": 2**40},
    "packed and cut off": gzip.compress(b"{}" * 1000)[:-9],
    "packed nonsense": b"\x1f\x8b nonsense",
    "packed and too large": gzip.compress(bytes(65 * 1024 * 1024)),
}


@pytest.mark.parametrize("wrong", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_metadata_file_changes_nothing(there: Elsewhere, lake: FreshLake, wrong: Any) -> None:
    """400 that names the file or what is wrong in it."""
    uri = there.put(wrong if isinstance(wrong, bytes) else json.dumps(there.metadata | wrong).encode())
    rows = read_rows(lake)
    refused = there.register(uri)
    assert refused.error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_a_table_elsewhere_is_not_looked_at(there: Elsewhere, lake: FreshLake, root: str) -> None:
    """Neither its metadata file nor its location may lie outside of what the server opens, nor under DATA_PATH."""
    rows = read_rows(lake)
    for location in (f"{lake.data_path}t", "s3://nowhere/t", f"{root}/../t"):
        uri = there.put(json.dumps(there.metadata | {"location": location}).encode())
        assert there.register(uri).error == (400, "BadRequestException"), location
        assert there.register(f"{location}/metadata/x.metadata.json").error == (400, "BadRequestException"), location
    assert there.register(f"{root}/t/metadata/missing.metadata.json").error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def drop_manifest(there: Elsewhere) -> None:
    [uri] = [uri for uri, _ in there.client.objects.list_under(there.metadata["location"]) if uri.endswith("-m0.avro")]
    there.client.objects.delete(uri)


def cut_manifest(there: Elsewhere) -> None:
    [uri] = [uri for uri, _ in there.client.objects.list_under(there.metadata["location"]) if uri.endswith("-m0.avro")]
    content = there.client.objects.read(uri)
    there.client.objects.delete(uri)
    there.client.objects.put_new(uri, content[: len(content) // 2])


def drop_list(there: Elsewhere) -> None:
    there.client.objects.delete(there.metadata["snapshots"][0]["manifest-list"])


def forget_spec(there: Elsewhere) -> None:
    there.metadata |= {"partition-specs": [{"spec-id": 1, "fields": []}], "default-spec-id": 1}


def miscount(there: Elsewhere) -> None:
    uri = there.metadata["snapshots"][0]["manifest-list"]
    [listed] = decode_manifest_list(there.client.objects.read(uri))
    there.client.objects.delete(uri)
    there.client.objects.put_new(uri, encode_manifest_list(ManifestListHeader(FIRST_ID, None, 1, 2), [replace(listed, added_rows_count=7)]))


def name_no_list(there: Elsewhere) -> None:
    there.metadata["snapshots"][0] |= {"manifest-list": "", "manifests": []}


@pytest.mark.parametrize("break_it", [drop_manifest, cut_manifest, drop_list, forget_spec, miscount, name_no_list])
def test_broken_manifests_change_nothing(there: Elsewhere, lake: FreshLake, break_it: Any) -> None:
    """Missing ones, cut off ones, and those of another table's specs: 400."""
    there.add([write_file(there.client, there.metadata, "a", ids(1))])
    break_it(there)
    uri = there.put()
    rows = read_rows(lake)
    assert there.register(uri).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param({"file_format": "ORC"}, id="ORC"),
        pytest.param({"file_path": "s3://nowhere/x.parquet"}, id="elsewhere"),
        pytest.param({"file_path": "{data}x.parquet"}, id="under DATA_PATH"),
    ],
)
def test_files_that_cannot_be_held_change_nothing(there: Elsewhere, lake: FreshLake, stray: Mapping[str, str]) -> None:
    """Other formats, and files that are not safe where they are."""
    told = {key: value.format(data=lake.data_path) for key, value in stray.items()}
    there.add([DataFile(**{**vars_of(data_file(there.metadata, "a")), **told})])
    uri = there.put()
    rows = read_rows(lake)
    assert there.register(uri).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_files_of_other_tables_are_theirs(there: Elsewhere, lake: FreshLake, root: str) -> None:
    """Those that DuckDB wrote, and those in the location of a table that Iceberg clients know."""
    session = lake.duckdb()
    session.execute("CREATE TABLE d AS SELECT range AS id FROM range(100)")
    (ducks,) = session.execute("SELECT data_file FROM ducklake_list_files('lake', 'd')").fetchone() or ("",)
    iceberg = there.client.create("u", location=f"{root}/u").json["metadata"]
    rows = read_rows(lake)
    for path in (ducks, data_file(iceberg, "x").file_path):
        grown = Elsewhere(there.client, new_metadata(f"{root}/{uuid4()}"))
        grown.add([DataFile(**{**vars_of(data_file(grown.metadata, "a")), "file_path": path})])
        assert grown.register().error == (400, "BadRequestException"), path
    assert read_rows(lake) == rows


def vars_of(file: DataFile) -> dict[str, Any]:
    """A data file's fields by name."""
    return {name: getattr(file, name) for name in DataFile.__slots__}
