"""Principals, roles and grants that a lake keeps: what they open, and that what is taken is taken at once."""

import json
from typing import Any

import pytest

from duckicelake.access.grants import format_name
from tests.rest.auth.principals import GRANTS, Guarded, guard, secret_of
from tests.rest.auth.rules.managed import Managed, given
from tests.rest.auth.test_permissions import COMMIT, REGISTER, TABLE, VERSION, VIEW_COMMIT, change, identify
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake

T, OTHER, VIEW = "namespaces/a/tables/t", "namespaces/a/tables/other", "namespaces/a/views/v"
KEYS = "k" * 32
PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}


def test_a_grant_on_a_table_opens_that_table_alone(managed: Managed) -> None:
    """Lists show it and its namespace; what lies beside it is not there, and the namespace itself is closed."""
    managed.add("alice")
    assert managed.statuses("alice", T, "namespaces/a", "namespaces/a/tables") == [404, 404, 404]
    managed.give("read", "table:a.t", "alice")
    assert managed.statuses("alice", T, T, OTHER, VIEW, "namespaces/b/tables/t") == [200, 200, 404, 404, 404]
    assert managed.ask("alice", "GET", "namespaces").json["namespaces"] == [["a"]]
    assert managed.ask("alice", "GET", "namespaces/a/tables").json["identifiers"] == [identify("a", "t")]
    assert managed.ask("alice", "GET", "namespaces/a/views").json["identifiers"] == []
    assert managed.ask("alice", "HEAD", "namespaces/a").status == 204
    assert managed.ask("alice", "GET", "namespaces/a").status == 403
    assert managed.ask("alice", "POST", T, PROPERTY).status == 403
    assert managed.ask("alice", "POST", "namespaces/a/tables", TABLE).status == 403
    assert managed.ask("alice", "HEAD", OTHER).status == 404


STAGED = {"requirements": [{"type": "assert-create"}], "updates": []}
RENAMED = {"source": identify("a", "t"), "destination": identify("a", "other")}
ASKED: list[tuple[str, str, Any, dict[str, int]]] = [
    # method, path, body, and the answer to those who may; the others get 403
    ("GET", T, None, {"read": 200}),
    ("HEAD", T, None, dict.fromkeys(("list", "read", "write", "create", "drop", "manage"), 204)),
    ("GET", "namespaces/a/tables", None, dict.fromkeys(("list", "read", "write", "create", "drop", "manage"), 200)),
    ("GET", "namespaces/a", None, dict.fromkeys(("list", "read", "write", "create", "drop", "manage"), 200)),
    ("POST", T, COMMIT, {"write": 409}),
    ("POST", T, STAGED, {"create": 409}),
    ("POST", "namespaces/a/tables", TABLE, {"create": 409}),
    ("DELETE", "namespaces/a/tables/none", None, {"drop": 404}),
    ("POST", "namespaces/a/tables/none/unregister", None, {"drop": 404}),
    ("POST", "transactions/commit", change("a"), {"write": 409}),
    ("POST", "tables/rename", RENAMED, {}),
    ("GET", VIEW, None, {"read": 200}),
    ("POST", VIEW, VIEW_COMMIT, {"write": 409}),
    ("POST", "namespaces/a/views", {"name": "v", "schema": TABLE["schema"], "view-version": VERSION}, {"create": 409}),
    ("DELETE", "namespaces/a/views/none", None, {"drop": 404}),
    ("DELETE", "namespaces/a", None, {"manage": 409}),
    ("POST", "namespaces/a/properties", {"removals": ["x"]}, {"manage": 200}),
    ("POST", "namespaces", {"namespace": ["a"]}, {"manage": 409}),
    ("POST", "/management/v1/lake/grants", given("read", "table:a.t", "nobody"), {"manage": 404}),
    ("GET", "/management/v1/lake/principals", None, {}),
]


