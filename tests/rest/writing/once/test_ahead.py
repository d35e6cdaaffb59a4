"""Commits that number the state they make: in their own transaction, and just as a server would that knows nothing of it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from duckicelake.lake.read import read_position
from duckicelake.lake.writing.lookups import is_touched
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

FIRST_ID = 9_000_000_000

SELECT_TRANSACTIONS = """
SELECT (SELECT xmin::text FROM iceberg_metadata_log ORDER BY metadata_version DESC LIMIT 1),
       (SELECT xmin::text FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)
"""

REFUSE_AT_COMMIT = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON iceberg_metadata_log DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t, in which there is a file already."""
    client = open_client(server, lake)
    assert client.create().status == 200
    assert append(client, 1).status == 200
    return client


def append(client: Client, number: int) -> Answer:
    """Add a file."""
    base = client.load()
    return client.commit(client.append(base, FIRST_ID + number, [data_file(base, f"f{number}")]))


def set_property(client: Client, number: int) -> Answer:
    """Give a property a new value."""
    return client.commit([{"action": "set-properties", "updates": {"k": str(number)}}])


def remove_property(client: Client, _: int) -> Answer:
    """Take it away."""
    return client.commit([{"action": "remove-properties", "removals": ["k"]}])


KINDS = (set_property, append, append, set_property, remove_property, append)


def ask_others(others: Sequence[Server]) -> list[Any]:
    """What other servers tell of the table: where its metadata is, and the metadata."""
    found = [server.get("namespaces/main/tables/t").json for server in others]
    return [(item["metadata-location"], item["metadata"]) for item in found]


@pytest.mark.whole
def test_what_a_commit_shows_is_what_others_load(client: Client, lake: FreshLake) -> None:
    """Between commits of DuckDB's to this table and to others: the same bytes of metadata, under the same number."""
    duck, numbers = lake.duckdb(), count(2)
    with serve(make_settings(lake)) as beside:
        for statement in ("CREATE TABLE u (i INTEGER)", "INSERT INTO t VALUES (1, 'inlined')", "ALTER TABLE t ADD COLUMN c INTEGER"):
            duck.execute(statement)
            for change in KINDS:
                shown = change(client, next(numbers)).json
                duck.execute("INSERT INTO u VALUES (1)")
                assert ask_others([beside, client.server]) == [(shown["metadata-location"], shown["metadata"])] * 2
    with serve(make_settings(lake)) as fresh:
        assert ask_others([fresh]) == ask_others([client.server])


def test_rows_and_number_come_in_one_transaction(client: Client, lake: FreshLake) -> None:
    """So that Postgres waits for its disk once."""
    conn = lake.psycopg()
    for number, change in enumerate(KINDS, 2):
        assert change(client, number).status == 200
        row = conn.execute(SELECT_TRANSACTIONS).fetchone()
        assert row is not None
        assert row[0] == row[1], change


def test_a_commit_that_fails_at_its_end_is_not_remembered(client: Client, lake: FreshLake) -> None:
    """What it would have shown is forgotten; another commit takes its lake snapshot."""
    conn, before = lake.psycopg(), client.load()
    conn.execute(REFUSE_AT_COMMIT)
    assert append(client, 2).status == 500
    conn.execute("DROP TRIGGER refuse ON iceberg_metadata_log")
    assert client.load() == before
    shown = append(client, 3).json
    assert [file["summary"].get("total-data-files") for file in shown["metadata"]["snapshots"][-1:]] == ["2"]
    with serve(make_settings(lake)) as fresh:
        assert ask_others([fresh, client.server]) == [(shown["metadata-location"], shown["metadata"])] * 2


def test_properties_have_one_order(client: Client, lake: FreshLake) -> None:
    """Whatever language the database speaks: what a commit foresees is what the rows say."""
    with serve(make_settings(lake)) as beside:
        for key in ("b", "B", "a.c", "a-c", "_", "é", "z\U0001f986", "10", "9"):
            shown = client.commit([{"action": "set-properties", "updates": {key: "x", "k": key}}]).json
            assert ask_others([beside]) == [(shown["metadata-location"], shown["metadata"])]


