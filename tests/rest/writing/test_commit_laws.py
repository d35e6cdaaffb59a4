"""The laws of commits that wait for each other: nothing is lost, done twice, answered too early, or refused although it has landed."""

import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.objects import Objects
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, data_file, open_client
from tests.rest.writing.queueing import begin, check_published, count_audited, locked, read_head, set_property, submit_in_line
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

SNAPSHOT = 7_000_000_000_000_000_000
KEY = "018f3a1e-0000-7000-8000-00000000000a"
WITH_ONE_REFUSED: list[tuple[list[Any], list[Any]]] = [
    ([set_property("a")], []),
    ([set_property("b")], [assert_main(42)]),
    ([set_property("c")], []),
]
DIE = """
CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER die AFTER INSERT ON ducklake_tag DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
  WHEN (NEW.key = 'a') EXECUTE FUNCTION die()
"""


@pytest.fixture
def server(lake: FreshLake) -> Generator[Server]:
    """A server of the lake."""
    with serve(make_settings(lake)) as running:
        yield running


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of the server, and a table `t` that was changed once."""
    client = open_client(server, lake)
    assert client.create().status == 200
    assert client.commit([set_property("first")]).status == 200
    return client


@pytest.fixture
def other(lake: FreshLake, client: Client) -> Generator[Client]:
    """A client of another server of the lake, which has committed to `t` once."""
    with serve(make_settings(lake)) as running:
        second = open_client(running, lake)
        assert second.commit([set_property("second")]).status == 200
        yield second


@pytest.fixture
def pool() -> Generator[ThreadPoolExecutor]:
    """Threads of clients."""
    with ThreadPoolExecutor(32) as threads:
        yield threads


def remove_property(key: str) -> dict[str, Any]:
    """Return the update that removes a property."""
    return {"action": "remove-properties", "removals": [key]}


def test_a_group_is_done_in_the_order_in_which_it_came(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """No key is lost or there twice when members set, remove and set the same one again."""
    asked = [set_property("k", "1"), remove_property("first"), remove_property("k"), set_property("k", "4"), set_property("gone", "5")]
    asked.append(set_property("begun", "6"))
    head = read_head(lake)
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(client, pool, [([update], []) for update in (*asked, remove_property("gone"))])
    assert [each.result().status for each in (first, *sent)] == [200] * 8
    assert read_head(lake) == head + 2
    properties = check_published(client, lake)
    assert (properties["k"], properties["begun"]) == ("4", "6")
    assert "first" not in properties and "gone" not in properties


def test_no_later_property_overtakes_an_append(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """A change that requires main to be as before the append is refused, and one behind it lands."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    with locked(lake):
        first = begin(client, lake, pool)
        commits = [([set_property("a")], []), (updates, [assert_main(None)]), ([set_property("b")], [assert_main(None)])]
        sent = submit_in_line(client, pool, [*commits, ([set_property("c")], [])])
    assert [each.result().status for each in (first, *sent)] == [200, 200, 200, 409, 200]
    assert {"a", "c"} <= check_published(client, lake).keys()
    assert "b" not in client.load()["properties"]


