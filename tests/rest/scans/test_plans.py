"""Plans of scans at the door: what they hold, which snapshot they are of, and what is refused."""

import json
from collections.abc import Generator
from typing import Any

import pytest

from tests.rest.scans.plans import TABLE, Planner, count_rows, is_
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

HISTORY = (
    "CREATE TABLE t (id INTEGER NOT NULL, name VARCHAR, seen TIMESTAMP, price DECIMAL(9, 2), spot STRUCT(x DOUBLE), "
    "tags VARCHAR[], raw BLOB)",
    "INSERT INTO t SELECT i, 'n' || i, TIMESTAMP '2026-01-01' + to_hours(i), i / 4, {'x': i}, ['a'], 'b' FROM range(100) r(i)",
    "INSERT INTO t SELECT i, NULL, NULL, NULL, NULL, NULL, NULL FROM range(100, 200) r(i)",
    "DELETE FROM t WHERE id = 7",
    "ALTER TABLE t RENAME COLUMN name TO title",
    "INSERT INTO t SELECT i, 'n' || i, NULL, NULL, NULL, NULL, NULL FROM range(200, 300) r(i)",
)


@pytest.fixture(scope="module")
def planner(stack: SharedStack) -> Generator[Planner]:
    """A table of three files with a deleted row and a renamed column. Tests only read it."""
    with make_lake(stack) as lake:
        conn = lake.duckdb()
        for statement in HISTORY:
            conn.execute(statement)
        conn.execute("CREATE TABLE none (i INTEGER)")
        for statement in (
            "CREATE TABLE less AS FROM range(50) r(i)",
            "INSERT INTO less FROM range(50, 100)",
            "DELETE FROM less WHERE i = 77",
        ):
            conn.execute(statement)
        with serve(make_settings(lake)) as server:
            yield Planner(server)


def test_a_plan_names_files_and_what_is_deleted_from_them(planner: Planner) -> None:
    """Each delete file once, by its place; nothing is left to ask where nothing was asked."""
    plan = planner.plan()
    assert set(plan) == {"status", "plan-id", "delete-files", "file-scan-tasks"}
    assert [task["residual-filter"] for task in plan["file-scan-tasks"]] == [True] * 3
    [deletes] = plan["delete-files"]
    [deleted_from] = [task["data-file"] for task in plan["file-scan-tasks"] if task.get("delete-file-references") == [0]]
    assert (deletes["content"], deletes["file-format"], deletes["record-count"]) == ("position-deletes", "parquet", 1)
    assert deletes["referenced-data-file"] == deleted_from["file-path"]
    assert deleted_from["spec-id"] == 0
    assert deleted_from["partition"] == []
    assert count_rows(plan) == 300


def test_a_table_without_rows_has_an_empty_plan(planner: Planner) -> None:
    """And one that is no error."""
    assert Planner(planner.server, "namespaces/main/tables/none").plan(filter=is_("i", "eq", 1))["file-scan-tasks"] == []


def test_a_snapshot_is_planned_by_its_id(planner: Planner) -> None:
    """Of each there is; the one before the delete has none."""
    first, second, *_ = [snapshot["snapshot-id"] for snapshot in planner.metadata()["snapshots"]]
    assert count_rows(planner.plan(snapshot_id=first)) == 100
    plan = planner.plan(snapshot_id=second)
    assert count_rows(plan) == 200
    assert "delete-files" not in plan


def test_names_are_those_of_the_schema_that_is_asked_for(planner: Planner) -> None:
    """The table's, unless the snapshot's own is wanted."""
    first = planner.metadata()["snapshots"][0]["snapshot-id"]
    asked = {"snapshot_id": first, "filter": is_("name", "eq", "n3")}
    assert planner.ask(**asked).error == (400, "BadRequestException")
    assert len(planner.plan(**asked, use_snapshot_schema=True)["file-scan-tasks"]) == 1
    assert (
        len(planner.plan(snapshot_id=first, filter=is_("title", "eq", "n3"), select=["id", "title", "_file", "spot.x"])["file-scan-tasks"])
        == 1
    )
    assert planner.ask(filter=is_("TITLE", "eq", "n3")).status == 400
    assert len(planner.plan(filter=is_("TITLE", "eq", "n3"), case_sensitive=False)["file-scan-tasks"]) == 1