@pytest.mark.parametrize("privilege", ["list", "read", "write", "create", "drop", "manage"])
def test_each_privilege_opens_its_own_operations(managed: Managed, privilege: str) -> None:
    """On a namespace and what is in it; whoever has any sees that it is there."""
    managed.add("alice")
    managed.give(privilege, "namespace:a", "alice")
    answers = {(method, path): managed.ask("alice", method, path, body).status for method, path, body, _ in ASKED if body is not STAGED}
    expected = {(method, path): told.get(privilege, 403) for method, path, body, told in ASKED if body is not STAGED}
    assert answers == expected
    assert managed.ask("alice", "POST", T, STAGED).status == {"create": 409}.get(privilege, 403)
    assert managed.statuses("alice", "namespaces/b/tables/t") == [404]


DENIALS = [
    pytest.param("GET", T, None, "`read` on `table:a.t`, `namespace:a`, a namespace above it or `warehouse`.", id="load"),
    pytest.param("POST", "namespaces/a/tables", TABLE, "`create` on `namespace:a`, a namespace above it or `warehouse`.", id="create"),
    pytest.param("DELETE", T, None, "`drop` on `table:a.t`, `namespace:a`, a namespace above it or `warehouse`.", id="drop"),
    pytest.param("DELETE", "namespaces/a", None, "`manage` on `namespace:a`, a namespace above it or `warehouse`.", id="drop namespace"),
    pytest.param(
        "POST", "namespaces", {"namespace": ["new"]}, "`manage` on `namespace:new`, a namespace above it or `warehouse`.", id="new"
    ),
    pytest.param("POST", T, {"requirements": [], "updates": []}, "`write` or `create` on `table:a.t`,", id="commit"),
    pytest.param("POST", "namespaces/a/register", REGISTER, "`manage` on `warehouse`.", id="register"),
]


@pytest.mark.parametrize(("method", "path", "body", "needed"), DENIALS)
def test_a_denial_names_the_privilege_that_is_missing(managed: Managed, method: str, path: str, body: Any, needed: str) -> None:
    """And on what it can be granted; who has been given it is let do it, with `all` too."""
    managed.add("alice")
    managed.give("list", "warehouse", "alice")
    denied = managed.ask("alice", method, path, body)
    assert denied.error == (403, "NotAuthorizedException")
    assert f"It needs {needed}" in denied.json["error"]["message"]
    managed.give("all", "warehouse", "alice")
    assert managed.ask("alice", method, path, body).status != 403


def test_all_is_taken_as_it_is_given(managed: Managed) -> None:
    """On a table it is every privilege on that, and none in its namespace."""
    managed.add("alice")
    managed.give("all", "table:a.t", "alice")
    assert managed.ask("alice", "GET", T).status == 200
    assert managed.ask("alice", "POST", "namespaces/a/tables", TABLE).status in (403, 404)
    managed.take("all", "table:a.t", "alice")
    assert managed.ask("alice", "GET", T).status == 404


def test_a_table_is_renamed_by_who_may_drop_it_and_create_another(managed: Managed) -> None:
    """Either alone is not enough, on whatever of the two namespaces."""
    managed.add("alice")
    move = {"source": identify("a", "t"), "destination": identify("b", "moved")}
    managed.give("drop", "table:a.t", "alice")
    assert managed.ask("alice", "POST", "tables/rename", move).status == 404
    managed.give("list", "namespace:b", "alice")
    assert managed.ask("alice", "POST", "tables/rename", move).status == 403
    managed.give("create", "namespace:b", "alice")
    assert managed.ask("alice", "POST", "tables/rename", move).status == 204
    assert managed.ask("alice", "POST", "views/rename", {**move, "source": identify("a", "v")}).status == 404


