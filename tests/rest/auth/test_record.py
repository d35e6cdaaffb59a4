"""The record: a line for each change, in the change's own transaction, and one for each denial."""

import json
import logging
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from psycopg import Connection

from duckicelake.access.tokens import Accounts, make_signer
from duckicelake.catalog.access_rules import GrantText, list_audit_objects
from duckicelake.catalog.audit_log import MAX_WAITING, AuditContext, AuditLine, AuditLog
from duckicelake.catalog.idempotency import RequestContext
from duckicelake.catalog.tables import Ident
from duckicelake.errors import Forbidden
from duckicelake.lake.connect import close_lake, open_lake
from duckicelake.rest.application import add_operations
from duckicelake.rest.auth.audit import audit_denial, find_operation, list_objects
from duckicelake.rest.auth.permissions import deny
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import ServerContext
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.routes.tables import add_objects
from tests.rest.auth.principals import Guarded
from tests.rest.auth.test_permissions import SCHEMA, VERSION
from tests.rest.serving import make_settings, serve
from tests.rest.writing.client import data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

Line = tuple[Any, ...]
SELECT_LINES = """
SELECT principal, operation, objects, lake_snapshot_id, outcome, reason, request_id
  FROM iceberg_audit WHERE branch IS NULL ORDER BY id
"""
SELECT_HEAD = "SELECT max(snapshot_id) FROM ducklake_snapshot"
TABLE, T = {"name": "t", "schema": SCHEMA}, "namespaces/n/tables/t"
VIEW = {"name": "v", "schema": SCHEMA, "view-version": {**VERSION, "default-namespace": ["n"]}}
PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}
OTHER = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "2"}}]}
VIEW_PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}
RULES, REPOSITORY = "/management/v1/lake", "/management/v1/repositories/lake"
GIVEN = {"privileges": ["read", "write"], "on": "namespace:n", "to": "role:all"}
READING = {"getToken", "reportMetrics", "signRequest", "signAnywhere", "planTableScan", "cancelPlanning", "fetchScanTasks"}
"""Operations that are no GET or HEAD, and change nothing."""


def name(*levels: str) -> dict[str, Any]:
    """A table or view as bodies name it."""
    return {"namespace": list(levels[:-1]), "name": levels[-1]}


def rename(source: str, target: str) -> dict[str, Any]:
    """A renaming in the namespace n."""
    return {"source": name("n", source), "destination": name("n", target)}


