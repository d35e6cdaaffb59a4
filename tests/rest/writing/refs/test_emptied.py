"""Main taken away over REST and no snapshot put in its place, as REPLACE TABLE without a query does: the table has no rows then."""

from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, open_client, read_rows, set_ref
from tests.rest.writing.refs.maintenance import expire_everything
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

REMOVE = {"action": "remove-snapshot-ref", "ref-name": "main"}


@pytest.fixture(params=long_after(1, [2, 3]))
def client(server: Server, lake: FreshLake, request: pytest.FixtureRequest) -> Client:
    """A client of a lake with the table main.t, with rows in a file and in Postgres, some deleted, in both format versions."""
    client = open_client(server, lake)
    assert client.create(properties={"format-version": str(request.param)}).status == 200
    session = lake.duckdb()
    session.execute("INSERT INTO t SELECT range, 'x' FROM range(100)")
    session.execute("INSERT INTO t VALUES (100, 'inlined'), (101, 'inlined')")
    session.execute("DELETE FROM t WHERE id < 10 OR id = 100")
    return client


def replacement(base: Any) -> tuple[list[Any], list[Any]]:
    """What Java sends for REPLACE TABLE t (id bigint, word string): its columns have new ids."""
    fields = [{"id": 1, "name": "id", "required": False, "type": "long"}, {"id": 3, "name": "word", "required": False, "type": "string"}]
    updates = [
        {"action": "set-default-spec", "spec-id": 0},
        {"action": "set-default-sort-order", "sort-order-id": 0},
        REMOVE,
        {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields}, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    requirements = [
        {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": base["last-column-id"]},
    ]
    return updates, requirements


def read_ids(catalog: RestCatalog, snapshot_id: int | None = None) -> list[int]:
    """The column `id` as PyIceberg reads it."""
    return sorted(catalog.load_table("main.t").scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist())


@pytest.mark.whole
def test_a_table_is_replaced_without_rows(client: Client, lake: FreshLake) -> None:
    """Nobody sees a row, everybody still sees those of before where they were, and both sides write on."""
    session, catalog = lake.duckdb(), Served(lake, client.server).pyiceberg().catalog
    base = client.load()
    before, ids = base["current-snapshot-id"], [*range(10, 100), 101]
    done = client.commit(*replacement(base))
    assert done.status == 200, done.body
    metadata = done.json["metadata"]
    assert (metadata["table-uuid"], metadata["current-schema-id"]) == (base["table-uuid"], 1)
    newest = metadata["snapshots"][-1]
    assert metadata["current-snapshot-id"] == metadata["refs"]["main"]["snapshot-id"] == newest["snapshot-id"]
    assert ("parent-snapshot-id" in newest, newest["summary"]["operation"], newest["summary"]["total-records"]) == (False, "delete", "0")
    assert metadata["snapshots"][:-1] == base["snapshots"]
    assert session.execute("FROM t").fetchall() == []
    assert read_ids(catalog) == []
    for _ in range(2):
        assert read_ids(catalog, before) == ids
        assert session.execute(f"SELECT id FROM t AT (VERSION => {before}) ORDER BY id").fetchall() == [(i,) for i in ids]
        session.execute("INSERT INTO t VALUES (7, 'new')")
    assert session.execute("FROM t").fetchall() == [(7, "new"), (7, "new")]
    assert read_ids(catalog) == [7, 7]
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()


@pytest.mark.whole
def test_main_alone_is_taken_away(client: Client, lake: FreshLake) -> None:
    """The same: no rows; what main retained is forgotten, tags keep what they name, and main can be put back."""
    session, catalog = lake.duckdb(), Served(lake, client.server).pyiceberg().catalog
    before, ids = client.load()["current-snapshot-id"], [*range(10, 100), 101]
    assert client.commit([set_ref("main", before, "branch", **{"max-ref-age-ms": 9}), set_ref("v1", before, "tag")]).status == 200
    metadata = client.commit([REMOVE]).json["metadata"]
    head = metadata["current-snapshot-id"]
    assert metadata["refs"] == {"main": {"snapshot-id": head, "type": "branch"}, "v1": {"snapshot-id": before, "type": "tag"}}
    assert (session.execute("FROM t").fetchall(), read_ids(catalog)) == ([], [])
    rows = read_rows(lake)
    assert client.commit([REMOVE]).json["metadata"]["current-snapshot-id"] == head
    assert read_rows(lake) == rows
    expire_everything(session)
    assert read_ids(catalog, before) == ids
    assert client.commit([set_ref("main", before, "branch")]).status == 200
    assert read_ids(catalog) == [row[0] for row in session.execute("SELECT id FROM t ORDER BY id").fetchall()] == ids
    rows = read_rows(lake)
    gone = {"action": "remove-snapshots", "snapshot-ids": [before]}
    assert client.commit([REMOVE, gone]).error == (409, "CommitFailedException")
    assert client.commit([REMOVE, {"action": "remove-snapshot-ref", "ref-name": "v1"}, gone]).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_a_spec_of_columns_that_are_gone_keeps_its_id(server: Server, lake: FreshLake) -> None:
    """It is shown no more, and the next spec gets another id."""
    client = open_client(server, lake)
    client.create()
    fields: list[Any] = [{"id": 1, "name": "id", "required": False, "type": "long"}]
    specs: list[Any] = []
    for number, column in ((3, "q"), (None, ""), (4, "word")):
        named = [] if number is None else [{"id": number, "name": column, "required": False, "type": "string"}]
        keys = [{"source-id": number, "name": column, "transform": "identity"}] if named else []
        updates = [
            REMOVE,
            {"action": "add-schema", "schema": {"type": "struct", "schema-id": 1, "fields": fields + named}},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 1, "fields": keys}},
            {"action": "set-default-spec", "spec-id": -1},
        ]
        assert client.commit(updates).status == 200
        lake.duckdb().execute("INSERT INTO t (id) VALUES (1)")
        shown = client.load()
        specs.append([(spec["spec-id"], [field["name"] for field in spec["fields"]]) for spec in shown["partition-specs"]])
    assert specs == [[(0, []), (1, ["q"])], [(0, [])], [(0, []), (2, ["word"])]]


