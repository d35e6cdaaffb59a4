"""Rights on branches: who makes, changes and deletes them, and a lake that is changed by merges alone."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest

from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.connect import BEGIN_WRITING
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import make_branch, read_head, read_rows
from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for

BRANCHES, TAGS = "/management/v1/repositories/lake/branches", "/management/v1/repositories/lake/tags"
DEV, OTHER, MAIN = (f"/v1/{warehouse}/namespaces" for warehouse in ("lake%40dev-1", "lake%40other", "lake"))
DENIED = (403, "NotAuthorizedException")
NEW_TABLE = {"name": "made", "schema": {"type": "struct", "fields": [{"id": 1, "name": "i", "type": "long", "required": False}]}}
PROPERTY = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}


def test_branches_are_made_listed_and_deleted_over_rest(lake: FreshLake) -> None:
    """Without accounts everybody may; what cannot be made is refused, and a name that is taken is a conflict."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
    with serve(make_settings(lake)) as server:

        def post(body: str) -> tuple[int, str]:
            answer = server.ask("POST", BRANCHES, {"Content-Type": "application/json"}, body.encode())
            return (answer.status, answer.json["name"]) if answer.status == 200 else answer.error

        assert server.get(BRANCHES).json == {"branches": []}
        assert post('{"name": "dev"}') == (200, "dev")
        assert post('{"name": "child", "from": "dev"}') == (200, "child")
        assert post('{"name": "old", "at": 0}') == (200, "old")
        assert post('{"name": "dev"}') == (409, "AlreadyExistsException")
        assert server.ask("POST", TAGS, {"Content-Type": "application/json"}, b'{"name": "v1", "from": "dev"}').status == 200
        assert post('{"name": "first", "at": "v1"}') == (200, "first")
        assert post('{"name": "second", "from": "dev", "at": "v1"}') == (200, "second")
        for wrong in ('{"name": "x", "from": "child", "at": "v1"}', '{"name": "x", "at": "child"}'):
            assert post(wrong) == (400, "BadRequestException"), wrong
        for name in ("first", "second"):
            assert {each["name"]: each["from"] for each in server.get(BRANCHES).json["branches"]}[name] == "v1"
            assert server.ask("DELETE", f"{BRANCHES}/{name}").status == 204
        for wrong in ('{"name": "a b"}', '{"name": "x", "at": "noon"}', '{"name": "x", "from": "none"}', "{}", '{"name": "x", "at": true}'):
            assert post(wrong) == (400, "BadRequestException"), wrong
        listed = server.get(BRANCHES).json["branches"]
        assert [(each["name"], each["from"], each["warehouse"]) for each in listed] == [
            ("dev", "main", "lake@dev"),
            ("child", "dev", "lake@child"),
            ("old", "main", "lake@old"),
        ]
        assert listed[2]["snapshot-id"] == 0
        assert server.get("/v1/lake@child/namespaces/main/tables/t").status == 200
        assert server.ask("DELETE", f"{BRANCHES}/dev").status == 204
        assert server.ask("DELETE", f"{BRANCHES}/dev").error == (404, "NotFoundException")
        assert server.ask("DELETE", f"{BRANCHES}/CHILD").error == (404, "NotFoundException")
        assert [each["from"] for each in server.get(BRANCHES).json["branches"]] == [None, "main"]
        assert server.get("/management/v1/repositories/lake%40child/branches").error == (400, "BadRequestException")


