"""Requests to a branch that run while it is merged: each lands before the merge or on top of it, or is refused as a conflict."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ValidationException

from duckicelake.lake.branches.merge import MergeRequest, merge_branch, merge_locked, plan_merge
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import make_branch
from tests.rest.branches.test_repositories import ask_merge
from tests.rest.branches.test_served import IDENT, list_ids, make_rows, open_catalog, read_ids
from tests.rest.serving import make_settings, serve
from tests.rest.writing.client import assert_main, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but, whole_after
from tests.support.waiting import count_waiting, wait_for

CHANGES: dict[str, Callable[[RestCatalog], object]] = {
    "append": lambda dev: dev.load_table(IDENT).append(make_rows(5000, 10)),
    "delete": lambda dev: dev.load_table(IDENT).delete("id < 10"),
    "create": lambda dev: dev.create_table(("ns", "fresh"), make_rows(0, 1).schema),
}


@pytest.mark.parametrize("change", long_but(CHANGES, "append"))
def test_a_commit_that_waits_for_the_merge_does_not_go_by_the_former_branch(lake: FreshLake, change: str) -> None:
    """It was prepared on the branch as it was: what builds on its snapshots is refused, and nothing of it is in either side."""
    with serve(make_settings(lake)) as server, ThreadPoolExecutor(1) as pool:
        main = open_catalog(server, lake, "lake")
        main.create_namespace("ns")
        main.create_table(IDENT, make_rows(0, 1).schema).append(make_rows(0, 100))
        side, dev = make_branch(lake, "dev"), open_catalog(server, lake, "lake@dev")
        dev.load_table(IDENT).append(make_rows(1000, 50))
        main.load_table(IDENT).append(make_rows(2000, 25))
        merging = lake.psycopg(autocommit=False)
        planned = plan_merge(merging, lake.metadata_schema, MergeRequest("dev"))
        merging.execute('LOCK TABLE "lake@dev".ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE')
        running, conn = pool.submit(CHANGES[change], dev), side.psycopg()
        wait_for(lambda: count_waiting(conn, "ducklake_snapshot") > 0, "the commit")
        merge_locked(merging, lake.metadata_schema, MergeRequest("dev"), planned)
        merging.commit()
        if change == "create":
            running.result()
        else:
            # PyIceberg got a conflict, and cannot build its snapshot anew because the branch has not the former one.
            with pytest.raises(ValidationException, match="Cannot find starting snapshot"):
                running.result()
        ids = [*range(100), *range(1000, 1050), *range(2000, 2025)]
        assert read_ids(main) == read_ids(dev) == list_ids(lake) == list_ids(side) == ids
        dev.load_table(IDENT).append(make_rows(7000, 5))
        assert read_ids(dev) == list_ids(side) == [*ids, *range(7000, 7005)]
        assert (("ns", "fresh") in dev.list_tables("ns")) == (change == "create")


def test_a_merge_takes_no_connection_from_a_running_request(lake: FreshLake) -> None:
    """A request that began before the merge ends as it should, although the server has opened the branch again for others meanwhile."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    side = make_branch(lake, "dev")
    side.duckdb().execute("INSERT INTO t FROM range(100, 120)")
    held, conn = side.psycopg(autocommit=False), side.psycopg()
    with serve(make_settings(lake)) as server, ThreadPoolExecutor(1) as pool:
        assert server.get("/v1/lake@dev/namespaces").status == 200
        held.execute("LOCK TABLE iceberg_idempotency IN ACCESS EXCLUSIVE MODE")
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid4())}
        body = json.dumps({"namespace": ["made"]}).encode()
        running = pool.submit(server.ask, "POST", "/v1/lake@dev/namespaces", headers, body)
        wait_for(lambda: count_waiting(conn, "iceberg_idempotency") > 0, "the request")
        assert ask_merge(server, {"from": "dev"}).status == 200
        assert server.get("/v1/lake@dev/namespaces").json["namespaces"] == [["main"]]
        held.rollback()
        assert running.result().status == 200
        assert server.get("/v1/lake@dev/namespaces").json["namespaces"] == [["made"], ["main"]]
        again = server.ask("POST", "/v1/lake@dev/namespaces", headers, body)
        assert (again.status, again.json) == (200, running.result().json)


@pytest.mark.parametrize("request_", whole_after(1, [MergeRequest("dev"), MergeRequest("main", "dev")]), ids=["merged", "rebased"])
def test_a_commit_that_is_sent_again_after_a_merge_has_landed(lake: FreshLake, request_: MergeRequest) -> None:
    """Its answer was lost. A client that got a conflict would commit the same rows once more; what was left out is a conflict."""
    lake.duckdb().execute("CREATE TABLE t (id BIGINT, name VARCHAR)")
    with serve(make_settings(lake)) as server:
        side, client, path = make_branch(lake, "dev"), open_client(server, lake), "/v1/lake@dev/namespaces/main/tables/t"
        base = server.get(path).json["metadata"]
        body = {"requirements": [assert_main(None)], "updates": client.append(base, 9_000_000_001, [data_file(base, "a")])}
        lake.duckdb().execute("INSERT INTO t SELECT range, 'm' FROM range(20)")
        assert client.post(path, body).status == 200
        merge_branch(lake.psycopg(), lake.metadata_schema, request_)
        again = client.post(path, body)
        assert again.status == 200, again.body
        assert again.json["metadata"]["current-snapshot-id"] == server.get(path).json["metadata"]["current-snapshot-id"]
        assert side.psycopg().execute("SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL").fetchone() == (2,)
        body["updates"] = client.append(server.get(path).json["metadata"], 9_000_000_001, [data_file(base, "b")])
        assert client.post(path, body).status == 200
        reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
        assert client.post(path, body).status == (200 if request_.name == "dev" else 409)


@pytest.mark.long
def test_a_commit_is_known_after_its_branch_was_rebased_on_a_younger_one(lake: FreshLake) -> None:
    """The branch's fork point is above its own ids then: the clients' snapshot ids reach the branch and the lake all the same."""
    lake.duckdb().execute("CREATE TABLE t (id BIGINT, name VARCHAR)")
    with serve(make_settings(lake)) as server:
        make_branch(lake, "dev")
        younger, client, path = make_branch(lake, "younger"), open_client(server, lake), "namespaces/main/tables/t"
        base = server.get(f"/v1/lake@dev/{path}").json["metadata"]
        body = {"requirements": [assert_main(None)], "updates": client.append(base, 9_000_000_001, [data_file(base, "a")])}
        assert client.post(f"/v1/lake@dev/{path}", body).status == 200
        for number in range(2):
            younger.duckdb().execute("INSERT INTO t SELECT range, 'y' FROM range(20)")
            merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("younger"))
            merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("main", "dev"))
            assert client.post(f"/v1/lake@dev/{path}", body).status == 200, f"after rebase {number + 1}"
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
        assert [client.post(f"/v1/{prefix}/{path}", body).status for prefix in ("lake", "lake@dev")] == [200, 200]
        files = lake.psycopg().execute("SELECT count(*) FROM ducklake_data_file WHERE end_snapshot IS NULL").fetchone()
        assert files == (3,)
