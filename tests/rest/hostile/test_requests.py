"""Requests that contradict themselves, the table or the format: 4xx with the reason, and nothing changes."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from duckicelake.rest.layers.body_limit import LARGE_BYTES
from tests.rest.hostile.target import TABLES, VIEWS, Range, Target
from tests.rest.serving import Answer
from tests.rest.writing.client import COLUMNS, assert_main
from tests.rest.writing.views.requests import version
from tests.support.tiers import long_after

MIB = 1024 * 1024


@pytest.fixture
def target(targets: Range) -> Target:
    """A settled lake."""
    return targets.target()


def commit(target: Target, *updates: Any, requirements: list[Any] | None = None) -> Answer:
    """Change the table `t`, and a property with it that must not stay."""
    good = {"action": "set-properties", "updates": {"good": "yes"}}
    return target.post(f"{TABLES}/t", {"requirements": requirements or [], "updates": [good, *updates]})


def create(target: Target, name: str = "fresh", fields: Any = None, **more: Any) -> Answer:
    """Make a table of these columns."""
    schema = COLUMNS if fields is None else {"type": "struct", "schema-id": 0, "fields": fields}
    return target.post(TABLES, {"name": name, "schema": schema, **more})


def create_view(target: Target, name: str = "fresh", **more: Any) -> Answer:
    """Make a view."""
    body = {"name": name, "schema": COLUMNS, "view-version": version({"spark": "SELECT id, name FROM t"}), "properties": {}}
    return target.post(VIEWS, {**body, **more})


def column(name: str, kind: Any, field_id: int = 1, **more: Any) -> dict[str, Any]:
    """One column."""
    return {"id": field_id, "name": name, "type": kind, "required": False, **more}


def spec(transform: str, source_id: int = 1, name: str = "p") -> dict[str, Any]:
    """A partition spec of one field."""
    return {"spec-id": 1, "fields": [{"source-id": source_id, "field-id": 1000, "name": name, "transform": transform}]}


def nested(depth: int, kind: str = "struct") -> Any:
    """A type of so many levels."""
    made: Any = "int"
    for level in range(depth):
        field_id = level + 2
        if kind == "list":
            made = {"type": "list", "element-id": field_id, "element": made, "element-required": False}
        else:
            made = {"type": "struct", "fields": [column("x", made, field_id)]}
    return made


CONTRADICTIONS: list[Any] = [
    pytest.param([{"action": "add-schema", "schema": COLUMNS}, {"action": "set-current-schema", "schema-id": 9}], id="unknown schema"),
    pytest.param([{"action": "set-default-spec", "spec-id": -1}], id="the spec added last, when none was"),
    pytest.param([{"action": "set-default-sort-order", "sort-order-id": -1}], id="the order added last, when none was"),
    pytest.param([{"action": "set-current-schema", "schema-id": -1}], id="the schema added last, when none was"),
    pytest.param([{"action": "add-spec", "spec": spec("identity", 99)}], id="a spec of an unknown column"),
    pytest.param([{"action": "add-spec", "spec": spec("bucket[0]")}], id="no bucket"),
    pytest.param([{"action": "add-spec", "spec": spec("truncate[-1]")}], id="a negative width"),
    pytest.param([{"action": "add-spec", "spec": spec("day")}], id="days of a number"),
    pytest.param([{"action": "add-spec", "spec": spec("identity", 1, "name")}], id="a partition field with another column's name"),
    pytest.param([{"action": "upgrade-format-version", "format-version": 1}], id="a lower version"),
    pytest.param([{"action": "upgrade-format-version", "format-version": 4}], id="a version of the future"),
    pytest.param([{"action": "remove-schemas", "schema-ids": [0]}], id="removing the current schema"),
    pytest.param([{"action": "remove-partition-specs", "spec-ids": [0]}], id="removing the default spec"),
    pytest.param([{"action": "assign-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}], id="another uuid"),
    pytest.param([{"action": "set-snapshot-ref", "ref-name": "main", "type": "tag", "snapshot-id": 1}], id="main as a tag"),
    pytest.param([{"action": "add-encryption-key", "encryption-key": {"key-id": "k"}}], id="encryption"),
    pytest.param([{"action": "add-view-version"}], id="an action of views"),
    pytest.param([{"action": ["set-location"]}], id="an action that is no text"),
    pytest.param([{}], id="no action"),
    pytest.param(["set-location"], id="an update that is no object"),
]


@pytest.mark.parametrize("updates", CONTRADICTIONS)
def test_contradictions_are_refused(target: Target, updates: list[Any]) -> None:
    """Whole: no other update of the request is done either."""
    answer = commit(target, *updates)
    target.check(answer)
    assert answer.error[0] == 400, answer.body


@pytest.mark.parametrize(
    ("requirement", "status"),
    [
        pytest.param({"type": "assert-luck"}, 400, id="unknown"),
        pytest.param({}, 400, id="without a type"),
        pytest.param({"type": "assert-view-uuid", "uuid": "x"}, 400, id="of views"),
        pytest.param({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2**63}, 400, id="out of range"),
        pytest.param({"type": "assert-current-schema-id", "current-schema-id": "0"}, 400, id="text for a number"),
        pytest.param({"type": "assert-current-schema-id", "current-schema-id": True}, 400, id="true for a number"),
        pytest.param({"type": "assert-create"}, 409, id="that it is not there"),
        pytest.param(assert_main(12345), 409, id="another snapshot"),
    ],
)
def test_requirements_are_read_and_hold(target: Target, requirement: Any, status: int) -> None:
    """400 for what cannot be read, 409 for what does not hold."""
    answer = commit(target, requirements=[requirement])
    target.check(answer)
    assert answer.error[0] == status, answer.body


COLUMN_SETS: list[Any] = [
    pytest.param([column("id", "int"), column("ID", "int", 2)], {}, "case", id="names that differ by case"),
    pytest.param([column("id", "int"), column("id", "int", 2)], {}, "id", id="a name twice"),
    pytest.param([column("a", "int"), column("b", "int", 1)], {}, "", id="an id twice"),
    pytest.param([column("a", {"type": "struct", "fields": [column("x", "int", 2), column("X", "int", 3)]})], {}, "", id="case, nested"),
    pytest.param([column("", "int")], {}, "", id="no name"),
    pytest.param([column("a\0b", "int")], {}, "", id="NUL in a name"),
    pytest.param([column("begin_snapshot", "int")], {}, "begin_snapshot", id="a name that DuckLake reserves"),
    pytest.param([column("_ducklake_internal_row_id", "int")], {}, "_ducklake_internal", id="a prefix that DuckLake reserves"),
    pytest.param([column("a", "timestamp_ns")], {}, "timestamp_ns", id="a type of version 3"),
    pytest.param(
        [column("a", {"type": "list", "element-id": 2, "element": "variant", "element-required": False})],
        *({"properties": {"format-version": "3"}}, "variant"),
        id="a list of variants",
    ),
    pytest.param([column("a", "fixed[0]")], {}, "fixed", id="no length"),
    pytest.param([column("a", "decimal(39, 2)")], {}, "decimal", id="too many digits"),
    pytest.param([column("a", "decimal(9, 10)")], {}, "decimal", id="more digits behind the point than there are"),
    pytest.param([column("a", "banana")], {}, "banana", id="no type"),
    pytest.param([column("a", "int", **{"initial-default": 5})], {}, "", id="a default of version 3"),
    pytest.param(
        [column("a", "int", **{"initial-default": "x"})], {"properties": {"format-version": "3"}}, "", id="a default of another type"
    ),
    pytest.param([column("a", "int")], {"partition-spec": spec("month")}, "month", id="months of a number"),
    pytest.param([column("a", "int")], {"partition-spec": spec("zorder")}, "", id="no transform"),
    pytest.param([column("a", "int")], {"properties": {"format-version": "4"}}, "4", id="a version of the future"),
    pytest.param([column("a", "int")], {"properties": {"format-version": "two"}}, "", id="a version in letters"),
    pytest.param([column("a", nested(100))], {}, "", id="a hundred levels of structs"),
    pytest.param([column("a", nested(100, "list"))], {}, "", id="a hundred levels of lists"),
    pytest.param([column("a", nested(300))], {}, "", id="three hundred levels"),
]


@pytest.mark.parametrize(("fields", "more", "said"), COLUMN_SETS)
def test_columns_that_cannot_be_are_refused(target: Target, fields: Any, more: dict[str, Any], said: str) -> None:
    """By name; a table that would be broken is not made."""
    for stage in (False, True):
        answer = create(target, "fresh", fields, **more, **{"stage-create": stage})
        target.check(answer)
        assert answer.error[0] == 400, answer.body
        assert said in answer.json["error"]["message"]


Place = Callable[[Target], str]


def place(name: str, below: str = "") -> Place:
    """A place in or above what is there."""
    return lambda target: target.made[name]["location"] + below


PLACES: list[Any] = [
    pytest.param(place("t"), id="of a table"),
    pytest.param(place("t", "/data/x"), id="in a table"),
    pytest.param(place("v"), id="of a view"),
    pytest.param(place("v", "/metadata"), id="in a view"),
    pytest.param(lambda target: f"{target.lake.iceberg_path}ns", id="above all tables"),
    pytest.param(lambda target: target.lake.iceberg_path, id="ICEBERG_PATH itself"),
    pytest.param(lambda target: f"{target.lake.data_path}x", id="in DATA_PATH"),
    pytest.param(lambda target: f"{target.lake.iceberg_path}a/../../x", id="by a way around"),
    pytest.param(lambda target: f"{target.lake.iceberg_path}a//b", id="with an empty step"),
    pytest.param(lambda target: "s3://elsewhere/x", id="in another bucket"),
    pytest.param(lambda target: "file:///tmp/x", id="on the server's disk"),
    pytest.param(lambda target: "x", id="no place"),
    pytest.param(lambda target: "", id="empty"),
]


@pytest.mark.parametrize("where", PLACES)
def test_nothing_is_put_where_something_is(target: Target, where: Place) -> None:
    """A table lies in no table or view, holds none, and neither it nor a view lies outside this catalog's places; nor moves there.

    Views may share a place: their files are named by their content.
    """
    place = where(target)
    refuse(target, create(target, location=place))
    refuse(target, create(target, location=place, **{"stage-create": True}))
    if not place.startswith(target.made["v"]["location"]):
        refuse(target, create_view(target, location=place))
        refuse(target, create_view(target, properties={"write.metadata.path": place}))
    if not place.startswith(target.made["t"]["location"]):
        refuse(target, commit(target, {"action": "set-location", "location": place}))


def refuse(target: Target, answer: Answer) -> None:
    """The answer is 400, and nothing changed."""
    target.check(answer)
    assert answer.error[0] == 400, answer.body


BODIES: list[Any] = [
    pytest.param(b"", id="empty"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[]", id="an array"),
    pytest.param(b'{"requirements": [], "updates": ', id="cut"),
    pytest.param(b"\xff\xfe{}", id="no UTF-8"),
    pytest.param(b"[" * MIB, id="deep arrays"),
    pytest.param(b'{"a":' * MIB, id="deep objects"),
    pytest.param(b'{"requirements": [], "updates": [], "updates": []}', id="a key twice"),
    pytest.param(b'{"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": NaN}}]}', id="NaN"),
    pytest.param(b'{"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": Infinity}]}', id="Infinity"),
    pytest.param(b'{"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": 1e9}]}', id="a float for a number"),
    pytest.param(b'{"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": ' + b"9" * 10_000 + b"}]}", id="digits"),
    pytest.param(json.dumps({"updates": [{"action": "set-properties", "updates": {"\ud800": "x"}}]}).encode(), id="half a pair"),
]


@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_are_no_request_are_refused(target: Target, body: bytes) -> None:
    """By 400 in Iceberg's shape, wherever they are sent; by 413 where they are not read at all."""
    for path in (
        f"{TABLES}/t",
        TABLES,
        f"{VIEWS}/v",
        VIEWS,
        "transactions/commit",
        "tables/rename",
        "namespaces/ns/register",
        "namespaces",
    ):
        answer = target.send("POST", path, body)
        target.check(answer)
        assert answer.error == (413 if len(body) > LARGE_BYTES else 400, "BadRequestException"), (path, answer.body)


