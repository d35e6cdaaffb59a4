"""`/management/v1/repositories`: a lake with its branches over REST."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from uuid import uuid4

import pytest
from pyiceberg.catalog.rest import RestCatalog

from duckicelake.lake.branches.create import BranchRequest
from tests.lake.branches.repository import make_branch, read_head
from tests.rest.branches.test_served import IDENT, list_ids, make_rows, open_catalog, read_ids
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.views.requests import COLUMNS, post, texts, version
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for

SORT_FIELD = {"source-id": 1, "transform": "identity", "direction": "desc", "null-order": "nulls-last"}
UNTRANSLATED = "SELECT percentile_approx(id, 0.5) AS i, 'n' AS name FROM t LATERAL VIEW explode(array(1)) e AS name"
PATH = "/management/v1/repositories/lake"


def test_log_and_difference_are_shown_over_rest(lake: FreshLake) -> None:
    """The same documents as on the command line; unknown names are 404, and numbers out of range are refused."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    head, dev = read_head(lake), make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 200)")
    with serve(make_settings(lake)) as server:
        [newest, *_] = server.get(f"{PATH}/refs/dev/log").json["entries"]
        assert newest["operations"] == [{"operation": "append", "object": "main.t"}]
        [entry] = server.get(f"{PATH}/refs/dev/log?limit=1&before={head + 1}").json["entries"]
        assert entry["snapshot-id"] == head
        compared = server.get(f"{PATH}/diff?from=main&to=dev").json
        assert compared == {
            "namespaces": [],
            "tables": [{"change": "changed", "name": "main.t", "files-added": 1, "rows-added": 100}],
            "views": [],
        }
        assert server.get(f"{PATH}/refs/nothing/log").error == (404, "NotFoundException")
        assert server.get(f"{PATH}/diff?from=main&to=nothing").error == (404, "NotFoundException")
        assert server.get(f"{PATH}/refs/main/log?limit=0").status == 400
        assert server.get(f"{PATH}/diff?from=main").status == 400
        assert server.get("/management/v1/repositories/other/diff?from=main&to=main").error == (404, "NoSuchWarehouseException")