def test_roles_give_what_is_granted_to_them_to_their_members(managed: Managed) -> None:
    """While they are members, and the role is there."""
    managed.add("alice")
    assert managed.manage("POST", "roles", {"name": "analysts"}).status == 204
    managed.give("read", "namespace:a", "role:analysts")
    assert managed.statuses("alice", T) == [404]
    for joins, status in (("PUT", 200), ("DELETE", 404), ("PUT", 200)):
        assert managed.manage(joins, "roles/analysts/members/alice").status == 204
        assert managed.statuses("alice", T) == [status]
    assert managed.manage("GET", "roles").json == {"roles": [{"name": "analysts", "members": ["alice"]}]}
    assert managed.manage("GET", "grants").json == {"grants": [given("read", "namespace:a", "role:analysts")]}
    assert managed.manage("DELETE", "roles/analysts").status == 204
    assert managed.statuses("alice", T) == [404]
    assert managed.manage("GET", "grants").json == {"grants": []}


def test_a_revoke_is_in_force_on_every_server_when_it_is_answered(lake: FreshLake) -> None:
    """Ready answers and all: the next request of the same token is refused, whichever server had it."""
    with guard(lake, token_keys=KEYS) as one:
        clients = ",".join(f"{name}:{secret_of(name)}|{grants}" for name, grants in GRANTS.items())
        with serve(make_settings(lake, require_auth=True, oauth_clients=clients, token_keys=KEYS)) as second:
            managed = Managed(one)
            managed.add("alice")
            token = managed.token("alice")
            for _ in range(15):
                managed.give("read", "table:a.t", "alice")
                assert [server.get(T, token).status for server in (second, one.server, second)] == [200, 200, 200]
                managed.take("read", "table:a.t", "alice")
                assert [server.get(T, token).status for server in (second, one.server)] == [404, 404]
            assert second.count("duckicelake_table_cache_total", outcome="hit") > 0


def test_grants_follow_what_they_are_on_and_nothing_else(managed: Managed) -> None:
    """DuckDB renames a table, another takes its name: the grant goes with the table; what is made again inherits nothing."""
    duck = managed.guarded.lake.duckdb()
    managed.add("alice")
    managed.give("read", "table:a.t", "alice")
    assert managed.statuses("alice", T) == [200]
    duck.execute("ALTER TABLE a.t RENAME TO moved")
    duck.execute("CREATE TABLE a.t AS SELECT 666 AS secret")
    assert managed.statuses("alice", T, "namespaces/a/tables/moved") == [404, 200]
    assert managed.guarded.ask("admin", "POST", "tables/rename", rename_to("moved", "b", "far")).status == 204
    assert managed.statuses("alice", "namespaces/a/tables/moved", "namespaces/b/tables/far") == [404, 200]
    assert managed.manage("GET", "grants").json["grants"] == [given("read", "table:b.far", "alice")]
    duck.execute("DROP TABLE b.far")
    duck.execute("CREATE TABLE b.far AS SELECT 666 AS secret")
    assert managed.statuses("alice", "namespaces/b/tables/far") == [404]
    duck.execute("CREATE OR REPLACE TABLE a.other AS SELECT 1 AS i")
    managed.give("read", "table:a.other", "alice")
    assert managed.statuses("alice", OTHER) == [200]
    duck.execute("CREATE OR REPLACE TABLE a.other AS SELECT 666 AS secret")
    assert managed.statuses("alice", OTHER) == [404]


def rename_to(source: str, namespace: str, target: str) -> dict[str, Any]:
    """A renaming out of the namespace a."""
    return {"source": identify("a", source), "destination": identify(namespace, target)}


def test_nothing_is_granted_on_one_of_two_tables_with_the_same_uuid(managed: Managed) -> None:
    """What is granted on either would open both; it can still be taken."""
    managed.add("alice")
    managed.give("read", "table:a.t", "alice")
    managed.guarded.lake.psycopg().execute(
        "UPDATE ducklake_table SET table_uuid = (SELECT table_uuid FROM ducklake_table JOIN ducklake_schema USING (schema_id)"
        " WHERE schema_name = 'a' AND table_name = 't') WHERE table_name = 'other'"
    )
    assert managed.manage("POST", "grants", given("write", "table:a.t", "alice")).status == 400
    managed.take("read", "table:a.t", "alice")
    assert managed.statuses("alice", T, OTHER) == [404, 404]


