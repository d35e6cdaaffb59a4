"""Tables that were staged and never made: what their clients left goes, and nothing that anybody names."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from duckicelake.catalog.cleanup import list_abandoned_locations, list_leftovers
from duckicelake.catalog.warehouse import Warehouse, close_warehouse, open_warehouse
from duckicelake.commands.check import remove_orphans
from duckicelake.store.objects import Objects, StoreSettings
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import COLUMNS, Client, creation, open_client, write_file
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

GRACE = timedelta(hours=72)
LATER = GRACE + timedelta(hours=1)
WITHOUT_STORE = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
CREATE = [{"type": "assert-create"}]
LITTLE_BYTES = 5_000_000
ELSEWHERE = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count, file_size_bytes)
SELECT 1000000 + n, 1000000, 1, %(root)s || 'main/other/data/file-with-a-name-of-common-length-' || n || '.parquet', false, 'parquet', 1, 1
  FROM generate_series(1, 100000) n
"""
FILES = {"/data/a.parquet", "/metadata/m0.avro", "/metadata/v1.metadata.json"}


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of an empty lake."""
    return open_client(server, lake)


def stage(client: Client, name: str = "t", **more: Any) -> Any:
    """Stage a table; its metadata."""
    answer = client.create(name, **{"stage-create": True}, **more)
    assert answer.status == 200
    return answer.json["metadata"]


def die(client: Client, name: str = "t", **more: Any) -> str:
    """Stage a table, write files as engines do, and never come back; its location."""
    location = stage(client, name, **more)["location"]
    for path in FILES:
        client.objects.put_new(location + path, b"x")
    return location


def list_objects(client: Client, location: str) -> set[str]:
    """What lies in a location, without it."""
    return {uri.removeprefix(location) for uri, _ in client.objects.list_under(location)}


def list_noted(lake: FreshLake) -> set[str]:
    """The places that were given out and are remembered."""
    return {location for (location,) in lake.psycopg().execute("SELECT location FROM iceberg_staged")}


def sweep(lake: FreshLake, *, later: timedelta = LATER) -> set[str]:
    """Remove what was written longer ago than the grace, that much later; what it was."""
    [settings] = make_settings(lake).lakes()
    return set(remove_orphans(settings, datetime.now(UTC) + later - GRACE))


def sweep_staged(lake: FreshLake) -> set[str]:
    """Remove what is left of staged tables alone, as much later; what it was."""
    [settings] = make_settings(lake).lakes()
    return set(remove_orphans(settings, datetime.now(UTC) + LATER - GRACE, {("main", "u")}))


def age_notes(lake: FreshLake) -> None:
    """Let what was staged have been staged before the grace."""
    lake.psycopg().execute("UPDATE iceberg_staged SET staged_at = staged_at - %(time)s", {"time": LATER})


def test_what_a_client_that_died_left_goes(client: Client, lake: FreshLake) -> None:
    """All that lies there, when it is old, and not before; then nobody knows the place any more."""
    left = die(client)
    assert sweep(lake, later=timedelta(0)) == set()
    assert (list_objects(client, left), list_noted(lake)) == (FILES, {left})
    age_notes(lake)
    assert sweep(lake, later=timedelta(0)) == set()
    assert (list_objects(client, left), list_noted(lake)) == (FILES, {left})
    assert sweep(lake) == {left + path for path in FILES}
    assert (list_objects(client, left), list_noted(lake)) == (set(), set())


def test_a_client_that_goes_on_writing_loses_nothing(local_lake: FreshLake) -> None:
    """Whoever wrote anything within the grace is alive, and needs what it wrote before."""
    settings = make_settings(local_lake, **WITHOUT_STORE)
    [lake] = settings.lakes()
    with serve(settings) as server:
        body = {"name": "t", "schema": COLUMNS, "stage-create": True}
        answer = server.ask("POST", "namespaces/main/tables", {"content-type": "application/json"}, json.dumps(body).encode())
    folder = Path(answer.json["metadata"]["location"].removeprefix("file://")) / "data"
    folder.mkdir(parents=True)
    old = (datetime.now(UTC) - LATER).timestamp()
    for name in ("first", "second"):
        (folder / name).write_bytes(b"x")
    os.utime(folder / "first", (old, old))
    age_notes(local_lake)
    assert remove_orphans(lake, datetime.now(UTC) - GRACE) == []
    assert len(list_noted(local_lake)) == 1
    os.utime(folder / "second", (old, old))
    assert remove_orphans(lake, datetime.now(UTC) - GRACE) == [f"file://{folder}/{name}" for name in ("first", "second")]
    assert list_noted(local_lake) == set()


@pytest.mark.parametrize("drop", whole_after(1, ["", "?purgeRequested=false", "?purgeRequested=true"]), ids=["live", "dropped", "purged"])
def test_a_table_that_was_made_is_not_looked_at(client: Client, lake: FreshLake, drop: str) -> None:
    """Its place is forgotten, also when it has been dropped since: what lies there may be registered again, or is its purge's."""
    staged = stage(client)
    file = write_file(client, staged, "rows", {1: pa.array([1])})
    assert client.commit([*creation(staged), *client.append(staged, 9_000_000_001, [file])], CREATE).status == 200
    if drop:
        assert client.server.ask("DELETE", f"namespaces/main/tables/t{drop}").status == 204
    before = list_objects(client, staged["location"])
    assert list_noted(lake) == {staged["location"]}
    sweep(lake)
    after = list_objects(client, staged["location"])
    assert after == before if drop else {"/data/rows.parquet", "/metadata/v1.metadata.json"} <= after
    assert "/data/rows.parquet" in after
    assert list_noted(lake) == set()


