"""Undrop over REST: dropped tables and namespaces come back as they were, or not at all."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any
from uuid import uuid4

import duckdb
import pytest

from duckicelake.lake.lake_format import V1_0
from tests.lake.branches.repository import MAINTENANCE, fill, make_branch, read_rows
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer, Server
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.readers import Served

MANAGEMENT = "/management/v1/lake"
TABLES = ("t", "s.parts", "empty")


def undrop(server: Server, **body: Any) -> Answer:
    """Ask for an undrop."""
    return server.ask("POST", f"{MANAGEMENT}/undrop", {}, json.dumps(body).encode())


def list_dropped(server: Server, query: str = "") -> Sequence[Mapping[str, Any]]:
    """The list of what is dropped."""
    return server.get(f"{MANAGEMENT}/dropped{query}").json["dropped"]


def head_of(lake: FreshLake) -> int:
    """The newest lake snapshot."""
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def read_uuid(lake: FreshLake, table: str) -> Any:
    """The uuid of a table."""
    row = lake.psycopg().execute("SELECT DISTINCT table_uuid FROM ducklake_table WHERE table_name = %s", (table,)).fetchone()
    assert row is not None
    return row[0]


def test_a_table_that_only_duckdb_had_comes_back_for_every_reader(server: Server, lake: FreshLake) -> None:
    """Rows in files and inlined, deletes, partitions and comments; then maintenance, and both sides go on."""
    with closing(lake.duckdb()) as session:
        fill(session)
        expected = {table: session.execute(f"SELECT * FROM {table} ORDER BY ALL").fetchall() for table in TABLES}
        before = head_of(lake)
        for table in TABLES:
            session.execute(f"DROP TABLE {table}")
        session.execute("CREATE TABLE seen_at_gap AS SELECT range AS i FROM range(3)")
        gap = head_of(lake)
    listed = list_dropped(server)
    assert [(item["name"], item["obstacle"]) for item in listed] == [("empty", None), ("parts", None), ("t", None)]
    for item in listed:
        back = undrop(server, namespace=item["namespace"], name=item["name"], uuid=item["uuid"])
        assert back.status == 200, back.body
        assert back.json == {
            "type": "table",
            "namespace": item["namespace"],
            "name": item["name"],
            "uuid": item["uuid"],
            "tables": [],
            "left-out": [],
        }
    assert list_dropped(server) == []
    assert {table: read_rows(lake, table) for table in TABLES} == expected
    assert {table: read_rows(lake, table, before) for table in TABLES} == expected
    with closing(lake.duckdb()) as session:
        with pytest.raises(duckdb.Error, match="does not exist"):
            session.execute(f"FROM t AT (VERSION => {gap})")
        assert session.execute(f"SELECT count(*) FROM seen_at_gap AT (VERSION => {gap})").fetchone() == (3,)
        changes = f"FROM ducklake_table_changes('lake', 'main', 't', {gap}, {head_of(lake)})"
        assert session.execute(changes).fetchall() == []
        comment = session.execute("SELECT comment FROM duckdb_tables() WHERE table_name = 't' AND database_name = 'lake'").fetchone()
        assert comment == ("c",)
    reader = Served(lake, server).pyiceberg()
    check_published(reader, expected)
    with closing(lake.duckdb()) as session:
        for statement in MAINTENANCE:
            session.execute(statement)
        session.execute("INSERT INTO t VALUES (5000, 'new')")
        session.execute("INSERT INTO s.parts SELECT 7, i FROM range(20) r(i)")
    expected["t"] = sorted([*expected["t"], (5000, "new")])
    expected["s.parts"] = sorted([*expected["s.parts"], *((7, i) for i in range(20))])
    assert {table: read_rows(lake, table) for table in TABLES} == expected
    check_published(reader, expected)


def check_published(reader: Any, expected: Mapping[str, Any]) -> None:
    """PyIceberg reads the same rows."""
    for table, rows in expected.items():
        namespace, _, name = table.rpartition(".")
        found = reader.read((namespace or "main", name)).to_pylist()
        assert sorted(tuple(row.values()) for row in found) == sorted(rows), table


def test_a_published_table_comes_back_with_its_history_properties_and_refs(server: Server, lake: FreshLake) -> None:
    """The answer to a load is what it was, at the same lake snapshots; a tag keeps what expires while the table is dropped."""
    client = open_client(server, lake)
    client.create(properties={"k": "v"})
    with closing(lake.duckdb()) as session:
        session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
        tagged = client.load()["current-snapshot-id"]
        ref = {"action": "set-snapshot-ref", "ref-name": "kept", "type": "tag", "snapshot-id": tagged}
        assert client.commit([ref]).status == 200
        session.execute("DELETE FROM t")
        session.execute("INSERT INTO t SELECT range, 'y' FROM range(20)")
    before = client.load()
    assert server.ask("DELETE", "namespaces/main/tables/t").status == 204
    with closing(lake.duckdb()) as session:
        # All but the last state before the drop expires, and DuckLake deletes what no lake snapshot has.
        session.execute("CREATE TABLE other (i INTEGER)")
        ids = [row[0] for row in lake.psycopg().execute("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1")]
        old = [i for i in ids if i not in (before["current-snapshot-id"], *ids[-3:])]
        session.execute(f"CALL ducklake_expire_snapshots('lake', versions => {old})")
        session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert undrop(server, namespace=["main"], name="t").status == 200
    after = client.load()
    same = ("table-uuid", "location", "properties", "refs", "current-snapshot-id", "schemas", "format-version")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    table = Served(lake, server).pyiceberg().catalog.load_table(("main", "t"))
    assert table.scan(snapshot_id=tagged).to_arrow().num_rows == 100
    assert table.scan().to_arrow().num_rows == 20


def test_what_is_in_the_way_is_said_and_nothing_is_done(server: Server, lake: FreshLake) -> None:
    """A name that is taken, a namespace that is gone, a drop that changed the table, one that has expired, one with its files."""
    with closing(lake.duckdb()) as session:
        for name in ("a", "b", "c"):
            session.execute(f"CREATE TABLE {name} AS SELECT range AS i FROM range(20)")
        session.execute("CREATE SCHEMA s")
        session.execute("CREATE TABLE s.d AS SELECT 1 AS i")
        session.execute("DROP TABLE a")
        session.execute("CREATE VIEW a AS SELECT 1 AS i")
        session.execute("BEGIN")
        session.execute("DELETE FROM b WHERE i < 5")
        session.execute("DROP TABLE b")
        session.execute("COMMIT")
        session.execute("DROP TABLE s.d")
        session.execute("DROP SCHEMA s")
    server.get("namespaces/main/tables/c")
    assert server.ask("DELETE", "namespaces/main/tables/c?purgeRequested=true").status == 204
    head = head_of(lake)
    taken = undrop(server, namespace=["main"], name="a")
    assert taken.error == (409, "AlreadyExistsException") and "Choose another name" in taken.json["error"]["message"]
    changed = undrop(server, namespace=["main"], name="b")
    assert changed.error == (400, "BadRequestException") and "also changed it" in changed.json["error"]["message"]
    purged = undrop(server, namespace=["main"], name="c")
    assert purged.error == (400, "BadRequestException") and "purgeRequested" in purged.json["error"]["message"]
    gone = undrop(server, namespace=["s"], name="d")
    assert gone.error == (404, "NoSuchNamespaceException") and "with-namespace" in gone.json["error"]["message"]
    assert undrop(server, namespace=["main"], name="none").error == (404, "NoSuchTableException")
    assert undrop(server, namespace=["none"]).error == (404, "NoSuchNamespaceException")
    assert undrop(server, namespace=["main"], name="a", uuid=str(uuid4())).error == (404, "NoSuchTableException")
    assert undrop(server, namespace=["main"]).error == (404, "NoSuchNamespaceException")
    assert head_of(lake) == head
    assert undrop(server, namespace=["main"], name="a", to={"namespace": ["main"], "name": "A2"}).json["name"] == "A2"
    with_it = {"namespace": ["s"], "name": "d", "with-namespace": True}
    assert undrop(server, **with_it).status == 200
    assert read_rows(lake, "s.d") == [(1,)] and len(read_rows(lake, "A2")) == 20
    with closing(lake.duckdb()) as session:
        session.execute("DROP TABLE A2")
        session.execute("CREATE TABLE other (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert undrop(server, namespace=["main"], name="A2").error == (404, "NoSuchTableException")


def test_what_began_to_expire_is_not_guessed(server: Server, lake: FreshLake) -> None:
    """The lake snapshot before the drop is gone, and with it what only that had; the list says so."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
        created = head_of(lake)
        session.execute("INSERT INTO t SELECT range FROM range(30)")
        last = head_of(lake)
        session.execute("DROP TABLE t")
        session.execute("CREATE TABLE other (i INTEGER)")
        session.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{last}])")
    assert created < last
    assert "expired" in list_dropped(server)[0]["obstacle"]
    refused = undrop(server, namespace=["main"], name="t")
    assert refused.error == (400, "BadRequestException") and "expired" in refused.json["error"]["message"]


