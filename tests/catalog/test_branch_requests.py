"""Requests that make or delete a branch, and a process that is killed in them: the repetition with the same key does what is missing."""

import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from duckicelake.catalog import repositories
from duckicelake.catalog.idempotency import RequestContext
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import LakeBusy
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.branches.create import BranchRequest
from duckicelake.lake.branches.registry import list_branches
from duckicelake.lake.connect import RequestKey
from duckicelake.lake.writing.idempotency import claim_key
from tests.catalog.conftest import Opener
from tests.lake.branches.repository import make_branch
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for


def do(warehouse: Warehouse, asked: RequestContext, action: str) -> None:
    """Make the branch `dev`, or delete it."""
    if action == "make":
        assert repositories.make(warehouse, asked, BranchRequest("dev"))[0].name == "dev"
    else:
        repositories.remove(warehouse, asked, "dev")


def run_until_killed(open_server: Opener, lake: FreshLake, asked: RequestContext, action: str, *, is_committed: bool) -> None:
    """Do it, and end as by kill -9 right before COMMIT, or right after it."""
    step = "_log" if is_committed else "write_line"
    pytest.MonkeyPatch().setattr(repositories, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    do(open_server(lake), asked, action)


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("action", ["make", "remove"])
def test_a_killed_request_is_repeated(lake: FreshLake, open_server: Opener, action: str, *, is_committed: bool) -> None:
    """Branch, key and audit line are there together, or none of them; the repetition is answered, and they are there once."""
    asked = RequestContext(AuditContext("r1", None, "changeBranch", ("branch:dev",)), RequestKey(uuid4(), "content"))
    make_branch(lake, "other")
    if action == "remove":
        make_branch(lake, "dev")
    conn = lake.psycopg()
    before = [branch.name for branch in list_branches(conn)]
    process = multiprocessing.get_context("fork").Process(
        target=run_until_killed, args=(open_server, lake, asked, action), kwargs={"is_committed": is_committed}
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert ([branch.name for branch in list_branches(conn)] != before) == is_committed
    for _ in range(2):
        do(open_server(lake), asked, action)
        assert [branch.name for branch in list_branches(conn)] == (["other", "dev"] if action == "make" else ["other"])
    assert conn.execute("SELECT count(*) FROM iceberg_audit WHERE request_id = 'r1'").fetchone() == (1,)


def test_a_commit_with_a_key_does_not_wait_for_a_branch_that_waits_for_the_lake(lake: FreshLake, open_server: Opener) -> None:
    """Both find a key that has expired. The one that makes the branch waits for the lake's lock, which the other one has."""
    warehouse = open_server(lake)
    make_branch(lake, "other")
    conn, commit = lake.psycopg(), lake.psycopg(autocommit=False)
    conn.execute(
        "INSERT INTO iceberg_idempotency (key, fingerprint, created_at) VALUES (gen_random_uuid(), 'old', now() - interval '2 hours')"
    )
    asked = RequestContext(AuditContext("r1", None, "createBranch", ("branch:dev",)), RequestKey(uuid4(), "content"))
    commit.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(do, warehouse, asked, "make")
        wait_for(lambda: count_waiting(conn, "ducklake_snapshot") > 0, "the branch")
        commit.execute("SET LOCAL lock_timeout = '1ms'")
        claim_key(commit, RequestKey(uuid4(), "content"))
        commit.commit()
        making.result()


def test_a_lock_that_others_hold_is_no_answer_of_the_key(lake: FreshLake, open_server: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request may be repeated."""
    monkeypatch.setattr("duckicelake.lake.connect.SET_LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    warehouse = open_server(lake)
    make_branch(lake, "dev")
    other = lake.psycopg(autocommit=False)
    other.execute("SELECT FROM iceberg_branch WHERE name = 'dev' FOR UPDATE")
    asked = RequestContext(AuditContext("r1", None, "deleteBranch", ("branch:dev",)), RequestKey(uuid4(), "content"))
    with pytest.raises(LakeBusy):
        do(warehouse, asked, "remove")
    other.rollback()
    do(warehouse, asked, "remove")
    assert list_branches(lake.psycopg()) == []
