"""Dropping with purge over REST: a table's Iceberg objects go, whatever DuckLake reads stays."""

from typing import Any

import pytest

from tests.rest.serving import Server
from tests.rest.writing.client import Client, data_file, open_client
from tests.support.lakes import FreshLake


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, which has rows of DuckDB's in a file and in Postgres, and deletes."""
    client = open_client(server, lake)
    client.create()
    session = lake.duckdb()
    session.execute("CALL lake.set_option('data_inlining_row_limit', 5)")
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("INSERT INTO t VALUES (100, 'y')")
    session.execute("DELETE FROM t WHERE id < 50")
    return client


def purge(client: Client, name: str = "t") -> int:
    """Drop a table with its files."""
    return client.server.ask("DELETE", f"namespaces/main/tables/{name}?purgeRequested=true").status


def list_objects(client: Client, location: str) -> set[str]:
    """What lies in a location, without it."""
    return {uri.removeprefix(location) for uri, _ in client.objects.list_under(location)}


def test_the_objects_of_the_table_go(client: Client, lake: FreshLake) -> None:
    """All of them, here; DuckDB still travels to where the table was."""
    location = client.load()["location"]
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert len(list_objects(client, location)) > 5
    assert purge(client) == 204
    assert list_objects(client, location) == set()
    assert purge(client) == 404
    assert row is not None
    assert lake.duckdb().execute(f"SELECT count(*) FROM t AT (VERSION => {row[0]})").fetchone() == (51,)


def test_files_of_clients_stay_for_time_travel(client: Client) -> None:
    """Data that DuckLake's rows name is DuckLake's to remove, files that no row names are not."""
    base = client.load()
    kept, stray = data_file(base, "kept"), data_file(base, "stray")
    for file in (kept, stray):
        client.objects.put_new(file.file_path, b"rows")
    assert client.commit(client.append(base, 9_000_000_001, [kept])).status == 200
    assert purge(client) == 204
    assert list_objects(client, base["location"]) == {"/data/kept.parquet"}


def test_a_renamed_sibling_keeps_its_own(client: Client) -> None:
    """The table that was t, and the new one of that name, have locations of their own."""
    before = client.server.get("namespaces/main/tables/t").json
    names = [{"namespace": ["main"], "name": name} for name in ("t", "renamed")]
    assert client.post("tables/rename", {"source": names[0], "destination": names[1]}).status == 204
    client.create()
    objects = list_objects(client, before["metadata"]["location"])
    assert purge(client) == 204
    assert list_objects(client, before["metadata"]["location"]) == objects
    assert client.load("renamed")["table-uuid"] == before["metadata"]["table-uuid"]


def test_a_predecessor_at_the_same_location_may_still_come_back(client: Client, lake: FreshLake) -> None:
    """Of a location that two tables have had, a purge takes the metadata files of its own table alone."""
    location = f"{lake.iceberg_path}chosen"
    older = client.create("u", location=location).json["metadata-location"]
    client.server.ask("DELETE", "namespaces/main/tables/u")
    client.create("u", location=location)
    assert purge(client, "u") == 204
    files: Any = {path for path in list_objects(client, location) if path.endswith(".metadata.json")}
    assert files == {"/metadata/v1.metadata.json"}
    assert client.post("namespaces/main/register", {"name": "u", "metadata-location": older}).status == 200
