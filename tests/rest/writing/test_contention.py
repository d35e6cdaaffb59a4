"""Many clients commit to one table: they take turns, and changes of properties that wait in a row are committed together."""

import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from duckicelake.catalog.commits import write
from duckicelake.errors import CommitFailed
from duckicelake.lake.server_turns import LOCK_CLASS, compute_key
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, data_file, open_client, set_ref
from tests.rest.writing.queueing import begin, count_audited, locked, read_head, set_property, submit_in_line, wait_for_queue
from tests.rest.writing.views import requests
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import count_waiting, wait_for

GROUPED, REFUSED = "duckicelake_commits_grouped_total", "duckicelake_commits_not_queued_total"
WAITS = "duckicelake_commit_wait_seconds_count"
SNAPSHOT = 7_000_000_000_000_000_000
KEY = "018f3a1e-0000-7000-8000-00000000000c"
CLIENTS, COMMITS_EACH = 8, 8
COUNT_TURNS = """
SELECT count(*) FROM pg_locks
 WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
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
def pool() -> Generator[ThreadPoolExecutor]:
    """Threads of clients."""
    with ThreadPoolExecutor(32) as threads:
        yield threads


def test_a_requirement_that_fails_is_refused_without_the_lock(client: Client, lake: FreshLake) -> None:
    """Nobody waits for the lake to hear that the table has changed."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    with locked(lake):
        answers = [client.commit(asked, [assert_main(42)]) for asked in (updates, [set_property("a")])]
    for answer in answers:
        assert answer.error == (409, "CommitFailedException")
        assert "branch or tag main is missing, expected 42" in answer.json["error"]["message"]


def test_a_copy_of_what_has_landed_is_not_refused_early(client: Client) -> None:
    """Its requirement does not hold any more because of itself: refused, its client would delete the files of a landed commit."""
    metadata = client.load()
    updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
    assert [client.commit(updates, [assert_main(None)]).status for _ in range(3)] == [200] * 3
    assert len(client.load()["snapshots"]) <= 2