def test_a_merge_over_rest_lands_once(lake: FreshLake) -> None:
    """Conflicts are listed and change nothing; a repeated request with the same key gets the same answer; clients read what was merged."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        main.create_table(("ns", "u"), make_rows(0, 1).schema).append(make_rows(0, 100))
        make_branch(lake, "dev")
        dev = open_catalog(server, lake, "lake@dev")
        dev.load_table(IDENT).append(make_rows(1000, 50))
        dev.load_table(IDENT).delete("id < 10")
        dev.load_table(("ns", "u")).delete("id < 10")
        dev.create_table(("ns", "fresh"), make_rows(0, 1).schema).append(make_rows(0, 30))
        main.load_table(IDENT).append(make_rows(2000, 25))
        main.load_table(("ns", "u")).delete("id < 20")
        dry = ask_merge(server, {"from": "dev", "dry-run": True})
        assert dry.status == 409 and dry.error[1] == "MergeConflictException"
        [conflict] = dry.json["conflicts"]
        assert (conflict["kind"], conflict["table"], conflict["main"]) == ("overwrite/delete", "ns.u", ["append", "delete"])
        assert ask_merge(server, {"from": "dev"}).json["conflicts"] == [conflict]
        wanted = {"from": "dev", "except": {"ns.u": "ours"}, "message": "nightly"}
        key = str(uuid4())
        planned = ask_merge(server, {**wanted, "dry-run": True}).json
        done = ask_merge(server, wanted, key)
        assert done.status == 200 and done.json["tables"] == planned["tables"] == {
            "ns.t": ["append", "delete"],
            "ns.fresh": ["create", "append"],
        }
        assert ask_merge(server, wanted, key).json == done.json
        assert ask_merge(server, {"from": "dev"}, key).status == 422
        assert ask_merge(server, {"from": "dev"}).json["snapshot-id"] is None
        ids = [*range(10, 100), *range(1000, 1050), *range(2000, 2025)]
        for catalog, side in ((main, lake), (dev, None)):
            table = catalog.load_table(IDENT)
            current = table.metadata.current_snapshot_id
            assert current == done.json["snapshot-id"] == int(table.metadata.properties["ducklake.snapshot-id"])
            assert (read_ids(catalog), read_ids(catalog, ("ns", "fresh"))) == (ids, list(range(30)))
            assert read_ids(catalog, ("ns", "u")) == list(range(20, 100))
            assert side is None or list_ids(side) == ids
        go_on(main, dev, ids)
        assert ask_merge(server, {"from": "dev"}).status == 200
        assert read_ids(main) == read_ids(dev) == [*ids, *range(5000, 5005), *range(6000, 6005)]
        assert read_ids(main, ("ns", "fresh")) == list(range(10, 30))


@pytest.mark.whole
def test_the_lake_is_merged_into_a_branch_over_rest(lake: FreshLake) -> None:
    """Clients of the branch read both; its tables keep uuid and location, and no metadata file is written twice."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        make_branch(lake, "dev")
        dev, fresh = open_catalog(server, lake, "lake@dev"), ("ns", "fresh")
        dev.load_table(IDENT).append(make_rows(1000, 50))
        dev.create_table(fresh, make_rows(0, 1).schema).append(make_rows(0, 30))
        main.load_table(IDENT).append(make_rows(2000, 25))
        before = {name: dev.load_table(name) for name in (IDENT, fresh)}
        wanted, key = {"from": "main", "into": "dev"}, str(uuid4())
        assert ask_merge(server, {**wanted, "strategy": "ff"}).status == 409
        assert ask_merge(server, {**wanted, "dry-run": True}).json["into"] == "dev"
        done = ask_merge(server, wanted, key)
        assert (done.status, done.json["tables"]) == (200, {"ns.t": ["append"], "ns.fresh": ["create", "append"]})
        assert ask_merge(server, wanted, key).json == done.json
        assert ask_merge(server, wanted).json["snapshot-id"] is None
        assert (read_ids(dev), read_ids(dev, fresh)) == ([*range(100), *range(1000, 1050), *range(2000, 2025)], list(range(30)))
        assert read_ids(main) == [*range(100), *range(2000, 2025)]
        for name, table in before.items():
            loaded = dev.load_table(name)
            assert (loaded.metadata.table_uuid, loaded.location()) == (table.metadata.table_uuid, table.location())
            assert loaded.metadata_location != table.metadata_location
            assert loaded.metadata.current_snapshot_id == done.json["snapshot-id"]
            loaded.append(make_rows(7000, 5))
        assert len(read_ids(dev)) == 180 and len(read_ids(dev, fresh)) == 35
        assert ask_merge(server, {"from": "dev"}).json["tables"] == {"ns.t": ["append"], "ns.fresh": ["create", "append"]}
        assert (len(read_ids(main)), len(read_ids(main, fresh))) == (180, 35)


