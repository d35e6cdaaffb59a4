"""Requests that bring and take names: tables that are registered and unregistered, views, namespaces."""

from typing import Any

from duckdb import DuckDBPyConnection

from tests.crashes.asked import BASE_ROWS, FRESH_ROWS, Asked, Fact, Rows, Stand, table_path
from tests.rest.serving import Server
from tests.rest.writing.views import requests
from tests.rest.writing.views.requests import COLUMNS, VIEWS, texts, version

FIRST, SECOND = "SELECT 1 AS i, 'a' AS name", "SELECT 2 AS i, 'b' AS name"


def find_view(name: str) -> Fact:
    """What both sides know of a view: its texts, and what DuckDB selects from it."""

    def find(server: Server, duck: DuckDBPyConnection) -> Rows:
        answer = server.get(f"{VIEWS}/{name}")
        known = duck.execute("SELECT count(*) FROM duckdb_views() WHERE view_name = ?", [name]).fetchall()
        assert known == [(int(answer.status == 200),)], name
        return [texts(answer.json["metadata"])["spark"], *duck.execute(f"FROM {name}").fetchall()] if known == [(1,)] else None

    return find


def find_namespace(name: str) -> Fact:
    """What both sides know of a namespace: its property, and that it is there."""

    def find(server: Server, duck: DuckDBPyConnection) -> Rows:
        answer = server.get(f"namespaces/{name}")
        known = duck.execute("SELECT count(*) FROM duckdb_schemas() WHERE schema_name = ?", [name]).fetchall()
        assert known == [(int(answer.status == 200),)], name
        return [answer.json["properties"].get("k")] if known == [(1,)] else None

    return find


def ask(request: tuple[str, str, Any], name: str, fact: tuple[Fact, Rows, Rows], *, is_known: bool = False) -> Asked:
    """A request (method, path, body) that changes one fact (how to find it, before, after)."""
    (method, path, body), (find, before, after) = request, fact
    return Asked(method, path, body, {name: before}, {name: after}, is_known, {name: find})


def register(stand: Stand, name: str) -> Asked:
    """A table that was dropped comes back."""
    location = find_metadata(stand, stand.make(name) and name)
    assert stand.client.server.ask("DELETE", table_path(name)).status == 204
    return ask_to_register(name, location)


def register_older(stand: Stand, name: str) -> Asked:
    """A table that was dropped comes back as it once was, so as another one."""
    location = find_metadata(stand, stand.make(name) and name)
    stand.duck.execute(f"INSERT INTO {name} VALUES {', '.join(str(row).replace('None', 'NULL') for row in FRESH_ROWS)}")
    assert find_metadata(stand, name) != location
    assert stand.client.server.ask("DELETE", table_path(name)).status == 204
    return ask_to_register(name, location)


def find_metadata(stand: Stand, name: str) -> str:
    """A table's newest metadata file."""
    return stand.client.server.get(table_path(name)).json["metadata-location"]


def ask_to_register(name: str, location: str) -> Asked:
    """The request for a table's return."""
    body = {"name": name, "metadata-location": location}
    return Asked("POST", "namespaces/main/register", body, {name: None}, {name: BASE_ROWS}, is_known=False)


def unregister(stand: Stand, name: str) -> Asked:
    stand.make(name)
    return Asked("POST", f"{table_path(name)}/unregister", None, {name: BASE_ROWS}, {name: None}, is_known=False)


def create_view(stand: Stand, name: str) -> Asked:
    body = {"name": name, "schema": COLUMNS, "view-version": version({"spark": FIRST}), "properties": {}}
    return ask(("POST", VIEWS, body), name, (find_view(name), None, [FIRST, (1, "a")]))


def replace_view(stand: Stand, name: str) -> Asked:
    made = requests.create(stand.client.server, name, {"spark": FIRST})
    assert made.status == 200
    updates = [
        {"action": "add-view-version", "view-version": version({"spark": SECOND})},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    body = {"requirements": [{"type": "assert-view-uuid", "uuid": made.json["metadata"]["view-uuid"]}], "updates": updates}
    return ask(("POST", f"{VIEWS}/{name}", body), name, (find_view(name), [FIRST, (1, "a")], [SECOND, (2, "b")]), is_known=True)


def drop_view(stand: Stand, name: str) -> Asked:
    assert requests.create(stand.client.server, name, {"spark": FIRST}).status == 200
    return ask(("DELETE", f"{VIEWS}/{name}", None), name, (find_view(name), [FIRST, (1, "a")], None))


def create_namespace(stand: Stand, name: str) -> Asked:
    body = {"namespace": [name], "properties": {"k": "v"}}
    return ask(("POST", "namespaces", body), name, (find_namespace(name), None, ["v"]))


def change_namespace(stand: Stand, name: str) -> Asked:
    assert stand.client.post("namespaces", {"namespace": [name]}).status == 200
    body = {"removals": [], "updates": {"k": "v"}}
    return ask(("POST", f"namespaces/{name}/properties", body), name, (find_namespace(name), [None], ["v"]), is_known=True)


def drop_namespace(stand: Stand, name: str) -> Asked:
    assert stand.client.post("namespaces", {"namespace": [name], "properties": {"k": "v"}}).status == 200
    return ask(("DELETE", f"namespaces/{name}", None), name, (find_namespace(name), ["v"], None))


UNDROP = "/management/v1/lake/undrop"


def undrop(stand: Stand, name: str) -> Asked:
    """A dropped table comes back by its name."""
    stand.make(name)
    assert stand.client.server.ask("DELETE", table_path(name)).status == 204
    return Asked("POST", UNDROP, {"namespace": ["main"], "name": name}, {name: None}, {name: BASE_ROWS}, is_known=False)


def undrop_namespace(stand: Stand, name: str) -> Asked:
    """A namespace comes back with its property and the table that went with it."""
    assert stand.client.post("namespaces", {"namespace": [name], "properties": {"k": "v"}}).status == 200
    stand.duck.execute(f"CREATE TABLE {name}.t AS SELECT range AS i FROM range(20)")
    assert stand.client.server.get(f"namespaces/{name}/tables/t").status == 200
    stand.duck.execute(f"DROP SCHEMA {name} CASCADE")

    def find(server: Server, duck: DuckDBPyConnection) -> Rows:
        found = find_namespace(name)(server, duck)
        table = server.get(f"namespaces/{name}/tables/t").status
        assert table == (404 if found is None else 200)
        return None if found is None else [*found, *duck.execute(f"SELECT count(*) FROM {name}.t").fetchall()]

    return ask(("POST", UNDROP, {"namespace": [name]}), name, (find, None, ["v", (20,)]))


NAME_KINDS = (
    undrop,
    undrop_namespace,
    register,
    register_older,
    unregister,
    create_view,
    replace_view,
    drop_view,
    create_namespace,
    change_namespace,
    drop_namespace,
)