def test_a_file_that_somebody_took_stays(client: Client, lake: FreshLake) -> None:
    """Saved from there by DuckDB into a table of its own, it is that table's; the rest goes."""
    staged, session = stage(client), lake.duckdb()
    uris = [write_file(client, staged, name, {1: pa.array([1])}).file_path for name in ("saved", "lost")]
    session.execute("CREATE TABLE mine (c1 BIGINT)")
    session.execute("CALL ducklake_add_data_files('lake', 'mine', ?)", [uris[0]])
    assert sweep(lake) == {uris[1]}
    assert session.execute("FROM mine").fetchall() == [(1,)]


def test_a_place_that_a_client_chose_is_its_own_affair(lake: FreshLake) -> None:
    """Others may have files there, of which nobody here knows."""
    root = f"s3://{lake.store.bucket}/{lake.name}/chosen"
    with serve(make_settings(lake, allowed_locations=(root,))) as server:
        client = open_client(server, lake)
        left = [die(client, "t", location=f"{root}/t"), die(client, "u", location=f"{lake.iceberg_path}u")]
    assert list_noted(lake) == set()
    assert sweep(lake) == set()
    assert [list_objects(client, location) for location in left] == [FILES, FILES]


def test_what_was_refused_is_not_noted(client: Client, lake: FreshLake) -> None:
    """A name that is taken, so nothing of the table that has it either; columns that DuckLake cannot hold; no such namespace."""
    assert client.create("t").status == 200
    wrong = {"type": "struct", "fields": [{"id": 1, "name": "a", "required": False, "type": "timestamp_ns"}]}
    answers = [client.create("t", **{"stage-create": True}), client.create("u", **{"stage-create": True, "schema": wrong})]
    answers.append(client.post("namespaces/none/tables", {"name": "t", "schema": wrong, "stage-create": True}))
    assert [answer.status for answer in answers] == [409, 400, 404]
    assert list_noted(lake) == set()


def test_a_repeated_request_is_given_another_place(client: Client, lake: FreshLake) -> None:
    """Each of them is noted, and what lies in any goes."""
    headers = {"content-type": "application/json", "idempotency-key": str(uuid4())}
    body = json.dumps({"name": "t", "schema": COLUMNS, "stage-create": True}).encode()
    answers: list[Answer] = [client.server.ask("POST", "namespaces/main/tables", headers, body) for _ in range(2)]
    places = {answer.json["metadata"]["location"] for answer in answers}
    assert list_noted(lake) == places
    for place in places:
        client.objects.put_new(f"{place}/data/a.parquet", b"x")
    assert sweep(lake) == {f"{place}/data/a.parquet" for place in places}


