"""Registering over REST: dropped tables come back by their metadata file, whole or not at all."""

import json
from typing import Any

import duckdb
import pytest

from duckicelake.store.objects import Objects
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import NO_HEADERS, Client, data_file, open_client, read_rows
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, which has rows of both sides, deleted ones too."""
    client = open_client(server, lake)
    base = client.create(properties={"k": "v"}).json["metadata"]
    session = lake.duckdb()
    session.execute("CALL lake.set_option('data_inlining_row_limit', 5)")
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("INSERT INTO t VALUES (100, 'y'), (101, 'z')")
    session.execute("DELETE FROM t WHERE id IN (7, 100)")
    session.execute("COMMENT ON COLUMN t.name IS 'a name'")
    assert base["table-uuid"] == client.load()["table-uuid"]
    return client


def register(client: Client, location: str, name: str = "t", namespace: str = "main", **more: Any) -> Answer:
    """Register a metadata file; `headers` are the request's."""
    headers = more.pop("headers", NO_HEADERS)
    return client.post(f"namespaces/{namespace}/register", {"name": name, "metadata-location": location, **more}, headers)


def drop(client: Client, name: str = "t") -> str:
    """Drop a table and return its last metadata file."""
    location = client.server.get(f"namespaces/main/tables/{name}").json["metadata-location"]
    assert client.server.ask("DELETE", f"namespaces/main/tables/{name}").status == 204
    return location


def test_a_dropped_table_comes_back_as_it_was(client: Client, lake: FreshLake) -> None:
    """Snapshots, ids, properties, docs, the metadata file itself; DuckDB reads its rows and writes on."""
    before = client.load()
    location = drop(client)
    back = register(client, location)
    assert (back.status, back.json["metadata-location"], back.json["metadata"]) == (200, location, before)
    session = lake.duckdb()
    assert session.execute("SELECT count(*), sum(id) FROM t").fetchone() == (100, 5044)
    session.execute("INSERT INTO t VALUES (200, 'w')")
    session.execute("DELETE FROM t WHERE id < 10")
    assert session.execute("SELECT count(*) FROM t").fetchone() == (92,)
    session.execute("CALL ducklake_flush_inlined_data('lake')")
    assert session.execute("SELECT count(*) FROM t").fetchone() == (92,)
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()


@pytest.mark.parametrize("headers", [{}, {"X-Client-Version": "Apache Iceberg 1.11.0 (commit 0)"}], ids=["others", "java"])
def test_its_author_still_finds_the_last_snapshot(server: Server, lake: FreshLake, headers: dict[str, str]) -> None:
    """A commit, a drop and a registration: the answer is that to the commit, and a replay is known. Java compares the two."""
    client = open_client(server, lake)
    base = client.create("u").json["metadata"]
    updates = client.append(base, 9_000_000_001, [data_file(base, "a")])
    before = client.commit(updates, name="u", headers=headers).json["metadata"]
    assert (9_000_000_001 in [snapshot["snapshot-id"] for snapshot in before["snapshots"]]) == bool(headers)
    assert register(client, drop(client, "u"), "u", headers=headers).json["metadata"] == before
    assert client.commit(updates, name="u", headers=headers).json["metadata"] == before


@pytest.mark.whole
def test_time_travel_sees_the_gap(client: Client, lake: FreshLake) -> None:
    """Between drop and registration there is no table, before and after there is; the name may be another."""
    session = lake.duckdb()
    head = find_head(lake)
    location = drop(client)
    session.execute("CREATE SCHEMA s")
    session.execute("CREATE TABLE t AS SELECT 1 AS other")
    assert register(client, location, "u", "s").status == 200
    assert session.execute("SELECT count(*) FROM s.u").fetchone() == (100,)
    assert session.execute(f"SELECT count(*) FROM t AT (VERSION => {head})").fetchone() == (100,)
    with pytest.raises(duckdb.Error):
        session.execute(f"FROM t AT (VERSION => {head + 1})")
    assert session.execute("FROM t").fetchall() == [(1,)]


