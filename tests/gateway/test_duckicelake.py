"""Another DuckIceLake behind a route, with stock PyIceberg as the client."""

import json
from collections.abc import Generator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.types import LongType

from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake

ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})


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


@pytest.fixture
def routed(lake: FreshLake, other_lake: FreshLake) -> Generator[Routed]:
    """A route to the only lake of another server."""
    with serve(make_settings(other_lake)) as upstream:
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


def test_requests_over_a_route_are_counted(routed: Routed) -> None:
    """By route, operation and status."""
    routed.router.get("/v1/other/namespaces")
    routed.router.get("/v1/other/namespaces/nothing")
    count = routed.router.count
    assert count("duckicelake_route_requests_total", route="other", operation="listNamespaces", status="200") == 1
    assert count("duckicelake_route_requests_total", route="other", operation="loadNamespaceMetadata", status="404") == 1
    assert count("duckicelake_route_seconds_count", route="other") == 2


def test_a_commit_is_written_to_the_log_of_changes(routed: Routed, caplog: pytest.LogCaptureFixture) -> None:
    """One line, with the route and the status of the other catalog."""
    with caplog.at_level("INFO", "duckicelake.audit"):
        body = json.dumps({"namespace": ["n"]}).encode()
        assert routed.router.ask("POST", "/v1/other/namespaces", {"Content-Type": "application/json"}, body).status == 200
    lines = [record.getMessage() for record in caplog.records if "route:other" in record.getMessage()]
    assert len(lines) == 1
    assert "createNamespace" in lines[0]