def test_a_body_of_a_hundred_mebibytes_is_refused(target: Target) -> None:
    """By the length that it announces, and nothing changes."""
    answer = target.send("POST", f"{TABLES}/t", b" " * (100 * MIB))
    assert answer.error == (413, "BadRequestException")
    target.check(answer)


@pytest.mark.whole
@pytest.mark.parametrize("item", long_after(1, [b"[]", b"{}", b"7", b'{"a":7}']))
def test_a_body_of_millions_of_values_is_refused(target: Target, item: bytes) -> None:
    """It is not read: less than 32 MiB of it would take gigabytes."""
    body = b'{"updates":[' + b",".join([item] * (31 * MIB // (len(item) + 1))) + b"]}"
    answer = target.send("POST", f"{TABLES}/t", body)
    assert answer.error == (413, "BadRequestException")
    target.check(answer)


def test_a_refusal_that_names_nul_is_kept_with_its_key(target: Target) -> None:
    """Postgres stores no such text; the answer is that of the same request without a key."""
    requirement = {"type": "assert-ref-snapshot-id", "ref": "a\0b", "snapshot-id": 5}
    body = json.dumps({"requirements": [requirement], "updates": []}).encode()
    headers = {"content-type": "application/json", "idempotency-key": "00000000-0000-4000-8000-000000000077"}
    for _ in range(2):
        assert target.client.server.ask("POST", f"{TABLES}/t", headers, body).error == (409, "CommitFailedException")