def test_a_repeated_request_makes_and_deletes_once(lake: FreshLake) -> None:
    """With its key it gets the same answer, also after others have changed what it named; another request with the key is refused."""
    with serve(make_settings(lake)) as server:

        def send(method: str, path: str, body: str | None = None) -> Callable[[], tuple[int, object]]:
            headers = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}

            def ask_again() -> tuple[int, object]:
                answer = server.ask(method, path, headers, None if body is None else body.encode())
                return answer.status, answer.json if answer.body else None

            return ask_again

        make, tag = send("POST", BRANCHES, '{"name": "dev"}'), send("POST", TAGS, '{"name": "v1", "from": "dev"}')
        assert (make(), tag()) == (make(), tag())
        assert send("POST", BRANCHES, '{"name": "dev"}')()[0] == 409
        refused = [send("DELETE", f"{BRANCHES}/late"), send("POST", f"{BRANCHES}/late/rename", '{"name": "x"}')]
        refused.append(send("POST", f"{BRANCHES}/late/reset"))
        assert [each()[0] for each in refused] == [404] * 3
        late = send("POST", BRANCHES, '{"name": "late"}')
        assert late()[0] == 200
        assert [each()[0] for each in refused] == [404] * 3, "a copy that comes late does nothing to a branch that was made since"
        assert send("DELETE", f"{BRANCHES}/late")()[0] == 204
        delete, delete_tag = send("DELETE", f"{BRANCHES}/dev"), send("DELETE", f"{TAGS}/v1")
        assert (delete_tag(), delete()) == ((204, None), (204, None))
        assert make()[0] == 404, "it was made, and has been deleted"
        assert send("POST", BRANCHES, '{"name": "dev"}')()[0] == 200
        assert make()[0] == 404, "the branch of that name is another one"
        assert (delete_tag(), delete()) == ((204, None), (204, None)), "the new branch of that name stays"
        assert [each["name"] for each in server.get(BRANCHES).json["branches"]] == ["dev"]
        collect = send("POST", "/management/v1/repositories/lake/gc")
        assert collect() == collect() == (200, {"scheduled": 0})
        lines = lake.psycopg().execute("SELECT operation, objects FROM iceberg_audit ORDER BY id").fetchall()
        assert lines == [
            ("createBranch", ["branch:dev"]),
            ("createTag", ["branch:v1"]),
            ("createBranch", ["branch:late"]),
            ("deleteBranch", ["branch:late"]),
            ("deleteTag", ["branch:v1"]),
            ("deleteBranch", ["branch:dev"]),
            ("createBranch", ["branch:dev"]),
            ("collectGarbage", ["branch:main"]),
        ]


@pytest.mark.whole
def test_branches_are_renamed_and_reset_and_tags_made_over_rest(lake: FreshLake) -> None:
    """A name means the branch that has it now, also on a server that served another one under it."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
    with serve(make_settings(lake)) as server:

        def post(path: str, **body: object) -> Answer:
            return server.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(body).encode())

        def count(warehouse: str) -> object:
            answer = server.get(f"/v1/{warehouse}/namespaces/main/tables/t")
            return answer.json["metadata"]["snapshots"][-1]["summary"]["total-records"] if answer.status == 200 else answer.error[0]

        for name, rows in (("one", 1), ("two", 2)):
            make_branch(lake, name).duckdb().execute(f"INSERT INTO t FROM range({rows})")
            assert count(f"lake@{name}") == str(20 + rows)
        assert post(f"{BRANCHES}/one/rename", name="two").error == (409, "AlreadyExistsException")
        assert post(f"{BRANCHES}/two/rename", name="three").json["warehouse"] == "lake@three"
        assert post(f"{BRANCHES}/one/rename", name="two").json["metadata-schema"].endswith("@one")
        assert [count(f"lake@{name}") for name in ("one", "two", "three")] == [404, "21", "22"]
        key = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
        renamed = [server.ask("POST", f"{BRANCHES}/two/rename", key, b'{"name": "four"}') for _ in range(2)]
        # The repetition is answered, although the branch is not called `two` any more.
        assert [(each.status, each.json["name"]) for each in renamed] == [(200, "four")] * 2
        assert server.ask("POST", f"{BRANCHES}/two/rename", key, b'{"name": "five"}').status == 422
        assert post(f"{BRANCHES}/four/rename", name="two").json["name"] == "two"
        assert post(f"{BRANCHES}/two/reset").json["from"] == "main"
        assert [count(f"lake@{name}") for name in ("two", "three")] == ["20", "22"]
        path, headers = f"{BRANCHES}/three/reset", {"Idempotency-Key": str(uuid4())}
        done = server.ask("POST", path, headers)
        replace(lake, metadata_schema=done.json["metadata-schema"]).duckdb().execute("INSERT INTO t FROM range(5)")
        again = server.ask("POST", path, headers)
        assert (again.status, again.json) == (200, done.json)
        assert (count("lake@three"), post(path).status, count("lake@three")) == ("25", 200, "20")
        assert post(BRANCHES, name="x", **{"from": ""}).error == (400, "BadRequestException")
        assert post(TAGS, name="v1", **{"from": "three"}).json["warehouse"] == "lake@v1"
        assert post(f"{BRANCHES}/three/reset").status == 406
        for path in (f"{BRANCHES}/v1", f"{TAGS}/two"):
            assert server.ask("DELETE", path).error == (404, "NotFoundException")
        for path in (f"{BRANCHES}/v1/rename", f"{BRANCHES}/v1/reset"):
            assert post(path, name="v2").error == (400, "BadRequestException")
        assert [(each["name"], each["from"]) for each in server.get(TAGS).json["tags"]] == [("v1", "three")]
        assert server.ask("DELETE", f"{TAGS}/v1").status == 204
        assert server.get(TAGS).json == {"tags": []}


def test_a_rename_that_meets_others_may_be_sent_again(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key: once another session held the branch for too long; once a copy of the request landed between two of its reads."""
    monkeypatch.setattr("duckicelake.lake.connect.BEGIN_WRITING", BEGIN_WRITING.replace(b"10s", b"50ms"))
    make_branch(lake, "dev")
    other, watching = lake.psycopg(autocommit=False), lake.psycopg()
    key = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
    with serve(make_settings(lake)) as server, ThreadPoolExecutor(1) as pool:

        def rename() -> Answer:
            return server.ask("POST", f"{BRANCHES}/dev/rename", key, b'{"name": "new"}')

        other.execute("SELECT FROM iceberg_branch WHERE name = 'dev' FOR UPDATE")
        assert rename().error == (503, "SlowDownException")
        other.rollback()
        done = rename()
        assert (done.status, done.json["name"]) == (200, "new")
        other.execute("UPDATE iceberg_branch SET name = 'dev'")
        outcome = other.execute("DELETE FROM iceberg_idempotency RETURNING key, fingerprint, message").fetchone()
        other.commit()
        other.execute("LOCK TABLE iceberg_branch IN ACCESS EXCLUSIVE MODE")
        running = pool.submit(rename)
        wait_for(lambda: count_waiting(watching, "iceberg_branch") > 0, "the request")
        other.execute("INSERT INTO iceberg_idempotency (key, fingerprint, message) VALUES (%s, %s, %s)", outcome)
        other.execute("UPDATE iceberg_branch SET name = 'new'")
        other.commit()
        assert (running.result().status, running.result().json) == (200, done.json)