def test_a_namespace_comes_back_with_properties_and_what_went_with_it(server: Server, lake: FreshLake) -> None:
    """Its uuid, its properties and the tables of the same drop; not what was dropped before. Time travel sees the gap."""
    client = open_client(server, lake)
    assert client.post("namespaces", {"namespace": ["s", "n"], "properties": {"owner": "us"}}).status == 200
    name = '"s␟n"'
    with closing(lake.duckdb()) as session:
        for table in ("early", "x", "y"):
            session.execute(f"CREATE TABLE {name}.{table} AS SELECT range AS i FROM range(30)")
        session.execute(f"INSERT INTO {name}.x VALUES (77)")
        session.execute(f"DROP TABLE {name}.early")
        before = head_of(lake)
        session.execute(f"DROP SCHEMA {name} CASCADE")
        gap = head_of(lake)
    conn = lake.psycopg()
    uuid = conn.execute("SELECT schema_uuid FROM ducklake_schema WHERE schema_name = 's␟n'").fetchone()
    back = undrop(server, namespace=["s", "n"])
    assert back.status == 200, back.body
    assert (back.json["type"], sorted(back.json["tables"])) == ("namespace", ["x", "y"])
    assert conn.execute("SELECT schema_uuid FROM ducklake_schema WHERE schema_name = 's␟n' AND end_snapshot IS NULL").fetchone() == uuid
    assert server.get("namespaces/s%1Fn").json["properties"] == {"owner": "us"}
    assert len(read_rows(lake, f"{name}.x")) == len(read_rows(lake, f"{name}.x", before)) == 31
    with closing(lake.duckdb()) as session, pytest.raises(duckdb.Error):
        session.execute(f"FROM {name}.x AT (VERSION => {gap})")
    assert undrop(server, namespace=["s", "n"], name="early").status == 200
    assert undrop(server, namespace=["s", "n"]).error == (404, "NoSuchNamespaceException")
    with closing(lake.duckdb()) as session:
        for statement in MAINTENANCE:
            session.execute(statement)
        session.execute(f"CREATE TABLE {name}.z AS SELECT 1 AS i")
    assert [len(read_rows(lake, f"{name}.{table}")) for table in ("early", "x", "y", "z")] == [30, 31, 30, 1]
    assert lake.psycopg().execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchone() == (V1_0.version,)


