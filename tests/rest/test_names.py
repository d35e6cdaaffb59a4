"""Odd names through the whole door: DuckDB makes them, clients ask for them, percent signs and all."""

from collections.abc import Generator
from urllib.parse import quote, quote_plus

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.serving import BASE, Server
from tests.support.lakes import FreshLake

ODD = [
    pytest.param("a b", id="space"),
    pytest.param("a/b", id="slash"),
    pytest.param("a+b", id="plus"),
    pytest.param("a.b", id="dot"),
    pytest.param("ü", id="umlaut"),
    pytest.param("u\u0308", id="decomposed umlaut"),
    pytest.param("🦆", id="duck"),
    pytest.param("SELECT", id="keyword"),
    pytest.param("Mixed", id="mixed case"),
    pytest.param('q"uote', id="quote"),
    pytest.param("it's", id="apostrophe"),
    pytest.param("x%2Fy", id="percent"),
    pytest.param("a?b#c&d=e;f", id="query"),
    pytest.param("back\\slash", id="backslash"),
]


def make_table(lake: FreshLake, schema: str, table: str) -> None:
    """A table of one row under these names."""
    conn = lake.duckdb()
    escaped_schema, escaped_table = schema.replace('"', '""'), table.replace('"', '""')
    conn.execute(f'CREATE SCHEMA IF NOT EXISTS "{escaped_schema}"')
    conn.execute(f'CREATE OR REPLACE TABLE "{escaped_schema}"."{escaped_table}" AS SELECT 42 AS i')


@pytest.mark.parametrize("name", [*ODD, pytest.param("..", id="two dots, which PyIceberg's HTTP client folds away")])
def test_an_odd_name_is_found_however_it_is_encoded(standing: Server, standing_lake: FreshLake, name: str) -> None:
    """A space as %20 or +, a slash as %2F: listed, looked for and loaded, as namespace and as table."""
    make_table(standing_lake, name, name)
    assert [name] in standing.get("namespaces").json["namespaces"]
    for encode in (lambda text: quote(text, safe=""), quote_plus):
        namespace = f"namespaces/{encode(name)}"
        assert standing.get(namespace).json["namespace"] == [name]
        assert standing.ask("HEAD", namespace).status == 204
        assert standing.get(f"{namespace}/tables").json["identifiers"] == [{"namespace": [name], "name": name}]
        assert standing.ask("HEAD", f"{namespace}/tables/{encode(name)}").status == 204
        assert standing.get(f"{namespace}/tables/{encode(name)}").status == 200


@pytest.mark.parametrize("name", ODD)
def test_pyiceberg_finds_an_odd_name(catalog: RestCatalog, standing_lake: FreshLake, name: str) -> None:
    """A stock client lists and loads the table under exactly that name."""
    make_table(standing_lake, name, name)
    assert (name,) in catalog.list_namespaces()
    assert catalog.list_tables((name,)) == [(name, name)]
    assert catalog.load_table((name, name)).name() == (name, name)


@pytest.fixture
def catalog(standing: Server) -> Generator[RestCatalog]:
    """PyIceberg on the running standing."""
    opened = RestCatalog("door", uri=standing.uri, warehouse="lake")
    yield opened
    opened.close()


def test_duckdb_finds_odd_names(standing: Server, standing_lake: FreshLake) -> None:
    """DuckDB's `iceberg` extension lists the table and reads its row through the door."""
    name = "duck's / +%41 ü"
    make_table(standing_lake, name, name)
    conn = standing_lake.bare_duckdb()
    conn.execute(
        f"ATTACH 'lake' AS door (TYPE iceberg, ENDPOINT '{standing.uri}', AUTHORIZATION_TYPE 'none', ACCESS_DELEGATION_MODE 'none')"
    )
    found = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_catalog = 'door' AND table_name = ?"
    assert conn.execute(found, [name]).fetchall() == [(name, name)]
    assert conn.execute(f'SELECT * FROM door."{name}"."{name}"').fetchall() == [(42,)]


def test_a_nested_namespace_is_addressed_level_by_level(standing: Server, standing_lake: FreshLake, catalog: RestCatalog) -> None:
    """%1F joins the levels in the path and in `parent`; PyIceberg encodes a parent twice and is understood."""
    make_table(standing_lake, "one a\u241ftwo/b", "t")
    assert standing.get("namespaces?parent=one%20a").json["namespaces"] == [["one a", "two/b"]]
    assert standing.get("namespaces/one+a%1Ftwo%2Fb/tables/t").status == 200
    assert standing.get("namespaces/one%20a").json["namespace"] == ["one a"]
    assert catalog.list_namespaces(("one a",)) == [("one a", "two/b")]
    assert catalog.list_tables(("one a", "two/b")) == [("one a", "two/b", "t")]