def test_manifests_are_read_before_the_turn(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """What waits needs the store no more: its files are gone when its turn comes, and it lands on the table as it is by then."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    manifest_list = updates[0]["snapshot"]["manifest-list"]
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(client, pool, [(updates, [assert_main(None)])])
        client.objects.delete(manifest_list)
    assert [each.result().status for each in (first, *sent)] == [200, 200]
    assert "begun" in check_published(client, lake)
    assert len(client.load()["snapshots"]) == 1


def test_copies_that_wait_behind_each_other_are_done_once(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """Each is answered that it has landed: a client that hears anything else deletes the files of a landed commit."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    head, audited = read_head(lake), count_audited(lake)
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(client, pool, [(updates, [assert_main(None)])] * 3)
    assert [each.result().status for each in (first, *sent)] == [200] * 4
    assert (read_head(lake), count_audited(lake)) == (head + 2, audited + 2)
    assert len(client.load()["snapshots"]) == 1


def test_copies_with_one_key_that_wait_behind_each_other_are_done_once(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """A key stays alone in its turn, and the copies behind it are answered from it."""
    body = json.dumps({"requirements": [], "updates": [set_property("keyed")]}).encode()
    headers = {"content-type": "application/json", "Idempotency-Key": KEY}

    def commit_with_key() -> Answer:
        return client.server.ask("POST", "namespaces/main/tables/t", headers, body)

    head, audited = read_head(lake), count_audited(lake)
    with locked(lake):
        first = begin(client, lake, pool)
        before = submit_in_line(client, pool, [([set_property("a")], [])])
        copies = [pool.submit(commit_with_key) for _ in range(2)]
        wait_for(lambda: client.server.count("duckicelake_commit_queue_length") == 3, "the copies to wait")
    assert [each.result().status for each in (first, *before, *copies)] == [200] * 4
    assert (read_head(lake), count_audited(lake)) == (head + 3, audited + 3)
    assert {"a", "keyed"} <= check_published(client, lake).keys()


def test_what_a_server_remembers_refuses_nothing(client: Client, other: Client) -> None:
    """A requirement that holds of the table as it is now holds, whatever the server knew of it last."""
    metadata = client.load()
    landed = client.commit(client.append(metadata, SNAPSHOT, [data_file(metadata, "a")]), [assert_main(None)])
    current = landed.json["metadata"]["current-snapshot-id"]
    assert other.commit([set_property("k")], [assert_main(current)]).status == 200
    metadata = other.load()
    landed = other.commit(other.append(metadata, SNAPSHOT + 1, [data_file(metadata, "b")]), [assert_main(current)])
    current = landed.json["metadata"]["current-snapshot-id"]
    metadata = other.load()
    assert client.commit(other.append(metadata, SNAPSHOT + 2, [data_file(metadata, "c")]), [assert_main(current)]).status == 200


def test_a_copy_that_landed_through_another_server_has_landed(client: Client, other: Client, lake: FreshLake) -> None:
    """The other server knows the table as it was before, and the requirement does not hold any more."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    assert client.commit(updates, [assert_main(None)]).status == 200
    assert client.commit([set_property("later")]).status == 200
    head = read_head(lake)
    assert [each.commit(updates, [assert_main(None)]).status for each in (other, client)] == [200] * 2
    assert read_head(lake) == head


def break_metadata(patched: pytest.MonkeyPatch) -> None:
    """Let the store refuse metadata files that show the property `a`."""
    put_new = Objects.put_new

    def refuse(objects: Objects, uri: str, content: bytes) -> bool:
        if uri.endswith(".metadata.json") and b'"a":"v"' in content:
            raise ServiceUnavailable("The store does not take this metadata file.")
        return put_new(objects, uri, content)

    patched.setattr(Objects, "put_new", refuse)


def test_who_was_refused_is_told_so_when_the_group_is_lost(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """Its requirement did not hold under the lock, so it was no part of what may have landed."""
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(
            client, pool, [([set_property("a")], []), ([set_property("b")], [assert_main(42)]), ([set_property("c")], [])]
        )
        lake.psycopg().execute(DIE)
    assert first.result().status == 200
    unknown = 500, "CommitStateUnknownException"
    assert [each.result().error for each in sent] == [unknown, (409, "CommitFailedException"), unknown]


def test_who_was_refused_is_told_so_when_the_group_cannot_be_shown(
    client: Client, lake: FreshLake, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have landed and are told that this is unknown, because no metadata file could be written."""
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(
            client, pool, [([set_property("a")], []), ([set_property("b")], [assert_main(42)]), ([set_property("c")], [])]
        )
        break_metadata(monkeypatch)
    assert [each.result().status for each in (first, *sent)] == [200, 500, 409, 500]
    monkeypatch.undo()
    assert {"a", "c"} <= check_published(client, lake).keys()