def find_head(lake: FreshLake) -> int:
    """The newest lake snapshot."""
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def test_what_duckdb_dropped_comes_back(client: Client, lake: FreshLake) -> None:
    """A table that DuckDB made and dropped; with it what DuckDB did after the file was written."""
    session = lake.duckdb()
    session.execute("CREATE TABLE d (i INTEGER)")
    session.execute("INSERT INTO d SELECT range FROM range(50)")
    location = client.server.get("namespaces/main/tables/d").json["metadata-location"]
    session.execute("DELETE FROM d WHERE i >= 40")
    session.execute("DROP TABLE d")
    assert register(client, location, "d").status == 200
    assert lake.duckdb().execute("SELECT count(*) FROM d").fetchone() == (40,)
    assert len(client.load("d")["snapshots"]) == 2


def test_names_and_tables_that_are_there_are_kept(client: Client, lake: FreshLake) -> None:
    """409 with Java's text, and nothing changes."""
    here = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    client.create("u")
    gone = drop(client, "u")
    rows = read_rows(lake)
    for location in (here, gone):
        refused = register(client, location)
        assert refused.error == (409, "AlreadyExistsException")
        assert refused.json["error"]["message"] == "Table already exists: main.t"
    assert register(client, here, "other").error == (409, "AlreadyExistsException")
    assert register(client, gone, "v", "nowhere").error == (404, "NoSuchNamespaceException")
    assert register(client, gone, "v", overwrite="yes").error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_what_cannot_come_back_whole_is_refused(client: Client, lake: FreshLake) -> None:
    """A file that is nowhere, or where nobody may look: 400, and nothing changes."""
    newest = drop(client)
    rows = read_rows(lake)
    for location in (
        f"{lake.iceberg_path}main/x/metadata/v1.metadata.json",
        "s3://elsewhere/metadata/00000-x.metadata.json",
        "",
        "v1",
    ):
        assert register(client, location).error == (400, "BadRequestException"), location
    client.objects.delete(newest)
    assert register(client, newest).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_a_location_that_was_taken_over_stays_so(server: Server, lake: FreshLake) -> None:
    """Until the newer table there is dropped too; then either may come back."""
    client = open_client(server, lake)
    location = f"{lake.iceberg_path}chosen"
    client.create("u", location=location)
    older = drop(client, "u")
    client.create("u", location=location)
    assert register(client, older, "v").error == (400, "BadRequestException")
    newer = drop(client, "u")
    assert register(client, newer, "v").status == 200
    assert drop(client, "v") == newer
    assert register(client, older, "v").status == 200


@pytest.mark.parametrize(
    "statements",
    whole_after(
        1,
        [
            pytest.param(["BEGIN", "DELETE FROM t WHERE id < 50", "DROP TABLE t", "COMMIT"], id="changed where it was dropped"),
            pytest.param(
                ["DROP TABLE t", "CREATE TABLE other (i INTEGER)", "CALL ducklake_expire_snapshots('lake', older_than => now())"],
                id="expired",
            ),
        ],
    ),
)
def test_what_ducklake_forgets_is_not_guessed(client: Client, lake: FreshLake, statements: list[str]) -> None:
    """A table changed by the transaction that dropped it, or partly expired since."""
    location = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    session = lake.duckdb()
    for statement in statements:
        session.execute(statement)
    rows = read_rows(lake)
    assert register(client, location).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


