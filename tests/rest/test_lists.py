"""Namespaces and tables: listed, loaded, looked for."""

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.serving import Server
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

TABLES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def tables(lake: FreshLake) -> list[str]:
    """Five tables in `main`."""
    conn = lake.duckdb()
    for name in TABLES:
        conn.execute(f"CREATE TABLE {name} (i INTEGER)")
    return TABLES


def read_tables(server: Server, query: str) -> tuple[list[str], str | None]:
    """The names on one page, and the next page's token."""
    body = server.get(f"namespaces/main/tables{query}").json
    assert all(row["namespace"] == ["main"] for row in body["identifiers"])
    return [row["name"] for row in body["identifiers"]], body["next-page-token"]


@pytest.mark.parametrize("query", long_after(1, ["", "?pageToken=", "?pageSize=5&pageToken=", "?pageSize=1000000000000000000000000000000"]))
def test_one_page_holds_everything(server: Server, tables: list[str], query: str) -> None:
    """Java sends an empty token and no size: everything, and a null token."""
    assert read_tables(server, query) == (tables, None)


def test_pages_follow_each_other(server: Server, tables: list[str]) -> None:
    """Two by two until the token is null."""
    first, token = read_tables(server, "?pageSize=2&pageToken=")
    second, token = read_tables(server, f"?pageSize=2&pageToken={token}")
    third, token = read_tables(server, f"?pageSize=2&pageToken={token}")
    assert (first, second, third, token) == (["a", "b"], ["c", "d"], ["e"], None)


def test_pyiceberg_reads_page_after_page(server: Server, tables: list[str]) -> None:
    """A stock client with a page size of its own finds every table once."""
    catalog = RestCatalog("door", uri=server.uri, warehouse="lake", **{"rest-page-size": "2"})
    assert catalog.list_tables("main") == [("main", name) for name in tables]
    catalog.close()


def test_a_page_stays_right_while_tables_come_and_go(server: Server, lake: FreshLake, tables: list[str]) -> None:
    """A table dropped or made before the token's place moves nothing."""
    first, token = read_tables(server, "?pageSize=2")
    conn = lake.duckdb()
    conn.execute("DROP TABLE b")
    conn.execute("CREATE TABLE aa (i INTEGER)")
    assert (first, read_tables(server, f"?pageToken={token}")) == (["a", "b"], (["c", "d", "e"], None))


@pytest.mark.parametrize(
    "query", ["?pageSize=0", "?pageSize=-1", "?pageSize=x", "?pageSize=", "?pageSize=1.5", "?pageToken=x", "?pageToken=%FF"]
)
@pytest.mark.parametrize("path", ["namespaces", "namespaces/main/tables"])
def test_absurd_pages_are_bad_requests(standing: Server, path: str, query: str) -> None:
    """A size must be a positive number, a token one that was given out."""
    assert standing.get(path + query).error == (400, "BadRequestException")


def test_namespaces_are_duckdbs_schemas(server: Server, lake: FreshLake) -> None:
    """A fresh lake has `main`; a new schema shows at once; properties are a map."""
    assert server.get("namespaces").json == {"namespaces": [["main"]], "next-page-token": None}
    lake.duckdb().execute("CREATE SCHEMA sales")
    assert server.get("namespaces").json["namespaces"] == [["main"], ["sales"]]
    loaded = server.get("namespaces/sales").json
    assert loaded["namespace"] == ["sales"]
    assert isinstance(loaded["properties"], dict)
    assert server.ask("HEAD", "namespaces/sales").status == 204


@pytest.mark.parametrize("path", ["namespaces/nope", "namespaces/nope/tables", "namespaces?parent=nope"])
def test_a_missing_namespace_is_named(standing: Server, path: str) -> None:
    """404 with the namespace's own type."""
    assert standing.get(path).error == (404, "NoSuchNamespaceException")


@pytest.mark.parametrize("path", ["namespaces/main/tables/nope", "namespaces/nope/tables/nope"])
def test_a_missing_table_is_a_missing_table_even_in_a_missing_namespace(standing: Server, path: str) -> None:
    """Spark reads `ns.table.files` as a table in a namespace `ns.table`, and falls back only on NoSuchTableException."""
    assert standing.get(path).error == (404, "NoSuchTableException")


@pytest.mark.parametrize("path", ["namespaces/nope", "namespaces/main/tables/nope", "namespaces/nope/tables/nope"])
def test_head_says_no_without_a_body(standing: Server, path: str) -> None:
    """404 and nothing to read."""
    answer = standing.ask("HEAD", path)
    assert (answer.status, answer.body) == (404, b"")


def test_head_says_yes_without_a_body(server: Server, tables: list[str]) -> None:
    """204, also when the table's load is ready in the cache."""
    for _ in range(2):
        answer = server.ask("HEAD", "namespaces/main/tables/a")
        assert (answer.status, answer.body) == (204, b"")
        assert server.get("namespaces/main/tables/a").status == 200


def test_metrics_reports_are_taken(server: Server, tables: list[str]) -> None:
    """204 and a number in /metrics; a report of a scan of a missing table is refused, one that is none as well."""
    headers = {"Content-Type": "application/json"}
    report = b'{"report-type":"scan-report","table-name":"main.a","snapshot-id":1,"filter":true,"metrics":{}}'
    answer = server.ask("POST", "namespaces/main/tables/a/metrics", headers, report)
    assert (answer.status, answer.body) == (204, b"")
    assert server.count("duckicelake_client_reports_total", type="scan-report") == 1
    assert server.ask("POST", "namespaces/main/tables/nope/metrics", headers, report).error == (404, "NoSuchTableException")
    for body in (b"{}", b"[]", b"{", b'{"report-type":1}', b"\xff", b"[" * 100_000):
        assert server.ask("POST", "namespaces/main/tables/a/metrics", headers, body).error == (400, "BadRequestException")


def test_a_commit_of_a_table_that_is_not_made_yet_is_reported(server: Server, tables: list[str]) -> None:
    """Java reports the append of CREATE TABLE … AS before it makes the table; it does so in a namespace that is there."""
    headers = {"Content-Type": "application/json"}
    report = b'{"report-type":"commit-report","table-name":"main.new","snapshot-id":1,"operation":"append","metrics":{}}'
    assert server.ask("POST", "namespaces/main/tables/new/metrics", headers, report).status == 204
    assert server.count("duckicelake_client_reports_total", type="commit-report") == 1
    assert server.ask("POST", "namespaces/nope/tables/new/metrics", headers, report).error == (404, "NoSuchTableException")