def test_grants_follow_views_and_namespaces_too(managed: Managed) -> None:
    """A view that is replaced over REST or renamed stays the same one; a namespace that is made again is another."""
    managed.add("alice")
    managed.give("read", "view:a.v", "alice")
    version = {**VERSION, "version-id": 2, "representations": [{"type": "sql", "sql": "SELECT 2 AS i", "dialect": "duckdb"}]}
    updates = [{"action": "add-view-version", "view-version": version}, {"action": "set-current-view-version", "view-version-id": -1}]
    updates.insert(0, {"action": "set-properties", "updates": {"replace.drop-dialect.allowed": "true"}})
    replaced = managed.guarded.ask("admin", "POST", VIEW, {"requirements": [], "updates": updates})
    assert replaced.status == 200, replaced.body
    assert managed.statuses("alice", VIEW) == [200]
    assert managed.guarded.ask("admin", "POST", "views/rename", rename_to("v", "b", "w")).status == 204
    assert managed.statuses("alice", VIEW, "namespaces/b/views/w", "namespaces/b/views/v") == [404, 200, 404]
    for _ in range(2):
        assert managed.guarded.ask("admin", "POST", "namespaces", {"namespace": ["new"]}).status == 200
        assert managed.statuses("alice", "namespaces/new") == [404]
        managed.give("read", "namespace:new", "alice")
        assert managed.statuses("alice", "namespaces/new") == [200]
        assert managed.guarded.ask("admin", "DELETE", "namespaces/new").status == 204


def test_a_grant_on_a_namespace_reaches_what_is_nested_and_what_comes(managed: Managed) -> None:
    """And one on the warehouse everything, but for what only its manager may."""
    managed.add("alice")
    # it is there by what is nested in it alone, until it has something of its own
    assert managed.manage("POST", "grants", given("read", "namespace:deep", "alice")).status == 404
    assert managed.guarded.ask("admin", "POST", "namespaces/deep/properties", {"updates": {"k": "1"}}).status == 200
    managed.give("read", "namespace:deep", "alice")
    assert managed.statuses("alice", "namespaces/deep%1Fer/tables/t", T) == [200, 404]
    managed.give("read,create", "warehouse", "alice")
    assert managed.statuses("alice", "namespaces/deep%1Fer/tables/t", T) == [200, 200]
    placed = {**TABLE, "name": "mine", "location": f"{managed.guarded.lake.iceberg_path}x/y"}
    assert managed.ask("alice", "POST", "namespaces/a/tables", placed).status == 403
    managed.give("manage", "warehouse", "alice")
    assert managed.ask("alice", "POST", "namespaces/a/tables", placed).status == 200
    assert managed.ask("alice", "GET", "/management/v1/lake/principals").json == {"principals": [{"name": "alice", "has-secret": True}]}


def test_who_manages_a_namespace_grants_in_it_and_nowhere_else(managed: Managed) -> None:
    """Nor may a token with a narrower scope."""
    managed.add("alice")
    managed.add("bob")
    managed.give("manage", "namespace:a", "alice")
    grants = "/management/v1/lake/grants"
    for on, status in (("table:a.t", 204), ("namespace:a", 204), ("table:b.t", 404), ("namespace:b", 404), ("warehouse", 403)):
        assert managed.ask("alice", "POST", grants, given("read", on, "bob")).status == status, on
    assert managed.statuses("bob", T, "namespaces/b/tables/t") == [200, 404]
    assert managed.ask("alice", "POST", f"{grants}/revoke", given("read", "namespace:a", "bob")).status == 204
    for method, path in (("GET", "grants"), ("GET", "roles"), ("POST", "principals"), ("POST", "principals/bob/rotate"), ("POST", "roles")):
        assert managed.ask("alice", method, f"/management/v1/lake/{path}", {"name": "x"}).status == 403
    narrow = managed.guarded.token("admin", "ns:a:*")
    sent = {"Authorization": f"Bearer {narrow}"}
    body = json.dumps({"name": "mallory"}).encode()
    assert managed.guarded.server.ask("POST", "/management/v1/lake/principals", sent, body).status == 403


