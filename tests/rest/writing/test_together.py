"""Transactions over several tables: what their parts are to each other, and when all of one has landed before."""

from typing import Any
from uuid import uuid4

import pytest

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, creation, data_file, open_client, read_rows
from tests.support.lakes import FreshLake

CREATE = [{"type": "assert-create"}]


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the tables main.t and main.u."""
    client = open_client(server, lake)
    assert (client.create("t").status, client.create("u").status) == (200, 200)
    return client


def change(name: str, updates: list[Any], requirements: list[Any] | None = None) -> dict[str, Any]:
    """One table's part of a transaction."""
    return {"identifier": {"namespace": ["main"], "name": name}, "requirements": requirements or [], "updates": updates}


def commit(client: Client, *changes: Any) -> Answer:
    """Send a transaction."""
    return client.post("transactions/commit", {"table-changes": list(changes)})


def set_property(value: str) -> list[Any]:
    """The update that sets a property."""
    return [{"action": "set-properties", "updates": {"k": value}}]


def new_table(client: Client, location: str | None = None) -> list[Any]:
    """What makes a table, where it is told to be."""
    updates = creation({**client.load("t"), "table-uuid": str(uuid4())})[:-1]
    places = [{"action": "set-location", "location": location}] if location else []
    return [update for update in updates if update["action"] != "set-location"] + places


def append(client: Client, name: str, snapshot_id: int) -> list[Any]:
    """The updates of one more file, whose manifests are written."""
    metadata = client.load(name)
    return client.append(metadata, snapshot_id, [data_file(metadata, f"f{snapshot_id}")])


def test_a_copy_of_a_transaction_is_done_once(client: Client, lake: FreshLake) -> None:
    """Also by another server, and when one part of it shows in no snapshot; what came later stays."""
    parts = change("t", append(client, "t", 9_000_000_001), [assert_main(None)]), change("u", set_property("first"))
    assert commit(client, *parts).status == 204
    assert client.commit(set_property("later"), name="u").status == 200
    rows = read_rows(lake)
    assert commit(client, *parts).status == 204
    assert commit(client, *reversed(parts)).status == 204
    with serve(make_settings(lake)) as server:
        assert commit(open_client(server, lake), *parts).status == 204
    assert read_rows(lake) == rows
    assert client.load("u")["properties"]["k"] == "later"


def test_a_copy_that_made_a_table_is_done_once(client: Client, lake: FreshLake) -> None:
    """The new table is there under its uuid, and the request is known."""
    parts = change("v", new_table(client), CREATE), change("u", set_property("first"))
    assert commit(client, *parts).status == 204
    assert client.load("v")["table-uuid"] != client.load("u")["table-uuid"]
    rows = read_rows(lake)
    assert commit(client, *parts).status == 204
    assert read_rows(lake) == rows


@pytest.mark.parametrize("ending", ["a new table by that name", "another name", "no table"])
def test_a_copy_is_known_when_its_tables_are_gone(client: Client, lake: FreshLake, ending: str) -> None:
    """Or were made again: it was done whole, and nobody does it again."""
    parts = change("t", append(client, "t", 9_000_000_001)), change("u", append(client, "u", 9_000_000_002))
    unnamed = change("v", [update for update in new_table(client) if update["action"] != "assign-uuid"], CREATE)
    assert commit(client, *parts, unnamed).status == 204
    if ending == "another name":
        names = {"source": {"namespace": ["main"], "name": "u"}, "destination": {"namespace": ["main"], "name": "w"}}
        assert client.post("tables/rename", names).status == 204
    else:
        assert client.server.ask("DELETE", "namespaces/main/tables/u").status == 204
        if ending == "a new table by that name":
            assert client.create("u").status == 200
    assert client.load("v")["snapshots"] == []
    rows = read_rows(lake)
    assert commit(client, *parts, unnamed).status == 204
    assert read_rows(lake) == rows


@pytest.mark.parametrize(
    ("updates", "requirements"),
    [
        pytest.param(set_property("v"), [], id="a property"),
        pytest.param(set_property("v"), [assert_main(7)], id="a requirement that does not hold"),
        pytest.param([], [assert_main(7)], id="a requirement alone"),
    ],
)
def test_a_transaction_that_holds_a_landed_commit_is_another_one(
    client: Client, lake: FreshLake, updates: list[Any], requirements: list[Any]
) -> None:
    """It is not answered as done: nobody did what it asks of the other table."""
    landed = append(client, "t", 9_000_000_001)
    assert client.commit(landed, [assert_main(None)]).status == 200
    rows = read_rows(lake)
    refused = commit(client, change("t", landed), change("u", updates, requirements))
    assert refused.error == (409, "CommitFailedException")
    assert "main.t" in refused.json["error"]["message"]
    assert read_rows(lake) == rows


def test_a_transaction_with_a_landed_and_a_new_snapshot_is_refused(client: Client, lake: FreshLake) -> None:
    """Half of it is there; and what two requests did is done."""
    first, second = append(client, "t", 9_000_000_001), append(client, "u", 9_000_000_002)
    assert client.commit(first, [assert_main(None)]).status == 200
    rows = read_rows(lake)
    assert commit(client, change("t", first), change("u", second)).error == (409, "CommitFailedException")
    assert read_rows(lake) == rows
    assert client.commit(second, [assert_main(None)], "u").status == 200
    rows = read_rows(lake)
    assert commit(client, change("t", first), change("u", second)).status == 204
    assert read_rows(lake) == rows


def test_one_table_under_two_spellings_is_refused(client: Client, lake: FreshLake) -> None:
    """DuckDB takes both names for one table."""
    rows = read_rows(lake)
    twice = [
        (change("t", set_property("a")), change("T", set_property("b"))),
        (change("new", new_table(client), CREATE), change("NEW", new_table(client), CREATE)),
        (change("t", append(client, "t", 9_000_000_001)), change("T", append(client, "t", 9_000_000_002))),
    ]
    for parts in twice:
        assert commit(client, *parts).error == (400, "BadRequestException")
    assert read_rows(lake) == rows


def test_tables_of_one_transaction_keep_apart(client: Client, lake: FreshLake) -> None:
    """No location of one is another's, nor lies in it, whether both come there or one is there."""
    place, there = f"{lake.iceberg_path}same", client.load("u")["location"]
    rows = read_rows(lake)
    for first, second in ((place, place), (place, f"{place}/inner"), (f"{place}/inner", f"{place}/")):
        made = change("a", new_table(client, first), CREATE), change("b", new_table(client, second), CREATE)
        moved = [change(name, [{"action": "set-location", "location": to}]) for name, to in (("t", first), ("u", second))]
        assert commit(client, *made).error == (400, "BadRequestException")
        assert commit(client, *moved).error == (400, "BadRequestException")
    into = change("a", new_table(client, f"{there}/inner"), CREATE)
    assert commit(client, into, change("u", set_property("v"))).error == (400, "BadRequestException")
    assert read_rows(lake) == rows
    apart = change("a", new_table(client, place), CREATE), change("b", new_table(client, f"{place}2"), CREATE)
    assert commit(client, *apart, change("u", set_property("v"))).status == 204