def test_the_newest_of_several_comes_back_unless_a_uuid_says_which(server: Server, lake: FreshLake) -> None:
    """As often as the name was dropped; a page shows as many as are asked for, and the token goes on."""
    with closing(lake.duckdb()) as session:
        for rows in (1, 2, 3):
            session.execute(f"CREATE TABLE t AS SELECT range AS i FROM range({rows})")
            session.execute("DROP TABLE t")
    uuids = [item["uuid"] for item in list_dropped(server)]
    first = server.get(f"{MANAGEMENT}/dropped?pageSize=2").json
    rest = server.get(f"{MANAGEMENT}/dropped?pageSize=2&pageToken={first['next-page-token']}").json
    assert [item["uuid"] for item in (*first["dropped"], *rest["dropped"])] == uuids
    assert rest["next-page-token"] is None
    assert undrop(server, namespace=["main"], name="t").json["uuid"] == uuids[0]
    assert len(read_rows(lake, "t")) == 3
    older = undrop(server, namespace=["main"], name="t", uuid=uuids[2], to={"namespace": ["main"], "name": "oldest"})
    assert older.status == 200 and len(read_rows(lake, "oldest")) == 1


def test_a_repeated_request_is_answered_from_what_it_did(server: Server, lake: FreshLake) -> None:
    """With the same key; another request with it is refused."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT 1 AS i")
        session.execute("DROP TABLE t")
    key = {"Idempotency-Key": str(uuid4())}
    body = json.dumps({"namespace": ["main"], "name": "t"}).encode()
    answers = [server.ask("POST", f"{MANAGEMENT}/undrop", key, body) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200] and answers[0].json == answers[1].json
    other = json.dumps({"namespace": ["main"], "name": "u"}).encode()
    assert server.ask("POST", f"{MANAGEMENT}/undrop", key, other).status == 422


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b'{"name": "t"}', id="no namespace"),
        pytest.param(b'{"namespace": []}', id="no level"),
        pytest.param(b'{"namespace": ["a", 1]}', id="a number"),
        pytest.param(b'{"namespace": ["a\\u0000"], "name": "t"}', id="NUL"),
        pytest.param('{"namespace": ["a␟b"], "name": "t"}'.encode(), id="separator"),
        pytest.param(b'{"namespace": ["a"], "name": ""}', id="no name"),
        pytest.param(b'{"namespace": ["a"], "name": "t", "uuid": "x"}', id="no uuid"),
        pytest.param(b'{"namespace": ["a"], "name": "t", "with-namespace": "yes"}', id="no boolean"),
        pytest.param(b'{"namespace": ["a"], "name": "t", "to": "u"}', id="to is a text"),
        pytest.param(b'{"namespace": ["a"], "name": "t", "to": {"name": "u"}}', id="to without namespace"),
        pytest.param(b'{"namespace": ["a"], "to": {"namespace": ["b"], "name": "u"}}', id="namespace to table"),
    ],
)
def test_malformed_requests_are_refused(standing: Server, body: bytes) -> None:
    """With Iceberg's error, before the lake is asked."""
    assert standing.ask("POST", f"{MANAGEMENT}/undrop", {}, body).error == (400, "BadRequestException")


