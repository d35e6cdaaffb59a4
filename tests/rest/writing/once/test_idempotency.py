"""Requests with an Idempotency-Key: done once, answered alike, by any server."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, open_client, read_rows
from tests.rest.writing.queueing import LOCK, QUEUE
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import count_waiting, wait_for

SET = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
VIEW = {"representations": [{"type": "sql", "sql": "SELECT 1 AS id", "dialect": "duckdb"}], "default-namespace": ["main"]}
VERSION = {**VIEW, "version-id": 1, "schema-id": 0, "timestamp-ms": 1000, "summary": {}}
NEW_VIEW = {"name": "w", "schema": COLUMNS, "view-version": VERSION, "properties": {}}
SET_VIEW = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
RENAME_VIEW = {"source": {"namespace": ["main"], "name": "v"}, "destination": {"namespace": ["main"], "name": "w"}}
RENAME = {"source": {"namespace": ["main"], "name": "t"}, "destination": {"namespace": ["main"], "name": "u"}}


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, the view main.v and the namespace n."""
    client = open_client(server, lake)
    assert client.create().status == 200
    assert client.post("namespaces", {"namespace": ["n"]}).status == 200
    assert client.post("namespaces/main/views", {**NEW_VIEW, "name": "v"}).status == 200
    return client


def ask(server: Server, method: str, path: str, body: Any, key: str) -> Answer:
    """Send a request with a key."""
    headers = {"content-type": "application/json", "idempotency-key": key}
    return server.ask(method, path, headers, None if body is None else json.dumps(body).encode())


WRITES = [
    pytest.param("POST", "namespaces/main/tables", {"name": "new", "schema": COLUMNS}, id="create table"),
    pytest.param("POST", "namespaces/main/tables/t", SET, id="commit"),
    pytest.param("POST", "tables/rename", RENAME, id="rename"),
    pytest.param("POST", "transactions/commit", {"table-changes": [SET | {"identifier": RENAME["source"]}]}, id="transaction"),
    pytest.param("DELETE", "namespaces/main/tables/t", None, id="drop table"),
    pytest.param("DELETE", "namespaces/main/tables/t?purgeRequested=true", None, id="purge"),
    pytest.param("POST", "namespaces", {"namespace": ["new"], "properties": {"a": "b"}}, id="create namespace"),
    pytest.param("POST", "namespaces/n/properties", {"updates": {"a": "b"}, "removals": []}, id="properties"),
    pytest.param("DELETE", "namespaces/n", None, id="drop namespace"),
    pytest.param("POST", "namespaces/main/views", NEW_VIEW, id="create view"),
    pytest.param("POST", "namespaces/main/views/v", SET_VIEW, id="replace view"),
    pytest.param("POST", "views/rename", RENAME_VIEW, id="rename view"),
    pytest.param("DELETE", "namespaces/main/views/v", None, id="drop view"),
]


@pytest.mark.parametrize(("method", "path", "body"), whole_after(3, WRITES))
def test_a_copy_changes_nothing(client: Client, lake: FreshLake, method: str, path: str, body: Any) -> None:
    """It gets the answer of the first; so it does from another server."""
    key = str(uuid4())
    first = ask(client.server, method, path, body, key)
    assert first.status in (200, 204)
    rows = read_rows(lake)
    again = ask(client.server, method, path, body, key)
    assert (again.status, again.body) == (first.status, first.body)
    with serve(make_settings(lake)) as other:
        again = ask(other, method, path, body, key)
    assert (again.status, again.body) == (first.status, first.body)
    assert read_rows(lake) == rows


def test_a_registration_is_repeated(client: Client) -> None:
    """It answers with the table."""
    body = {"name": "t", "metadata-location": client.server.get("namespaces/main/tables/t").json["metadata-location"]}
    client.server.ask("DELETE", "namespaces/main/tables/t")
    key = str(uuid4())
    first = ask(client.server, "POST", "namespaces/main/register", body, key)
    assert first.status == 200
    assert ask(client.server, "POST", "namespaces/main/register", body, key).body == first.body


