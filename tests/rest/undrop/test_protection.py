"""Drop protection and the grace of a purge: what a property and a setting keep."""

import json
from contextlib import closing
from typing import Any

import pytest

from tests.lake.branches.repository import read_rows
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.undrop.test_undrop import undrop
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake

PROTECTED = {"drop-protection": "true"}


def change_namespace(server: Server, **body: Any) -> Answer:
    """Change the properties of the namespace n."""
    return server.ask("POST", "namespaces/n/properties", {}, json.dumps(body).encode())


@pytest.mark.parametrize("way", ["drop", "purge", "unregister", "overwrite"])
def test_a_protected_table_is_not_dropped_until_the_property_goes(server: Server, lake: FreshLake, way: str) -> None:
    """By no operation that ends a table, and nothing changes; DuckDB's own DROP does not know the property."""
    client = open_client(server, lake)
    older = client.create("u").json["metadata-location"]
    assert server.ask("DELETE", "namespaces/main/tables/u").status == 204
    assert client.create(properties=PROTECTED).status == 200
    before = client.load()
    ways = {
        "drop": ("DELETE", "namespaces/main/tables/t", None),
        "purge": ("DELETE", "namespaces/main/tables/t?purgeRequested=true", None),
        "unregister": ("POST", "namespaces/main/tables/t/unregister", None),
        "overwrite": ("POST", "namespaces/main/register", {"name": "t", "metadata-location": older, "overwrite": True}),
    }
    method, path, body = ways[way]
    sent = None if body is None else json.dumps(body).encode()
    refused = server.ask(method, path, {}, sent)
    assert refused.error == (403, "NotAuthorizedException")
    assert "drop-protection" in refused.json["error"]["message"]
    assert client.load() == before
    assert client.commit([{"action": "remove-properties", "removals": ["drop-protection"]}]).status == 200
    assert server.ask(method, path, {}, sent).status in (200, 204)


def test_a_protected_namespace_keeps_itself_and_its_tables(server: Server, lake: FreshLake) -> None:
    """Not those of another namespace; a value other than true protects nothing."""
    client = open_client(server, lake)
    assert client.post("namespaces", {"namespace": ["n"], "properties": PROTECTED}).status == 200
    assert server.ask("DELETE", "namespaces/n").error == (403, "NotAuthorizedException")
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE n.t AS SELECT 1 AS i")
        session.execute("CREATE TABLE other AS SELECT 1 AS i")
    assert server.ask("DELETE", "namespaces/n/tables/t").error == (403, "NotAuthorizedException")
    assert server.ask("DELETE", "namespaces/main/tables/other").status == 204
    assert change_namespace(server, updates={"drop-protection": "false"}).status == 200
    assert server.ask("DELETE", "namespaces/n/tables/t").status == 204
    assert server.ask("DELETE", "namespaces/n").status == 204


def test_duckdb_drops_what_is_protected_and_it_comes_back_protected(server: Server, lake: FreshLake) -> None:
    """The property is a note of clients; undrop is what helps against DuckDB's DROP."""
    client = open_client(server, lake)
    client.create(properties=PROTECTED)
    with closing(lake.duckdb()) as session:
        session.execute("INSERT INTO t SELECT range, 'x' FROM range(20)")
        session.execute("DROP TABLE t")
    assert undrop(server, namespace=["main"], name="t").status == 200
    assert server.ask("DELETE", "namespaces/main/tables/t").error == (403, "NotAuthorizedException")
    assert len(read_rows(lake, "t")) == 20


def test_a_purge_waits_for_its_grace(lake: FreshLake) -> None:
    """Until then the table comes back whole; a purge without grace deletes at once."""
    with serve(make_settings(lake, purge_grace_hours=1)) as server:
        client = open_client(server, lake)
        client.create()
        with closing(lake.duckdb()) as session:
            session.execute("INSERT INTO t SELECT range, 'x' FROM range(20)")
        before = client.load()
        assert server.ask("DELETE", "namespaces/main/tables/t?purgeRequested=true").status == 204
        assert server.get("/management/v1/lake/dropped").json["dropped"][0]["obstacle"] is None
        assert undrop(server, namespace=["main"], name="t").status == 200
        assert client.load() == before
        assert lake.psycopg().execute("SELECT count(*) FROM iceberg_purge").fetchone() == (0,)
        assert server.ask("DELETE", "namespaces/main/tables/t?purgeRequested=true").status == 204
        lake.psycopg().execute("UPDATE iceberg_purge SET due_at = clock_timestamp()")
        assert "purgeRequested" in server.get("/management/v1/lake/dropped").json["dropped"][0]["obstacle"]
        assert undrop(server, namespace=["main"], name="t").error == (400, "BadRequestException")
