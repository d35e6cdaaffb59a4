"""Whose scans are planned, and with which keys."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.iceberg.scan_tasks import WHOLE_SCAN, encode_scan, format_plan_id, format_task, parse_plan_id
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.vended import is_refused, open_root, open_vended, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.support.waiting import wait_for

PATH = "namespaces/a/tables/t"
VENDED = {"X_Iceberg_Access_Delegation": "vended-credentials"}
DENIALS = "SELECT principal, operation, objects, outcome FROM iceberg_audit WHERE operation = ANY(%s) ORDER BY principal, operation"
OPERATIONS = ["planTableScan", "fetchPlanningResult", "cancelPlanning", "fetchScanTasks"]


@pytest.fixture(scope="module")
def vending(stack: SharedStack) -> Generator[Guarded]:
    """A guarded server that vends keys, for tests that leave its tables as they are."""
    with make_lake(stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as running:
        lake.duckdb().execute("INSERT INTO b.t SELECT range FROM range(20000)")
        yield running


def plan(guarded: Guarded, principal: str, path: str = PATH, **headers: str) -> Any:
    """A plan of a table as a principal asks for it."""
    answer = guarded.ask(principal, "POST", f"{path}/plan", {}, **headers)
    assert answer.status == 200, answer.body
    assert answer.headers["cache-control"] == "no-store"
    return answer.json


def test_keys_come_with_a_plan_that_asks_for_them(vending: Guarded) -> None:
    """They open the files of the plan, inlined rows among them, and nothing of another table; a reader's write nothing."""
    told = plan(vending, "reader", **VENDED)
    credentials = told["storage-credentials"]
    loaded = vending.get("reader", PATH, **VENDED).json
    assert credentials == loaded["storage-credentials"]
    assert "storage-credentials" not in plan(vending, "reader")
    s3 = open_vended(credentials[0]["config"])
    [uri] = [task["data-file"]["file-path"] for task in told["file-scan-tasks"]]
    assert any(uri.startswith(each["prefix"]) for each in credentials)
    bucket, key = split(uri)
    assert s3.get_object(Bucket=bucket, Key=key)["Body"].read(4) == b"PAR1"
    assert is_refused(s3.put_object, Bucket=bucket, Key=key + ".more", Body=b"")
    for task in plan(vending, "admin", "namespaces/b/tables/t")["file-scan-tasks"]:
        bucket, key = split(task["data-file"]["file-path"])
        assert is_refused(s3.get_object, Bucket=bucket, Key=key)


def test_a_plan_that_is_fetched_again_has_keys(vending: Guarded) -> None:
    """For who asks then, and only when they are wanted."""
    plan_id = plan(vending, "reader")["plan-id"]
    assert vending.get("reader", f"{PATH}/plan/{plan_id}", **VENDED).json["storage-credentials"]
    assert "storage-credentials" not in vending.get("reader", f"{PATH}/plan/{plan_id}", X_Iceberg_Access_Delegation="remote-signing").json


def test_a_plan_gives_no_rights(vending: Guarded) -> None:
    """Tokens of a plan that somebody else was given lead nowhere, not by another table's name either; denials are on record."""
    told = plan(vending, "admin", "namespaces/b/tables/t")
    for principal, path, hidden in (("reader", "namespaces/b/tables/t", True), ("blind", PATH, False), ("reader", PATH, None)):
        answers = [
            vending.get(principal, f"{path}/plan/{told['plan-id']}"),
            vending.ask(principal, "DELETE", f"{path}/plan/{told['plan-id']}"),
            vending.ask(principal, "POST", f"{path}/tasks", {"plan-task": told["plan-id"]}),
        ]
        if hidden is None:
            assert {answer.error for answer in answers} == {(404, "NoSuchPlanIdException"), (404, "NoSuchPlanTaskException")}
        else:
            assert {answer.error for answer in answers} == {(404, "NoSuchTableException") if hidden else (403, "NotAuthorizedException")}
    vending.ask("blind", "POST", f"{PATH}/plan", {})
    conn = vending.lake.psycopg()
    lines = wait_for(lambda: rows if len(rows := conn.execute(DENIALS, [OPERATIONS]).fetchall()) >= 7 else None, "seven denials")
    assert [line[:2] for line in lines] == [("blind", name) for name in sorted(OPERATIONS)] + [
        ("reader", name) for name in sorted(OPERATIONS) if name != "planTableScan"
    ]
    assert {line[3] for line in lines if line[0] == "blind"} == {"denied"}
    assert {line[3] for line in lines if line[0] == "reader"} == {"hidden"}


def test_what_a_writer_puts_into_a_folder_shows_no_other_table(vending: Guarded) -> None:
    """Neither a list of his own that a token names, nor one in the place of a published one: manifests elsewhere are not read."""
    theirs = vending.get("admin", "namespaces/b/tables/t").json["metadata"]["snapshots"][-1]
    bucket, key = split(theirs["manifest-list"])
    content = open_root(vending).get_object(Bucket=bucket, Key=key)["Body"].read()
    own = vending.get("writer", PATH, **VENDED).json
    s3, at = open_vended(own["storage-credentials"][0]["config"]), own["metadata"]["snapshots"][-1]
    pinned = parse_plan_id(plan(vending, "writer")["plan-id"])
    assert pinned is not None
    name = f"snap-{at['snapshot-id']}-{UUID(int=0)}.avro"
    bucket, key = split(f"{own['metadata']['location']}/metadata/{name}")
    s3.put_object(Bucket=bucket, Key=key, Body=content)
    packed = encode_scan(replace(pinned, list_name=name))
    forged = vending.get("writer", f"{PATH}/plan/{format_plan_id(packed)}")
    assert forged.error == (404, "NoSuchPlanIdException")
    forged = vending.ask("writer", "POST", f"{PATH}/tasks", {"plan-task": format_task(packed, WHOLE_SCAN)})
    assert forged.error == (404, "NoSuchPlanTaskException")
    path = "namespaces/a/tables/other"
    own = vending.get("writer", path, **VENDED).json
    s3, at = open_vended(own["storage-credentials"][0]["config"]), own["metadata"]["snapshots"][-1]
    bucket, key = split(at["manifest-list"])
    s3.put_object(Bucket=bucket, Key=key, Body=content)
    answer = vending.ask("writer", "POST", f"{path}/plan", {})
    assert answer.status == 404, answer.body
    assert b"/b/" not in answer.body