def test_a_registration_of_a_view_is_repeated(client: Client) -> None:
    """It answers with the view."""
    body = {"name": "w", "metadata-location": client.server.get("namespaces/main/views/v").json["metadata-location"]}
    client.server.ask("DELETE", "namespaces/main/views/v")
    key = str(uuid4())
    first = ask(client.server, "POST", "namespaces/main/register-view", body, key)
    assert first.status == 200
    assert ask(client.server, "POST", "namespaces/main/register-view", body, key).body == first.body


MADE = [
    pytest.param("tables", "new", "namespaces/main/tables", {"name": "new", "schema": COLUMNS}, id="create table"),
    pytest.param("tables", "t", "namespaces/main/tables/t", SET, id="commit"),
    pytest.param("tables", "t", "namespaces/main/tables/t/unregister", None, id="unregister table"),
    pytest.param("tables", "t", "namespaces/main/register", {"name": "t"}, id="register table"),
    pytest.param("views", "w", "namespaces/main/views", NEW_VIEW, id="create view"),
    pytest.param("views", "v", "namespaces/main/views/v", SET_VIEW, id="replace view"),
    pytest.param("views", "v", "namespaces/main/register-view", {"name": "v"}, id="register view"),
]


@pytest.mark.parametrize(("kind", "name", "path", "body"), whole_after(1, MADE))
def test_a_copy_never_shows_another_table(client: Client, kind: str, name: str, path: str, body: Any) -> None:
    """It is answered with what the request made, whatever has its name by now; when that is gone, that it was done."""
    key, server, here = str(uuid4()), client.server, f"namespaces/main/{kind}"
    if "register" in path and body is not None:
        body = {**body, "metadata-location": server.get(f"{here}/{name}").json["metadata-location"]}
        server.ask("DELETE", f"{here}/{name}")
    first = ask(server, "POST", path, body, key)
    assert first.status == 200
    is_gone = path.endswith("unregister")
    if not is_gone:
        names = [{"namespace": ["main"], "name": each} for each in (name, "elsewhere")]
        assert client.post(f"{kind}/rename", {"source": names[0], "destination": names[1]}).status == 204
    uuid = f"{kind[:-1]}-uuid"

    def see_again() -> None:
        again = ask(server, "POST", path, body, key)
        assert (again.status, again.json.get("metadata", {}).get(uuid)) == (200, first.json["metadata"][uuid]), again.body

    see_again()
    assert client.post(here, {"name": name, "schema": COLUMNS, **({"view-version": VERSION} if kind == "views" else {})}).status == 200
    see_again()
    if is_gone:
        server.ask("DELETE", f"{here}/{name}")
        see_again()
        return
    assert server.ask("DELETE", f"{here}/elsewhere").status == 204
    gone = ask(server, "POST", path, body, key)
    assert gone.error == (500, "CommitStateUnknownException")
    assert f"The commit to main.{name} is done" in gone.json["error"]["message"]
    assert "dropped or replaced" in gone.json["error"]["message"]


@pytest.mark.parametrize(("kind", "name", "path", "body"), whole_after(1, MADE))
def test_a_key_of_an_older_server_is_answered_by_name(client: Client, lake: FreshLake, kind: str, name: str, path: str, body: Any) -> None:
    """It noted no uuid: what has the name by now is shown, and when nothing has, that it was done; so is what was unregistered."""
    key, server, here = str(uuid4()), client.server, f"namespaces/main/{kind}"
    if "register" in path and body is not None:
        body = {**body, "metadata-location": server.get(f"{here}/{name}").json["metadata-location"]}
        server.ask("DELETE", f"{here}/{name}")
    first = ask(server, "POST", path, body, key)
    assert first.status == 200
    lake.psycopg().execute("UPDATE iceberg_idempotency SET object_uuid = NULL")
    uuid = f"{kind[:-1]}-uuid"
    if not path.endswith("unregister"):
        again = ask(server, "POST", path, body, key)
        assert (again.status, again.json["metadata"][uuid]) == (200, first.json["metadata"][uuid]), again.body
        assert server.ask("DELETE", f"{here}/{name}").status == 204
    gone = ask(server, "POST", path, body, key)
    assert gone.error == (500, "CommitStateUnknownException")
    assert f"The commit to main.{name} is done" in gone.json["error"]["message"]
    if path.endswith("unregister"):
        return
    again = client.post(here, {"name": name, "schema": COLUMNS, **({"view-version": VERSION} if kind == "views" else {})})
    again = ask(server, "POST", path, body, key)
    assert (again.status, again.json["metadata"][uuid]) == (200, again.json["metadata"][uuid]), again.body