@pytest.mark.whole
def test_an_older_file_makes_the_table_what_it_was(client: Client, lake: FreshLake) -> None:
    """With the snapshots and ids of then; DuckDB has the rows of then, and both go on from there."""
    older = client.server.get("namespaces/main/tables/t").json
    session = lake.duckdb()
    session.execute("DELETE FROM t WHERE id < 90")
    session.execute("ALTER TABLE t ADD COLUMN more INTEGER")
    newest = drop(client)
    back = register(client, older["metadata-location"])
    assert back.status == 200
    now = back.json["metadata"]
    assert now["current-snapshot-id"] == older["metadata"]["current-snapshot-id"]
    assert now["schemas"] == older["metadata"]["schemas"]
    assert {s["snapshot-id"] for s in now["snapshots"]} == {s["snapshot-id"] for s in older["metadata"]["snapshots"]}
    assert int(back.json["metadata-location"].rpartition("/v")[2].split(".")[0]) > int(newest.rpartition("/v")[2].split(".")[0])
    session = lake.duckdb()
    assert session.execute("SELECT count(*), sum(id) FROM t").fetchone() == (100, 5044)
    session.execute("INSERT INTO t VALUES (200, 'w')")
    session.execute("UPDATE t SET name = 'u' WHERE id = 101")
    assert session.execute("SELECT count(*), count(DISTINCT rowid) FROM t").fetchone() == (101, 101)
    assert len(client.load()["snapshots"]) == len(now["snapshots"]) + 2
    make_everything_expire(session)
    assert lake.duckdb().execute("SELECT count(*), sum(id) FROM t").fetchone() == (101, 5244)


def make_everything_expire(session: duckdb.DuckDBPyConnection) -> None:
    """Let DuckLake's maintenance remove all that it may."""
    for option in ("expire_older_than", "delete_older_than"):
        session.execute(f"CALL lake.set_option('{option}', '0 seconds')")
    session.execute("CHECKPOINT lake")
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    session.execute("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")


def test_registering_over_a_table_ends_that(client: Client, lake: FreshLake) -> None:
    """In one lake snapshot: by its own older file, by another's dropped table's newest one, and where there was none."""
    older = client.server.get("namespaces/main/tables/t").json
    session = lake.duckdb()
    session.execute("DELETE FROM t")
    head = find_head(lake)
    back = register(client, older["metadata-location"], overwrite=True)
    assert back.status == 200
    assert (find_head(lake), back.json["metadata"]["table-uuid"]) == (head + 1, older["metadata"]["table-uuid"])
    assert lake.duckdb().execute("SELECT count(*) FROM t").fetchone() == (100,)
    assert lake.duckdb().execute(f"SELECT count(*) FROM t AT (VERSION => {head})").fetchone() == (0,)
    client.create("u")
    gone = drop(client, "u")
    assert register(client, gone, overwrite=True).status == 200
    assert lake.duckdb().execute("SELECT count(*) FROM t").fetchone() == (0,)
    gone = drop(client)
    assert register(client, gone, overwrite=True).status == 200
    assert lake.duckdb().execute("SELECT count(*) FROM t").fetchone() == (0,)


COUNT_LIVE = "SELECT count(*) FROM ducklake_table WHERE lower(table_name) = 'u' AND end_snapshot IS NULL"


@pytest.mark.parametrize("overwrite", whole_after(1, [False, True]), ids=["kept", "overwritten"])
@pytest.mark.parametrize(("file", "step"), [pytest.param("newest", "exists", id="newest"), pytest.param("older", "list_under", id="older")])
def test_a_name_that_is_taken_while_a_table_comes_is_seen(
    client: Client, lake: FreshLake, monkeypatch: pytest.MonkeyPatch, file: str, step: str, overwrite: bool
) -> None:
    """While its file is read, somebody makes a table of that name: one table has it, the first one unless it is to be overwritten."""
    older = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    lake.duckdb().execute("DELETE FROM t WHERE id < 90")
    newest, real, made = drop(client), getattr(Objects, step), list[str]()

    def look(objects: Objects, uri: str) -> Any:
        if not made:
            made.append("")
            made.append(open_client(other, lake).create("u").json["metadata"]["table-uuid"])
        return real(objects, uri)

    # Changes of one name wait for each other in one server.
    with serve(make_settings(lake)) as other, monkeypatch.context() as patch:
        patch.setattr(Objects, step, look)
        answer = register(client, newest if file == "newest" else older, "u", overwrite=overwrite)
    assert len(made) == len(("begun", "its uuid"))
    if overwrite:
        assert answer.status == 200
        assert client.load("u")["table-uuid"] == answer.json["metadata"]["table-uuid"] != made[1]
    else:
        assert answer.error == (409, "AlreadyExistsException")
        assert client.load("u")["table-uuid"] == made[1]
    assert lake.psycopg().execute(COUNT_LIVE).fetchone() == (1,)