CHANGES: list[tuple[str, str, str, Any, list[str]]] = [
    # what, method, path, body, and the objects of its line
    ("createNamespace", "POST", "namespaces", {"namespace": ["n"]}, ["n"]),
    ("updateProperties", "POST", "namespaces/n/properties", {"updates": {"k": "1"}}, ["n"]),
    ("createTable", "POST", "namespaces/n/tables", TABLE, ["n.t"]),
    ("updateTable", "POST", T, PROPERTY, ["n.t"]),
    ("updateTable", "POST", T, OTHER, ["n.t"]),
    ("adoptManifests", "POST", f"{RULES}/namespaces/n/tables/t/manifests", None, ["n.t"]),
    ("createTable", "POST", "namespaces/n/tables", {**TABLE, "name": "a.b"}, ["n.a%2Eb"]),
    (
        "commitTransaction",
        "POST",
        "transactions/commit",
        {"table-changes": [{"identifier": name("n", each), **PROPERTY} for each in ("t", "a.b")]},
        ["n.t", "n.a%2Eb"],
    ),
    ("renameTable", "POST", "tables/rename", rename("t", "u"), ["n.t", "n.u"]),
    ("unregisterTable", "POST", "namespaces/n/tables/u/unregister", None, ["n.u"]),
    ("registerTable", "POST", "namespaces/n/register", "unregisterTable", ["n.again"]),
    ("dropTable", "DELETE", "namespaces/n/tables/again?purgeRequested=true", None, ["n.again"]),
    ("createView", "POST", "namespaces/n/views", VIEW, ["n.v"]),
    ("replaceView", "POST", "namespaces/n/views/v", VIEW_PROPERTY, ["n.v"]),
    ("renameView", "POST", "views/rename", rename("v", "w"), ["n.v", "n.w"]),
    ("dropView", "DELETE", "namespaces/n/views/w", None, ["n.w"]),
    ("registerView", "POST", "namespaces/n/register-view", "createView", ["n.again"]),
    ("dropView", "DELETE", "namespaces/n/views/again", None, ["n.again"]),
    ("dropTable", "DELETE", "namespaces/n/tables/a.b", None, ["n.a%2Eb"]),
    ("createTable", "POST", "namespaces/n/tables", {**TABLE, "name": "x"}, ["n.x"]),
    ("dropUnchangedTable", "DELETE", f"{RULES}/namespaces/n/tables/x?metadata-location=", "createTable", ["n.x"]),
    ("undrop", "POST", f"{RULES}/undrop", {"namespace": ["n"], "name": "a.b"}, ["n.a%2Eb"]),
    ("dropTable", "DELETE", "namespaces/n/tables/a.b", None, ["n.a%2Eb"]),
    ("addPrincipal", "POST", f"{RULES}/principals", {"name": "alice"}, ["alice"]),
    ("rotatePrincipal", "POST", f"{RULES}/principals/alice/rotate", None, ["alice"]),
    ("addRole", "POST", f"{RULES}/roles", {"name": "all"}, ["role:all"]),
    ("addMember", "PUT", f"{RULES}/roles/all/members/alice", None, ["role:all", "alice"]),
    ("grant", "POST", f"{RULES}/grants", GIVEN, ["role:all", "n"]),
    ("revoke", "POST", f"{RULES}/grants/revoke", GIVEN, ["role:all", "n"]),
    ("removeMember", "DELETE", f"{RULES}/roles/all/members/alice", None, ["role:all", "alice"]),
    ("removeRole", "DELETE", f"{RULES}/roles/all", None, ["role:all"]),
    ("removePrincipal", "DELETE", f"{RULES}/principals/alice", None, ["alice"]),
    ("dropNamespace", "DELETE", "namespaces/n", None, ["n"]),
    ("createBranch", "POST", f"{REPOSITORY}/branches", {"name": "dev"}, ["branch:dev"]),
    ("mergeBranch", "POST", f"{REPOSITORY}/merges", {"from": "dev"}, ["branch:dev"]),
    ("revertSnapshot", "POST", f"{REPOSITORY}/reverts", "mergeBranch", ["branch:main"]),
    ("resetBranch", "POST", f"{REPOSITORY}/branches/dev/reset", None, ["branch:dev"]),
    ("collectGarbage", "POST", f"{REPOSITORY}/gc", None, ["branch:main"]),
    ("renameBranch", "POST", f"{REPOSITORY}/branches/dev/rename", {"name": "trial"}, ["branch:dev", "branch:trial"]),
    ("createTag", "POST", f"{REPOSITORY}/tags", {"name": "v1", "from": "trial"}, ["branch:v1"]),
    ("deleteTag", "DELETE", f"{REPOSITORY}/tags/v1", None, ["branch:v1"]),
    ("deleteBranch", "DELETE", f"{REPOSITORY}/branches/trial", None, ["branch:trial"]),
]


def offer_nothing(plan: dict[str, Any]) -> dict[str, Any]:
    """The body that takes a table as it was planned, with no manifest."""
    planned = {name: plan[name] for name in ("lake-snapshot-id", "change-id")}
    return {**planned, "version": plan["recipe"]["version"], "manifests": []}


@pytest.fixture
def conn(fresh: Guarded) -> Connection:
    """Postgres of the guarded lake."""
    return fresh.lake.psycopg()


@pytest.fixture
def told() -> Iterator[list[Any]]:
    """What is told to the log of the record while a test runs."""
    found: list[Any] = []
    handler = logging.Handler()
    handler.emit = lambda record: found.append(vars(record)["audit"])
    log = logging.getLogger("duckicelake.audit")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield found
    log.removeHandler(handler)
    log.setLevel(level)


def read_lines(conn: Connection, outcome: str = "done") -> list[Line]:
    """The lines with that outcome."""
    return [row for row in conn.execute(SELECT_LINES) if row[4] == outcome]


def read_head(conn: Connection) -> int:
    """The lake's newest snapshot."""
    row = conn.execute(SELECT_HEAD).fetchone()
    assert row is not None
    return row[0]


