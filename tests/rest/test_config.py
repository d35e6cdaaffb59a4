"""GET /v1/config: the first thing every client asks."""

from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake

FOUND_OUT = {"BadRequestException", "NoSuchNamespaceException", "NoSuchTableException", "NoSuchViewException", "NoSuchFunctionException"}


def test_the_configuration_names_prefix_and_separator(standing: Server) -> None:
    """What clients must use comes as overrides."""
    overrides = standing.get("/v1/config?warehouse=lake").json["overrides"]
    assert overrides == {"prefix": "lake", "namespace-separator": "%1F"}


def test_the_only_warehouse_needs_no_name(standing: Server) -> None:
    """Without `warehouse`, or with an empty one, the only lake answers."""
    assert standing.get("/v1/config").json == standing.get("/v1/config?warehouse=").json == standing.get("/v1/config?warehouse=lake").json


def test_an_unknown_warehouse_is_named(standing: Server) -> None:
    """404 with the type Java turns into NoSuchWarehouseException."""
    answer = standing.get("/v1/config?warehouse=other")
    assert answer.error == (404, "NoSuchWarehouseException")
    assert "other" in answer.json["error"]["message"]


def test_every_advertised_endpoint_works(standing: Server) -> None:
    """`endpoints` holds what is served, in the templates' spelling; reading succeeds, writing finds out what is wrong."""
    endpoints = standing.get("/v1/config").json["endpoints"]
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    plan = standing.ask("POST", "namespaces/main/tables/t/plan", {"Content-Type": "application/json"}, b"{}").json["plan-id"]
    for endpoint in endpoints:
        method, template = endpoint.split(" ")
        is_harmless = method in ("GET", "HEAD") or template.endswith("/metrics")
        names = {"namespace": "main", "table": "t"} if is_harmless else {"namespace": "none", "table": "none"}
        body = b'{"report-type":"scan-report"}' if method == "POST" else None
        headers = {"Content-Type": "application/json"} if body else {}
        path = template.format(prefix="lake", view="none", function="none", **names, **{"plan-id": plan})
        answer = standing.ask(method, path, headers, body)
        if is_harmless and "{view}" not in template and "{function}" not in template:
            assert answer.status in (200, 204), endpoint
        elif method != "HEAD":
            assert answer.status in (400, 404), endpoint
            assert answer.error[1] in FOUND_OUT, endpoint


def test_two_lakes_have_two_prefixes(lake: FreshLake, other_lake: FreshLake) -> None:
    """Each warehouse shows its own lake, and leaving the name out is a clear 400."""
    lake.duckdb().execute("CREATE TABLE here AS SELECT 1 AS i")
    other_lake.duckdb().execute("CREATE TABLE there AS SELECT 1 AS i")
    shared = {"metadata_schema": lake.metadata_schema}
    lakes = {"one": {"postgres_dsn": lake.dsn, **shared}, "two": {"postgres_dsn": other_lake.dsn, **shared}}
    with serve(make_settings(lake, postgres_dsn=None, lakes=lakes)) as server:
        assert server.get("/v1/config").error == (400, "BadRequestException")
        for name, table in (("one", "here"), ("two", "there")):
            assert server.get(f"/v1/config?warehouse={name}").json["overrides"]["prefix"] == name
            found = server.get(f"/v1/{name}/namespaces/main/tables").json["identifiers"]
            assert [row["name"] for row in found] == [table]
