"""Namespaces over REST: made, dropped, their properties changed."""

import json
from typing import Any

import pytest

from tests.rest.serving import Answer, Server
from tests.support.lakes import FreshLake


def post(server: Server, path: str, body: Any) -> Answer:
    """Send JSON."""
    return server.ask("POST", path, {"content-type": "application/json"}, json.dumps(body).encode())


def create(server: Server, *levels: str, **properties: str) -> Answer:
    """Make a namespace."""
    return post(server, "namespaces", {"namespace": list(levels), "properties": properties})


def test_a_namespace_is_a_schema_for_duckdb(server: Server, lake: FreshLake) -> None:
    """Both sides see it at once, with its properties over REST, and DuckDB goes on working in it."""
    session = lake.duckdb()
    assert create(server, "sales", owner="ann").json == {"namespace": ["sales"], "properties": {"owner": "ann"}}
    session.execute("CREATE TABLE sales.t AS SELECT 1 AS i")
    assert session.execute("FROM lake.sales.t").fetchall() == [(1,)]
    assert server.get("namespaces/sales").json["properties"] == {"owner": "ann"}
    assert server.get("namespaces/sales/tables").json["identifiers"] == [{"namespace": ["sales"], "name": "t"}]


def test_a_namespace_is_made_once(server: Server) -> None:
    """A name that differs by case alone is the same."""
    assert create(server, "sales").status == 200
    assert create(server, "sales").error == (409, "AlreadyExistsException")
    assert create(server, "SALES").error == (409, "AlreadyExistsException")


def test_levels_nest(server: Server) -> None:
    """A child implies its parent, which then exists and cannot be dropped before it."""
    assert create(server, "a", "b").status == 200
    assert server.ask("HEAD", "namespaces/a").status == 204
    assert create(server, "a").error == (409, "AlreadyExistsException")
    assert server.ask("DELETE", "namespaces/a").error == (409, "NamespaceNotEmptyException")
    assert post(server, "namespaces/a/properties", {"updates": {"k": "v"}}).json["updated"] == ["k"]
    assert server.get("namespaces/a").json["properties"] == {"k": "v"}
    assert server.ask("DELETE", "namespaces/a%1Fb").status == 204
    assert server.ask("DELETE", "namespaces/a").status == 204


def test_properties_change(server: Server) -> None:
    """Answers name what was set, removed and missing; other properties stay."""
    create(server, "s", a="1", b="2", c="3")
    done = post(server, "namespaces/s/properties", {"removals": ["a", "x"], "updates": {"b": "4", "d": "5"}})
    assert done.json == {"updated": ["b", "d"], "removed": ["a"], "missing": ["x"]}
    assert server.get("namespaces/s").json["properties"] == {"b": "4", "c": "3", "d": "5"}


def test_nothing_to_change_makes_no_lake_snapshot(server: Server, lake: FreshLake) -> None:
    """Setting what is set already leaves the lake alone."""
    create(server, "s", a="1")
    before = read_head(lake)
    assert post(server, "namespaces/s/properties", {"removals": ["x"], "updates": {"a": "1"}}).status == 200
    assert read_head(lake) == before


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param({"removals": ["a"], "updates": {"a": "1"}}, (422, "UnprocessableEntityException"), id="set and removed"),
        pytest.param({"removals": "a"}, (400, "BadRequestException"), id="no list"),
        pytest.param({"updates": {"a": 1}}, (400, "BadRequestException"), id="no text"),
        pytest.param({"updates": {"a": "\0"}}, (400, "BadRequestException"), id="NUL"),
        pytest.param([], (400, "BadRequestException"), id="no object"),
    ],
)
def test_a_refused_change_changes_nothing(server: Server, lake: FreshLake, body: Any, error: tuple[int, str]) -> None:
    """Neither rows nor the head move."""
    create(server, "s", a="0")
    before = read_head(lake)
    assert post(server, "namespaces/s/properties", body).error == error
    assert read_head(lake) == before
    assert server.get("namespaces/s").json["properties"] == {"a": "0"}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="no name"),
        pytest.param({"namespace": []}, id="no level"),
        pytest.param({"namespace": [""]}, id="empty level"),
        pytest.param({"namespace": ["a␟b"]}, id="our separator"),
        pytest.param({"namespace": ["a\nb"]}, id="control character"),
        pytest.param({"namespace": ["a"], "properties": {"k": None}}, id="null property"),
    ],
)
def test_a_malformed_namespace_is_refused(server: Server, lake: FreshLake, body: Any) -> None:
    """By 400, and nothing is made."""
    before = read_head(lake)
    assert post(server, "namespaces", body).error == (400, "BadRequestException")
    assert read_head(lake) == before


def test_a_body_that_is_no_json_is_refused(server: Server) -> None:
    """Neither broken JSON nor keys given twice pass."""
    for body in (b"{", b"", b'{"namespace":["a"],"namespace":["b"]}', b"\xff"):
        assert server.ask("POST", "namespaces", {}, body).error == (400, "BadRequestException")


def test_only_an_empty_namespace_is_dropped(server: Server, lake: FreshLake) -> None:
    """Tables and views are in the way, for DuckDB's too."""
    session = lake.duckdb()
    create(server, "s")
    for made, dropped in (("CREATE TABLE s.t (i INTEGER)", "DROP TABLE s.t"), ("CREATE VIEW s.v AS SELECT 1 AS i", "DROP VIEW s.v")):
        session.execute(made)
        assert server.ask("DELETE", "namespaces/s").error == (409, "NamespaceNotEmptyException")
        session.execute(dropped)
    assert server.ask("DELETE", "namespaces/s").status == 204
    assert server.ask("DELETE", "namespaces/s").error == (404, "NoSuchNamespaceException")
    assert session.execute("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake'").fetchall() == [("main",)]
    assert server.ask("DELETE", "namespaces/main").error == (400, "BadRequestException")


def test_a_dropped_namespace_takes_its_properties_along(server: Server) -> None:
    """One of the same name starts without them."""
    create(server, "s", a="1")
    server.ask("DELETE", "namespaces/s")
    create(server, "s")
    assert server.get("namespaces/s").json["properties"] == {}


def test_duckdb_finds_out_about_conflicts(server: Server, lake: FreshLake) -> None:
    """A schema that DuckDB makes in an open transaction, and we make first, is refused there."""
    session = lake.duckdb()
    session.execute("BEGIN")
    session.execute("CREATE SCHEMA s")
    create(server, "s")
    with pytest.raises(Exception, match="conflict"):
        session.execute("COMMIT")


def read_head(lake: FreshLake) -> object:
    """The newest lake snapshot."""
    return lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