def test_what_settings_and_the_lake_grant_is_held_together(managed: Managed) -> None:
    """A client of settings that the lake knows by its name, with no secret there."""
    assert managed.guarded.get("reader", "namespaces/b/tables/t").status == 404
    assert managed.manage("POST", "principals", {"name": "reader", "has-secret": False}).json == {"name": "reader", "secret": None}
    managed.give("read", "table:b.t", "reader")
    assert [managed.guarded.get("reader", path).status for path in ("namespaces/b/tables/t", T, "namespaces/b/tables/other")] == [
        200,
        200,
        404,
    ]
    assert managed.guarded.get("reader", "namespaces").json["namespaces"] == [["a"], ["b"]]
    assert managed.manage("DELETE", "principals/reader").status == 204
    assert [managed.guarded.get("reader", path).status for path in ("namespaces/b/tables/t", T)] == [404, 200]


def test_a_scope_narrows_what_a_lake_grants(managed: Managed) -> None:
    """To less than is granted, never to more."""
    managed.add("alice")
    managed.give("read,write", "namespace:a", "alice")
    managed.give("read,write", "table:b.t", "alice")
    token = managed.token("alice", "ns:a:r")
    body = json.dumps(PROPERTY).encode()
    assert managed.guarded.server.get(T, token).status == 200
    assert managed.guarded.server.ask("POST", T, token, body).status == 403
    assert managed.guarded.server.get("namespaces/b/tables/t", token).status == 404
    assert managed.ask_token("alice", "ns:a:rw").status == 400
    assert managed.ask_token("alice", "ns:b:r").json["error"] == "invalid_scope"
    managed.take("read", "namespace:a", "alice")
    assert managed.guarded.server.get(T, token).status == 404


@pytest.mark.parametrize(
    "body",
    [
        given("read", "table:t", "alice"),
        given("read", "schema:a", "alice"),
        given("read", "warehouse:a", "alice"),
        given("create", "table:a.t", "alice"),
        given("everything", "namespace:a", "alice"),
        given("read", "namespace:a%2", "alice"),
        given("read", "namespace:a", "al ice"),
        {"privileges": [], "on": "namespace:a", "to": "alice"},
        {"privileges": [1], "on": "namespace:a", "to": "alice"},
        {"on": "namespace:a"},
        [],
    ],
    ids=str,
)
def test_what_says_nothing_is_refused(guarded: Guarded, body: Any) -> None:
    """400, and nothing is granted."""
    assert guarded.ask("admin", "POST", "/management/v1/lake/grants", body).error[0] == 400


def test_names_are_escaped_as_grants_are(managed: Managed) -> None:
    """A dot, a colon or a quote in a name means itself."""
    name = "a.b:\"c'"
    managed.add("alice")
    assert managed.guarded.ask("admin", "POST", "namespaces/a/tables", {**TABLE, "name": name}).status == 200
    managed.give("read", f"table:{format_name(('a', name))}", "alice")
    assert managed.ask("alice", "GET", "namespaces/a/tables").json["identifiers"] == [identify("a", name)]


def test_nothing_is_managed_where_nobody_says_who_they_are(lake: FreshLake) -> None:
    """501: everybody would be its administrator."""
    with serve(make_settings(lake)) as server:
        assert server.get("/management/v1/lake/grants").error == (501, "UnsupportedOperationException")