def unregister(client: Client, name: str = "t", **headers: str) -> Answer:
    """Unregister a table."""
    return client.server.ask("POST", f"namespaces/main/tables/{name}/unregister", headers)


def test_an_unregistered_table_is_gone_and_stays_whole(client: Client, lake: FreshLake) -> None:
    """The answer is its last state; every file stays when DuckLake expires and removes all it may, and it comes back."""
    before = client.server.get("namespaces/main/tables/t").json
    key = {"Idempotency-Key": "0190f3a2-0000-7000-8000-000000000001"}
    gone = unregister(client, **key)
    assert (gone.status, gone.json) == (200, {"metadata-location": before["metadata-location"], "metadata": before["metadata"]})
    assert unregister(client, **key).json == gone.json
    assert unregister(client).error == (404, "NoSuchTableException")
    assert client.commit([{"action": "set-properties", "updates": {"k": "w"}}]).error == (404, "NoSuchTableException")
    session = lake.duckdb()
    assert session.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == []
    assert session.execute("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake'").fetchall() == [("main",)]
    session.execute("CREATE TABLE other AS SELECT 1 AS i")
    held = {uri for root in (lake.data_path, lake.iceberg_path) for uri, _ in client.objects.list_under(root) if "/other/" not in uri}
    make_everything_expire(session)
    left = {uri for root in (lake.data_path, lake.iceberg_path) for uri, _ in client.objects.list_under(root)}
    read = {uri for uri in held if not uri.endswith("-delete.parquet")}
    assert read <= left
    back = register(client, gone.json["metadata-location"])
    assert back.status == 200
    assert back.json["metadata"]["current-snapshot-id"] == before["metadata"]["current-snapshot-id"]
    session = lake.duckdb()
    assert session.execute("SELECT count(*), sum(id) FROM t").fetchone() == (100, 5044)
    session.execute("DELETE FROM t WHERE id < 10")
    session.execute("INSERT INTO t VALUES (300, 'v')")
    make_everything_expire(session)
    assert lake.duckdb().execute("SELECT count(*), count(DISTINCT rowid) FROM t").fetchone() == (92, 92)
    assert read <= {uri for root in (lake.data_path, lake.iceberg_path) for uri, _ in client.objects.list_under(root)}


@pytest.mark.whole
def test_an_unregistered_table_may_come_back_at_once(client: Client, lake: FreshLake) -> None:
    """As DuckLake still has it; then nothing is kept for others any more, and a drop lets its files go."""
    before = client.server.get("namespaces/main/tables/t").json
    assert unregister(client).status == 200
    back = register(client, before["metadata-location"])
    assert back.json["metadata"] == before["metadata"]
    session = lake.duckdb()
    session.execute("CREATE TABLE other AS SELECT 1 AS i")
    session.execute("DROP TABLE t")
    make_everything_expire(session)
    assert [uri for uri, _ in client.objects.list_under(lake.data_path) if "/t/" in uri or "/t-" in uri] == []


@pytest.mark.whole
def test_files_that_older_snapshots_alone_have_stay(client: Client, lake: FreshLake) -> None:
    """Registered by an older file, a table keeps what DuckLake would remove with the dropped one."""
    session = lake.duckdb()
    session.execute("CREATE TABLE d AS SELECT range AS i FROM range(50)")
    (old,) = session.execute("SELECT data_file FROM ducklake_list_files('lake', 'd')").fetchone() or ("",)
    session.execute("DELETE FROM d")
    session.execute("INSERT INTO d SELECT range FROM range(60)")
    location = client.server.get("namespaces/main/tables/d").json["metadata-location"]
    session.execute("ALTER TABLE d ADD COLUMN j INTEGER")
    drop(client, "d")
    assert register(client, location, "d").status == 200
    make_everything_expire(lake.duckdb())
    assert client.objects.exists(old)
    assert lake.duckdb().execute("SELECT count(*) FROM d").fetchone() == (60,)
    lake.duckdb().execute("DROP TABLE d")
    make_everything_expire(lake.duckdb())
    assert not client.objects.exists(old)


