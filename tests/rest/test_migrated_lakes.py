"""A lake that another program migrates to a DuckLake of the future under a running server is neither written nor served any longer."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.rest.serving import Server
from tests.rest.writing.client import Client, data_file, open_client, read_rows
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

MIGRATE = "UPDATE ducklake_metadata SET value = '1.2' WHERE key = 'version'"

SELECT_WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'ducklake_snapshot'::regclass"
REFUSED = (406, "UnsupportedOperationException")


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the tables main.t, which was loaded before, and main.u."""
    client = open_client(server, lake)
    assert client.create().status == client.create("u").status == 200
    assert client.load()["format-version"] == 2
    return client


def migrate(conn: psycopg.Connection) -> None:
    """Migrate the lake to a version that is not served."""
    conn.execute(MIGRATE)


def test_what_was_published_before_is_served_no_longer(client: Client, lake: FreshLake) -> None:
    """Neither from the cache nor again, nor names; the refusal says why, and the server is not ready."""
    paths = (
        "namespaces",
        "namespaces/main",
        "namespaces/main/tables",
        "namespaces/main/tables/t",
        "namespaces/main/tables/t?snapshots=refs",
    )
    assert {client.server.get(path).status for path in paths} == {200}
    migrate(lake.psycopg())
    for path in (*paths, "namespaces/main/tables/u", "namespaces/main/views"):
        refused = client.server.get(path)
        assert refused.error == REFUSED, path
        assert "DuckLake version is '1.2'" in refused.json["error"]["message"]
    assert client.server.ask("HEAD", "namespaces/main/tables/t").status == 406
    lake.psycopg().execute("UPDATE ducklake_metadata SET value = '1.0' WHERE key = 'version'")
    assert {client.server.get(path).status for path in paths} == {200}


def test_nothing_is_written_in_the_old_shape(client: Client, lake: FreshLake) -> None:
    """Appends, columns, properties, new tables and namespaces, drops: each is refused, and no row changes."""
    base = client.load()
    append = client.append(base, 9_000_000_001, [data_file(base, "a")])
    columns = {
        "type": "struct",
        "schema-id": 1,
        "fields": [*base["schemas"][0]["fields"], {"id": 3, "name": "c", "required": False, "type": "int"}],
    }
    migrate(lake.psycopg())
    rows = read_rows(lake)
    assert client.commit(append).error == REFUSED
    assert client.commit([{"action": "add-schema", "schema": columns}, {"action": "set-current-schema", "schema-id": -1}]).error == REFUSED
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).error == REFUSED
    assert client.create("v").error == REFUSED
    assert client.post("namespaces", {"namespace": ["n"]}).error == REFUSED
    assert client.server.ask("DELETE", "namespaces/main/tables/t").error == REFUSED
    assert read_rows(lake) == rows


def test_a_commit_that_waits_for_a_migration_is_refused(client: Client, lake: FreshLake) -> None:
    """The version is read under the lock: it was the old one when the commit was prepared."""
    base, conn = client.load(), lake.psycopg()
    append = client.append(base, 9_000_000_001, [data_file(base, "a")])
    with ThreadPoolExecutor(1) as threads, conn.transaction():
        conn.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        answer = threads.submit(client.commit, append)
        wait_for(lambda: lake.psycopg().execute(SELECT_WAITING).fetchall(), "the commit waits for the lake's lock")
        migrate(conn)
    assert answer.result(timeout=60).error == REFUSED
    assert lake.psycopg().execute("SELECT count(*) FROM ducklake_data_file").fetchone() == (0,)