def test_rights_on_branches_go_by_patterns_of_their_names(lake: FreshLake) -> None:
    """Who may create, write and drop on `dev-*` does so there alone; to write is to change what one may read."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        for name in ("ann", "bob"):
            managed.add(name)
        managed.give("read", "namespace:a", "ann")
        make_branch(lake, "other")
        assert managed.ask("ann", "POST", BRANCHES, {"name": "dev-1"}).error == DENIED
        managed.give("create,write", "branch:dev-*", "ann")
        assert managed.ask("ann", "POST", BRANCHES, {"name": "prod"}).error == DENIED
        assert managed.ask("ann", "POST", BRANCHES, {"name": "dev-1"}).status == 200
        assert managed.ask("ann", "POST", BRANCHES, {"name": "dev-2", "at": 1}).error == DENIED
        assert [each["name"] for each in managed.ask("ann", "GET", BRANCHES).json["branches"]] == ["other", "dev-1"]
        assert managed.ask("bob", "GET", BRANCHES).error == DENIED
        assert managed.ask("ann", "POST", f"{DEV}/a/tables", NEW_TABLE).status == 200
        assert managed.ask("ann", "POST", f"{DEV}/a/tables/t", PROPERTY).status == 200
        assert managed.ask("ann", "POST", f"{DEV}/b/tables", NEW_TABLE).error == (404, "NoSuchNamespaceException")
        for place in (MAIN, OTHER):
            assert managed.ask("ann", "POST", f"{place}/a/tables", NEW_TABLE).error == DENIED
            assert managed.ask("ann", "POST", f"{place}/a/tables/t", PROPERTY).error == DENIED
        narrow = managed.token("ann", "ns:a:r")
        assert guarded.server.get(f"{DEV}/a/tables/made", narrow).status == 200
        assert guarded.server.ask("DELETE", f"{DEV}/a/tables/made", narrow).error == DENIED
        assert guarded.server.ask("DELETE", f"{BRANCHES}/dev-1", narrow).error == DENIED
        assert managed.ask("ann", "DELETE", f"{BRANCHES}/dev-1").error == DENIED
        managed.give("drop", "branch:dev-1", "ann")
        assert {"privileges": ["create", "write"], "on": "branch:dev-*", "to": "ann"} in managed.manage("GET", "grants").json["grants"]
        assert managed.ask("ann", "POST", f"{BRANCHES}/dev-1/rename", {"name": "prod"}).error == DENIED
        assert managed.ask("ann", "POST", f"{BRANCHES}/dev-1/rename", {"name": "dev-3"}).status == 200
        assert managed.ask("ann", "POST", f"{BRANCHES}/dev-3/reset").error == DENIED
        assert guarded.ask("admin", "POST", f"{BRANCHES}/dev-3/rename", {"name": "dev-1"}).status == 200
        assert managed.ask("ann", "POST", TAGS, {"name": "dev-v1"}).status == 200
        assert managed.ask("ann", "DELETE", f"{TAGS}/dev-v1").error == DENIED
        managed.take("write", "branch:dev-*", "ann")
        assert managed.ask("ann", "DELETE", f"{DEV}/a/tables/made").error == DENIED
        assert managed.ask("ann", "DELETE", f"{BRANCHES}/dev-1").status == 204
        assert guarded.ask("admin", "DELETE", f"{BRANCHES}/other").status == 204


@pytest.mark.whole
def test_rights_hold_for_names_in_their_own_case(lake: FreshLake) -> None:
    """A branch is changed under exactly its name, so a right on `PROD*` is none on `prod`."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        managed.give("create,drop", "branch:PROD*", "ann")
        prod = make_branch(lake, "prod")
        prod.duckdb().execute("INSERT INTO a.t VALUES (100)")
        for method, path, body in (
            ("POST", "PROD/reset", None),
            ("POST", "PROD/rename", {"name": "PROD-1"}),
            ("DELETE", "PROD", None),
        ):
            assert managed.ask("ann", method, f"{BRANCHES}/{path}", body).error == (404, "NotFoundException"), path
            assert managed.ask("ann", method, f"{BRANCHES}/{path.lower()}", body).error == DENIED, path
        assert [each["name"] for each in managed.ask("ann", "GET", BRANCHES).json["branches"]] == ["prod"]
        assert (100,) in read_rows(prod, "a.t")


