"""Planning a commit is pure: everything that it needs is looked up under the lake's lock before."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from duckicelake.catalog.commits.commit import prepare
from duckicelake.catalog.commits.lock import locking
from duckicelake.catalog.commits.plan import plan
from duckicelake.catalog.commits.requests import CommitBatch, to_request
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.iceberg.requests.bodies import parse_commit_table
from duckicelake.store.objects import open_objects
from duckicelake.store.s3 import StoreSettings
from tests.catalog.reading import load
from tests.rest.serving import Server
from tests.rest.writing.client import Client, write_file
from tests.support.lakes import FreshLake

TABLE = Ident(("main",), "t")
NEW = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": False, "type": "long"}]}


def list_requests(client: Client, metadata: Any) -> dict[str, tuple[Ident, Sequence[Any], Sequence[Any]]]:
    """Return a request of each kind that plans other rows, with its requirements and updates."""
    file = write_file(client, metadata, "one", {1: pa.array([7]), 2: pa.array(["x"])})
    created: list[Any] = [
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": NEW},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ]
    return {
        "set-properties": (TABLE, [], [{"action": "set-properties", "updates": {"a": "b"}}]),
        "append": (TABLE, [], client.append(metadata, 12345, [file])),
        "remove all rows": (TABLE, [], [{"action": "remove-snapshot-ref", "ref-name": "main"}]),
        "create": (Ident(("main",), "new"), [{"type": "assert-create"}], created),
    }


@pytest.mark.parametrize("kind", ["set-properties", "append", "remove all rows", "create"])
def test_the_same_locked_requests_give_the_same_rows_without_a_connection(lake: FreshLake, warehouse: Warehouse, kind: str) -> None:
    """Nothing is read while a commit is planned, neither rows nor a clock."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1::BIGINT AS id, 'a' AS name; INSERT INTO t SELECT range, 'b' FROM range(50)")
    metadata, keys = json.loads(load(warehouse).metadata), lake.store
    objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
    ident, requirements, updates = list_requests(Client(Server(0), objects), metadata)[kind]
    request = to_request(ident, parse_commit_table({"requirements": requirements, "updates": updates}))
    prepared = prepare(warehouse, request).take()
    assert prepared is not None
    with locking(warehouse, CommitBatch([request]), [prepared], yields=False) as locked:
        alone = replace(locked, commit=replace(locked.commit, conn=None))  # pyright: ignore
        planned = plan(alone)
        assert planned.steps
        assert plan(alone) == planned