def test_a_sweep_that_was_broken_off_is_gone_on_with(client: Client, lake: FreshLake) -> None:
    """Some objects are gone, or all of them, and the note is there."""
    left = die(client)
    client.objects.delete(f"{left}/data/a.parquet")
    assert sweep(lake) == {left + path for path in FILES - {"/data/a.parquet"}}
    lake.psycopg().execute("INSERT INTO iceberg_staged VALUES (%(left)s)", {"left": left})
    assert sweep(lake) == set()
    assert list_noted(lake) == set()


def test_two_sweeps_at_once(client: Client, lake: FreshLake) -> None:
    """Neither minds what the other has done."""
    left = {die(client, f"t{number}") for number in range(4)}
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: sweep(lake), range(2)))
    assert done[0] | done[1] == {place + path for place in left for path in FILES}
    assert list_noted(lake) == set()


class Overtaken(Objects):
    """A store in which a client makes its table just after its files were listed."""

    def __init__(self, settings: StoreSettings, make: Callable[[], object]) -> None:
        super().__init__(settings)
        self._make = make

    def list_modified(self, prefix_uri: str) -> Iterator[tuple[str, datetime]]:
        """List, then let the client commit."""
        found = list(super().list_modified(prefix_uri))
        self._make()
        yield from found


def test_a_commit_meanwhile_keeps_everything(client: Client, lake: FreshLake) -> None:
    """A client that worked for longer than the grace, and was seen by nobody before its files were listed."""
    staged, keys = stage(client), lake.store
    updates = [*creation(staged), *client.append(staged, 9_000_000_001, [write_file(client, staged, "rows", {1: pa.array([1])})])]
    store = StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)
    opened = open_warehouse("lake", lake.dsn, lake.metadata_schema, store)
    try:
        warehouse: Warehouse = replace(opened, objects=Overtaken(store, lambda: client.commit(updates, CREATE)))
        before = datetime.now(UTC) + timedelta(hours=1)
        [noted] = list_abandoned_locations(warehouse, before)
        assert list_leftovers(warehouse, noted, before) == []
        assert client.load()["location"] == noted.location
        assert list_abandoned_locations(opened, before) == []
    finally:
        close_warehouse(opened)


@pytest.mark.parametrize("place", ["{left}/data/below", "{root}main"], ids=["within", "around"])
def test_a_table_around_or_within_is_left_alone(lake: FreshLake, place: str) -> None:
    """Whoever may choose a place may choose one that holds it, or lies in it."""
    with serve(make_settings(lake)) as server:
        client = open_client(server, lake)
        left = die(client)
        location = place.format(left=left, root=lake.iceberg_path)
        assert client.create("u", location=location).status == 200
        client.objects.put_new(f"{location}/data/fresh.parquet", b"x")
    assert not any(uri.startswith(left) and uri.removeprefix(left) in FILES for uri in sweep_staged(lake))
    assert list_noted(lake) == set()


@pytest.mark.parametrize("act", whole_after(1, ["staged", "purged", "live"]))
def test_files_elsewhere_take_no_memory(client: Client, lake: FreshLake, act: str) -> None:
    """A lake may have millions that its clients wrote; what lies in one place is asked of one place."""
    assert client.create("t").status == 200
    location = client.load()["location"] if act != "staged" else die(client, "u")
    client.objects.put_new(f"{location}/data/lost.parquet", b"x")
    lake.psycopg().execute(ELSEWHERE, {"root": lake.iceberg_path})
    tracemalloc.start()
    try:
        if act == "purged":
            assert client.server.ask("DELETE", "namespaces/main/tables/t?purgeRequested=true").status == 204
        else:
            assert f"{location}/data/lost.parquet" in sweep(lake)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < LITTLE_BYTES
    assert "/data/lost.parquet" not in list_objects(client, location)
