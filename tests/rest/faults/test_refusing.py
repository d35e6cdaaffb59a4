"""A Postgres that refuses what is right: it is said so, and nothing of it is remembered when it is over."""

import json
from collections.abc import Generator

import pytest
from psycopg import sql

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake

KEPT, NEW = "namespaces/main/tables/kept", "namespaces/main/tables/new"
CHANGE = json.dumps({"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}).encode()

FAILING = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'odd' USING ERRCODE = 'internal_error'; END $$;
CREATE TRIGGER fail BEFORE INSERT ON iceberg_metadata_log EXECUTE FUNCTION fail()
"""


@pytest.fixture
def server(lake: FreshLake) -> Generator[Server]:
    """A server with a table that it has shown, and one that it has not."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE kept AS SELECT 1 AS i")
        conn.execute("CREATE TABLE new AS SELECT 1 AS i")
    with serve(make_settings(lake)) as running:
        assert running.get(KEPT).status == 200
        yield running


def commit(server: Server) -> Answer:
    """Set a property."""
    return server.ask("POST", KEPT, {"content-type": "application/json"}, CHANGE)


def let_write(lake: FreshLake, *, lets: bool) -> None:
    """Make Postgres read-only, as a standby is after a failover, or let it write again; who was there is sent away."""
    conn = lake.psycopg()
    name = sql.Identifier(conn.info.dbname)
    conn.execute("SET default_transaction_read_only = off")
    conn.execute(sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = {}").format(name, sql.Literal("off" if lets else "on")))
    conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")


def test_a_postgres_that_lets_nothing_be_written(server: Server, lake: FreshLake) -> None:
    """What needs no writing is answered; the rest is 503, not the table's fault, and fine as soon as Postgres writes again."""
    let_write(lake, lets=False)
    assert server.get(KEPT).status == 200
    assert server.get("namespaces/main/tables").status == 200
    for answer in (server.get(NEW), commit(server)):
        assert answer.error == (503, "SlowDownException")
        assert "read-only" in answer.json["error"]["message"]
    let_write(lake, lets=True)
    assert server.get(NEW).status == 200
    assert commit(server).json["metadata"]["properties"]["k"] == "v"


def test_a_refusal_of_postgres_is_not_the_tables(server: Server, lake: FreshLake) -> None:
    """Postgres fails at numbering a state, and is put right: the table, which did not change, is shown."""
    rows = lake.psycopg()
    rows.execute(FAILING.encode())
    assert server.get(NEW).error == (406, "DamagedLakeException")
    rows.execute("DROP TRIGGER fail ON iceberg_metadata_log")
    assert server.get(NEW).status == 200
