"""Another DuckIceLake behind a route, with stock PyIceberg as the client."""

import json
from collections.abc import Generator
from dataclasses import dataclass

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import LongType
from rich.console import Console

from duckicelake.commands.check import check_routes
from duckicelake.commands.facts import get_facts, hide_secrets
from duckicelake.commands.snippets import format_all, format_snippet
from duckicelake.config import SettingsError
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.pipeline.common.rest import RestCatalog as SparkCatalog
from tests.gateway.clients import LEFT, PARTITIONING, ROWS, STATEMENTS, drop_by_spark, write_by_spark
from tests.rest.auth.principals import Guarded, guard, secret_of
from tests.rest.auth.vended import open_vended, split
from tests.rest.proxy import wire_to
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark, SparkRefused
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Routed:
    """A server with the route `other`, and the server behind it."""

    router: Server
    upstream: Server
    lake: FreshLake

    def open(self, **properties: str) -> RestCatalog:
        """PyIceberg's catalog over the route."""
        store = self.lake.store
        keys = {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
        return RestCatalog("other", uri=self.router.uri, warehouse="other", **keys, **properties)


@pytest.fixture(scope="module")
def routed(stack: SharedStack) -> Generator[Routed]:
    """A route to the only lake of another server; each test uses names of its own."""
    with make_lake(stack) as lake, make_lake(stack) as other_lake, serve(make_settings(other_lake)) as upstream:
        with serve(make_settings(lake, routes={"other": {"uri": upstream.uri}})) as router:
            yield Routed(router, upstream, other_lake)


def test_pyiceberg_does_over_the_route_what_it_does_without(routed: Routed) -> None:
    """Namespaces, tables, rows, schemas and errors; the rows are in the other lake, and none in the router's own."""
    catalog = routed.open()
    catalog.create_namespace(("a", "b c"))
    table = catalog.create_table(("a", "b c", "t%2F/x"), ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    table.delete("id = 2")
    with table.update_schema() as change:
        change.add_column("more", LongType())
    catalog.rename_table(("a", "b c", "t%2F/x"), ("a", "b c", "t"))
    again = catalog.load_table(("a", "b c", "t"))
    assert again.scan().to_arrow()["id"].to_pylist() == [1, 3, 1, 3]
    assert [name.name for name in again.schema().fields] == ["id", "name", "more"]
    assert catalog.list_namespaces(("a",)) == [("a", "b c")]
    assert catalog.list_tables(("a", "b c")) == [("a", "b c", "t")]
    assert routed.lake.duckdb().execute('SELECT count(*) FROM lake."a␟b c".t').fetchone() == (4,)
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("a", "b c", "other"))
    catalog.drop_table(("a", "b c", "t"))
    assert not catalog.table_exists(("a", "b c", "t"))
    assert routed.router.get("namespaces").json["namespaces"] == [["main"]]


def test_the_configuration_leads_through_the_router(routed: Routed) -> None:
    """The prefix is the route's name; everything else of the upstream's configuration stays."""
    mine, theirs = (
        server.get(path).json for server, path in ((routed.router, "/v1/config?warehouse=other"), (routed.upstream, "/v1/config"))
    )
    assert mine["overrides"] == {**theirs["overrides"], "prefix": "other"}
    assert mine["endpoints"] == theirs["endpoints"]
    assert mine["defaults"] == theirs["defaults"]
    assert routed.router.get("/v1/config?warehouse=nothing").error == (404, "NoSuchWarehouseException")


def test_conditional_requests_and_compression_pass(routed: Routed) -> None:
    """The ETag is the upstream's, 304 passes, and gzip stays gzip."""
    routed.open().create_table("main.t", ROWS.schema)
    path = "/v1/other/namespaces/main/tables/t"
    first = routed.router.get(path, {"Accept-Encoding": "gzip"})
    assert first.headers["etag"] == routed.upstream.get("/v1/lake/namespaces/main/tables/t", {"Accept-Encoding": "gzip"}).headers["etag"]
    assert routed.router.get(path, {"If-None-Match": first.headers["etag"], "Accept-Encoding": "gzip"}).status == 304
    assert routed.router.ask("HEAD", path).status == 204
    assert routed.router.ask("DELETE", path).status == 204
    assert routed.router.get(path).error == (404, "NoSuchTableException")


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_does_over_the_route_what_it_does_without(routed: Routed, spark: Spark) -> None:
    """Iceberg's Java client creates, writes, changes, merges and reads over the route, and its reports go along."""
    store = routed.lake.store
    keys = {"s3_access_key_id": store.access_key_id, "s3_secret_access_key": store.secret_access_key}
    catalog = spark.add(SparkCatalog(routed.router.uri, "other", s3_endpoint=store.endpoint, s3_region=store.region, **keys))
    write_by_spark(spark, catalog, "spark")
    assert routed.lake.duckdb().execute("SELECT id, name, more FROM lake.spark.u ORDER BY id").fetchall() == [(1, "a", None), (3, "c", 7)]
    wait_for(lambda: routed.upstream.count("duckicelake_client_reports_total", type="scan-report") > 0, "the report of a scan")
    drop_by_spark(spark, catalog, "spark.u")


def test_requests_over_a_route_are_counted(routed: Routed) -> None:
    """By route, operation and status."""

    def count() -> list[float]:
        names = [("listNamespaces", "200"), ("loadNamespaceMetadata", "404")]
        requests = [
            routed.router.count("duckicelake_route_requests_total", route="other", operation=name, status=status) for name, status in names
        ]
        return [*requests, routed.router.count("duckicelake_route_seconds_count", route="other")]

    before = count()
    routed.router.get("/v1/other/namespaces")
    routed.router.get("/v1/other/namespaces/nothing")
    assert [after - earlier for after, earlier in zip(count(), before, strict=True)] == [1, 1, 2]


def test_a_commit_is_written_to_the_log_of_changes(routed: Routed, caplog: pytest.LogCaptureFixture) -> None:
    """One line, with the route and the status of the other catalog."""
    with caplog.at_level("INFO", "duckicelake.audit"):
        body = json.dumps({"namespace": ["n"]}).encode()
        assert routed.router.ask("POST", "/v1/other/namespaces", {"Content-Type": "application/json"}, body).status == 200
    lines = [record.getMessage() for record in caplog.records if "route:other" in record.getMessage()]
    assert len(lines) == 1
    assert "createNamespace" in lines[0]


ROUTE = {"auth": "oauth2", "grants": ["read on namespace:a to reader", "read, write, create, drop on namespace:a to writer"]}


@dataclass(frozen=True, slots=True)
class GuardedRoute:
    """A guarded server with a route to another guarded server that vends keys."""

    router: Guarded
    upstream: Guarded

    def open(self, principal: str, **properties: str) -> RestCatalog:
        """PyIceberg's catalog over the route, as a principal of the router, without keys of its own."""
        account = {
            "credential": f"{principal}:{secret_of(principal)}",
            "scope": "catalog",
            "oauth2-server-uri": f"{self.router.server.uri}/v1/oauth/tokens",
        }
        return RestCatalog("other", uri=self.router.server.uri, warehouse="other", **account, **properties)


@pytest.fixture(scope="module")
def guarded_route(stack: SharedStack) -> Generator[GuardedRoute]:
    """The route's account is `owner` there, who manages the namespace `a` alone; the tests leave the tables there as they are."""
    with make_lake(stack) as lake, make_lake(stack) as other_lake, guard(other_lake, sts_role_arn=ROLE_ARN) as upstream:
        route = {**ROUTE, "uri": upstream.server.uri, "credential": f"owner:{secret_of('owner')}"}
        with guard(lake, routes={"other": route}, audit_reads=1.0) as router:
            yield GuardedRoute(router, upstream)


def test_vended_keys_and_their_refresh_work_over_the_route(guarded_route: GuardedRoute) -> None:
    """PyIceberg has no keys but those of the other catalog, and writes and reads with them."""
    catalog = guarded_route.open("writer")
    table = catalog.create_table("a.mine", ROWS.schema)
    table.append(ROWS)
    assert catalog.load_table("a.mine").scan().to_arrow().num_rows == 3
    headers = {"X_Iceberg_Access_Delegation": "vended-credentials"}
    loaded = guarded_route.router.ask("writer", "GET", "/v1/other/namespaces/a/tables/mine", None, **headers).json
    endpoint = loaded["storage-credentials"][0]["config"]["client.refresh-credentials-endpoint"]
    assert endpoint == "v1/other/namespaces/a/tables/mine/credentials"
    refreshed = guarded_route.router.ask("writer", "GET", f"/{endpoint}", None, **headers).json
    config = refreshed["storage-credentials"][0]["config"]
    bucket, key = split(loaded["metadata-location"])
    assert open_vended(config).get_object(Bucket=bucket, Key=key)["Body"].read(1) == b"{"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_has_an_account_here_and_keys_of_the_other_catalog(guarded_route: GuardedRoute, spark: Spark) -> None:
    """Java's client writes and reads by vended keys, with the rights that it has on the route."""
    router, store = guarded_route.router, guarded_route.upstream.lake.store
    account = {"credential": f"writer:{secret_of('writer')}", "s3_endpoint": store.endpoint, "s3_region": store.region}
    catalog = spark.add(SparkCatalog(router.server.uri, "other", **account))
    for statement in STATEMENTS[1:]:
        spark.arrow(statement.format(catalog, "a", PARTITIONING).replace("a.t ", "a.sparks "))
    assert spark.arrow(f"SELECT id, name, more FROM {catalog}.a.sparks ORDER BY id").to_pylist() == LEFT
    assert guarded_route.upstream.lake.duckdb().execute("SELECT count(*) FROM lake.a.sparks").fetchone() == (2,)
    with pytest.raises(SparkRefused, match="Namespace does not exist: b"):
        spark.arrow(f"CREATE TABLE {catalog}.b.sparks (id BIGINT)")


def test_signatures_are_permitted_by_our_own_grants(guarded_route: GuardedRoute) -> None:
    """Who may only read gets no keys, and signatures for reads; the endpoint leads through the route."""
    headers = {"X_Iceberg_Access_Delegation": "vended-credentials,remote-signing"}
    loaded = guarded_route.router.ask("reader", "GET", "/v1/other/namespaces/a/tables/t", None, **headers).json
    assert "storage-credentials" not in loaded
    assert loaded["config"]["s3.signer.endpoint"] == "v1/other/namespaces/a/tables/t/sign"
    store = guarded_route.upstream.lake.store
    bucket, key = split(loaded["metadata-location"])
    for method, status in (("GET", 200), ("PUT", 403)):
        body = {
            "region": store.region,
            "uri": f"{store.endpoint}/{bucket}/{key}",
            "method": method,
            "headers": {"host": [store.endpoint.partition("//")[2]]},
        }
        assert guarded_route.router.ask("reader", "POST", f"/{loaded['config']['s3.signer.endpoint']}", body).status == status


def test_both_catalogs_decide(guarded_route: GuardedRoute) -> None:
    """Our grants first, then the rights of the route's account; other principals do not see the route."""
    ask = guarded_route.router.ask
    assert ask("reader", "GET", "/v1/other/namespaces").json["namespaces"] == [["a"]]
    assert ask("admin", "GET", "/v1/other/namespaces").json["namespaces"] == [["a"]]
    assert ask("reader", "DELETE", "/v1/other/namespaces/a/tables/t").error == (403, "NotAuthorizedException")
    assert ask("admin", "GET", "/v1/other/namespaces/b/tables/t").error == (404, "NoSuchTableException")
    assert ask("stranger", "GET", "/v1/other/namespaces").error == (404, "NoSuchWarehouseException")
    assert ask("writer", "DELETE", "/v1/other/namespaces/a/tables/missing").error == (404, "NoSuchTableException")
    listed = ask("reader", "GET", "/management/v1/warehouses").json["warehouses"]
    assert [(each["name"], each["kind"], each["state"]) for each in listed] == [("lake", "lake", "ready"), ("other", "route", "ready")]


def test_what_the_route_does_is_in_the_audit_log(guarded_route: GuardedRoute) -> None:
    """Changes with the other catalog's status, and denials, with the principal and the route's name."""
    ask = guarded_route.router.ask
    guarded_route.open("writer").create_table("a.gone", ROWS.schema)
    ask("reader", "DELETE", "/v1/other/namespaces/a/tables/gone")
    ask("writer", "DELETE", "/v1/other/namespaces/a/tables/gone")
    named = "operation = 'dropTable' AND objects = ARRAY['route:other/a.gone']"
    query = f"SELECT principal, operation, objects, outcome, reason FROM iceberg_audit WHERE {named} ORDER BY id"
    with guarded_route.router.lake.psycopg() as conn:
        wait_for(lambda: len(conn.execute(query).fetchall()) == 2, "two lines of the audit log")
        assert conn.execute(query).fetchall() == [
            ("reader", "dropTable", ["route:other/a.gone"], "denied", "Forbidden"),
            ("writer", "dropTable", ["route:other/a.gone"], "done", "204"),
        ]


@pytest.mark.whole
def test_reads_over_the_route_are_in_the_audit_of_reads(guarded_route: GuardedRoute) -> None:
    """With the route's name, in the audit log of the route's lake."""
    path = "/v1/other/namespaces/a/tables/other"
    assert guarded_route.router.ask("reader", "GET", path).status == 200
    assert guarded_route.router.ask("writer", "GET", "/v1/other/namespaces/a/tables/missing").status == 404
    query = "SELECT principal, operation, read_count FROM iceberg_read WHERE object = 'route:other/a.other'"
    with guarded_route.router.lake.psycopg() as conn:
        wait_for(lambda: conn.execute(query).fetchall() == [("reader", "loadTable", 1)], "the read")
        assert conn.execute("SELECT FROM iceberg_read WHERE object = 'route:other/a.missing'").fetchall() == []


def test_a_required_route_decides_about_readiness(lake: FreshLake, other_lake: FreshLake) -> None:
    """Others do not; both answer again when the catalog does."""
    with serve(make_settings(other_lake)) as upstream, wire_to("127.0.0.1", upstream.port) as wire:
        named = {"uri": f"http://127.0.0.1:{wire.port}"}
        with serve(make_settings(lake, routes={"needed": {**named, "required": True}, "other": named})) as router:
            wait_for(lambda: router.get("/readyz").json["ready"], "a ready server")
            assert set(router.get("/readyz").json["warehouses"]) == {"lake", "needed"}
            wire.cut()
            wait_for(lambda: router.get("/readyz").status == 503, "a server that is not ready")
            found = router.get("/readyz").json["warehouses"]
            assert (found["lake"]["ready"], found["needed"]["ready"]) == (True, False)
            assert "'needed'" in found["needed"]["reason"]
            wire.mend()
            wait_for(lambda: router.get("/readyz").status == 200, "a ready server")


def test_check_and_connect_know_routes(lake: FreshLake, other_lake: FreshLake, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` requests each catalog; `connect` names the route as the warehouse."""
    with serve(make_settings(other_lake)) as upstream:
        routes = {"other": {"uri": upstream.uri}, "gone": {"uri": "http://127.0.0.1:9"}}
        settings = make_settings(lake, routes=routes)
        console = Console(width=200)
        assert not check_routes(settings, console)
        assert check_routes(make_settings(lake, routes={"other": routes["other"]}), console)
        assert check_routes(make_settings(lake), console)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "other: the catalog answers"
    assert lines[1:3] == [
        "gone: error",
        "  The catalog behind the route 'gone' cannot be reached (ClientConnectorError: Connect call failed ('127.0.0.1', 9)).",
    ]
    facts = get_facts(settings, None, "other")
    assert (facts.warehouse, facts.prefix, facts.s3_access_key_id, facts.is_lake) == ("other", "other", None, False)
    assert "== pyiceberg ==" in format_all(facts)
    assert "ducklake ==" not in format_all(facts)
    assert "'warehouse': 'other'" in format_snippet(facts, "pyiceberg")
    with pytest.raises(SettingsError):
        format_snippet(hide_secrets(facts), "ducklake")


def test_grants_of_the_routes_lake_are_valid_at_once(guarded_route: GuardedRoute) -> None:
    """For its own accounts and roles; given and taken over REST, listed, and refused for routes that are not there."""
    router, place = guarded_route.router, "/management/v1/lake"
    secret = router.ask("admin", "POST", f"{place}/principals", {"name": "alice"}).json["secret"]
    token = router.ask_token({"grant_type": "client_credentials"}, ("alice", secret)).json["access_token"]

    def load(name: str) -> int:
        return router.server.get(f"/v1/other/namespaces/a/tables/{name}", {"Authorization": f"Bearer {token}"}).status

    assert load("t") == 404
    on_table = {"privileges": ["read"], "on": "route:other/table:A.t", "to": "alice"}
    assert router.ask("admin", "POST", f"{place}/grants", on_table).status == 204
    assert (load("t"), load("other")) == (200, 404)
    assert on_table | {"on": "route:other/table:a.t"} in router.ask("admin", "GET", f"{place}/grants").json["grants"]
    assert router.ask("admin", "POST", f"{place}/grants/revoke", on_table).status == 204
    assert load("t") == 404
    assert router.ask("admin", "POST", f"{place}/roles", {"name": "team"}).status == 204
    assert router.ask("admin", "PUT", f"{place}/roles/team/members/alice").status == 204
    on_route = {"privileges": ["all"], "on": "route:other", "to": "role:team"}
    assert router.ask("admin", "POST", f"{place}/grants", on_route).status == 204
    assert (load("t"), load("other")) == (200, 200)
    assert router.server.get("/v1/lake/namespaces/a/tables/t", {"Authorization": f"Bearer {token}"}).status == 404
    for principal, on, status in (("admin", "route:nothing", 404), ("admin", "route:other/warehouse", 400), ("owner", "route:other", 403)):
        assert router.ask(principal, "POST", f"{place}/grants", on_route | {"on": on}).status == status