def test_a_field_id_of_a_lost_spec_is_not_given_out_again(server: Server, lake: FreshLake) -> None:
    """A column that DuckDB partitioned by is dropped; what a client adds then, by the last id that it is told, is taken."""
    client, duck = open_client(server, lake), lake.duckdb()
    duck.execute("CREATE TABLE t (id BIGINT, q INTEGER, w INTEGER)")
    duck.execute("ALTER TABLE t SET PARTITIONED BY (q)")
    assert client.load()["last-partition-id"] == 1000
    duck.execute("ALTER TABLE t RESET PARTITIONED BY")
    duck.execute("ALTER TABLE t DROP COLUMN q")
    found = client.load()
    assert found["last-partition-id"] == 1000
    [source] = [field["id"] for field in found["schemas"][-1]["fields"] if field["name"] == "w"]
    for field_id in ({"field-id": 1001}, {}):
        field = {"source-id": source, "name": f"w_{len(field_id)}", "transform": f"bucket[{4 + len(field_id)}]", **field_id}
        assert client.commit([{"action": "add-spec", "spec": {"spec-id": 9, "fields": [field]}}]).status == 200


def test_main_stays_at_an_empty_snapshot_that_it_went_back_to(server: Server, lake: FreshLake) -> None:
    """Taking main away ends nothing there, and what main is on is kept."""
    client, duck = open_client(server, lake), lake.duckdb()
    duck.execute("CREATE TABLE t (id BIGINT)")
    duck.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    for statement in ("INSERT INTO t VALUES (1)", "DELETE FROM t"):
        duck.execute(statement)
    empty = client.load()["current-snapshot-id"]
    duck.execute("INSERT INTO t VALUES (2)")
    client.load()
    back = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": empty}
    assert client.commit([back]).json["metadata"]["current-snapshot-id"] == empty
    assert client.commit([REMOVE]).json["metadata"]["current-snapshot-id"] == empty
    duck.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    shown = client.load()
    assert shown["refs"]["main"]["snapshot-id"] == shown["current-snapshot-id"]
    assert shown["current-snapshot-id"] in [snapshot["snapshot-id"] for snapshot in shown["snapshots"]]