def test_names_that_a_snapshot_lacks_are_the_tables(planner: Planner) -> None:
    """Spark reads a branch by its snapshot's id and asks for the snapshot's schema, but names the table's columns."""
    first = planner.metadata()["snapshots"][0]["snapshot-id"]
    asked = {"snapshot_id": first, "use_snapshot_schema": True}
    for named in ({"filter": is_("title", "eq", "n3")}, {"select": ["id", "title"]}, {"stats_fields": ["title"]}):
        assert len(planner.plan(**asked, **named)["file-scan-tasks"]) == 1
    assert planner.ask(**asked, select=["name", "title"]).error == (400, "BadRequestException")


def test_an_increment_is_planned(planner: Planner) -> None:
    """Files that appends added after the one snapshot, up to the other, without what was deleted since."""
    first, second, _, last = [snapshot["snapshot-id"] for snapshot in planner.metadata()["snapshots"]]
    assert count_rows(planner.plan(start_snapshot_id=first, end_snapshot_id=last)) == 200
    plan = planner.plan(start_snapshot_id=first, end_snapshot_id=second, filter=is_("id", "gt", 150))
    assert count_rows(plan) == 100
    assert "delete-files" not in plan
    assert planner.plan(start_snapshot_id=last, end_snapshot_id=last)["file-scan-tasks"] == []
    assert planner.ask(start_snapshot_id=last, end_snapshot_id=first).error == (400, "BadRequestException")


def test_a_plan_is_to_be_had_again_by_its_id_and_given_up(planner: Planner) -> None:
    """Any number of times: nothing is kept of it."""
    plan = planner.plan(filter=is_("id", "lt", 150), stats_fields=["id"])
    path = f"{TABLE}/plan/{plan['plan-id']}"
    assert planner.server.get(path).json == plan
    for _ in range(2):
        answer = planner.server.ask("DELETE", path)
        assert (answer.status, answer.body) == (204, b"")
    assert planner.server.get(path).json == plan


def test_statistics_come_of_the_columns_that_are_named(planner: Planner) -> None:
    """Counts, and bounds as manifests have them."""
    plan = planner.plan(filter=is_("id", "eq", 5), stats_fields=["id", "price"])
    [task] = plan["file-scan-tasks"]
    file = task["data-file"]
    ids = file["value-counts"]["keys"]
    assert file["value-counts"]["values"] == [100, 100]
    assert file["null-value-counts"] == {"keys": ids, "values": [0, 0]}
    assert file["lower-bounds"] == {"keys": ids, "values": ["00000000", "00"]}
    assert file["upper-bounds"]["values"][0] == "63000000"
    assert "value-counts" not in planner.plan()["file-scan-tasks"][0]["data-file"]


def test_no_more_files_are_planned_than_rows_are_wanted(planner: Planner) -> None:
    """The newest files come first; deleted rows are none; under a filter nobody knows how many rows fit."""
    for wanted, files in ((100, 1), (101, 2), (200, 2), (201, 3)):
        assert len(planner.plan(min_rows_requested=wanted)["file-scan-tasks"]) == files
    less = Planner(planner.server, "namespaces/main/tables/less")
    for wanted, files in ((49, 1), (50, 2)):
        assert len(less.plan(min_rows_requested=wanted)["file-scan-tasks"]) == files
    assert len(planner.plan(min_rows_requested=1, filter=is_("id", "gt-eq", 0))["file-scan-tasks"]) == 3


FILTERS = [
    (is_("id", "lt", 100), 100),
    (is_("id", "gt", 2**40), 0),
    (is_("seen", "lt", "2026-01-01T01:00:00"), 100),
    (is_("seen", "gt", 1893456000000000), 0),
    (is_("price", "eq", "24.75"), 100),
    (is_("price", "gt", 24.751), 0),
    (is_("title", "starts-with", "n2"), 200),
    (is_("title", "is-null"), 100),
    (is_("spot.x", "gt-eq", 99), 100),
    (is_("spot", "not-null"), 300),
    (is_("tags", "is-null"), 300),
    (is_("raw", "eq", "62"), 100),
    ({"type": "not", "child": is_("id", "gt-eq", 100)}, 100),
    ({"type": "lt", "left": {"type": "reference", "name": "id"}, "right": {"type": "literal", "value": 100, "data-type": "int"}}, 100),
    ({"type": "in", "child": {"type": "reference", "id": 1}, "values": {"type": "literals", "values": [1, 250], "data-type": "int"}}, 200),
    ({"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": "id"}, "value": 1}, 300),
    ({"type": "and", "left": True, "right": {"type": "false"}}, 0),
    ({"type": "or", "left": is_("id", "eq", 5), "right": is_("id", "eq", 205)}, 200),
    (is_("id", "in"), 0),
]


