"""Schemas and partition specs that clients remove, as Spark's expire_snapshots with clean_expired_metadata does."""

from typing import Any

import pytest

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, data_file, open_client, read_rows
from tests.support.lakes import FreshLake


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, that has had three schemas and three specs."""
    client = open_client(server, lake)
    client.create()
    for name in ("b", "c"):
        client.commit(change_columns(name))
    for count in (4, 8):
        client.commit(change_spec(count))
    return client


def change_columns(name: str) -> list[Any]:
    """Updates that give the table a third column of that name."""
    schema = {**COLUMNS, "schema-id": 9, "fields": [*COLUMNS["fields"], {"id": ord(name), "name": name, "required": False, "type": "int"}]}
    return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]


def change_spec(count: int) -> list[Any]:
    """Updates that partition the table by so many buckets."""
    field = {"source-id": 1, "name": f"id_bucket_{count}", "transform": f"bucket[{count}]"}
    return [{"action": "add-spec", "spec": {"spec-id": 9, "fields": [field]}}, {"action": "set-default-spec", "spec-id": -1}]


def remove(schemas: list[int] | None = None, specs: list[int] | None = None) -> list[Any]:
    """Updates that remove schemas and specs."""
    return [{"action": "remove-schemas", "schema-ids": schemas or []}, {"action": "remove-partition-specs", "spec-ids": specs or []}]


def ids(metadata: Any) -> tuple[list[int], list[int]]:
    """The ids of a table's schemas and specs."""
    return [item["schema-id"] for item in metadata["schemas"]], [item["spec-id"] for item in metadata["partition-specs"]]


def test_removed_ones_are_not_shown_again(client: Client, lake: FreshLake) -> None:
    """By any server, and after DuckDB's changes too."""
    assert ids(client.load()) == ([0, 1, 2], [0, 1, 2])
    done = client.commit(remove([0, 1], [0, 1]))
    assert ids(done.json["metadata"]) == ([2], [2])
    lake.duckdb().execute("ALTER TABLE t ADD COLUMN d INTEGER")
    assert ids(client.load()) == ([2, 3], [2])
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()


def test_ids_are_never_given_out_twice(client: Client) -> None:
    """A new schema or spec does not get the id of one that was removed; the same one gets its own back."""
    client.commit(change_columns("b"))
    client.commit(change_spec(4))
    assert ids(client.commit(remove([2], [2])).json["metadata"]) == ([0, 1], [0, 1])
    assert ids(client.commit(change_columns("d") + change_spec(16)).json["metadata"]) == ([0, 1, 3], [0, 1, 3])
    assert ids(client.commit(change_columns("c") + change_spec(8)).json["metadata"]) == ([0, 1, 2, 3], [0, 1, 2, 3])
    assert ids(client.commit(change_columns("d") + change_spec(16)).json["metadata"]) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_what_is_used_stays(client: Client, lake: FreshLake) -> None:
    """The current ones, a snapshot's schema, and a spec that its files have: 400, and nothing changes."""
    base = client.load()
    file = data_file(base, "a", partition=(3,))
    client.commit(client.append(base, 9_000_000_001, [file], spec_id=2))
    client.commit(change_columns("d") + change_spec(16))
    rows = read_rows(lake)
    for updates in (remove([3]), remove(specs=[3]), remove([2]), remove(specs=[2])):
        assert client.commit(updates).error == (400, "BadRequestException"), updates
    assert read_rows(lake) == rows
    assert ids(client.commit(remove([0, 1], [0, 1])).json["metadata"]) == ([2, 3], [2, 3])


def test_duckdb_gets_its_spec_back(client: Client, lake: FreshLake) -> None:
    """The spec without fields is removed while no file has it, and shown again when DuckDB inserts."""
    client.commit(remove(specs=[0, 1]))
    lake.duckdb().execute("INSERT INTO t VALUES (1, 'x', 2)")
    assert ids(client.load())[1] == [0, 2]