def test_what_was_done_on_a_branch_is_on_record_when_it_is_deleted(lake: FreshLake) -> None:
    """Reads and denials are written in the lake, with the branch; a deletion takes the lines of changes there."""
    with guard(lake, audit_reads=1.0) as guarded:
        make_branch(lake, "dev-1")
        assert guarded.get("reader", f"{DEV}/a/tables/t").status == 200
        assert guarded.ask("reader", "POST", f"{DEV}/a/tables/t", PROPERTY).error == DENIED
        assert guarded.ask("admin", "POST", f"{DEV}/a/tables/t", PROPERTY).status == 200
        assert guarded.get("reader", f"{MAIN}/a/tables/t").status == 200
        assert guarded.get("admin", "/management/v1/lake%40dev-1/reads").error == (400, "BadRequestException")
        assert guarded.ask("admin", "DELETE", f"{BRANCHES}/dev-1").status == 204
    conn = lake.psycopg()
    reads = conn.execute("SELECT branch, principal, object, read_count FROM iceberg_read ORDER BY branch").fetchall()
    assert reads == [("dev-1", "reader", "a.t", 1), (None, "reader", "a.t", 1)]
    lines = conn.execute("SELECT principal, operation, outcome FROM iceberg_audit WHERE branch = 'dev-1' ORDER BY logged_at").fetchall()
    assert lines == [("reader", "updateTable", "denied"), ("admin", "updateTable", "done")]


def test_what_is_no_right_on_branches_is_refused(lake: FreshLake) -> None:
    """Nobody reads or manages by a pattern, and a pattern is a name with stars."""
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        for privileges, on in (("read", "branch:dev"), ("manage", "branch:*"), ("write", "branch:"), ("write", "branch:a b")):
            body = {"privileges": [privileges], "on": on, "to": "ann"}
            assert managed.manage("POST", "grants", body).error == (400, "BadRequestException"), on
        assert managed.manage("POST", "grants", {"privileges": ["write"], "on": "branch:*", "to": "ann"}, who="owner").error == DENIED