@pytest.mark.parametrize(("asked", "rows"), FILTERS, ids=[str(number) for number in range(len(FILTERS))])
def test_files_without_rows_that_fit_are_left_out(planner: Planner, asked: Any, rows: int) -> None:
    """By bounds and counts, in the specification's words and in its older ones; what is left to ask is in the client's."""
    plan = planner.plan(filter=asked)
    assert count_rows(plan) == rows
    if "term" in asked and isinstance(asked["term"], str) and rows:
        assert all(task["residual-filter"] == asked for task in plan["file-scan-tasks"])


def nest(kind: str, depth: int) -> Any:
    """A filter as deep as that."""
    node: Any = is_("id", "eq", 1)
    for number in range(depth):
        node = {"type": "not", "child": node} if kind == "not" else {"type": "or", "left": node, "right": is_("id", "eq", number)}
    return node


REFUSED = {
    "no object": [1],
    "unknown operation": {"filter": {"type": "like", "term": "title", "value": "n%"}},
    "no type": {"filter": {"term": "id"}},
    "unknown column": {"filter": is_("nothing", "eq", 1)},
    "unknown column selected": {"select": ["id", "nothing"]},
    "unknown column told of": {"stats-fields": ["nothing"]},
    "unknown id": {"filter": {"type": "is-null", "child": {"type": "reference", "id": 99}}},
    "text for a number": {"filter": is_("id", "eq", "five")},
    "fraction for a whole number": {"filter": is_("id", "eq", 1.5)},
    "number for a text": {"filter": is_("title", "eq", 5)},
    "truth for a number": {"filter": is_("id", "eq", True)},
    "no such day": {"filter": is_("seen", "lt", "2026-02-30T00:00:00")},
    "null": {"filter": is_("id", "eq", None)},
    "null in a set": {"filter": is_("id", "in", 1, None)},
    "NaN as text": {"filter": is_("spot.x", "eq", "NaN")},
    "NaN of no floating-point number": {"filter": is_("id", "is-nan")},
    "beginning of a number": {"filter": is_("id", "starts-with", "1")},
    "order of a list": {"filter": is_("tags", "eq", "a")},
    "value of a unary": {"filter": is_("id", "is-null", 1)},
    "no value": {"filter": is_("id", "eq")},
    "values of another kind": {"filter": {"type": "in", "term": "id", "values": 5}},
    "two words for one": {"filter": {"type": "eq", "term": "id", "left": "id", "value": 1}},
    "unknown transform": {"filter": {"type": "eq", "term": {"type": "transform", "transform": "half", "term": "id"}, "value": 1}},
    "transform of another type": {"filter": {"type": "eq", "term": {"type": "transform", "transform": "day", "term": "id"}, "value": 1}},
    "function": {"filter": {"type": "eq", "left": {"type": "apply", "function": "abs", "arguments": []}, "right": 1}},
    "huge number": {"filter": is_("spot.x", "lt", 10**60)},
    "deep": {"filter": nest("not", 250)},
    "long number": {"filter": is_("price", "lt", "1" * 200_000)},
    "long time": {"filter": is_("seen", "lt", "T" * 200_000)},
    "huge": {"filter": is_("title", "in", *(f"{number}" * 20 for number in range(20_000)))},
    "unknown snapshot": {"snapshot-id": 4711},
    "negative snapshot": {"snapshot-id": -1},
    "snapshot as text": {"snapshot-id": "1"},
    "snapshot of 65 bits": {"snapshot-id": 2**64},
    "half an increment": {"start-snapshot-id": 1},
    "other half": {"end-snapshot-id": 1},
    "increment and snapshot": {"snapshot-id": 1, "start-snapshot-id": 1, "end-snapshot-id": 2},
    "unknown start": {"start-snapshot-id": 4711, "end-snapshot-id": 2},
    "fewer than no rows": {"min-rows-requested": -1},
    "no flag": {"case-sensitive": "yes"},
    "names that are none": {"select": [1]},
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(planner: Planner, body: Any) -> None:
    """In Iceberg's shape."""
    assert planner.post("plan", body).error == (400, "BadRequestException")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"filter": true, "filter": false}',
        b'{"snapshot-id": NaN}',
        b'{"filter": {"type": "lt", "term": "spot.x", "value": 1e400}}',
        b'{"filter":' + b'{"type":"not","child":' * 5000,
        b"\xff",
    ],
    ids=["empty", "half", "twice", "NaN", "infinite", "deep", "bytes"],
)
def test_what_is_no_json_is_refused(planner: Planner, body: bytes) -> None:
    """Keys that are given twice too."""
    for path in ("plan", "tasks"):
        assert planner.server.ask("POST", f"{TABLE}/{path}", {"content-type": "application/json"}, body).error == (
            400,
            "BadRequestException",
        )