@pytest.mark.whole
def test_branches_are_merged_with_what_they_were_made_of_over_rest(lake: FreshLake) -> None:
    """Both ways, as the lake and its branches: once for each key, conflicts name the parent, and clients read both afterwards."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        make_branch(lake, "dev")
        dev, made, fresh = open_catalog(server, lake, "lake@dev"), ("ns", "made"), ("ns", "fresh")
        dev.create_table(made, make_rows(0, 1).schema).append(make_rows(0, 30))
        make_branch(lake, BranchRequest("child", "dev"))
        child = open_catalog(server, lake, "lake@child")
        child.load_table(made).append(make_rows(100, 10))
        child.load_table(IDENT).delete("id < 10")
        child.create_table(fresh, make_rows(0, 1).schema).append(make_rows(0, 5))
        dev.load_table(IDENT).delete("id < 20")
        up, key = {"from": "child", "into": "dev", "except": {"ns.t": "ours"}}, str(uuid4())
        [conflict] = ask_merge(server, {"from": "child", "into": "dev"}).json["conflicts"]
        assert conflict["kind"] == "overwrite/delete" and "the branch 'dev'" in conflict["reason"]
        assert ask_merge(server, {**up, "strategy": "ff"}).status == 409
        planned = ask_merge(server, {**up, "dry-run": True}).json
        done = ask_merge(server, up, key)
        assert (done.status, done.json["into"], done.json["from"], done.json["branch"]) == (200, "dev", "child", "child")
        assert done.json["tables"] == planned["tables"] == {"ns.made": ["append"], "ns.fresh": ["create", "append"]}
        assert ask_merge(server, up, key).json == done.json
        ids = [*range(30), *range(100, 110)]
        for catalog in (dev, child):
            assert (read_ids(catalog), read_ids(catalog, made), read_ids(catalog, fresh)) == (list(range(20, 100)), ids, list(range(5)))
            for table in (made, fresh):
                assert catalog.load_table(table).metadata.current_snapshot_id == done.json["snapshot-id"]
        location = dev.load_table(fresh).location()
        assert location.startswith(dev.load_table(made).location().rpartition("/")[0]) and location != child.load_table(fresh).location()
        child.load_table(fresh).append(make_rows(50, 5))
        dev.load_table(fresh).append(make_rows(60, 5))
        assert ask_merge(server, {"from": "dev", "into": "child"}).json["tables"] == {"ns.fresh": ["append"]}
        assert read_ids(child, fresh) == [*range(5), *range(50, 55), *range(60, 65)]
        assert ask_merge(server, {"from": "child", "into": "dev"}).status == 200
        assert read_ids(dev, fresh) == read_ids(child, fresh) and read_ids(main) == list(range(100))


def go_on(main: RestCatalog, dev: RestCatalog, ids: list[int]) -> None:
    """Read the lake before the merge, then write on both sides."""
    before = main.load_table(IDENT).metadata.snapshots[-2].snapshot_id
    old = main.load_table(IDENT).scan(snapshot_id=before).to_arrow()["id"].to_pylist()
    assert sorted(old) == [*range(100), *range(2000, 2025)]
    main.load_table(IDENT).append(make_rows(5000, 5))
    dev.load_table(IDENT).append(make_rows(6000, 5))
    dev.load_table(("ns", "fresh")).delete("id < 10")
    assert len(read_ids(main)) == len(ids) + 5


def test_files_that_nobody_needs_are_scheduled_over_rest(lake: FreshLake) -> None:
    """What the lake kept for a branch goes once the branch has been reset."""
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
        make_branch(lake, "dev")
        main.execute("DROP TABLE t")
        for call in ("expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)", "cleanup_old_files('lake', cleanup_all => true)"):
            main.execute(f"CALL ducklake_{call}")
    with serve(make_settings(lake)) as server:
        assert server.ask("POST", f"{PATH}/gc").json == {"scheduled": 0}
        assert server.ask("POST", f"{PATH}/branches/dev/reset").status == 200
        assert server.ask("POST", f"{PATH}/gc").json == {"scheduled": 1}


def test_a_merge_that_did_nothing_is_answered_alike_when_it_is_repeated(lake: FreshLake) -> None:
    """Whatever has changed since: conflicts are listed again, and what was not there to be merged is not merged by the same key."""
    main = lake.duckdb()
    main.execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    dev = make_branch(lake, "dev").duckdb()
    head = read_head(lake)
    with serve(make_settings(lake)) as server:
        empty, refused = str(uuid4()), str(uuid4())
        nothing = ask_merge(server, {"from": "dev"}, empty)
        assert nothing.status == 200 and nothing.json["snapshot-id"] is None
        dev.execute("ALTER TABLE t ADD COLUMN x INT")
        assert ask_merge(server, {"from": "dev"}, empty).json == nothing.json
        assert read_head(lake) == head
        main.execute("ALTER TABLE t ADD COLUMN y INT")
        conflicts = ask_merge(server, {"from": "dev"}, refused)
        assert conflicts.status == 409 and [each["kind"] for each in conflicts.json["conflicts"]] == ["schema/schema"]
        dev.execute("ALTER TABLE t DROP COLUMN x")
        again = ask_merge(server, {"from": "dev"}, refused)
        assert (again.status, again.json) == (409, conflicts.json)
        assert ask_merge(server, {"from": "dev", "message": "x"}, refused).status == 422


def test_a_snapshot_is_reverted_over_rest(lake: FreshLake) -> None:
    """Once for each key; clients read the rows of before; a conflict is listed; the log has the revert."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        main.load_table(IDENT).delete("id < 90")
        wanted, key = {"snapshot-id": read_head(lake), "message": "wrong rows"}, str(uuid4())

        def ask(body: dict[str, object], *keys: str) -> Answer:
            headers = {"Content-Type": "application/json", **({"Idempotency-Key": keys[0]} if keys else {})}
            return server.ask("POST", f"{PATH}/reverts", headers, json.dumps(body).encode())

        assert ask({**wanted, "dry-run": True}).json == {
            "reverted": wanted["snapshot-id"],
            "snapshot-id": None,
            "tables": {"ns.t": ["delete", "append"]},
        }
        assert len(read_ids(main)) == 10
        done = ask(wanted, key)
        assert done.status == 200 and done.json["snapshot-id"] == read_head(lake)
        assert ask(wanted, key).json == done.json
        assert read_ids(main) == list(range(100))
        again = ask(wanted)
        assert again.error == (409, "MergeConflictException") and again.json["conflicts"][0]["kind"] == "change/delete"
        assert ask({"snapshot-id": 77}).error == (404, "NotFoundException")
        assert ask({"snapshot-id": 1, "ref": "none"}).error == (404, "NotFoundException")
        assert ask({**wanted, "ref": ""}).error == (404, "NotFoundException")
        assert server.get(f"{PATH}/refs/main/log?limit=1").json["entries"][0]["message"] == "wrong rows"
        make_branch(lake, "dev")
        dev = open_catalog(server, lake, "lake@dev")
        assert ask({"snapshot-id": done.json["snapshot-id"], "ref": "dev"}).status == 200
        assert (read_ids(dev), read_ids(main)) == (list(range(90, 100)), list(range(100)))


