"""Dropping with purge over REST: a table's Iceberg objects go, whatever DuckLake reads stays."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.commands.check import remove_orphans
from duckicelake.errors import ServiceUnavailable
from duckicelake.store.objects import Objects
from tests.rest.serving import Answer, Server, make_settings
from tests.rest.writing.client import Client, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import count_waiting, wait_for


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


def test_a_location_that_begins_alike_is_another(client: Client, lake: FreshLake) -> None:
    """`chosen2` does not lie in `chosen`: its table keeps its objects."""
    place = f"{lake.iceberg_path}chosen"
    for name, location in (("u", place), ("v", f"{place}2")):
        assert client.create(name, location=location).status == 200
    objects = list_objects(client, f"{place}2")
    assert objects
    assert purge(client, "u") == 204
    assert list_objects(client, f"{place}/") == set()
    assert list_objects(client, f"{place}2") == objects


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


@pytest.fixture
def break_off(client: Client, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What drops a table with its files while the store removes none, with a key, and may do it again."""

    def refuse(*_: Any) -> None:
        raise ServiceUnavailable("away")

    def drop(name: str, key: str, *, is_away: bool) -> Answer:
        with monkeypatch.context() as patch:
            if is_away:
                patch.setattr(Objects, "delete_many", refuse)
            path = f"namespaces/main/tables/{name}?purgeRequested=true"
            return client.server.ask("DELETE", path, {"idempotency-key": key})

    return drop


def sweep(lake: FreshLake, later: timedelta = timedelta(seconds=1)) -> list[str]:
    """Remove what was to go by now, or that much later."""
    [settings] = make_settings(lake).lakes()
    return remove_orphans(settings, datetime.now(UTC) + later)


def test_a_purge_that_was_broken_off_is_finished_by_its_copy(client: Client, lake: FreshLake, break_off: Any) -> None:
    """Meanwhile nobody brings the table back; afterwards nothing is left to do."""
    made, key = client.server.get("namespaces/main/tables/t").json, str(uuid4())
    location, again = made["metadata"]["location"], {"name": "t", "metadata-location": made["metadata-location"]}
    assert break_off("t", key, is_away=True).status == 204
    left = list_objects(client, location)
    assert len(left) > 5
    assert client.post("namespaces/main/register", again).error == (400, "BadRequestException")
    assert sweep(lake, timedelta(hours=-1)) == []
    assert list_objects(client, location) == left
    assert break_off("t", key, is_away=False).status == 204
    assert list_objects(client, location) == set()
    assert sweep(lake) == []


def test_a_copy_of_an_older_server_s_purge_leaves_the_others_alone(client: Client, lake: FreshLake, break_off: Any) -> None:
    """It noted no uuid with the key, so nothing tells which purge it was: what is left goes when its time has come."""
    location, key = client.load()["location"], str(uuid4())
    assert break_off("t", key, is_away=True).status == 204
    left = list_objects(client, location)
    lake.psycopg().execute("UPDATE iceberg_idempotency SET object_uuid = NULL")
    assert break_off("t", key, is_away=False).status == 204
    assert list_objects(client, location) == left
    assert len(sweep(lake)) == len(left)


def test_a_purge_that_was_broken_off_spares_what_others_have(client: Client, lake: FreshLake, break_off: Any) -> None:
    """The metadata of whoever was there before, everything of whoever is there since, and files that DuckDB still reads."""
    location = f"{lake.iceberg_path}chosen"
    older = client.create("u", location=location).json["metadata-location"]
    client.server.ask("DELETE", "namespaces/main/tables/u")
    base = client.create("u", location=location).json["metadata"]
    file = data_file(base, "kept")
    client.objects.put_new(file.file_path, b"rows")
    assert client.commit(client.append(base, 9_000_000_001, [file]), name="u").status == 200
    assert break_off("u", str(uuid4()), is_away=True).status == 204
    before = list_objects(client, location)
    gone = {uri.removeprefix(location) for uri in sweep(lake)}
    assert gone == {path for path in before if path.endswith(".metadata.json")} - {"/metadata/v1.metadata.json"}
    assert sweep(lake) == []
    assert client.post("namespaces/main/register", {"name": "u", "metadata-location": older}).status == 200
    assert break_off("u", str(uuid4()), is_away=True).status == 204
    assert client.create("w", location=location).status == 200
    before = list_objects(client, location)
    assert sweep(lake) == []
    assert list_objects(client, location) == before