def test_properties_that_wait_are_committed_together(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """One lake snapshot, one metadata file, an audit line each; each answer shows its own change, and no later one is lost."""
    head, audited = read_head(lake), count_audited(lake)
    with locked(lake):
        first = begin(client, lake, pool)
        commits = [([set_property(f"k{n}"), set_property("last", str(n))], []) for n in range(10)]
        sent = submit_in_line(client, pool, commits)
    answers = [first.result(), *(each.result() for each in sent)]
    assert [answer.status for answer in answers] == [200] * 11
    assert read_head(lake) == head + 2
    assert count_audited(lake) == audited + 11
    assert client.server.count(GROUPED) == 10
    metadata = client.load()
    assert {f"k{n}" for n in range(10)} <= metadata["properties"].keys()
    assert metadata["properties"]["last"] == "9"
    assert all(f"k{n}" in answer.json["metadata"]["properties"] for n, answer in enumerate(answers[1:]))
    locations = {answer.json["metadata-location"] for answer in answers}
    assert len(locations) == 2
    logged = [entry["metadata-file"] for entry in metadata["metadata-log"]]
    assert all(client.objects.read(location) for location in [*logged, *locations])
    assert client.server.count(WAITS) >= 11


def test_who_requires_what_does_not_hold_is_refused_alone(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """The others of its group land, and no audit line tells of it."""
    audited = count_audited(lake)
    with locked(lake):
        first = begin(client, lake, pool)
        wrong = [{"type": "assert-table-uuid", "uuid": str(uuid4())}]
        sent = submit_in_line(client, pool, [([set_property("a")], []), ([set_property("b")], wrong), ([set_property("c")], [])])
    assert [each.result().status for each in (first, *sent)] == [200, 200, 409, 200]
    assert sent[1].result().error == (409, "CommitFailedException")
    assert count_audited(lake) == audited + 3
    properties = client.load()["properties"]
    assert "a" in properties and "c" in properties and "b" not in properties


def test_what_one_asks_in_vain_hits_nobody_else(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """A group that fails is done one by one."""
    with locked(lake):
        first = begin(client, lake, pool)
        elsewhere = {"action": "set-properties", "updates": {"write.data.path": "s3://elsewhere/x"}}
        sent = submit_in_line(client, pool, [([set_property("a")], []), ([elsewhere], []), ([set_property("c")], [])])
    assert [each.result().status for each in (first, *sent)] == [200, 200, 400, 200]
    properties = client.load()["properties"]
    assert "a" in properties and "c" in properties and "write.data.path" not in properties


def test_requests_with_keys_and_other_updates_stay_alone(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """Each makes its own lake snapshot, in the order in which they came."""
    head, body = read_head(lake), {"requirements": [], "updates": [set_property("keyed")]}
    key = "018f3a1e-0000-7000-8000-000000000001"
    headers = {"content-type": "application/json", "Idempotency-Key": key}

    def commit_with_key() -> Answer:
        return client.server.ask("POST", "namespaces/main/tables/t", headers, json.dumps(body).encode())

    metadata = client.load()
    with locked(lake):
        first = begin(client, lake, pool)
        [before] = submit_in_line(client, pool, [([set_property("a")], [])])
        keyed = pool.submit(commit_with_key)
        wait_for_queue(client, 2)
        others = submit_in_line(
            client, pool, [(client.append(metadata, SNAPSHOT, [data_file(metadata, "a")]), []), ([set_property("b")], [])]
        )
    assert [each.result().status for each in (first, before, keyed, *others)] == [200] * 5
    assert read_head(lake) == head + 5
    assert commit_with_key().status == 200
    assert read_head(lake) == head + 5


@pytest.mark.parametrize("landed", whole_after(1, [False, True]), ids=["new", "landed before"])
def test_who_waits_too_long_is_refused_unless_it_has_landed(lake: FreshLake, pool: ThreadPoolExecutor, landed: bool) -> None:
    """409 and nothing done, or the answer to what was done before."""
    with serve(make_settings(lake, commit_queue_s=0.5)) as server:
        client = open_client(server, lake)
        assert client.create().status == 200
        metadata = client.load()
        updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
        assert not landed or client.commit(updates).status == 200
        with locked(lake):
            first = begin(client, lake, pool)
            late = pool.submit(client.commit, updates)
            answer = late.result()
        assert first.result().status == 200
        assert answer.status == (200 if landed else 409), answer.body
        assert server.count(REFUSED, reason="late") == 1
        assert bool(client.load()["snapshots"]) == landed


def test_who_waited_too_long_may_ask_again_with_its_key(lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """A copy that was in progress meanwhile is refused alike: its client was told that nothing was done."""
    with serve(make_settings(lake, commit_queue_s=0.5)) as server:
        client = open_client(server, lake)
        assert client.create().status == 200

        def commit_with_key() -> Answer:
            return client.commit([set_property("keyed")], (), "t", {"Idempotency-Key": KEY})

        with locked(lake):
            first = pool.submit(commit_with_key)
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a commit that waits for the lake")
            late = commit_with_key()
        assert [first.result().error, late.error] == [(409, "CommitFailedException")] * 2
        assert "keyed" not in client.load()["properties"]
        assert [commit_with_key().status for _ in range(2)] == [200] * 2
        assert "keyed" in client.load()["properties"]


def test_a_copy_that_is_deferred_is_refused_as_its_client_was_told(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """It waits for a ref that another commit moves, while the same request gives up on another server; sent once more, it lands."""
    metadata = client.load()
    assert client.commit(client.append(metadata, SNAPSHOT, [data_file(metadata, "before")])).status == 200
    metadata = client.load()
    current = metadata["current-snapshot-id"]
    updates = client.append(metadata, SNAPSHOT + 1, [data_file(metadata, "a")])

    def commit_with_key(to: Client) -> Answer:
        return to.commit(updates, [assert_main(current)], "t", {"Idempotency-Key": KEY})

    with serve(make_settings(lake, commit_queue_s=0.5)) as second:
        other = open_client(second, lake)
        with locked(lake):
            moving = pool.submit(client.commit, [set_ref("main", current, "branch")])
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "the commit that moves the ref")
            deferred = pool.submit(commit_with_key, client)
            wait_for_queue(client, 1)
            before = pool.submit(other.commit, [set_property("before")])
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 2, "the commit of the other server")
            late = commit_with_key(other)
        assert [each.result().status for each in (moving, before)] == [200, 200]
    assert [late.error, deferred.result().error] == [(409, "CommitFailedException")] * 2
    assert len(client.load()["snapshots"]) == 1
    assert commit_with_key(client).status == 200


def test_more_than_may_wait_are_refused_before_any_work(lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """429 with Retry-After; another table is not concerned."""
    with serve(make_settings(lake, commit_queue_max=2)) as server:
        client = open_client(server, lake)
        assert client.create().status == client.create("other").status == 200
        with locked(lake):
            first = begin(client, lake, pool)
            [second] = submit_in_line(client, pool, [([set_property("a")], [])])
            third = client.commit([set_property("b")])
            elsewhere = pool.submit(client.commit, [set_property("a")], (), "other")
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 2, "two commits that wait for the lake")
        assert third.error == (429, "SlowDownException")
        assert third.headers["retry-after"] == "1"
        assert [each.result().status for each in (first, second, elsewhere)] == [200] * 3
        assert server.count(REFUSED, reason="full") == 1
        assert "b" not in client.load()["properties"]


def test_what_requires_a_ref_that_is_being_moved_reads_no_manifest(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """It waits for the commit that moves the ref, and is refused by its requirement: the store is not asked for its manifest list."""
    metadata = client.load()
    first, second = (client.append(metadata, SNAPSHOT + n, [data_file(metadata, f"a{n}")]) for n in range(2))
    client.objects.delete(second[0]["snapshot"]["manifest-list"])
    with locked(lake):
        moving = pool.submit(client.commit, first, [assert_main(None)])
        wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a commit that waits for the lake")
        [late] = submit_in_line(client, pool, [(second, [assert_main(None)])])
        [other] = submit_in_line(client, pool, [([set_property("a")], [])])
    assert [each.result().status for each in (moving, other)] == [200] * 2
    assert late.result().error == (409, "CommitFailedException")
    assert "branch main was created concurrently" in late.result().json["error"]["message"]
    wait_for_queue(client, 0)


def test_a_ref_that_was_not_moved_after_all_is_still_as_required(
    client: Client, lake: FreshLake, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that was to move it fails, and the one that waited for it lands."""
    metadata = client.load()
    assert client.commit(client.append(metadata, SNAPSHOT + 2, [data_file(metadata, "before")])).status == 200
    metadata = client.load()
    current = assert_main(metadata["current-snapshot-id"])
    first, second = (client.append(metadata, SNAPSHOT + n, [data_file(metadata, f"a{n}")]) for n in range(2))
    write_rows = write.write_single_statement

    def fail_once(*parts: Any) -> Any:
        monkeypatch.setattr(write, "write_single_statement", write_rows)
        raise CommitFailed("The statement failed.")

    monkeypatch.setattr(write, "write_single_statement", fail_once)
    with locked(lake):
        moving = pool.submit(client.commit, first, [current])
        wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a commit that waits for the lake")
        [waiting] = submit_in_line(client, pool, [(second, [current])])
    assert [each.result().status for each in (moving, waiting)] == [409, 200]
    assert len(client.load()["snapshots"]) == 2


def test_transactions_take_their_tables_in_one_order(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """Two that name the same tables in different orders do not wait for each other."""
    assert client.create("u").status == 200

    def commit(names: tuple[str, str], key: str) -> Answer:
        changes = [
            {"identifier": {"namespace": ["main"], "name": name}, "requirements": [], "updates": [set_property(key)]} for name in names
        ]
        return client.post("transactions/commit", {"table-changes": changes})

    with locked(lake):
        first = begin(client, lake, pool)
        sent = [pool.submit(commit, names, key) for names, key in ((("t", "u"), "a"), (("u", "t"), "b"))]
        wait_for_queue(client, 2)
    assert [each.result().status for each in (first, *sent)] == [200, 204, 204]
    assert client.server.count(REFUSED, reason="late") == 0
    assert {"a", "b"} <= client.load()["properties"].keys()
    assert {"a", "b"} <= client.load("u")["properties"].keys()


def test_a_lost_answer_of_postgres_reaches_the_whole_group(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """What became of the group is unknown to each member, and nothing is tried a second time."""
    conn = lake.psycopg()
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(client, pool, [([set_property("a")], []), ([set_property("b")], [])])
        # deferred, so that it runs in COMMIT: the connection is lost with the answer
        conn.execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END'"
        )
        conn.execute(
            "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON ducklake_tag DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
            " WHEN (NEW.key = 'b') EXECUTE FUNCTION die()"
        )
    assert first.result().status == 200
    assert [each.result().error for each in sent] == [(500, "CommitStateUnknownException")] * 2
    conn.execute("DROP TRIGGER die ON ducklake_tag; DROP FUNCTION die")
    assert client.commit([set_property("c")]).status == 200
    properties = client.load()["properties"]
    assert "c" in properties and "a" not in properties and "b" not in properties


def test_two_servers_take_turns_for_one_table(lake: FreshLake, client: Client, pool: ThreadPoolExecutor) -> None:
    """Nobody is refused who requires nothing, no change is lost, and the turns are given back."""

    def commit(to: Client, number: int) -> list[int]:
        return [to.commit([set_property(f"k{number}.{each}")]).status for each in range(COMMITS_EACH)]

    with serve(make_settings(lake)) as second:
        other = open_client(second, lake)
        sent = [pool.submit(commit, (client, other)[number % 2], number) for number in range(CLIENTS)]
        assert {status for each in sent for status in each.result()} == {200}
        wanted = {f"k{number}.{each}" for number in range(CLIENTS) for each in range(COMMITS_EACH)}
        assert wanted <= client.load()["properties"].keys()
        assert wanted <= other.load()["properties"].keys()
    wait_for(lambda: lake.psycopg().execute(COUNT_TURNS).fetchall() == [(0,)], "the turns to be given back")


def test_a_server_that_loses_no_race_takes_turns_with_one_that_does(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """It sees under the lake's lock that another server has the table's turn: without that, it would win every race for ever."""
    other = lake.psycopg()
    key = compute_key(lake.metadata_schema, "main.t")
    other.execute("SELECT pg_advisory_lock(%s, %s)", [LOCK_CLASS, key])
    assert client.commit([set_property("first")]).status == 200
    late = pool.submit(client.commit, [set_property("second")])
    wait_for(lambda: other.execute(COUNT_TURNS).fetchall() == [(2,)], "the commit to be next")
    other.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK_CLASS, key])
    assert late.result().status == 200


def test_a_commit_that_failed_leaves_no_file_in_the_cache(client: Client, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next file has the id that the file of the failed commit would have had, and is shown under its own path."""
    base = client.load()
    assert client.commit(client.append(base, SNAPSHOT, [data_file(base, "first")])).status == 200
    base = client.load()

    def fail(*_: Any) -> None:
        raise CommitFailed("The statement failed.")

    with monkeypatch.context() as patched:
        patched.setattr(write, "write_single_statement", fail)
        assert client.commit(client.append(base, SNAPSHOT + 1, [data_file(base, "lost")])).status == 409
    kept = data_file(base, "kept")
    with serve(make_settings(lake)) as other:
        second = open_client(other, lake)
        assert second.commit(second.append(base, SNAPSHOT + 2, [kept])).status == 200
        shown = second.load()
    assert client.load() == shown
    assert kept.file_path in [entry.data_file.file_path for entry in client.read_entries(shown["snapshots"][-1])]


def ask_to_rename(client: Client, name: str, kind: str = "tables") -> Answer:
    """Rename a table or view of `main` to `renamed`."""
    body = {"source": {"namespace": ["main"], "name": name}, "destination": {"namespace": ["main"], "name": "renamed"}}
    return client.post(f"{kind}/rename", body)


def make_view(client: Client) -> None:
    """Make the view `v`."""
    assert create_view(client).status == 200


def create_view(client: Client) -> Answer:
    return requests.create(client.server, "v", {"spark": "SELECT 1 AS i, 'a' AS name"})


def replace_view(client: Client) -> Answer:
    return requests.replace_text(client.server, "v", {"spark": "SELECT 2 AS i, 'b' AS name"})


def drop(client: Client, path: str) -> Answer:
    return client.server.ask("DELETE", f"namespaces/main/{path}")


def unregister(client: Client) -> Answer:
    return client.server.ask("POST", "namespaces/main/tables/t/unregister")


def register(client: Client) -> Answer:
    """Register the newest metadata file of `gone`, a table that was dropped."""
    folder = next(uri for uri, _ in client.objects.list_under(client.load()["location"].rpartition("/")[0]) if "/gone-" in uri)
    return client.post("namespaces/main/register", {"name": "gone", "metadata-location": f"{folder.rpartition('/')[0]}/v1.metadata.json"})


def make_gone(client: Client) -> None:
    """Make a table and drop it again."""
    assert client.create("gone").status == 200
    assert drop(client, "tables/gone").status == 204


def undrop(client: Client) -> Answer:
    return client.server.ask("POST", "/management/v1/lake/undrop", {}, json.dumps({"namespace": ["main"], "name": "gone"}).encode())


def do_nothing(_: Client) -> None:
    """Need nothing but the table `t`."""


CHANGES = {
    "create table": (do_nothing, lambda client: client.create("new"), (200, 409)),
    "drop table": (do_nothing, lambda client: drop(client, "tables/t"), (204, 404)),
    "drop and purge": (do_nothing, lambda client: drop(client, "tables/t?purgeRequested=true"), (204, 404)),
    "rename table": (do_nothing, lambda client: ask_to_rename(client, "t"), (204, 404)),
    "register table": (make_gone, register, (200, 409)),
    "unregister table": (do_nothing, unregister, (200, 404)),
    "undrop table": (make_gone, undrop, (200, 404)),
    "create view": (do_nothing, create_view, (200, 409)),
    "replace view": (
        make_view,
        lambda client: requests.replace_text(client.server, "v", {"spark": "SELECT 2 AS i, 'b' AS name"}),
        (200, 200),
    ),
    "drop view": (make_view, lambda client: drop(client, "views/v"), (204, 404)),
    "rename view": (make_view, lambda client: ask_to_rename(client, "v", "views"), (204, 404)),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_changes_a_table_takes_its_turn(client: Client, lake: FreshLake, pool: ThreadPoolExecutor, kind: str) -> None:
    """The second of two waits for the first in the queue, without a thread, and not for the lake."""
    make, ask, statuses = CHANGES[kind]
    make(client)
    with locked(lake):
        first = pool.submit(ask, client)
        wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a change that waits for the lake")
        second = pool.submit(ask, client)
        wait_for_queue(client, 1)
        assert count_waiting(lake.psycopg(), "ducklake_snapshot") == 1
    assert (first.result().status, second.result().status) == statuses


def test_a_drop_waits_behind_commits_and_before_others(client: Client, lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """They are done in the order in which they came."""
    with locked(lake):
        first = begin(client, lake, pool)
        sent = submit_in_line(client, pool, [([set_property("a")], [])])
        sent.append(pool.submit(drop, client, "tables/t"))
        wait_for_queue(client, 2)
        sent += submit_in_line(client, pool, [([set_property("b")], [])])
    assert [each.result().status for each in (first, *sent)] == [200, 200, 204, 404]


def test_who_waits_too_long_to_drop_is_refused(lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """429, and the table is there until the client asks again; more than may wait are refused at once."""
    path, headers = "namespaces/main/tables/t", {"Idempotency-Key": KEY}
    with serve(make_settings(lake, commit_queue_s=0.5, commit_queue_max=2)) as server:
        client = open_client(server, lake)
        assert client.create().status == 200
        with locked(lake):
            first = begin(client, lake, pool)
            late = pool.submit(client.server.ask, "DELETE", path, headers)
            wait_for_queue(client, 1)
            full = drop(client, "tables/t")
            refused = late.result()
        assert [full.error, refused.error] == [(429, "SlowDownException")] * 2
        assert refused.headers["retry-after"] == "1"
        assert first.result().status == 200
        assert client.load()["properties"]["begun"] == "v"
        assert client.server.ask("DELETE", path, headers).status == 204


def test_who_waits_too_long_to_create_is_not_told_that_the_name_is_taken(lake: FreshLake, pool: ThreadPoolExecutor) -> None:
    """Clients take any 409 of a create for that; of a change of a view they take it for a commit that was not done."""
    with serve(make_settings(lake, commit_queue_s=0.5)) as server:
        client = open_client(server, lake)
        assert client.create().status == 200
        make_view(client)
        with locked(lake):
            first = [pool.submit(client.create, "new"), pool.submit(replace_view, client)]
            wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 2, "two changes that wait for the lake")
            late = [pool.submit(client.create, "new"), pool.submit(replace_view, client)]
            assert [each.result().error for each in late] == [(429, "SlowDownException"), (409, "CommitFailedException")]
        assert [each.result().status for each in first] == [200] * 2


@pytest.mark.parametrize("landed", whole_after(1, [False, True]), ids=["new", "landed before"])
def test_a_transaction_that_waits_too_long_is_refused_unless_it_has_landed(lake: FreshLake, pool: ThreadPoolExecutor, landed: bool) -> None:
    """Its client deletes the files of a refused transaction."""
    with serve(make_settings(lake, commit_queue_s=0.5)) as server:
        client = open_client(server, lake)
        assert client.create().status == client.create("u").status == 200
        changes: list[Any] = []
        for name in ("t", "u"):
            metadata = client.load(name)
            updates = client.append(metadata, SNAPSHOT, [data_file(metadata, "a")])
            changes.append({"identifier": {"namespace": ["main"], "name": name}, "requirements": [assert_main(None)], "updates": updates})
        asked, headers = {"table-changes": changes}, {"Idempotency-Key": KEY}
        assert not landed or client.post("transactions/commit", asked).status == 204
        with locked(lake):
            first = begin(client, lake, pool)
            answer = pool.submit(client.post, "transactions/commit", asked, headers).result()
        assert first.result().status == 200
        assert answer.status == (204 if landed else 409), answer.body
        assert [bool(client.load(name)["snapshots"]) for name in ("t", "u")] == [landed] * 2
        assert client.post("transactions/commit", asked, headers).status == 204
        assert all(client.load(name)["snapshots"] for name in ("t", "u"))