def test_a_protected_lake_is_not_changed(lake: FreshLake) -> None:
    """By nobody, until the protection ends; its branches are, and its accounts are managed."""
    settings = settings_for(lake)
    with guard(lake) as guarded:
        lake.duckdb().execute("DROP TABLE b.other")
        make_branch(lake, "dev-1")
        assert "protected" in ask(settings, "branch", "protect", "main")
        for method, path, body in (
            ("POST", "a/tables", NEW_TABLE),
            ("POST", "a/tables/t", PROPERTY),
            ("DELETE", "a/tables/t", None),
            ("DELETE", "a/views/v", None),
            ("POST", "a/properties", {"updates": {"k": "v"}}),
        ):
            answer = guarded.ask("admin", method, f"{MAIN}/{path}", body)
            assert answer.error == DENIED and "protected" in answer.json["error"]["message"], path
        rename = {"source": {"namespace": ["a"], "name": "t"}, "destination": {"namespace": ["a"], "name": "u"}}
        assert guarded.ask("admin", "POST", "/v1/lake/tables/rename", rename).error == DENIED
        reverts, revert = BRANCHES.replace("branches", "reverts"), {"snapshot-id": read_head(lake)}
        assert guarded.ask("admin", "POST", reverts, revert).error == DENIED
        assert guarded.ask("admin", "POST", reverts, {**revert, "ref": "dev-1"}).status == 200
        assert guarded.get("reader", f"{MAIN}/a/tables/t").status == 200
        assert guarded.ask("writer", "POST", f"{DEV}/a/tables", NEW_TABLE).status == 200
        Managed(guarded).add("ann")
        assert guarded.ask("admin", "POST", BRANCHES, {"name": "more"}).status == 200
        ask(settings, "branch", "unprotect", "main")
        assert guarded.ask("writer", "POST", f"{MAIN}/a/tables", NEW_TABLE).status == 200
    assert len(read_rows(lake, "a.t")) == 10


def test_who_may_merge_into_a_protected_lake(lake: FreshLake) -> None:
    """By `write` on `branch:main` and by no pattern with stars; what is merged may be more than the account may change itself."""
    merges = "/management/v1/repositories/lake/merges"
    with guard(lake) as guarded:
        managed = Managed(guarded)
        managed.add("ann")
        managed.give("read", "namespace:a", "ann")
        managed.give("create,write", "branch:*", "ann")
        ask(settings_for(lake), "branch", "protect", "main")
        make_branch(lake, "dev-1").duckdb().execute("INSERT INTO b.t VALUES (100)")
        assert managed.ask("ann", "POST", merges, {"from": "dev-1", "dry-run": True}).error == DENIED
        refused = managed.ask("ann", "POST", merges, {"from": "dev-1"})
        assert refused.error == DENIED and "branch:main" in refused.json["error"]["message"]
        managed.give("write", "branch:main", "ann")
        assert guarded.server.ask("POST", merges, managed.token("ann", "ns:a:r"), b'{"from": "dev-1"}').error == DENIED
        into_branch = {"from": "main", "into": "dev-1"}
        assert managed.ask("ann", "POST", merges, into_branch).error == DENIED
        assert managed.ask("ann", "POST", merges, {"from": "dev-1"}).status == 200
        managed.give("write", "branch:dev-1", "ann")
        lake.duckdb().execute("INSERT INTO a.t VALUES (100)")
        assert managed.ask("ann", "POST", merges, into_branch).status == 200
        assert managed.ask("ann", "POST", f"{MAIN}/a/tables/t", PROPERTY).error == DENIED
        make_branch(lake, BranchRequest("child", "dev-1")).duckdb().execute("INSERT INTO a.t VALUES (200)")
        assert managed.ask("ann", "POST", merges, {"from": "dev-1", "into": "child"}).error == DENIED
        assert managed.ask("ann", "POST", merges, {"from": "child", "into": "dev-1"}).status == 200
        [line] = lake.psycopg().execute("SELECT objects, lake_snapshot_id FROM iceberg_audit ORDER BY id DESC LIMIT 1").fetchall()
        assert line == (["branch:child", "branch:dev-1"], None)
        managed.give("write", "branch:child", "ann")
        assert managed.ask("ann", "POST", merges, {"from": "dev-1", "into": "child"}).status == 200
    assert len(read_rows(lake, "b.t")) == 11