def test_names_are_found_in_any_case_and_answered_as_stored(standing: Server, standing_lake: FreshLake) -> None:
    """DuckDB folds names and Trino writes them in lower case."""
    make_table(standing_lake, "Sales", "Orders")
    assert standing.get("namespaces/sALES").json["namespace"] == ["Sales"]
    assert standing.get("namespaces/SALES/tables").json["identifiers"] == [{"namespace": ["Sales"], "name": "Orders"}]
    assert standing.get("namespaces/sales/tables/orders").status == 200


@pytest.mark.parametrize(
    "path",
    [
        "namespaces/%00",
        "namespaces/a%00b/tables/t",
        "namespaces/a%0Ab",
        "namespaces/a%1F",
        "namespaces/%1Fa",
        "namespaces/a%1F%1Fb",
        "namespaces/%FF",
        "namespaces/%ED%A0%80",
        "namespaces/a%",
        "namespaces/main/tables/t%00",
        "namespaces/main/tables/a%1Fb",
        "namespaces/main/tables/%C3%28",
        "namespaces?parent=a%00",
        "namespaces?parent=%FF",
        "namespaces?parent=a%1F",
        "namespaces/" + "x" * 10_000,
        "namespaces/main/tables/" + "%C3%BC" * 5_000,
        "namespaces/main/tables/t?snapshots=some",
        "namespaces/main/tables/t?snapshots=",
        "/v1/%FF/namespaces",
    ],
)
def test_what_is_no_name_is_a_bad_request(standing: Server, path: str) -> None:
    """400 in Iceberg's shape, and for HEAD without a body."""
    assert standing.get(path).error == (400, "BadRequestException")
    if "parent" not in path and "snapshots" not in path:
        answer = standing.ask("HEAD", path)
        assert (answer.status in (400, 405), answer.body) == (True, b"")


def test_a_dot_segment_is_a_name_and_no_way_up(standing: Server) -> None:
    """`..` leads nowhere: it is looked for as it is."""
    assert standing.get(f"{BASE}/namespaces/..%2F..").error == (404, "NoSuchNamespaceException")
    assert standing.get(f"{BASE}/namespaces/main/tables/..%2F..%2Fetc%2Fpasswd").error == (404, "NoSuchTableException")
    assert standing.get(f"{BASE}/../../etc/passwd").error == (404, "NotFoundException")


def test_an_unknown_warehouse_in_the_path_is_named(standing: Server) -> None:
    """404 with the warehouse's own type."""
    assert standing.get("/v1/other/namespaces").error == (404, "NoSuchWarehouseException")


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        pytest.param("GET", "namespaces//tables/sp", "NoSuchTableException", id="loadTable"),
        pytest.param("HEAD", "namespaces//tables/sp", "", id="tableExists"),
        pytest.param("POST", "namespaces//tables/sp", "NoSuchTableException", id="updateTable"),
        pytest.param("DELETE", "namespaces//tables/sp", "NoSuchTableException", id="dropTable"),
        pytest.param("GET", "namespaces/main/tables/", "NoSuchTableException", id="no-table"),
        pytest.param("GET", "namespaces//views/v", "NoSuchViewException", id="loadView"),
        pytest.param("GET", "namespaces/", "NoSuchNamespaceException", id="loadNamespaceMetadata"),
        pytest.param("HEAD", "namespaces/", "", id="namespaceExists"),
        pytest.param("GET", "namespaces//tables", "NoSuchNamespaceException", id="listTables"),
        pytest.param("POST", "namespaces//tables", "NoSuchNamespaceException", id="createTable"),
        pytest.param("GET", "namespaces//nonsense", "NotFoundException", id="no-operation"),
        pytest.param("GET", "/v1//namespaces", "NotFoundException", id="no-prefix"),
    ],
)
def test_an_empty_name_in_the_path_is_one_of_nothing(standing: Server, method: str, path: str, kind: str) -> None:
    """Spark looks for a table of the namespace without a name before it takes `sp.snapshots` for a table's metadata."""
    answer = standing.ask(method, path, {"Content-Type": "application/json"}, b"{}" if method == "POST" else None)
    assert answer.status == 404
    assert answer.body == b"" if method == "HEAD" else answer.error == (404, kind)