@pytest.mark.parametrize("token", ["x", "MR8y", "MQ==", "LTEfMQ==", "OTk5OTk5OTk5OTk5OTk5OTk5OTkfMQ=="])
def test_tokens_of_others_are_refused_or_harmless(standing: Server, token: str) -> None:
    """A place in the list is two numbers."""
    answer = standing.get(f"{MANAGEMENT}/dropped?pageToken={token}")
    assert answer.status == 200 if token == "MR8y" else answer.error == (400, "BadRequestException")


def test_who_manages_the_namespace_brings_tables_back(managed: Managed) -> None:
    """And nobody who could not read it before: not the owner of a new namespace of the name, and not by another name."""
    lake = managed.guarded.lake
    for name in ("keeper", "other", "heir"):
        managed.add(name)
    managed.give("manage", "namespace:a", "keeper")
    managed.give("read,write,create,drop", "namespace:a", "other")
    managed.give("read", "table:a.t", "other")
    managed.give("manage", "namespace:b", "heir")
    with closing(lake.duckdb()) as session:
        session.execute("DROP TABLE a.t")
        session.execute("DROP SCHEMA b CASCADE")
        session.execute("CREATE SCHEMA b")
    managed.give("manage", "namespace:b", "heir")
    path, table = f"{MANAGEMENT}/undrop", {"namespace": ["a"], "name": "t"}
    assert managed.ask("other", "POST", path, table).error == (403, "NotAuthorizedException")
    assert managed.ask("heir", "POST", path, table).error == (404, "NoSuchNamespaceException")
    assert managed.ask("heir", "POST", path, {"namespace": ["b"], "name": "t"}).error == (404, "NoSuchTableException")
    assert managed.ask("keeper", "POST", path, {"namespace": ["b"]}).error == (403, "NotAuthorizedException")
    assert managed.ask("keeper", "POST", path, {**table, "to": {"namespace": ["b"]}}).error == (404, "NoSuchNamespaceException")
    assert managed.ask("other", "GET", f"{MANAGEMENT}/dropped").json["dropped"] == []
    assert managed.ask("heir", "GET", f"{MANAGEMENT}/dropped").json["dropped"] == []
    assert [item["name"] for item in managed.ask("keeper", "GET", f"{MANAGEMENT}/dropped").json["dropped"]] == ["t"]
    assert managed.ask("keeper", "POST", path, table).status == 200
    assert managed.statuses("other", "namespaces/a/tables/t") == [200]
    managed.take("read,write,create,drop", "namespace:a", "other")
    assert managed.statuses("other", "namespaces/a/tables/t", "namespaces/a/tables/other") == [200, 404]
    lines = (
        lake.psycopg().execute("SELECT principal, objects FROM iceberg_audit WHERE operation = 'undrop' AND outcome = 'done'").fetchall()
    )
    assert lines == [("keeper", ["a.t"])]