@pytest.mark.parametrize("file", whole_after(1, ["newest", "older"]))
def test_a_table_that_came_back_after_its_purge_has_nothing_of_it(client: Client, lake: FreshLake, break_off: Any, file: str) -> None:
    """Dropped again, and not with its files, it keeps them, and may come back once more; by an older file as another table."""
    older = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).status == 200
    newest = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    again = {"name": "t", "metadata-location": newest if file == "newest" else older}
    assert break_off("t", str(uuid4()), is_away=True).status == 204
    let_pass(lake, timedelta(hours=1))
    back = client.post("namespaces/main/register", again)
    assert back.status == 200
    location = back.json["metadata"]["location"]
    let_pass(lake, -timedelta(hours=1))
    assert client.server.ask("DELETE", "namespaces/main/tables/t").status == 204
    left = list_objects(client, location)
    assert sweep(lake) == []
    assert list_objects(client, location) == left
    assert client.post("namespaces/main/register", again | {"metadata-location": back.json["metadata-location"]}).status == 200


@pytest.mark.parametrize(
    ("file", "step"), whole_after(1, [pytest.param("newest", "exists", id="newest"), pytest.param("older", "list_under", id="older")])
)
def test_a_purge_that_ends_while_a_table_comes_back_is_seen(
    client: Client, break_off: Any, monkeypatch: pytest.MonkeyPatch, file: str, step: str
) -> None:
    """While its file is read for one registration, another brings it back, and it is dropped with its files: the first is refused."""
    older = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).status == 200
    newest = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    assert client.server.ask("DELETE", "namespaces/main/tables/t").status == 204
    key, real = str(uuid4()), getattr(Objects, step)
    between: list[int] = []

    def look(objects: Objects, uri: str) -> Any:
        if not between:
            between.append(0)
            between.append(client.post("namespaces/main/register", {"name": "t", "metadata-location": newest}).status)
            between.append(break_off("t", key, is_away=True).status)
        return real(objects, uri)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, step, look)
        refused = client.post("namespaces/main/register", {"name": "u", "metadata-location": newest if file == "newest" else older})
    assert between == [0, 200, 204]
    assert refused.error == (400, "BadRequestException")
    assert "dropped with its files" in refused.json["error"]["message"]
    assert break_off("t", key, is_away=False).status == 204
    assert list_objects(client, newest.partition("/metadata/")[0]) == set()


@pytest.mark.parametrize(
    ("file", "step"), whole_after(1, [pytest.param("newest", "exists", id="newest"), pytest.param("older", "list_under", id="older")])
)
def test_a_purge_that_was_noted_before_a_table_comes_back_is_seen(
    client: Client, break_off: Any, monkeypatch: pytest.MonkeyPatch, file: str, step: str
) -> None:
    """It would come to its end while the file is read, and nothing would tell of it any more when the files have gone."""
    older = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    assert client.commit([{"action": "set-properties", "updates": {"k": "v"}}]).status == 200
    newest = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    key, real = str(uuid4()), getattr(Objects, step)
    assert break_off("t", key, is_away=True).status == 204
    ended: list[int] = []

    def look(objects: Objects, uri: str) -> Any:
        found = real(objects, uri)
        found = found if isinstance(found, bool) else list(found)
        if not ended:
            ended.append(0)
            ended.append(break_off("t", key, is_away=False).status)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Objects, step, look)
        refused = client.post("namespaces/main/register", {"name": "u", "metadata-location": newest if file == "newest" else older})
    assert refused.error == (400, "BadRequestException")
    assert "dropped with its files" in refused.json["error"]["message"]


@pytest.mark.parametrize("way", whole_after(1, ["register", "undrop"]))
@pytest.mark.parametrize("step", ["list_modified", "delete_many"])
def test_a_purge_takes_nothing_from_a_table_that_came_back(
    client: Client, lake: FreshLake, break_off: Any, monkeypatch: pytest.MonkeyPatch, way: str, step: str
) -> None:
    """While `check --repair` finishes a purge, the table comes back, and nothing of it is deleted; or it is refused, because files go."""
    newest = client.server.get("namespaces/main/tables/t").json["metadata-location"]
    location = newest.partition("/metadata/")[0]
    assert break_off("t", str(uuid4()), is_away=True).status == 204
    # The drop is as old as the objects, so only its grace is over for longer.
    lake.psycopg().execute("UPDATE iceberg_purge SET due_at = due_at - interval '1 hour'")
    left, real, answers = list_objects(client, location), getattr(Objects, step), list[Answer]()

    def meanwhile(objects: Objects, uris: Any) -> Any:
        if not answers:
            if way == "undrop":
                # An undrop that began before the grace was over.
                lake.psycopg().execute("UPDATE iceberg_purge SET due_at = 'infinity' WHERE due_at < clock_timestamp() - interval '1 hour'")
            answers.append(bring_back(client, way, newest))
        return real(objects, uris)

    with monkeypatch.context() as patch:
        patch.setattr(Objects, step, meanwhile)
        removed = sweep(lake)
    assert [answer.status for answer in answers] == [200 if step == "list_modified" else 400]
    if answers[0].status == 200:
        assert removed == [] and list_objects(client, location) >= left
        assert client.server.get("namespaces/main/tables/t").json["metadata-location"] == newest
    else:
        assert "dropped with its files" in answers[0].json["error"]["message"]
        assert list_objects(client, location) == set()