@pytest.mark.whole
def test_a_merge_waits_for_locks_that_others_hold(lake: FreshLake) -> None:
    """One that is not granted its locks begins again, until it is."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    side = make_branch(lake, "dev")
    side.duckdb().execute("INSERT INTO t FROM range(100, 120)")
    held, conn = side.psycopg(autocommit=False), side.psycopg()
    with serve(make_settings(lake)) as server, ThreadPoolExecutor(1) as pool:
        held.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        merging = pool.submit(ask_merge, server, {"from": "dev"})
        wait_for(lambda: count_waiting(conn, "ducklake_snapshot") > 0, "the first try")
        wait_for(lambda: count_waiting(conn, "ducklake_snapshot") == 0, "the end of the first try")
        held.rollback()
        assert merging.result().status == 200
    assert list_ids(lake, "t") == [*range(50), *range(100, 120)]


def test_a_table_is_not_moved_out_of_a_protected_namespace(lake: FreshLake) -> None:
    """The lake protects it after the branch was made; a drop of the moved table would not be refused any more."""
    lake.duckdb().execute("CREATE SCHEMA s; CREATE SCHEMA free; CREATE TABLE s.t AS SELECT 1 AS id")
    make_branch(lake, "dev")
    with serve(make_settings(lake)) as server:
        ident = {"source": {"namespace": ["s"], "name": "t"}, "destination": {"namespace": ["free"], "name": "t"}}
        assert server.ask("POST", "/v1/lake@dev/tables/rename", {}, json.dumps(ident).encode()).status == 204
        update = json.dumps({"updates": {"drop-protection": "true"}, "removals": []}).encode()
        assert server.ask("POST", "/v1/lake/namespaces/s/properties", {}, update).status == 200
        refused = ask_merge(server, {"from": "dev"})
        assert refused.status == 409
        assert [each["kind"] for each in refused.json["conflicts"]] == ["drop/protected"]
    assert list_ids(lake, "s.t") == [1]


def test_requests_to_merge_that_make_no_sense_are_refused(lake: FreshLake) -> None:
    """Each answer says what is wrong with the body."""
    make_branch(lake, "dev")
    make_branch(lake, "other")
    with serve(make_settings(lake)) as server:
        for body in (
            {},
            {"from": "dev", "strategy": "octopus"},
            {"from": "dev", "on-conflict": "mine"},
            {"from": "dev", "into": "other"},
        ):
            assert ask_merge(server, body).status == 400
        assert ask_merge(server, {"from": "nothing"}).error == (404, "NotFoundException")


def ask_merge(server: Server, body: dict[str, object], key: str | None = None) -> Answer:
    """The answer to a request to merge."""
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": key})
    return server.ask("POST", f"{PATH}/merges", headers, json.dumps(body).encode())


DEFINITION = [
    {"action": "upgrade-format-version", "format-version": 3},
    {"action": "add-spec", "spec": {"spec-id": -1, "fields": [{"source-id": 1, "transform": "bucket[4]", "name": "b"}]}},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"order-id": -1, "fields": [SORT_FIELD]}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
]


@pytest.mark.whole
def test_definitions_that_are_notes_alone_are_merged(lake: FreshLake) -> None:
    """DuckLake has no row for a spec, sort order and format version of a client; a rebase and a merge bring them along."""
    with serve(make_settings(lake)) as server:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        lake.duckdb().execute("CREATE TABLE ns.unseen AS SELECT 1 AS id")
        make_branch(lake, "dev")
        body = json.dumps({"requirements": [], "updates": DEFINITION}).encode()
        path, headers = "namespaces/ns/tables/t", {"Content-Type": "application/json"}
        assert server.ask("POST", f"/v1/lake@dev/{path}", headers, body).status == 200
        upgrade = json.dumps({"requirements": [], "updates": DEFINITION[:1]}).encode()
        assert server.ask("POST", "/v1/lake@dev/namespaces/ns/tables/unseen", headers, upgrade).status == 200
        before = describe_definition(server.get(f"/v1/lake@dev/{path}"))
        main.load_table(IDENT).append(make_rows(2000, 25))
        assert ask_merge(server, {"from": "main", "into": "dev"}).json["tables"] == dict.fromkeys(("ns.t", "ns.unseen"), ["definition"])
        assert describe_definition(server.get(f"/v1/lake@dev/{path}")) == before == (3, ["bucket[4]"], [SORT_FIELD])
        assert describe_definition(server.get(f"/v1/lake/{path}")) == (2, [], [])
        assert ask_merge(server, {"from": "dev"}).json["tables"] == dict.fromkeys(("ns.t", "ns.unseen"), ["definition"])
        for name in ("lake", "lake@dev"):
            assert describe_definition(server.get(f"/v1/{name}/{path}")) == before
            assert describe_definition(server.get(f"/v1/{name}/namespaces/ns/tables/unseen")) == (3, [], [])
        unseen = server.get("namespaces/ns/tables/unseen").json["metadata"]
        assert unseen["location"] == f"{lake.iceberg_path}ns/unseen-{unseen['table-uuid']}"
        assert ask_merge(server, {"from": "dev"}).json["snapshot-id"] is None
        assert read_ids(main) == read_ids(open_catalog(server, lake, "lake@dev")) == [*range(100), *range(2000, 2025)]


def describe_definition(answer: Answer) -> tuple[int, list[str], list[object]]:
    """Return the format version, the transforms of the default spec, and the fields of the default sort order."""
    metadata = answer.json["metadata"]
    [spec] = [each["fields"] for each in metadata["partition-specs"] if each["spec-id"] == metadata["default-spec-id"]]
    [order] = [each["fields"] for each in metadata["sort-orders"] if each["order-id"] == metadata["default-sort-order-id"]]
    return metadata["format-version"], [each["transform"] for each in spec], order


@pytest.mark.whole
def test_a_view_of_the_branch_keeps_its_text_in_a_rebase(lake: FreshLake) -> None:
    """DuckLake has a stand-in for a text that is not translated, so the view would be gone; one that the lake changed is the lake's."""
    lake.duckdb().execute("CREATE TABLE t (id INT)")
    lake.duckdb().execute("CREATE VIEW seen AS SELECT 1 AS x")
    with serve(make_settings(lake)) as server:
        dev = make_branch(lake, "dev")
        body = {"name": "v", "schema": COLUMNS, "view-version": version({"spark": UNTRANSLATED}), "properties": {"k": "v"}}
        path = "/v1/lake@dev/namespaces/main/views"
        made = post(server, path, body)
        assert made.status == 200 and server.get(f"{path}/seen").status == 200
        lake.duckdb().execute("INSERT INTO t FROM range(20)")
        lake.duckdb().execute("CREATE OR REPLACE VIEW seen AS SELECT 2 AS x")
        assert ask_merge(server, {"from": "main", "into": "dev"}).json["others"] == ["create view main.v"]
        assert server.get(f"{path}/v").json == made.json
        assert "SELECT 2" in texts(server.get(f"{path}/seen").json["metadata"])["duckdb"]
        lake.duckdb().execute("INSERT INTO t FROM range(20)")
        assert ask_merge(server, {"from": "main", "into": "dev"}).status == 200
        assert server.get(f"{path}/v").json == made.json
        assert dev.psycopg().execute("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'rebase@%'").fetchone() == (0,)
