"""Format versions over REST: which a table has, what raises it, and which numbers its snapshots have then."""

import json
from typing import Any

import pytest

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest_list import inherit_from_list
from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake without tables."""
    return open_client(server, lake)


def upgrade(version: int) -> list[Any]:
    """The update that raises a table."""
    return [{"action": "upgrade-format-version", "format-version": version}]


def numbers(metadata: Any) -> list[int]:
    """The sequence numbers of a table's snapshots, 0 where there is none."""
    return [snapshot.get("sequence-number", 0) for snapshot in metadata["snapshots"] if "ducklake.alias-of" not in snapshot["summary"]]


def manifest_versions(client: Client, metadata: Any) -> set[tuple[int, int]]:
    """Format version and content of every manifest of the current snapshot."""
    current = next(item for item in metadata["snapshots"] if item["snapshot-id"] == metadata["current-snapshot-id"])
    listed = decode_manifest_list(client.objects.read(current["manifest-list"]))
    headers = [decode_manifest(client.objects.read(file.manifest_path), file.manifest_path)[0] for file in listed]
    return {(header.format_version, header.content) for header in headers}


def entry_numbers(client: Client, metadata: Any) -> list[int | None]:
    """The sequence numbers of the current snapshot's files."""
    current = next(item for item in metadata["snapshots"] if item["snapshot-id"] == metadata["current-snapshot-id"])
    listed = decode_manifest_list(client.objects.read(current["manifest-list"]))
    read = [(decode_manifest(client.objects.read(file.manifest_path), file.manifest_path)[1], file) for file in listed]
    return sorted(entry.sequence_number or 0 for entries, file in read for entry in inherit_from_list(entries, file))


def test_version_1_is_honoured(client: Client) -> None:
    """Its metadata has the keys of version 1, its manifests too, and no snapshot has a number."""
    base = client.create(properties={"format-version": "1"}).json["metadata"]
    assert base["format-version"] == 1
    assert "last-sequence-number" not in base
    assert base["schema"]["fields"] == base["schemas"][0]["fields"]
    assert client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")], format_version=2)).status == 400
    done = client.commit(client.append(base, 9_000_000_002, [data_file(base, "a")], format_version=1))
    assert done.status == 200
    metadata = client.load()
    assert (metadata["format-version"], numbers(metadata)) == (1, [0])
    assert manifest_versions(client, metadata) == {(1, 0)}


@pytest.mark.parametrize("inlined", whole_after(1, [True, False]))
def test_a_deleted_row_raises_version_1_for_good(client: Client, lake: FreshLake, inlined: bool) -> None:
    """Version 1 has no deletes: DuckDB's first DELETE makes it version 2, and it stays that when the rows are gone."""
    client.create(properties={"format-version": "1"})
    session = lake.duckdb()
    session.execute(f"CALL lake.set_option('data_inlining_row_limit', {1000 if inlined else 0})")
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(20)")
    first = client.load()
    assert (first["format-version"], numbers(first)) == (1, [0])
    session.execute("DELETE FROM t WHERE id < 5")
    raised = client.load()
    assert raised["format-version"] == 2
    assert numbers(raised) == [item["snapshot-id"] for item in raised["snapshots"]]
    assert manifest_versions(client, raised) == {(2, 0), (2, 1)}
    session.execute("DELETE FROM t")
    assert client.load()["format-version"] == 2
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()


def test_version_1_is_raised_on_request(client: Client) -> None:
    """To 2 and to 3; never back."""
    base = client.create(properties={"format-version": "1"}).json["metadata"]
    client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")], format_version=1))
    for version in (2, 3):
        assert client.commit(upgrade(version)).json["metadata"]["format-version"] == version
        assert manifest_versions(client, client.load()) == {(version, 0)}
    assert client.commit(upgrade(1)).error == (400, "BadRequestException")


def test_an_upgrade_to_version_3_keeps_the_numbers_given_out(client: Client, lake: FreshLake) -> None:
    """Snapshots from 1 on stay so; those after the upgrade have their lake snapshot's id, as rows in DuckLake's files do."""
    base = client.create().json["metadata"]
    client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]))
    middle = client.load()
    client.commit(client.append(middle, 9_000_000_002, [data_file(base, "b")]))
    assert numbers(client.load()) == [1, 2]
    raised = client.commit(upgrade(3)).json["metadata"]
    assert (raised["format-version"], numbers(raised), raised["last-sequence-number"]) == (3, [1, 2], 2)
    assert entry_numbers(client, raised) == [1, 2]
    lake.duckdb().execute("INSERT INTO t VALUES (1, 'x')")
    later = client.load()
    assert numbers(later) == [1, 2, later["current-snapshot-id"]]
    assert entry_numbers(client, later) == [1, 2, later["current-snapshot-id"]]
    assert later["next-row-id"] == 5
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == later