def test_long_chains_are_no_depth(planner: Planner) -> None:
    """Clients write a list of values as hundreds of ORs within each other; what is left of them is a flat tree again."""
    plan = planner.plan(filter=nest("or", 400))
    assert len(plan["file-scan-tasks"]) == 3
    told = json.dumps(plan["file-scan-tasks"][0]["residual-filter"])
    assert told.count('"eq"') == 401
    depth = most = 0
    for character in told:
        depth += (character == "{") - (character == "}")
        most = max(most, depth)
    assert most < 15


NODE = '{"type": "gt-eq", "term": "id", "value": 0}'
DEEP = {
    "or": [f'{{"type": "or", "right": {NODE}, "left": '],
    "not": ['{"type": "not", "child": '],
    "alternating": [f'{{"type": "{kind}", "left": {NODE}, "right": ' for kind in ("and", "or")],
}


@pytest.mark.parametrize("depth", [10, 190, 201, *range(880, 1000, 17)])
@pytest.mark.parametrize("kind", DEEP)
def test_no_depth_is_too_much_for_the_server(planner: Planner, kind: str, depth: int) -> None:
    """It is planned or refused, and its plan is fetched as it was made."""
    begins = DEEP[kind]
    filter_ = "".join(begins[number % len(begins)] for number in range(depth)) + NODE + "}" * depth
    answer = planner.server.ask("POST", f"{TABLE}/plan", {"content-type": "application/json"}, f'{{"filter": {filter_}}}'.encode())
    assert answer.status == 200 or (depth > 200 and answer.error == (400, "BadRequestException"))
    if answer.status == 200 and len(answer.json["plan-id"]) > 200:
        assert planner.server.get(f"{TABLE}/plan/{answer.json['plan-id']}").json == answer.json


def test_a_plan_with_a_large_filter_has_a_short_id(planner: Planner) -> None:
    """It is part of a path; the plan can be given up, and not be had again."""
    plan = planner.plan(filter=is_("title", "in", *(f"n{number * 7919 % 100_003}" for number in range(5_000))))
    assert len(plan["plan-id"]) < 200
    assert planner.server.get(f"{TABLE}/plan/{plan['plan-id']}").error == (404, "NoSuchPlanIdException")
    assert planner.server.ask("DELETE", f"{TABLE}/plan/{plan['plan-id']}").status == 204


@pytest.mark.parametrize("plan_id", ["1", "x" * 3000, "cA", "%00", "%FF", "a+b"], ids=["short", "long", "bytes", "zero", "no text", "plus"])
def test_unknown_plans_are_not_there(planner: Planner, plan_id: str) -> None:
    """In the specification's words."""
    for method in ("GET", "DELETE"):
        answer = planner.server.ask(method, f"{TABLE}/plan/{plan_id}")
        assert answer.error in ((404, "NoSuchPlanIdException"), (400, "BadRequestException"))
        assert answer.error[0] == (400 if plan_id == "%FF" else 404)


def test_tokens_are_of_one_kind_and_one_table(planner: Planner) -> None:
    """A plan's id is no task, and neither is any of another table, or damaged."""
    plan_id = planner.plan()["plan-id"]
    damaged = plan_id[:20] + ("A" if plan_id[20] != "A" else "B") + plan_id[21:]
    for token in (plan_id, damaged, "", "ü"):
        assert planner.post("tasks", {"plan-task": token}).error == (404, "NoSuchPlanTaskException")
    assert planner.server.get(f"{TABLE}/plan/{damaged}").error == (404, "NoSuchPlanIdException")
    other = Planner(planner.server, "namespaces/main/tables/none")
    for method in ("GET", "DELETE"):
        assert planner.server.ask(method, f"{other.table}/plan/{plan_id}").error == (404, "NoSuchPlanIdException")
    missing = Planner(planner.server, "namespaces/main/tables/missing")
    assert missing.ask().error == (404, "NoSuchTableException")
    assert missing.post("tasks", {"plan-task": plan_id}).error == (404, "NoSuchTableException")