def bring_back(client: Client, way: str, newest: str) -> Answer:
    """Bring the table t back by its newest metadata file, or by its name."""
    if way == "register":
        return client.post("namespaces/main/register", {"name": "t", "metadata-location": newest})
    return client.server.ask("POST", "/management/v1/lake/undrop", {}, json.dumps({"namespace": ["main"], "name": "t"}).encode())


def let_pass(lake: FreshLake, time: timedelta) -> None:
    """Let the purges that are noted be that much older."""
    lake.psycopg().execute("UPDATE iceberg_purge SET begun_at = begun_at - %(time)s, due_at = due_at - %(time)s", {"time": time})


def drop_as_shown(client: Client, metadata_location: str, name: str = "t") -> int:
    """Drop a table if it is still as that metadata file shows it."""
    return client.server.ask("DELETE", f"/management/v1/lake/namespaces/main/tables/{name}?metadata-location={metadata_location}").status


def find_metadata_location(client: Client, name: str = "t") -> str:
    """The metadata file that a load names."""
    return client.server.get(f"namespaces/main/tables/{name}").json["metadata-location"]


def make_branch(client: Client) -> list[Any]:
    """The updates that put a file on a branch of its own."""
    base = client.load()
    added = client.add(base, 9_000_000_001, [data_file(base, "a")])
    ref = {"action": "set-snapshot-ref", "ref-name": "dev", "type": "branch", "snapshot-id": added["snapshot-id"]}
    return [{"action": "add-snapshot", "snapshot": added}, ref]


CHANGES: dict[str, Callable[[Client, DuckDBPyConnection], object]] = {
    "row": lambda _, duck: duck.execute("INSERT INTO t VALUES (1, 'x')"),
    "column": lambda _, duck: duck.execute("ALTER TABLE t ADD COLUMN more INTEGER"),
    "branch": lambda client, _: client.commit(make_branch(client)),
    "property": lambda client, _: client.commit([{"action": "set-properties", "updates": {"k": "1"}}]),
    "another": lambda client, duck: (duck.execute("DROP TABLE t"), client.create()),
    "renamed": lambda client, duck: (duck.execute("ALTER TABLE t RENAME TO u"), client.create()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_is_dropped_only_as_it_was_shown(server: Server, lake: FreshLake, change: str) -> None:
    """Whatever anybody did to it since keeps it; what nobody touched goes."""
    client, duck = open_client(server, lake), lake.duckdb()
    client.create()
    shown = find_metadata_location(client)
    CHANGES[change](client, duck)
    changed = find_metadata_location(client)
    assert (drop_as_shown(client, shown), find_metadata_location(client)) == (409, changed)
    duck.execute("CREATE TABLE other (i INTEGER)")
    assert drop_as_shown(client, changed) == 204
    assert client.server.get("namespaces/main/tables/t").status == 404
    assert drop_as_shown(client, changed) == 404


def test_a_row_that_is_on_its_way_is_in_the_table_or_refused(server: Server, lake: FreshLake) -> None:
    """DuckDB's transaction that commits after the drop fails and says so; one that commits while the drop waits keeps the table."""
    client, duck, conn = open_client(server, lake), lake.duckdb(), lake.psycopg()
    client.create()
    duck.execute("BEGIN")
    duck.execute("INSERT INTO t VALUES (1, 'x')")
    assert drop_as_shown(client, find_metadata_location(client)) == 204
    with pytest.raises(duckdb.TransactionException):
        duck.execute("COMMIT")
    client.create()
    shown = find_metadata_location(client)

    def wait_for_waiting(count: int) -> None:
        look = lake.psycopg()
        wait_for(lambda: count_waiting(look, "ducklake_snapshot") == count, "requests to wait for the lake")

    with ThreadPoolExecutor() as pool:
        conn.execute("BEGIN")
        conn.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
        inserted = pool.submit(duck.execute, "INSERT INTO t VALUES (2, 'y')")
        wait_for_waiting(1)
        dropped = pool.submit(drop_as_shown, client, shown)
        wait_for_waiting(2)
        conn.execute("COMMIT")
        inserted.result()
        assert dropped.result() == 409
    assert lake.duckdb().execute("FROM t").fetchall() == [(2, "y")]