def test_every_change_leaves_one_line(fresh: Guarded, conn: Connection, told: list[Any]) -> None:
    """Who, what, which objects, and the lake snapshot that it made, if it made one; in Postgres and in the log."""
    locations: dict[str, str] = {}
    for number, (operation, method, path, body, objects) in enumerate(CHANGES):
        if isinstance(body, str) and operation != "revertSnapshot":
            body = {"name": "again", "metadata-location": locations[body]}
        if operation == "dropUnchangedTable":
            path, body = path + locations["createTable"], None
        if operation == "revertSnapshot":
            body = {"snapshot-id": read_head(conn)}
        if operation == "adoptManifests":
            body = offer_nothing(fresh.ask("admin", "GET", path).json)
        if operation == "mergeBranch":
            # The branch has a record of its own until it is deleted.
            assert fresh.ask("admin", "POST", "/v1/lake%40dev/namespaces", {"namespace": ["made"]}).status == 200
            told.pop()
        before = read_head(conn)
        answer = fresh.ask("admin", method, path, body, X_Request_Id=f"change-{number}")
        assert answer.status in (200, 204), (operation, answer.body)
        if answer.body and "metadata-location" in answer.json:
            locations[operation] = answer.json["metadata-location"]
        head = read_head(conn)
        lines = read_lines(conn)
        assert len(lines) == number + 1, operation
        made = head if head > before else None
        assert lines[-1] == ("admin", operation, objects, made, "done", None, f"change-{number}")
        assert told[-1] == {
            "request_id": f"change-{number}",
            "principal": "admin",
            "operation": operation,
            "objects": tuple(objects),
            "lake_snapshot_id": made,
            "outcome": "done",
            "reason": None,
        }
    assert len(told) == len(CHANGES)


def test_every_changing_operation_is_tried() -> None:
    """Whoever adds an operation that changes something sees to its line."""
    app, accounts = FastAPI(), Accounts({}, make_signer(["k" * 32]), 60)
    add_operations(app, ServerContext(ResponseCache(0), Metrics(), accounts))
    routes = [route for route in app.routes if isinstance(route, APIRoute) and not route.methods & {"GET", "HEAD"}]
    assert {route.operation_id for route in routes} - READING == {row[0] for row in CHANGES}