def test_a_refusal_is_final(client: Client, lake: FreshLake) -> None:
    """The copy is refused alike, though it could be done by now; a new key may do it."""
    key, create = str(uuid4()), {"name": "t", "schema": COLUMNS}
    first = ask(client.server, "POST", "namespaces/main/tables", create, key)
    assert first.error == (409, "AlreadyExistsException")
    client.server.ask("DELETE", "namespaces/main/tables/t")
    rows = read_rows(lake)
    assert ask(client.server, "POST", "namespaces/main/tables", create, key).body == first.body
    assert read_rows(lake) == rows
    assert ask(client.server, "POST", "namespaces/main/tables", create, str(uuid4())).status == 200


def test_a_key_is_of_one_request(client: Client, lake: FreshLake) -> None:
    """Another request with it is refused, and so is a key that is none; nothing changes."""
    key = str(uuid4())
    assert ask(client.server, "POST", "namespaces/main/tables/t", SET, key).status == 200
    rows = read_rows(lake)
    assert ask(client.server, "DELETE", "namespaces/main/tables/t", None, key).error == (422, "UnprocessableEntityException")
    assert ask(client.server, "DELETE", "namespaces/main/tables/t", None, "mine").error == (400, "BadRequestException")
    assert read_rows(lake) == rows


COPIES = 6


@pytest.mark.parametrize(
    ("method", "path", "body", "racing"),
    whole_after(
        1,
        [
            # One of each server waits for the lake, and the others for their turn.
            pytest.param("POST", "namespaces/main/tables", {"name": "new", "schema": COLUMNS}, 2, id="create table"),
            pytest.param("DELETE", "namespaces/main/tables/t", None, 2, id="drop table"),
            # done twice, the second would hear that nothing was there to remove
            pytest.param("POST", "namespaces/n/properties", {"removals": ["a"]}, COPIES, id="properties"),
        ],
    ),
)
def test_copies_at_the_same_moment_are_one(client: Client, lake: FreshLake, method: str, path: str, body: Any, racing: int) -> None:
    """Those that wait for the lake have found nothing of each other: one does it, and all hear that it is done."""
    assert client.post("namespaces/n/properties", {"updates": {"a": "b"}}).status == 200
    key, before = str(uuid4()), count_snapshots(lake)
    other, look = lake.psycopg(autocommit=False), lake.psycopg()
    other.execute(LOCK)
    with serve(make_settings(lake)) as second, ThreadPoolExecutor(COPIES) as pool:
        servers = (client.server, second)
        sent = [pool.submit(ask, servers[number % 2], method, path, body, key) for number in range(COPIES)]
        try:
            wait_for(lambda: count_waiting(look, "ducklake_snapshot") == racing, "copies that wait for the lake")
            wait_for(lambda: sum(server.count(QUEUE) for server in servers) == COPIES - racing, "the others to wait for their turn")
        finally:
            other.rollback()
        answers = [copy.result() for copy in sent]
    assert {answer.status for answer in answers} <= {200, 204}
    assert len({answer.body for answer in answers}) == 1
    assert count_snapshots(lake) == before + 1


def count_snapshots(lake: FreshLake) -> int:
    """How many lake snapshots there are."""
    row = lake.psycopg().execute("SELECT count(*) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def test_clients_are_told(client: Client) -> None:
    """How long a key is known; it is known for twice that."""
    assert client.server.get("/v1/config").json["idempotency-key-lifetime"] == "PT30M"