def test_duckdb_raises_a_numbered_table_to_version_3(client: Client, lake: FreshLake) -> None:
    """A column that only version 3 has: what was given out stays, what follows has lake snapshot ids."""
    base = client.create().json["metadata"]
    client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]))
    session = lake.duckdb()
    session.execute("ALTER TABLE t ADD COLUMN ns TIMESTAMP_NS")
    raised = client.load()
    assert (raised["format-version"], numbers(raised)) == (3, [1])
    session.execute("INSERT INTO t VALUES (1, 'x', NULL)")
    later = client.load()
    assert numbers(later) == [1, later["current-snapshot-id"]]
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == later


def test_duckdb_inlines_into_a_table_that_a_client_changed(client: Client, lake: FreshLake) -> None:
    """Its rows are read with the columns of the moment they came, though DuckLake notes no schema version for them."""
    client.create()
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}, {"id": 3, "name": "b", "required": False, "type": "int"}]
    schema = {"type": "struct", "schema-id": 9, "fields": fields}
    client.commit([{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}])
    session = lake.duckdb()
    session.execute("INSERT INTO t VALUES (1, 2)")
    assert client.server.get("namespaces/main/tables/t").status == 200
    assert session.execute("FROM t").fetchall() == [(1, 2)]


REQUIRED = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {
            "id": 2,
            "name": "place",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [
                    {"id": 5, "name": "x", "required": True, "type": "int"},
                    {"id": 6, "name": "y", "required": False, "type": "int"},
                ],
            },
        },
        {
            "id": 3,
            "name": "items",
            "required": False,
            "type": {"type": "list", "element-id": 7, "element": "string", "element-required": True},
        },
        {
            "id": 4,
            "name": "prices",
            "required": False,
            "type": {"type": "map", "key-id": 8, "key": "string", "value-id": 9, "value": "double", "value-required": True},
        },
    ],
}


@pytest.mark.parametrize("version", whole_after(1, ["1", "2", "3"]))
def test_what_ducklake_cannot_say_of_columns_and_partitions_is_kept(client: Client, lake: FreshLake, version: str) -> None:
    """Required nested fields and a void partition field: shown as they were asked for, also after DuckDB's next changes.

    The fields are optional when rows come that do not prove that the fields hold no NULL, as those of NULL structs.
    """
    fields = [
        {"source-id": 1, "field-id": 1000, "name": "was", "transform": "void"},
        {"source-id": 1, "field-id": 1001, "name": "part", "transform": "bucket[4]"},
    ]
    spec = {"spec-id": 0, "fields": fields}
    made = client.create(schema=REQUIRED, **{"partition-spec": spec, "properties": {"format-version": version}})
    assert made.status == 200, made.body
    duck = lake.duckdb()
    for statement in ("ALTER TABLE t ADD COLUMN more VARCHAR", "ALTER TABLE t RENAME more TO other"):
        duck.execute(statement)
    assert read_fields(client.load())[:4] == REQUIRED["fields"]
    for row in ("1, {'x': 1, 'y': NULL}, ['a'], MAP {'b': 0.5}, NULL", "2, NULL, NULL, NULL, 'x'"):
        duck.execute(f"INSERT INTO t VALUES ({row})")
    metadata = client.load()
    optional = json.loads(json.dumps(REQUIRED["fields"][1:]).replace('required": true', 'required": false'))
    assert read_fields(metadata)[:4] == [REQUIRED["fields"][0], *optional]
    assert (metadata["partition-specs"][0], metadata["default-spec-id"]) == (spec, 0)
    file = data_file(metadata, "a", partition=(None, 3))
    assert client.commit(client.append(metadata, 9_000_000_001, [file], format_version=int(version))).status == 200
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load()["partition-specs"] == metadata["partition-specs"]
    assert read_fields(client.load())[1:4] == optional


def read_fields(metadata: Any) -> Any:
    """The columns of the current schema."""
    return next(item["fields"] for item in metadata["schemas"] if item["schema-id"] == metadata["current-schema-id"])