TOLD = {"value_counts": {1: 2, 2: 2}, "null_value_counts": {1: 0, 2: 1}, "lower_bounds": {1: b"\1\0\0\0\0\0\0\0"}}


@pytest.mark.parametrize("version", whole_after(1, ["2", "3"]))
def test_what_files_say_of_themselves_is_foreseen(client: Client, lake: FreshLake, version: str) -> None:
    """Partitions, statistics and row ids: all as a server shows them that reads them from the rows."""
    spec = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "part", "transform": "identity"}]}
    assert client.create("p", **{"partition-spec": spec, "properties": {"format-version": version}}).status == 200
    for number in range(1, 4):
        base = client.load("p")
        more = {**TOLD, "upper_bounds": {1: number.to_bytes(8, "little")}, "split_offsets": (4,), "sort_order_id": 0}
        files = [data_file(base, f"p{number}{place}", partition=(place,), **more) for place in (1, 2)]
        shown = client.commit(client.append(base, FIRST_ID + 50 + number, files), name="p").json
        with serve(make_settings(lake)) as fresh:
            found = fresh.get("namespaces/main/tables/p").json
            assert (found["metadata-location"], found["metadata"]) == (shown["metadata-location"], shown["metadata"])


def test_a_name_may_stand_for_another_table_since(client: Client, lake: FreshLake) -> None:
    """What a server remembers of a name is looked up under the lock: the commit goes to the table that has the name now."""
    duck = lake.duckdb()
    assert set_property(client, 2).status == 200
    duck.execute("ALTER TABLE t RENAME TO earlier; CREATE TABLE t (i INTEGER)")
    assert set_property(client, 3).status == 200
    duck.execute("DROP TABLE t")
    assert set_property(client, 4).status == 404
    duck.execute("ALTER TABLE earlier RENAME TO t")
    assert client.load()["properties"]["k"] == "2"
    assert set_property(client, 5).json["metadata"]["properties"]["k"] == "5"


def test_a_commit_that_landed_in_a_table_dropped_since_is_not_repeated(client: Client, lake: FreshLake) -> None:
    """Sent again it meets another table of that name, and is refused for its uuid."""
    base = client.load()
    updates = client.append(base, FIRST_ID + 2, [data_file(base, "f2")])
    required = [{"type": "assert-table-uuid", "uuid": base["table-uuid"]}]
    assert client.commit(updates, required).status == 200
    assert client.commit(updates, required).status == 200
    lake.duckdb().execute("DROP TABLE t; CREATE TABLE t (i INTEGER)")
    assert client.commit(updates, required).status in (400, 409)
    assert client.load()["snapshots"] == []


def test_a_name_that_another_table_had_before(client: Client) -> None:
    """A commit to a name reaches the table of that name now, never the one that is remembered by it."""
    assert set_property(client, 1).status == 200
    renamed = {"source": {"namespace": ["main"], "name": "t"}, "destination": {"namespace": ["main"], "name": "u"}}
    assert client.post("tables/rename", renamed).status == 204
    assert client.server.get("namespaces/main/tables/u").status == 200
    assert set_property(client, 2).error == (404, "NoSuchTableException")
    assert client.create().status == 200
    assert set_property(client, 3).status == 200
    assert client.server.get("namespaces/main/tables/u").json["metadata"]["properties"]["k"] == "1"
    assert client.load()["properties"]["k"] == "3"


def test_a_lake_that_went_back(client: Client, lake: FreshLake) -> None:
    """Whatever is remembered of a lake that is restored from a backup is out of date, however little happened since."""
    rows = lake.psycopg()
    [(table_id,)] = rows.execute("SELECT table_id FROM ducklake_table").fetchall()
    now = read_position(rows)
    assert not is_touched(rows, table_id, now)
    assert is_touched(rows, table_id, replace(now, lake_snapshot_id=now.lake_snapshot_id + 1))
    assert is_touched(rows, table_id, replace(now, change_id=now.change_id + 1))
