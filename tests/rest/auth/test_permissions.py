"""Who may do what: every operation, for each kind of principal."""

from contextlib import nullcontext
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from duckicelake.access.grants import EVERYTHING, Grant, Grants, Rights
from duckicelake.access.policy import build_object_key
from duckicelake.access.sessions import Session
from duckicelake.errors import Forbidden, NoSuchTable, NoSuchView
from duckicelake.rest.application import add_operations
from duckicelake.rest.auth.permissions import KINDS, PERMISSIONS, Hidden, check_rename
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import ServerContext
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.routes.server import ServerRoutes
from tests.rest.auth.principals import Guarded

SCHEMA = {"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "i", "type": "long", "required": False}]}
UNKNOWN = "00000000-0000-4000-8000-000000000000"
COMMIT = {"requirements": [{"type": "assert-table-uuid", "uuid": UNKNOWN}], "updates": []}
VERSION = {
    "version-id": 1,
    "timestamp-ms": 1,
    "schema-id": 0,
    "summary": {},
    "representations": [{"type": "sql", "sql": "SELECT 1 AS i", "dialect": "spark"}],
    "default-namespace": ["a"],
}
VIEW_COMMIT = {"requirements": [{"type": "assert-view-uuid", "uuid": UNKNOWN}], "updates": []}
TABLE = {"name": "t", "schema": SCHEMA}
VIEW = {"name": "v", "schema": SCHEMA, "view-version": VERSION}
REGISTER = {"name": "t", "metadata-location": "s3://lake/none/metadata/v1.metadata.json"}


def identify(namespace: str, name: str) -> dict[str, Any]:
    """A name as bodies have it."""
    return {"namespace": [namespace], "name": name}


def rename(name: str, source: str = "a", target: str = "a") -> dict[str, Any]:
    """A renaming to what is there already."""
    return {"source": identify(source, name), "destination": identify(target, "other")}


def change(*namespaces: str) -> dict[str, Any]:
    """A transaction on the tables `t` of some namespaces, which does not get through."""
    return {"table-changes": [{"identifier": identify(name, "t"), **COMMIT} for name in namespaces]}


RULES_PATH = "/management/v1/lake"
REPOSITORY_PATH = "/management/v1/repositories/lake"
GIVEN = {"privileges": ["read"], "on": "table:a.t", "to": "nobody"}
MANIFESTS = f"{RULES_PATH}/namespaces/a/tables/t/manifests"
UNCHANGED = f"{RULES_PATH}/namespaces/a/tables/t?metadata-location=none"
OFFER = {"lake-snapshot-id": 1, "change-id": 0, "version": "another", "manifests": []}
REPORT = {"report-type": "scan-report"}
HIDDEN, DENIED = 404, 403
ASKED = [
    # what, method, path, body, and the answers to: reader, writer, blind, owner, stranger
    # nobody vends keys here
    ("loadDucklakeCredentials", "GET", "ducklake-credentials", None, (501, 501, DENIED, 501, 501)),
    ("loadNamespaceMetadata", "GET", "namespaces/a", None, (200, 200, 200, 200, HIDDEN)),
    ("namespaceExists", "HEAD", "namespaces/a", None, (204, 204, 204, 204, HIDDEN)),
    ("dropNamespace", "DELETE", "namespaces/a", None, (DENIED, DENIED, DENIED, 409, HIDDEN)),
    ("updateProperties", "POST", "namespaces/a/properties", {"removals": ["x"]}, (DENIED, DENIED, DENIED, 200, HIDDEN)),
    ("createNamespace", "POST", "namespaces", {"namespace": ["a"]}, (DENIED, DENIED, DENIED, 409, DENIED)),
    ("listTables", "GET", "namespaces/a/tables", None, (200, 200, 200, 200, HIDDEN)),
    ("createTable", "POST", "namespaces/a/tables", TABLE, (DENIED, 409, 409, 409, HIDDEN)),
    ("registerTable", "POST", "namespaces/a/register", REGISTER, (DENIED, DENIED, DENIED, DENIED, HIDDEN)),
    ("loadTable", "GET", "namespaces/a/tables/t", None, (200, 200, DENIED, 200, HIDDEN)),
    ("tableExists", "HEAD", "namespaces/a/tables/t", None, (204, 204, 204, 204, HIDDEN)),
    ("updateTable", "POST", "namespaces/a/tables/t", COMMIT, (DENIED, 409, 409, 409, HIDDEN)),
    ("dropTable", "DELETE", "namespaces/a/tables/none", None, (DENIED, 404, 404, 404, HIDDEN)),
    ("unregisterTable", "POST", "namespaces/a/tables/none/unregister", None, (DENIED, 404, 404, 404, HIDDEN)),
    ("loadCredentials", "GET", "namespaces/a/tables/t/credentials", None, (501, 501, DENIED, 501, HIDDEN)),
    ("signRequest", "POST", "namespaces/a/tables/t/sign", {}, (400, 400, 400, 400, HIDDEN)),
    ("signAnywhere", "POST", "/v1/aws/s3/sign", {}, (400, 400, 400, 400, 400)),
    ("planTableScan", "POST", "namespaces/a/tables/t/plan", {}, (200, 200, DENIED, 200, HIDDEN)),
    ("fetchPlanningResult", "GET", "namespaces/a/tables/t/plan/1", None, (404, 404, DENIED, 404, HIDDEN)),
    ("cancelPlanning", "DELETE", "namespaces/a/tables/t/plan/1", None, (404, 404, DENIED, 404, HIDDEN)),
    ("fetchScanTasks", "POST", "namespaces/a/tables/t/tasks", {}, (400, 400, DENIED, 400, HIDDEN)),
    ("reportMetrics", "POST", "namespaces/a/tables/t/metrics", REPORT, (204, 204, 204, 204, HIDDEN)),
    ("renameTable", "POST", "tables/rename", rename("t"), (DENIED, 409, 409, 409, HIDDEN)),
    ("renameTable", "POST", "tables/rename", rename("t", target="b"), (DENIED, HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
    ("renameTable", "POST", "tables/rename", rename("t", source="b"), (HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
    ("commitTransaction", "POST", "transactions/commit", change("a"), (DENIED, 409, 409, 409, HIDDEN)),
    ("commitTransaction", "POST", "transactions/commit", change("a", "b"), (DENIED, HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
    ("listFunctions", "GET", "namespaces/a/functions", None, (200, 200, 200, 200, HIDDEN)),
    ("loadFunction", "GET", "namespaces/a/functions/f", None, (404, 404, DENIED, 404, HIDDEN)),
    ("listViews", "GET", "namespaces/a/views", None, (200, 200, 200, 200, HIDDEN)),
    ("createView", "POST", "namespaces/a/views", VIEW, (DENIED, 409, 409, 409, HIDDEN)),
    ("registerView", "POST", "namespaces/a/register-view", REGISTER, (DENIED, DENIED, DENIED, DENIED, HIDDEN)),
    ("loadView", "GET", "namespaces/a/views/v", None, (200, 200, DENIED, 200, HIDDEN)),
    ("viewExists", "HEAD", "namespaces/a/views/v", None, (204, 204, 204, 204, HIDDEN)),
    ("replaceView", "POST", "namespaces/a/views/v", VIEW_COMMIT, (DENIED, 409, 409, 409, HIDDEN)),
    ("dropView", "DELETE", "namespaces/a/views/none", None, (DENIED, 404, 404, 404, HIDDEN)),
    ("renameView", "POST", "views/rename", rename("v"), (DENIED, 409, 409, 409, HIDDEN)),
    ("renameView", "POST", "views/rename", rename("v", target="b"), (DENIED, HIDDEN, HIDDEN, HIDDEN, HIDDEN)),
    ("planManifests", "GET", MANIFESTS, None, (DENIED, DENIED, DENIED, 200, HIDDEN)),
    ("adoptManifests", "POST", MANIFESTS, OFFER, (DENIED, DENIED, DENIED, 400, HIDDEN)),
    ("dropUnchangedTable", "DELETE", UNCHANGED, None, (DENIED, 409, 409, 409, HIDDEN)),
    ("listWarehouses", "GET", "/management/v1/warehouses", None, (200,) * 5),
    ("logRef", "GET", f"{REPOSITORY_PATH}/refs/main/log", None, (DENIED,) * 5),
    ("diffRefs", "GET", f"{REPOSITORY_PATH}/diff?from=main&to=main", None, (DENIED,) * 5),
    ("listBranches", "GET", f"{REPOSITORY_PATH}/branches", None, (200,) * 5),
    ("createBranch", "POST", f"{REPOSITORY_PATH}/branches", {"name": "b"}, (DENIED,) * 5),
    ("deleteBranch", "DELETE", f"{REPOSITORY_PATH}/branches/b", None, (DENIED,) * 5),
    ("renameBranch", "POST", f"{REPOSITORY_PATH}/branches/b/rename", {"name": "c"}, (DENIED,) * 5),
    ("resetBranch", "POST", f"{REPOSITORY_PATH}/branches/b/reset", None, (DENIED,) * 5),
    ("listTags", "GET", f"{REPOSITORY_PATH}/tags", None, (200,) * 5),
    ("createTag", "POST", f"{REPOSITORY_PATH}/tags", {"name": "b"}, (DENIED,) * 5),
    ("deleteTag", "DELETE", f"{REPOSITORY_PATH}/tags/b", None, (DENIED,) * 5),
    ("listEvents", "GET", f"{RULES_PATH}/events", None, (DENIED,) * 5),
    ("listReads", "GET", f"{RULES_PATH}/reads", None, (DENIED,) * 5),
    ("listReports", "GET", f"{RULES_PATH}/namespaces/a/tables/t/reports", None, (DENIED, DENIED, DENIED, 200, HIDDEN)),
    ("listDropped", "GET", f"{RULES_PATH}/dropped", None, (200,) * 5),
    ("undrop", "POST", f"{RULES_PATH}/undrop", {"namespace": ["a"], "name": "none"}, (DENIED, DENIED, DENIED, 404, HIDDEN)),
    ("undrop", "POST", f"{RULES_PATH}/undrop", {"namespace": ["a"]}, (DENIED,) * 5),
    ("revertSnapshot", "POST", f"{REPOSITORY_PATH}/reverts", {"snapshot-id": 1}, (DENIED,) * 5),
    ("collectGarbage", "POST", f"{REPOSITORY_PATH}/gc", None, (DENIED,) * 5),
    ("mergeBranch", "POST", f"{REPOSITORY_PATH}/merges", {"from": "dev"}, (DENIED,) * 5),
    ("listPrincipals", "GET", f"{RULES_PATH}/principals", None, (DENIED,) * 5),
    ("addPrincipal", "POST", f"{RULES_PATH}/principals", {"name": "x"}, (DENIED,) * 5),
    ("removePrincipal", "DELETE", f"{RULES_PATH}/principals/x", None, (DENIED,) * 5),
    ("rotatePrincipal", "POST", f"{RULES_PATH}/principals/x/rotate", None, (DENIED,) * 5),
    ("listRoles", "GET", f"{RULES_PATH}/roles", None, (DENIED,) * 5),
    ("addRole", "POST", f"{RULES_PATH}/roles", {"name": "x"}, (DENIED,) * 5),
    ("removeRole", "DELETE", f"{RULES_PATH}/roles/x", None, (DENIED,) * 5),
    ("addMember", "PUT", f"{RULES_PATH}/roles/x/members/y", None, (DENIED,) * 5),
    ("removeMember", "DELETE", f"{RULES_PATH}/roles/x/members/y", None, (DENIED,) * 5),
    ("listGrants", "GET", f"{RULES_PATH}/grants", None, (DENIED,) * 5),
    ("grant", "POST", f"{RULES_PATH}/grants", GIVEN, (DENIED, DENIED, DENIED, 404, HIDDEN)),
    ("revoke", "POST", f"{RULES_PATH}/grants/revoke", GIVEN, (DENIED, DENIED, DENIED, 404, HIDDEN)),
]
PRINCIPALS = ("reader", "writer", "blind", "owner", "stranger")


@pytest.mark.parametrize(
    ("name", "method", "path", "body", "statuses"), ASKED, ids=[f"{row[0]}-{index}" for index, row in enumerate(ASKED)]
)
def test_each_principal_may_do_what_it_has_rights_for(
    guarded: Guarded, name: str, method: str, path: str, body: Any, statuses: tuple[int, ...]
) -> None:
    """Whoever has the right gets as far as the catalog's own answer; others get 403, or 404 as for what is not there."""
    assert name in PERMISSIONS
    answers = [guarded.ask(principal, method, path, body) for principal in PRINCIPALS]
    assert tuple(answer.status for answer in answers) == statuses
    for answer in answers:
        if answer.status in (DENIED, HIDDEN) and method != "HEAD":
            assert answer.error[0] == answer.status


@pytest.mark.parametrize(
    ("method", "hidden", "missing"),
    [
        ("GET", "namespaces/b", "namespaces/c"),
        ("GET", "namespaces/b/tables", "namespaces/c/tables"),
        ("GET", "namespaces/b/tables/t", "namespaces/c/tables/t"),
        ("GET", "namespaces/b/views/v", "namespaces/c/views/v"),
        ("DELETE", "namespaces/b/tables/t", "namespaces/c/tables/t"),
        ("DELETE", "namespaces/b", "namespaces/c"),
        ("GET", "namespaces?parent=b", "namespaces?parent=c"),
    ],
)
def test_what_is_hidden_looks_as_if_it_were_not_there(guarded: Guarded, method: str, hidden: str, missing: str) -> None:
    """The same words as an administrator gets for what is missing."""
    told = guarded.ask("reader", method, hidden).json["error"]
    assert told == {**guarded.ask("admin", method, missing).json["error"], "message": told["message"]}
    assert told["message"].replace("b", "c") == guarded.ask("admin", method, missing).json["error"]["message"].replace("b", "c")


def test_lists_show_what_one_has_a_right_in(guarded: Guarded) -> None:
    """And the parents of that; an administrator sees all."""
    listed = {who: guarded.get(who, "namespaces").json["namespaces"] for who in ("reader", "nested", "stranger", "admin")}
    assert listed == {"reader": [["a"]], "nested": [["deep"]], "stranger": [], "admin": [["a"], ["b"], ["deep"], ["main"]]}
    assert guarded.get("nested", "namespaces?parent=deep").json["namespaces"] == [["deep", "er"]]
    assert guarded.get("reader", "namespaces?parent=a").json["namespaces"] == []


def test_a_parent_of_what_one_may_is_there_and_closed(guarded: Guarded) -> None:
    """Its existence is known, what it holds is not."""
    assert guarded.ask("nested", "HEAD", "namespaces/deep").status == 204
    assert guarded.get("nested", "namespaces/deep").error == (403, "NotAuthorizedException")
    assert guarded.get("nested", "namespaces/deep/tables").error == (403, "NotAuthorizedException")
    assert guarded.get("nested", "namespaces/deep%1Fer/tables/t").status == 200


@pytest.mark.parametrize(
    "path", ["namespaces/B/tables/t", "namespaces/%62/tables/t", "namespaces/b/tables/T", "namespaces/a%2F..%2Fb/tables/t"]
)
def test_spelling_opens_nothing(guarded: Guarded, path: str) -> None:
    """Case, escapes and steps lead to the same decision."""
    assert guarded.get("reader", path).error == (404, "NoSuchTableException")
    assert guarded.get("reader", "namespaces/A/tables/T").status == 200


def test_a_ready_answer_is_for_those_who_may_read_it(fresh: Guarded) -> None:
    """What one principal's load made ready, another without the right does not get; nor does one with a narrower token."""
    path = "namespaces/b/tables/t"
    assert [fresh.get("admin", path).status for _ in range(2)] == [200, 200]
    hits = fresh.server.count("duckicelake_table_cache_total", outcome="hit")
    assert hits > 0
    assert fresh.get("reader", path).status == 404
    narrow = {"Authorization": f"Bearer {fresh.token('admin', 'ns:a:r')}"}
    assert fresh.server.get(path, narrow).status == 404
    assert fresh.server.get("namespaces/a/tables/t", narrow).status == 200
    assert fresh.server.count("duckicelake_table_cache_total", outcome="hit") == hits


def test_nobody_without_all_rights_chooses_where_files_lie(fresh: Guarded) -> None:
    """A location could hold the places of tables to come; the one that a staged table was given may be said again."""
    table = {**TABLE, "name": "mine", "location": f"{fresh.lake.iceberg_path}a"}
    assert fresh.ask("owner", "POST", "namespaces/a/tables", table).error == (403, "NotAuthorizedException")
    view = {**VIEW, "name": "seen", "location": f"{fresh.lake.iceberg_path}a"}
    assert fresh.ask("owner", "POST", "namespaces/a/views", view).error == (403, "NotAuthorizedException")
    moved = {"requirements": [], "updates": [{"action": "set-location", "location": f"{fresh.lake.iceberg_path}a"}]}
    assert fresh.ask("owner", "POST", "namespaces/a/tables/t", moved).error == (403, "NotAuthorizedException")
    assert fresh.ask("admin", "POST", "namespaces/a/tables", {**table, "location": f"{fresh.lake.iceberg_path}x/y"}).status == 200


def test_another_tables_snapshots_are_not_taken_over(fresh: Guarded) -> None:
    """Neither by their manifest lists alone nor with the location that they lie in; nothing of them is read for that."""
    theirs = fresh.get("admin", "namespaces/b/tables/t").json["metadata"]
    before = fresh.get("admin", "namespaces/a/tables/t").body
    mine = fresh.get("admin", "namespaces/a/tables/t").json["metadata"]["current-snapshot-id"]
    snapshot = {**theirs["snapshots"][-1], "snapshot-id": 77, "sequence-number": 1000, "parent-snapshot-id": mine}
    added = [{"action": "add-snapshot", "snapshot": snapshot}]
    added += [{"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 77}]
    moved = {"action": "set-location", "location": theirs["location"]}
    path = "namespaces/a/tables/t"
    assert fresh.ask("writer", "POST", path, {"requirements": [], "updates": added}).status == 400
    assert fresh.ask("writer", "POST", path, {"requirements": [], "updates": [moved, *added]}).error == (403, "NotAuthorizedException")
    assert fresh.ask("writer", "POST", path, {"requirements": [], "updates": [*added, moved]}).error == (403, "NotAuthorizedException")
    assert fresh.get("admin", path).body == before


def test_a_staged_table_is_made_where_it_was_given_a_place(fresh: Guarded) -> None:
    """The commit that makes it repeats uuid and location; another uuid's place is not to be had."""
    staged = fresh.ask("writer", "POST", "namespaces/a/tables", {**TABLE, "name": "made", "stage-create": True}).json["metadata"]
    schema, spec, order = staged["schemas"][0], staged["partition-specs"][0], staged["sort-orders"][0]
    updates = [
        {"action": "assign-uuid", "uuid": UNKNOWN},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": schema},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": spec},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
    ]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    assert fresh.ask("writer", "POST", "namespaces/a/tables/made", body).error == (403, "NotAuthorizedException")
    updates[0] = {"action": "assign-uuid", "uuid": staged["table-uuid"]}
    made = fresh.ask("writer", "POST", "namespaces/a/tables/made", body)
    assert made.status == 200, made.body
    assert made.json["metadata"]["location"] == staged["location"]


MOVES = [
    # rights on the table, on all of the namespace where it goes to, and whether it may go
    (Rights.DROP, Rights.CREATE, True),
    (Rights.DROP, Rights.CREATE | Rights.LIST, True),
    (Rights.DROP, Rights.CREATE | Rights.DROP, True),
    (Rights.DROP, Rights.CREATE | Rights.READ, False),
    (Rights.DROP, Rights.CREATE | Rights.WRITE, False),
    (Rights.DROP, Rights.CREATE | Rights.MANAGE, False),
    (Rights.DROP | Rights.READ, Rights.CREATE | Rights.READ, True),
    (Rights.DROP | Rights.READ, Rights.CREATE | Rights.READ | Rights.WRITE, False),
    (Rights.DROP | Rights.MANAGE, EVERYTHING, True),
    (EVERYTHING, EVERYTHING, True),
]


@pytest.mark.parametrize("hides", [NoSuchTable, NoSuchView])
@pytest.mark.parametrize(("held", "there", "goes"), MOVES)
def test_no_move_gives_rights_on_what_is_moved(hides: Hidden, held: Rights, there: Rights, goes: bool) -> None:
    """Into a namespace where one has more, only what one manages; within its own namespace all that one may drop."""
    kind = KINDS[hides]
    session = Session("alice", Grants((Grant(("mine",), there),)), 0, {build_object_key(kind, ("a", "t")): held})
    with nullcontext() if goes else pytest.raises(Forbidden):
        check_rename(session, ("A", "t"), ("mine", "t"), hides)
    spaced = Session("alice", Grants((Grant(("a",), held | Rights.CREATE),)), 0)
    check_rename(spaced, ("a", "t"), ("A", "u"), hides)


def test_every_route_has_a_row() -> None:
    """Whoever adds an operation says what it needs; without a row nobody may do it."""
    app, context = FastAPI(), ServerContext(ResponseCache(0), Metrics())
    add_operations(app, context)
    ServerRoutes(context).add(app)
    routed = {route.operation_id for route in app.routes if isinstance(route, APIRoute)}
    assert routed == set(PERMISSIONS)


def test_every_row_is_tried() -> None:
    """Each operation that needs a right is asked for by each kind of principal."""
    tried = {row[0] for row in ASKED} | {"listNamespaces"}
    assert {name for name, rule in PERMISSIONS.items() if not rule.is_public} - tried == {"getConfig"}


def test_a_copy_of_a_commit_follows_no_table_to_where_one_has_no_right(fresh: Guarded) -> None:
    """Whoever moved it has that right; the copy hears that the commit was done, and nothing of the table."""
    body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}
    for number, (target, status) in enumerate((("a", 200), ("b", 500))):
        key = f"00000000-0000-4000-8000-00000000000{number}"
        done = fresh.ask("writer", "POST", "namespaces/a/tables/t", body, idempotency_key=key)
        assert done.status == 200
        move = {"source": identify("a", "t"), "destination": identify(target, "moved")}
        assert fresh.ask("admin", "POST", "tables/rename", move).status == 204
        again = fresh.ask("writer", "POST", "namespaces/a/tables/t", body, idempotency_key=key)
        assert again.status == status
        assert ("metadata" in again.json) == (status == 200)
        back = {"source": move["destination"], "destination": identify("a", "t")}
        assert fresh.ask("admin", "POST", "tables/rename", back).status == 204