def test_a_table_that_was_moved_out_of_an_expired_namespace_is_read(server: Server, lake: FreshLake) -> None:
    """DuckDB loads the catalog as of the table's first row for its inlined rows; the schema of that row stays known."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s")
        session.execute("CREATE TABLE s.t AS SELECT range AS i FROM range(3)")
        session.execute("INSERT INTO s.t VALUES (7)")
        move = {"source": {"namespace": ["s"], "name": "t"}, "destination": {"namespace": ["main"], "name": "t"}}
        assert server.ask("POST", "tables/rename", {}, json.dumps(move).encode()).status == 204
        session.execute("DROP SCHEMA s")
        session.execute("CREATE TABLE other (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
        session.execute("INSERT INTO other VALUES (1)")
    assert len(read_rows(lake, "t")) == 4
    assert lake.psycopg().execute("SELECT count(*) FROM ducklake_schema WHERE schema_name = 's'").fetchone() == (1,)
    with closing(lake.duckdb()) as session:
        session.execute("DROP TABLE t")
        session.execute("CREATE TABLE more (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert lake.psycopg().execute("SELECT count(*) FROM ducklake_schema WHERE schema_name = 's'").fetchone() == (0,)


def test_a_lake_with_branches_keeps_what_they_read(server: Server, lake: FreshLake) -> None:
    """An undrop beside a branch is refused; the branch is as it was."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
        branch = make_branch(lake, "dev")
        session.execute("DROP TABLE t")
    assert undrop(server, namespace=["main"], name="t").error == (400, "BadRequestException")
    assert len(read_rows(branch, "t")) == 20


@pytest.mark.whole
def test_the_heir_of_a_namespaces_name_gets_none_of_its_tables(managed: Managed) -> None:
    """The namespace is back under another name, and somebody manages a new one of the old name."""
    managed.add("heir")
    with closing(managed.guarded.lake.duckdb()) as session:
        session.execute("DROP TABLE b.t")
        session.execute("DROP SCHEMA b CASCADE")
    assert managed.manage("POST", "undrop", {"namespace": ["b"], "to": {"namespace": ["b2"]}}).status == 200
    with closing(managed.guarded.lake.duckdb()) as session:
        session.execute("CREATE SCHEMA b")
    managed.give("manage", "namespace:b", "heir")
    assert managed.ask("heir", "GET", f"{MANAGEMENT}/dropped").json["dropped"] == []
    refused = managed.ask("heir", "POST", f"{MANAGEMENT}/undrop", {"namespace": ["b"], "name": "t"})
    assert refused.error == (404, "NoSuchTableException")
    assert managed.manage("POST", "undrop", {"namespace": ["b"], "name": "t", "to": {"namespace": ["b2"]}}).status == 200


def test_an_earlier_location_that_another_table_has_is_refused(server: Server, lake: FreshLake) -> None:
    """Older metadata files of the dropped table lie there, and a purge of the other table would take them."""
    client = open_client(server, lake)
    client.create("t")
    location = client.load("t")["location"]
    assert client.commit([{"action": "set-location", "location": location + "-moved"}], name="t").status == 200
    assert server.ask("DELETE", "namespaces/main/tables/t").status == 204
    assert client.create("u", location=location).status == 200
    refused = undrop(server, namespace=["main"], name="t")
    assert refused.error == (400, "BadRequestException")
    assert "has been taken over" in refused.body.decode()


def test_a_time_that_python_lacks_is_no_time(server: Server, lake: FreshLake) -> None:
    """A lake may have a snapshot at any time that Postgres has."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT 1 AS i")
        session.execute("DROP TABLE t")
    lake.psycopg().execute("UPDATE ducklake_snapshot SET snapshot_time = 'infinity' WHERE snapshot_id = 2")
    [found] = list_dropped(server)
    assert found["dropped-at-ms"] is None
    assert undrop(server, namespace=["main"], name="t").status == 200


def test_names_come_back_as_they_were_spelled(server: Server, lake: FreshLake) -> None:
    """A request may spell them in any case."""
    with closing(lake.duckdb()) as session:
        session.execute('CREATE SCHEMA "Sales"; CREATE TABLE "Sales"."Orders" AS SELECT 1 AS i; DROP SCHEMA "Sales" CASCADE')
    assert undrop(server, namespace=["sales"]).json["namespace"] == ["Sales"]
    with closing(lake.duckdb()) as session:
        session.execute('DROP TABLE "Sales"."Orders"')
    assert undrop(server, namespace=["SALES"], name="ORDERS").json["name"] == "Orders"
    with closing(lake.duckdb()) as session:
        found = session.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall()
    assert ("Sales", "Orders") in found