@pytest.mark.whole
def test_row_ids_stay_apart(client: Client, lake: FreshLake) -> None:
    """Files that carry the ids of an earlier stay in the lake share none with the others."""
    session = lake.duckdb()
    session.execute("CREATE TABLE d AS SELECT range AS i FROM range(50)")
    session.execute("INSERT INTO d SELECT range FROM range(50, 100)")
    session.execute("UPDATE d SET i = i + 1000 WHERE i < 50")
    session.execute("INSERT INTO d SELECT range FROM range(100, 150)")
    location = unregister(client, "d").json["metadata-location"]
    make_everything_expire(session)
    assert register(client, location, "d").status == 200
    session = lake.duckdb()
    assert session.execute("SELECT count(*), count(DISTINCT rowid) FROM d").fetchone() == (150, 150)
    session.execute("UPDATE d SET i = i + 1000")
    assert session.execute("SELECT count(*), sum(i) FROM d").fetchone() == (150, 149 * 75 + 50_000 + 150_000)


PASSING = {"metadata-log": [], "last-updated-ms": 0}


@pytest.mark.parametrize("way", whole_after(1, ["register", "undrop"]))
def test_a_location_that_another_table_used_since_gives_out_no_version_twice(client: Client, lake: FreshLake, way: str) -> None:
    """The numbers of metadata files go on after the other table's, whose files stay as they are; then the other one goes on after these."""
    older = client.server.get("namespaces/main/tables/t").json
    location = older["metadata"]["location"]
    assert drop(client) == older["metadata-location"]
    assert client.create("u", location=location).status == 200
    lake.duckdb().execute("INSERT INTO u SELECT range, 'x' FROM range(7)")
    newer = client.server.get("namespaces/main/tables/u").json
    written = client.objects.read(newer["metadata-location"])
    assert drop(client, "u") == newer["metadata-location"]
    back = bring_back(client, way, "t", older["metadata-location"])
    assert back.status == 200, back.body
    found = client.server.get("namespaces/main/tables/t").json
    assert find_version(found) == find_version(newer) + 1
    assert {**found["metadata"], **PASSING} == {**older["metadata"], **PASSING}
    assert client.objects.read(newer["metadata-location"]) == written
    assert lake.duckdb().execute("SELECT count(*), sum(id) FROM t").fetchone() == (100, 5044)
    assert client.commit([{"action": "set-properties", "updates": {"k": "w"}}]).status == 200
    assert drop(client).endswith(f"/v{find_version(newer) + 2}.metadata.json")
    assert bring_back(client, way, "u", newer["metadata-location"]).status == 200
    assert find_version(client.server.get("namespaces/main/tables/u").json) == find_version(newer) + 3
    assert client.objects.read(newer["metadata-location"]) == written
    assert lake.duckdb().execute("SELECT count(*) FROM u").fetchone() == (7,)


def bring_back(client: Client, way: str, name: str, metadata_location: str) -> Answer:
    """Bring a dropped table back by its newest metadata file, or by its name."""
    if way == "register":
        return register(client, metadata_location, name)
    return client.server.ask("POST", "/management/v1/lake/undrop", {}, json.dumps({"namespace": ["main"], "name": name}).encode())


def find_version(loaded: Any) -> int:
    """The number of a loaded table's metadata file."""
    return int(loaded["metadata-location"].rpartition("/v")[2].split(".")[0])


@pytest.mark.whole
def test_a_table_that_moves_to_a_location_of_a_dropped_one_gives_out_no_version_twice(client: Client) -> None:
    """The dropped table has written more metadata files there than the table that moves has in all."""
    client.create("u")
    for value in ("1", "2", "3", "4"):
        assert client.commit([{"action": "set-properties", "updates": {"k": value}}], name="u").status == 200
    there = client.server.get("namespaces/main/tables/u").json
    written = client.objects.read(there["metadata-location"])
    drop(client, "u")
    client.create("w")
    moved = client.commit([{"action": "set-location", "location": there["metadata"]["location"]}], name="w")
    assert moved.status == 200
    assert find_version(moved.json) == find_version(there) + 1
    assert client.objects.read(there["metadata-location"]) == written
