"""Requests about views of the namespace `main`, and what their answers say."""

import json
from collections.abc import Mapping
from typing import Any

from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from tests.rest.serving import Answer, Server
from tests.support.lakes import FreshLake

COLUMNS: Mapping[str, Any] = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "i", "required": False, "type": "int"},
        {"id": 2, "name": "name", "required": False, "type": "string"},
    ],
}
VIEWS = "namespaces/main/views"


def post(server: Server, path: str, body: Any) -> Answer:
    """Send JSON."""
    return server.ask("POST", path, {"content-type": "application/json"}, json.dumps(body).encode())


def version(sql: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A view version with a text in each of these dialects."""
    texts = [{"type": "sql", "sql": text, "dialect": dialect} for dialect, text in sql.items()]
    known = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1000, "summary": {"engine": "mine"}, "default-namespace": ["main"]}
    return {**known, "representations": texts, **more}


def create(server: Server, name: str, sql: Mapping[str, str], **more: Any) -> Answer:
    """Make a view in `main`."""
    return post(server, VIEWS, {"name": name, "schema": COLUMNS, "view-version": version(sql), "properties": {}, **more})


def load(server: Server, name: str) -> Any:
    """Return a view's metadata."""
    return server.get(f"{VIEWS}/{name}").json["metadata"]


def commit(server: Server, name: str, *updates: Any, uuid: str | None = None) -> Answer:
    """Change a view."""
    requirements = [] if uuid is None else [{"type": "assert-view-uuid", "uuid": uuid}]
    return post(server, f"{VIEWS}/{name}", {"requirements": requirements, "updates": list(updates)})


def replace_text(server: Server, name: str, sql: Mapping[str, str]) -> Answer:
    """Give a view another text."""
    added = {"action": "add-view-version", "view-version": version(sql)}
    return commit(server, name, added, {"action": "set-current-view-version", "view-version-id": -1})


def current(metadata: Any) -> Any:
    """Return the current version."""
    return next(item for item in metadata["versions"] if item["version-id"] == metadata["current-version-id"])


def texts(metadata: Any) -> dict[str, str]:
    """Return the current version's texts by dialect."""
    return {item["dialect"]: item["sql"] for item in current(metadata)["representations"]}


def names(metadata: Any) -> list[tuple[str, Any]]:
    """Return the current version's columns, names and types."""
    schema = next(item for item in metadata["schemas"] if item["schema-id"] == current(metadata)["schema-id"])
    return [(field["name"], field["type"]) for field in schema["fields"]]


def ident(name: str, *levels: str) -> dict[str, Any]:
    """A name in `main`, or in another namespace."""
    return {"namespace": list(levels or ("main",)), "name": name}


def count_snapshots(lake: FreshLake) -> int:
    """Return how many lake snapshots there are."""
    row = lake.psycopg().execute("SELECT count(*) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def open_store(lake: FreshLake) -> Objects:
    """The objects of a lake."""
    keys = lake.store
    return open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
