"""Who may do what in the catalog behind a route: decided by names before anything is sent."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest

from duckicelake.access.grants import ALL_GRANTS, Grant, Grants, Rights
from duckicelake.access.policy import parse_route_grants
from duckicelake.access.sessions import Session
from duckicelake.errors import BadRequest, NoSuchTable
from duckicelake.gateway.route import Route
from duckicelake.rest.auth.route_permissions import check_forwarded, read_names, split_namespace
from tests.gateway.fake import FakeCatalog, Reply, Seen, fake, routes
from tests.rest.serving import Answer, Server

PRINCIPALS = {"admin": "*", "reader": "ns:x:r", "writer": "ns:x:r", "appender": "ns:x:r", "stranger": "ns:a:*"}
CLIENTS = ",".join(f"{name}:secret|{grants}" for name, grants in PRINCIPALS.items())
GRANTS = parse_route_grants(
    [
        *("read on namespace:a to reader", "read, write, create, drop on namespace:a to writer"),
        *("list on table:b.t to reader", "list, write on namespace:a to appender"),
    ]
)
LISTS: Mapping[str, Any] = {
    "/v1/up/namespaces": {"namespaces": [["a"], ["b"], ["c"]]},
    "/v1/up/namespaces/a/tables": {"identifiers": [{"namespace": ["a"], "name": "t"}]},
    "/v1/up/namespaces/b/tables": {"identifiers": [{"namespace": ["b"], "name": "t"}, {"namespace": ["b"], "name": "u"}]},
}
KEYS = {"s3.access-key-id": "k", "s3.secret-access-key": "s"}
LOADED = {"metadata": {}, "config": {**KEYS, "s3.endpoint": "e"}, "storage-credentials": [{"prefix": "s3://b", "config": KEYS}]}
HIDDEN, DENIED = 404, 403


def answer(seen: Seen) -> Reply:
    """Lists by path, and keys with everything else."""
    return Reply(body=json.dumps(LISTS.get(seen.path.partition("?")[0], LOADED)).encode())


@dataclass(frozen=True, slots=True)
class Stand:
    """A guarded server with routes to one fake catalog: `other`, and `still`, which is read only."""

    server: Server
    catalog: FakeCatalog

    def ask(self, principal: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask as a principal, below the route `other` unless the path begins with a slash."""
        basic = {"Authorization": "Basic " + base64.b64encode(f"{principal}:secret".encode()).decode()}
        form = {"Content-Type": "application/x-www-form-urlencoded", **basic}
        granted = self.server.ask("POST", "/v1/oauth/tokens", form, urlencode({"grant_type": "client_credentials"}).encode())
        sent = {"Authorization": f"Bearer {granted.json['access_token']}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        encoded = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return self.server.ask(method, path if path.startswith("/") else f"/v1/other/{path}", sent, encoded)


@pytest.fixture(scope="module")
def shared() -> Iterator[Stand]:
    """The server for all tests of this file."""
    with fake(answer, {"overrides": {"prefix": "up"}}) as catalog:
        only = Grants((Grant(("a",), ALL_GRANTS.each[0].rights),))
        each = (
            Route("other", catalog.uri, grants=GRANTS),
            Route("still", catalog.uri, grants=GRANTS, read_only=True),
            Route("part", catalog.uri, grants=GRANTS, namespaces=only),
        )
        with routes(*each, catch_all="other", clients=CLIENTS) as server:
            yield Stand(server, catalog)


@pytest.fixture
def stand(shared: Stand) -> Stand:
    """The shared server, with nothing seen yet."""
    shared.catalog.seen.clear()
    return shared


def identify(*names: str) -> Mapping[str, Any]:
    """An identifier in a body."""
    return {"namespace": list(names[:-1]), "name": names[-1]}


COMMIT = {"requirements": [], "updates": []}
CREATION = {"requirements": [{"type": "assert-create"}], "updates": []}
TWICE = b'{"table-changes":[],"table-changes":[{"identifier":{"namespace":["b"],"name":"t"},"requirements":[],"updates":[]}]}'
SIGNED = {"region": "r", "uri": "u", "headers": {}}


@pytest.mark.parametrize(
    ("method", "path", "body", "statuses"),
    [
        ("GET", "namespaces", None, (200, 200, 200)),
        ("GET", "namespaces?parent=c", None, (HIDDEN, HIDDEN, 200)),
        ("POST", "namespaces", {"namespace": ["n"]}, (DENIED, DENIED, 200)),
        ("GET", "namespaces/a", None, (200, 200, 200)),
        ("GET", "namespaces/c", None, (HIDDEN, HIDDEN, 200)),
        ("DELETE", "namespaces/a", None, (DENIED, DENIED, 200)),
        ("GET", "namespaces/a/tables/t", None, (200, 200, 200)),
        ("GET", "namespaces/c/tables/t", None, (HIDDEN, HIDDEN, 200)),
        ("GET", "namespaces/b/tables/t", None, (DENIED, HIDDEN, 200)),
        ("HEAD", "namespaces/b/tables/t", None, (200, HIDDEN, 200)),
        ("POST", "namespaces/a/tables/t", COMMIT, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables/new", CREATION, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables", {"name": "n"}, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables/t", {**COMMIT, "identifier": identify("a", "t")}, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables/t", {**COMMIT, "identifier": identify("b", "t")}, (DENIED, HIDDEN, 200)),
        ("POST", "namespaces/a/views/v", {**COMMIT, "identifier": identify("a", "v")}, (DENIED, 200, 200)),
        ("POST", "namespaces/a/views/v", {**COMMIT, "identifier": identify("c", "v")}, (DENIED, HIDDEN, 200)),
        ("POST", "namespaces/a/register", {"name": "n"}, (DENIED, DENIED, 200)),
        ("DELETE", "namespaces/a/tables/t", None, (DENIED, 200, 200)),
        ("POST", "tables/rename", {"source": identify("a", "t"), "destination": identify("a", "u")}, (DENIED, 200, 200)),
        ("POST", "tables/rename", {"source": identify("c", "t"), "destination": identify("a", "u")}, (HIDDEN, HIDDEN, 200)),
        ("POST", "transactions/commit", {"table-changes": [{"identifier": identify("a", "t"), **COMMIT}]}, (DENIED, 200, 200)),
        ("POST", "transactions/commit", {"table-changes": [{"identifier": identify("c", "t"), **COMMIT}]}, (HIDDEN, HIDDEN, 200)),
        ("POST", "transactions/commit", TWICE, (400, 400, 200)),
        ("GET", "namespaces/a/tables/t/credentials", None, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables/t/sign", {**SIGNED, "method": "GET"}, (200, 200, 200)),
        ("POST", "namespaces/a/tables/t/sign", {**SIGNED, "method": "PUT"}, (DENIED, 200, 200)),
        ("POST", "namespaces/a/tables/t/plan", {}, (200, 200, 200)),
        ("GET", "ducklake-credentials", None, (DENIED, DENIED, 200)),
        ("GET", "generic-tables/a/t", None, (DENIED, DENIED, 200)),
        ("GET", "aws/s3/sign", None, (DENIED, DENIED, 200)),
        ("GET", "namespaces/a+/tables/t", None, (HIDDEN, HIDDEN, 200)),
        ("GET", "namespaces/a/../c/tables/t", None, (400, 400, 400)),
        ("GET", "namespaces/%2E%2E/tables/t", None, (400, 400, 400)),
        ("DELETE", "namespaces/a/tables/..;", None, (400, 400, 400)),
        ("DELETE", "namespaces/a/tables/%2E%2E%3Bx", None, (400, 400, 400)),
        ("GET", "namespaces/a/tables/x%2F..%2F..%2F..%2Fc%2Ftables%2Ft", None, (400, 400, 400)),
        ("GET", "namespaces/a/tables/x%5C%2e%2e;y%5Ct", None, (400, 400, 400)),
        ("GET", "/v1/elsewhere/namespaces/a", None, (DENIED, DENIED, 200)),
        ("GET", "/v1/namespaces", None, (DENIED, DENIED, 200)),
        ("GET", "/v1/config?warehouse=lakefs://repo", None, (DENIED, DENIED, 200)),
        ("GET", "/v1/config?warehouse=other", None, (200, 200, 200)),
    ],
)
def test_each_principal_may_do_what_it_has_rights_for(stand: Stand, method: str, path: str, body: Any, statuses: tuple[int, ...]) -> None:
    """403 or 404 as in a lake; a stranger does not learn that there is a route. Nothing is sent of what is refused."""
    for principal, status in zip(("reader", "writer", "admin"), statuses, strict=True):
        stand.catalog.seen.clear()
        assert stand.ask(principal, method, path, body).status == status, principal
        assert bool(stand.catalog.asked) == (status == 200 and "config" not in path)
    answered = stand.ask("stranger", method, path, body)
    assert answered.status == (400 if "%2E" in path and not path.startswith("namespaces") else HIDDEN)
    if method != "HEAD":
        assert answered.error == (404, "NoSuchWarehouseException")


def test_lists_show_what_the_caller_has_a_right_on(stand: Stand) -> None:
    """Namespaces with something in them, and tables one by one."""
    assert stand.ask("reader", "GET", "namespaces").json == {"namespaces": [["a"], ["b"]]}
    assert stand.ask("writer", "GET", "namespaces").json == {"namespaces": [["a"]]}
    assert [each["name"] for each in stand.ask("reader", "GET", "namespaces/b/tables").json["identifiers"]] == ["t"]
    assert [each["name"] for each in stand.ask("admin", "GET", "namespaces/b/tables").json["identifiers"]] == ["t", "u"]
    stand.catalog.seen.clear()
    assert stand.ask("reader", "GET", "namespaces/b/tables", None, Accept_Encoding="br, gzip").status == 200
    assert stand.ask("admin", "GET", "namespaces/b/tables", None, Accept_Encoding="br, gzip").status == 200
    # What is filtered must be read here.
    assert [seen.headers["accept-encoding"] for seen in stand.catalog.asked] == ["gzip", "br, gzip"]


def test_keys_are_for_those_who_read_and_write(stand: Stand) -> None:
    """The upstream makes them by the rights of the route's account; who only reads may ask for signatures instead."""
    asked = {"X_Iceberg_Access_Delegation": "vended-credentials,remote-signing"}
    for principal, has_keys in (("reader", False), ("writer", True), ("admin", True)):
        stand.catalog.seen.clear()
        loaded = stand.ask(principal, "GET", "namespaces/a/tables/t", None, **asked).json
        assert ("storage-credentials" in loaded) == has_keys
        assert ("s3.secret-access-key" in loaded["config"]) == has_keys
        assert loaded["config"]["s3.endpoint"] == "e"
        sent = stand.catalog.asked[0].headers["x-iceberg-access-delegation"]
        assert sent == ("vended-credentials,remote-signing" if has_keys else "remote-signing")


def test_who_may_only_write_gets_no_keys_with_the_answer_to_a_commit(stand: Stand) -> None:
    """Some catalogs answer a commit like a load."""
    committed = stand.ask("appender", "POST", "namespaces/a/tables/t", COMMIT)
    assert (committed.status, committed.json) == (200, {"metadata": {}, "config": {"s3.endpoint": "e"}})
    assert "storage-credentials" in stand.ask("writer", "POST", "namespaces/a/tables/t", COMMIT).json


def test_a_read_only_route_refuses_changes_and_keys(stand: Stand) -> None:
    """To everybody; scans may be planned, and reads signed."""
    for method, path, body, status in (
        ("GET", "namespaces/a/tables/t", None, 200),
        ("POST", "namespaces/a/tables/t/plan", {}, 200),
        ("POST", "namespaces/a/tables/t/sign", {**SIGNED, "method": "GET"}, 200),
        ("POST", "namespaces/a/tables/t/sign", {**SIGNED, "method": "PUT"}, DENIED),
        ("POST", "namespaces/a/tables/t", COMMIT, DENIED),
        ("DELETE", "namespaces/a/tables/t", None, DENIED),
        ("POST", "namespaces", {"namespace": ["n"]}, DENIED),
        ("POST", "unknown", {}, DENIED),
        ("GET", "namespaces/a/tables/t/credentials", None, DENIED),
    ):
        assert stand.ask("admin", method, f"/v1/still/{path}", body).status == status, path
    assert "storage-credentials" not in stand.ask("admin", "GET", "/v1/still/namespaces/a/tables/t").json


def test_a_route_of_some_namespaces_has_no_others(stand: Stand) -> None:
    """Not even for those who may do everything."""
    assert stand.ask("admin", "GET", "/v1/part/namespaces").json == {"namespaces": [["a"]]}
    assert stand.ask("admin", "GET", "/v1/part/namespaces/a/tables/t").status == 200
    assert stand.ask("admin", "GET", "/v1/part/namespaces/b/tables/t").status == HIDDEN
    assert stand.ask("admin", "POST", "/v1/part/namespaces", {"namespace": ["b"]}).status == DENIED


def test_the_list_of_warehouses_has_what_the_caller_may_use(stand: Stand) -> None:
    """An unknown warehouse is answered with the same names."""
    for principal, names in (("reader", ["other", "part", "still"]), ("stranger", [])):
        listed = stand.ask(principal, "GET", "/management/v1/warehouses").json["warehouses"]
        assert listed == [{"name": name, "kind": "route", "state": "ready", "reason": None} for name in names]
    message = stand.ask("stranger", "GET", "/v1/config?warehouse=other").json["error"]["message"]
    assert message == "Warehouse does not exist: 'other'. You may use: none."


@pytest.mark.parametrize("granted", ["x y", "x+y"])
def test_a_plus_must_be_permitted_in_both_readings(granted: str) -> None:
    """Java writes a space so, and other servers read a plus."""
    names = read_names("GET", "namespaces/x+y/tables/t", "%1F")
    assert names.spellings == ((("x+y",), "t"), (("x y",), "t"))
    with pytest.raises(NoSuchTable):
        check_forwarded(Session("a", Grants((Grant((granted,), Rights.READ),)), 0), names, b"")
    both = Grants((Grant(("x y",), Rights.READ), Grant(("x+y",), Rights.READ)))
    check_forwarded(Session("a", both, 0), names, b"")


@pytest.mark.parametrize(
    ("text", "separator", "levels"),
    [("a\x1fb", "%1F", ("a", "b")), ("a.b", "%1F", ("a.b",)), ("a.b", "%2E", ("a", "b")), ("a\x1fb", "%2E", ("a", "b"))],
)
def test_namespaces_are_split_by_the_upstreams_separator(text: str, separator: str, levels: tuple[str, ...]) -> None:
    """As its configuration names it; a path with two kinds, or an empty level, is refused."""
    assert split_namespace(text, separator) == levels
    for broken in ("a\x1fb.c", "a..b", ""):
        with pytest.raises(BadRequest):
            split_namespace(broken, "%2E")


def test_nobody_without_a_token_gets_anything(stand: Stand) -> None:
    """401 before anything is sent."""
    assert stand.server.get("/v1/other/namespaces").error == (401, "NotAuthorizedException")
    assert stand.server.get("/v1/config?warehouse=other").error == (401, "NotAuthorizedException")
    assert stand.catalog.seen == []