def test_what_changes_nothing_leaves_no_line(fresh: Guarded, conn: Connection) -> None:
    """Refused, staged, or asking for what is so already."""
    table = "namespaces/a/tables/t"
    wrong = {"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid4())}], "updates": PROPERTY["updates"]}
    asked = [
        ("POST", table, wrong, 409),
        ("POST", table, {"requirements": [], "updates": []}, 200),
        ("POST", "namespaces/a/tables", {**TABLE, "name": "new", "stage-create": True}, 200),
        ("POST", "namespaces/a/tables", TABLE, 409),
        ("POST", "namespaces/a/properties", {"removals": ["none"]}, 200),
        ("DELETE", "namespaces/a", None, 409),
        ("POST", "tables/rename", {"source": name("a", "t"), "destination": name("b", "t")}, 409),
    ]
    for method, path, body, status in asked:
        assert fresh.ask("admin", method, path, body).status == status, path
    given = f"{RULES}/grants"
    assert fresh.ask("admin", "PUT", f"{RULES}/roles/none/members/none").status == 404
    assert fresh.ask("admin", "POST", given, {**GIVEN, "on": "namespace:a", "to": "nobody"}).status == 404
    assert read_lines(conn) == []
    fresh.ask("admin", "POST", f"{RULES}/roles", {"name": "all"})
    assert [fresh.ask("admin", "POST", given, {**GIVEN, "on": "namespace:a"}).status for _ in range(2)] == [204, 204]
    assert fresh.ask("admin", "POST", f"{RULES}/roles", {"name": "all"}).status == 409
    assert [line[1] for line in read_lines(conn)] == ["addRole", "grant"]


def test_a_repeated_request_leaves_no_second_line(fresh: Guarded, conn: Connection) -> None:
    """Its copy is answered and changes nothing; nor does the copy of a refused one."""
    key = str(uuid4())
    for _ in range(3):
        assert fresh.ask("admin", "POST", "namespaces/a/tables", {**TABLE, "name": "new"}, Idempotency_Key=key).status == 200
    other = str(uuid4())
    for _ in range(2):
        assert fresh.ask("admin", "POST", "namespaces/a/tables", TABLE, Idempotency_Key=other).status == 409
    assert [row[1:3] for row in read_lines(conn)] == [("createTable", ["a.new"])]


def test_appends_are_in_the_record_where_nobody_says_who_they_are(lake: FreshLake) -> None:
    """The one statement of a small commit writes the line too."""
    with serve(make_settings(lake)) as server:
        client = open_client(server, lake)
        client.create()
        for snapshot_id in (7, 8, 9):
            metadata = client.load()
            assert client.commit(client.append(metadata, snapshot_id, [data_file(metadata, f"f{snapshot_id}")])).status == 200
        snapshot_id = client.load()["current-snapshot-id"]
    lines = read_lines(lake.psycopg())
    assert [line[:3] for line in lines] == [(None, "createTable", ["main.t"]), *[(None, "updateTable", ["main.t"])] * 3]
    assert [line[3] for line in lines] == [snapshot_id - 3, snapshot_id - 2, snapshot_id - 1, snapshot_id]


def test_denials_are_in_the_record(fresh: Guarded, conn: Connection, told: list[Any]) -> None:
    """What is denied, what is hidden, and who cannot say who they are; never what they said."""
    fresh.ask("reader", "POST", "namespaces/a/tables/t", PROPERTY, X_Request_Id="denied")
    fresh.get("reader", "namespaces/b/tables/t", X_Request_Id="hidden")
    fresh.ask("reader", "POST", "tables/rename", {"source": name("b", "t"), "destination": name("a", "x")}, X_Request_Id="body")
    fresh.ask("reader", "POST", "namespaces", {"namespace": ["mine"]}, X_Request_Id="made")
    fresh.get("admin", "namespaces/none/tables/t", X_Request_Id="not there")
    fresh.server.get("namespaces/a/tables/t", {"X-Request-Id": "nobody", "Authorization": "Bearer sesame"})
    fresh.ask_token({"grant_type": "client_credentials"}, ("reader", "sesame"))
    fresh.ask_token({"grant_type": "client_credentials"}, ("sesame", "reader"))
    fresh.ask_token({"grant_type": "client_credentials", "scope": "ns:b:r"}, ("reader", "secret-of-reader"))
    expected = [
        ("reader", "updateTable", ["a.t"], None, "denied", "Forbidden"),
        ("reader", "loadTable", ["b.t"], None, "hidden", "NoSuchTable"),
        ("reader", "renameTable", ["b.t"], None, "hidden", "NoSuchTable"),
        ("reader", "createNamespace", ["mine"], None, "denied", "Forbidden"),
        (None, "loadTable", [], None, "unproven", "NotAuthorized"),
        ("reader", "getToken", [], None, "unproven", "invalid_client"),
        (None, "getToken", [], None, "unproven", "invalid_client"),
        ("reader", "getToken", [], None, "denied", "invalid_scope"),
    ]
    wait_for(lambda: len(conn.execute(SELECT_LINES).fetchall()) >= len(expected), "the lines")
    lines = conn.execute(SELECT_LINES).fetchall()
    assert [line[:-1] for line in lines] == expected
    assert [line[-1] for line in lines][:5] == ["denied", "hidden", "body", "made", "nobody"]
    assert [(each["principal"], each["operation"], list(each["objects"]), each["outcome"]) for each in told] == [
        (line[0], line[1], line[2], line[4]) for line in expected
    ]
    assert "sesame" not in json.dumps(told) + str(lines)


def test_more_denials_than_can_be_written_are_counted(lake: FreshLake) -> None:
    """Nobody waits for the record: what is too much is lost to Postgres, and a metric says so."""
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    trail = AuditLog(opened, 90)
    line = AuditLine(AuditContext("r", None, "loadTable"), "denied")
    for _ in range(MAX_WAITING + 3):
        trail.note(line)
    assert trail.dropped_count == 3
    close_lake(opened)


def test_who_cannot_say_who_they_are_take_no_place_from_others(lake: FreshLake) -> None:
    """A few lines at once, then one a second, and none while many wait; the rest is counted."""
    now_s = [1000.0]
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    trail = AuditLog(opened, 90, clock=lambda: now_s[0])
    unproven, denied = (AuditLine(AuditContext("r", None, "loadTable"), outcome) for outcome in ("unproven", "denied"))

    def note(line: AuditLine, count: int) -> int:
        before = trail.dropped_count
        for _ in range(count):
            trail.note(line)
        return count - (trail.dropped_count - before)

    assert note(unproven, 1000) == 10
    now_s[0] += 3
    assert note(unproven, 1000) == 3
    assert note(denied, MAX_WAITING - 13) == MAX_WAITING - 13
    now_s[0] += 60
    assert note(unproven, 1000) == 0
    close_lake(opened)


def find_named(method: str, path: str) -> tuple[str, ...]:
    """The objects of a request, by its path."""
    return list_objects(scope := {"type": "http", "method": method, "raw_path": path.encode()}, find_operation(scope))


def test_objects_have_one_spelling() -> None:
    """That of look-ups: ASCII letters are small, whether the path, a body or a grant names them."""
    assert find_named("GET", "/v1/lake/namespaces/Sales%1FEU/tables/ORDERS") == ("sales.eu.orders",)
    assert find_named("GET", "/v1/lake/namespaces/Sales/views/%C3%9CBER.x") == ("sales.%C3%9Cber%2Ex",)
    assert deny(Forbidden("no"), ("Sales",), "ORDERS").denied == "sales.orders"
    assert add_objects(RequestContext(AuditContext("r", None, "renameTable")), Ident(("Sales",), "ORDERS")).audit_context.objects == (
        "sales.orders",
    )
    assert list_audit_objects(GrantText(["read"], "table:Sales.ORDERS", "alice")) == ("alice", "sales.orders")


def test_what_is_denied_is_told_in_few_words(told: list[Any]) -> None:
    """And of those who cannot say who they are not what they name."""
    context, scope = ServerContext(ResponseCache(0), Metrics()), {"type": "http", "raw_path": b"/v1/lake/namespaces"}
    for outcome in ("hidden", "unproven"):
        audit_denial(context, scope, AuditLine(AuditContext("r", None, "loadTable", ("x" * 5000, "y" * 256)), outcome))
    assert [line["objects"] for line in told] == [("x" * 256 + "…", "y" * 256), ()]


def test_denials_wait_for_postgres_and_go_when_it_refuses_them(lake: FreshLake) -> None:
    """What Postgres will never take is counted and lost, and what comes after it is written."""
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    conn = lake.psycopg()
    conn.execute("ALTER TABLE iceberg_audit RENAME TO iceberg_gone")
    trail = AuditLog(opened, 90)
    trail.note(AuditLine(AuditContext("first", None, "loadTable"), "denied"))
    trail.start()
    wait_for(lambda: trail.dropped_count == 1, "the line to be refused")
    conn.execute("ALTER TABLE iceberg_gone RENAME TO iceberg_audit")
    trail.note(AuditLine(AuditContext("second", None, "loadTable"), "denied"))
    trail.stop()
    assert [line[-1] for line in read_lines(conn, "denied")] == ["second"]
    close_lake(opened)


def test_a_server_that_stops_waits_for_no_pause(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for lines that do not come."""
    monkeypatch.setattr("duckicelake.catalog.audit_log.PAUSE_S", 60.0)
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    trail, others = AuditLog(opened, 90), set(threading.enumerate())
    trail.start()
    [thread] = [each for each in threading.enumerate() if each not in others and each.name == "audit"]
    trail.stop()
    assert not thread.is_alive()
    close_lake(opened)


def test_the_number_of_lost_denials_is_a_metric(guarded: Guarded) -> None:
    """One for each warehouse."""
    assert 'duckicelake_audit_dropped_total{warehouse="lake"} 0.0' in guarded.server.get("/metrics").body.decode()


def test_old_lines_go(lake: FreshLake) -> None:
    """More than one batch of those older than so many days; younger ones stay."""
    conn = lake.psycopg()
    conn.execute(
        "INSERT INTO iceberg_audit (logged_at, request_id, operation, objects)"
        " SELECT now() - n * interval '1 minute', 'r' || n, 'x', '{}' FROM generate_series(0, 5000) n"
    )
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 2)
    trail = AuditLog(opened, 1, first_s=0)
    trail.start()
    wait_for(lambda: conn.execute("SELECT count(*) FROM iceberg_audit").fetchone() == (1440,), "old lines to go")
    trail.stop()
    close_lake(opened)
