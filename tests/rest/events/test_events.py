"""The cursor API of events: what each lake snapshot changed, whoever made it, once and in order."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import fill, make_branch
from tests.rest.serving import Server
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake

EVENTS = "/management/v1/lake/events"
Event = Mapping[str, Any]


def read_all(server: Server, after: int | str | None = None, limit: int = 1000) -> Sequence[Event]:
    """Follow the cursor to the newest lake snapshot."""
    found: list[Event] = []
    while True:
        page = server.get(f"{EVENTS}?limit={limit}" + ("" if after is None else f"&after={after}")).json
        assert len(page["events"]) <= limit
        found += page["events"]
        after = page["cursor"]
        if page["is-last"]:
            return found


def summarise(events: Sequence[Event]) -> list[tuple[str, str]]:
    """Type and subject of events."""
    return [(event["type"].removeprefix("duckicelake."), event["subject"]) for event in events]


def make_history(lake: FreshLake, server: Server) -> list[tuple[str, str]]:
    """Let DuckDB and an Iceberg client change a lake, and return the events of that."""
    client = open_client(server, lake)
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s")
        session.execute("CREATE TABLE s.t AS SELECT range AS i FROM range(20)")
        session.execute("INSERT INTO s.t VALUES (99)")
        client.create("u", properties={"k": "v"})
        session.execute("ALTER TABLE s.t ADD COLUMN more INTEGER")
        session.execute('ALTER TABLE s.t RENAME TO "x.y"')
        session.execute("CREATE VIEW s.v AS SELECT 1 AS i")
        session.execute("CREATE MACRO s.f(a INTEGER) AS a + 1")
        session.execute("CALL ducklake_flush_inlined_data('lake')")
        session.execute("BEGIN")
        session.execute("INSERT INTO u SELECT range, 'x' FROM range(20)")
        session.execute('DELETE FROM s."x.y" WHERE i = 3')
        session.execute("COMMIT")
    assert client.commit([{"action": "set-properties", "updates": {"k": "w"}}], name="u").status == 200
    assert server.ask("DELETE", "namespaces/main/tables/u").status == 204
    body = json.dumps({"namespace": ["main"], "name": "u", "to": {"namespace": ["s"]}}).encode()
    assert server.ask("POST", "/management/v1/lake/undrop", {}, body).status == 200
    with closing(lake.duckdb()) as session:
        session.execute("DROP SCHEMA s CASCADE")
    return [
        ("namespace.created", "main"),
        ("namespace.created", "s"),
        ("table.created", "s.t"),
        ("table.changed", "s.t"),
        ("table.created", "main.u"),
        ("table.altered", "s.t"),
        ("table.renamed", "s.x%2Ey"),
        ("view.created", "s.v"),
        ("function.created", "s.f"),
        ("table.rewritten", "s.x%2Ey"),
        ("table.changed", "main.u"),
        ("table.changed", "s.x%2Ey"),
        ("table.altered", "main.u"),
        ("table.dropped", "main.u"),
        ("table.restored", "s.u"),
        ("namespace.dropped", "s"),
        ("table.dropped", "s.x%2Ey"),
        ("table.dropped", "s.u"),
        ("view.dropped", "s.v"),
        ("function.dropped", "0"),
    ]


def test_each_lake_snapshot_is_told_once_in_order_whoever_made_it(server: Server, lake: FreshLake) -> None:
    """Each event is a CloudEvent; pages of any size join to the same list, and a cursor goes on where it was."""
    expected = make_history(lake, server)
    events = read_all(server)
    assert sorted(summarise(events)[-5:-1]) == sorted(expected[-5:-1])
    assert summarise(events)[:-5] == expected[:-5]
    assert read_all(server, limit=1) == read_all(server, limit=3) == list(events)
    ids = [event["id"] for event in events]
    assert len(set(ids)) == len(ids)
    for event in events:
        assert {"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "data"} == event.keys()
        assert (event["specversion"], event["source"]) == ("1.0", "/v1/lake")
        assert datetime.fromisoformat(event["time"]).tzinfo is not None
    snapshots = [event["data"]["lake-snapshot-id"] for event in events]
    assert snapshots == sorted(snapshots)
    middle = snapshots[len(snapshots) // 2]
    assert read_all(server, after=middle) == [event for event in events if event["data"]["lake-snapshot-id"] > middle]
    created = next(event for event in events if event["subject"] == "main.u")
    assert created["data"]["operation"] == "createTable" and created["data"]["request-id"]
    assert "operation" not in next(event for event in events if event["subject"] == "s.t")["data"]


def test_nothing_is_missing_when_duckdb_expires_what_was_not_read(server: Server, lake: FreshLake) -> None:
    """The events of expired lake snapshots are those of before, names of dropped and cleaned-up tables included."""
    make_history(lake, server)
    before = read_all(server)
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE other (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
        session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    after = read_all(server, limit=4)
    assert list(after[: len(before)]) == list(before)
    assert summarise(after[len(before) :]) == [("table.created", "main.other")]


def test_a_cursor_before_what_was_deleted_is_told_so(server: Server, lake: FreshLake) -> None:
    """400 with where to go on; from there on nothing is missing. Copies go with the audit log's old lines."""
    with closing(lake.duckdb()) as session:
        for number in range(4):
            session.execute(f"CREATE TABLE t{number} (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', versions => [1, 2])")
    conn = lake.psycopg()
    assert conn.execute("SELECT count(*) FROM iceberg_event").fetchone() == (2,)
    from duckicelake.lake.events import delete_old_events  # noqa: PLC0415

    assert delete_old_events(conn, 1, 100) == 0
    conn.execute("UPDATE iceberg_event SET kept_at = kept_at - interval '2 days'")
    assert delete_old_events(conn, 1, 1) == 1
    refused = server.get(f"{EVENTS}?after=0")
    assert refused.error == (400, "BadRequestException") and "after 1" in refused.json["error"]["message"]
    assert summarise(read_all(server, after=1)) == [("table.created", f"main.t{number}") for number in (1, 2, 3)]
    assert delete_old_events(conn, 1, 100) == 1 and delete_old_events(conn, 1, 100) == 0


ODD = ("after=x", "after=-2", "after=9223372036854775808", "limit=0", "limit=1001", "after=%00", "after=1.", "after=1.-1", "after=1.1.1")


@pytest.mark.parametrize("query", [*ODD, "after=%D9%A1", "after=" + "1" * 5000])
def test_odd_cursors_are_refused(standing: Server, query: str) -> None:
    """With Iceberg's error."""
    assert standing.get(f"{EVENTS}?{query}").error == (400, "BadRequestException")


def test_a_cursor_ahead_of_the_lake_is_refused(server: Server, lake: FreshLake) -> None:
    """Postgres was restored, or the cursor is another lake's: waiting would skip what gets these ids again."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t (i INTEGER)")
    refused = server.get(f"{EVENTS}?after=1000000000")
    assert refused.error == (400, "BadRequestException")
    assert "newest lake snapshot 1" in refused.json["error"]["message"] and "restored" in refused.json["error"]["message"]
    assert server.get(f"{EVENTS}?after=1").json == {"events": [], "cursor": "1", "is-last": True}
    assert server.get(f"{EVENTS}?after=1.7").error == (400, "BadRequestException")


def test_a_time_that_python_lacks_stops_no_reader(server: Server, lake: FreshLake) -> None:
    """A lake may have a snapshot at any time that Postgres has."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t (i INTEGER)")
    lake.psycopg().execute("UPDATE ducklake_snapshot SET snapshot_time = 'infinity' WHERE snapshot_id = 1")
    assert [event["time"] for event in read_all(server)][-1] == "9999-12-31T00:00:00Z"


def test_a_branch_has_no_events(server: Server, lake: FreshLake) -> None:
    """A merge gives it other lake snapshots, which would be read again."""
    fill(lake.duckdb())
    make_branch(lake, "dev")
    assert server.get("/management/v1/lake%40dev/events").status == 501


def test_the_command_prints_the_same_events(server: Server, lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line of JSON each, from the oldest or after a cursor."""
    monkeypatch.chdir(tmp_path)
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT 1 AS i")
        session.execute("DROP TABLE t")
    settings, home = settings_for(lake, warehouse="lake"), ("--home", str(tmp_path / "home"))
    events = read_all(server)
    assert [json.loads(line) for line in ask(settings, "events", "tail", *home).splitlines()] == list(events)
    assert summarise([json.loads(line) for line in ask(settings, "events", "tail", "--after", "1", *home).splitlines()]) == [
        ("table.dropped", "main.t")
    ]


def test_a_page_ends_inside_a_lake_snapshot(server: Server, lake: FreshLake) -> None:
    """`limit` counts events, also when one transaction changes many tables; the cursor goes on after the last event."""
    with closing(lake.duckdb()) as session:
        session.execute("BEGIN")
        for number in range(25):
            session.execute(f"CREATE TABLE t{number} (i INTEGER)")
        session.execute("COMMIT")
        session.execute("CREATE TABLE last (i INTEGER)")
    first = server.get(f"{EVENTS}?after=0&limit=10").json
    assert (len(first["events"]), first["cursor"], first["is-last"]) == (10, "1.9", False)
    everything = read_all(server)
    assert (
        summarise(everything)[-1] == ("table.created", "main.last") and len(everything) == len({event["id"] for event in everything}) == 27
    )
    for limit in (1, 2, 7, 10, 25, 26):
        assert read_all(server, limit=limit) == list(everything)
    assert read_all(server, after="1.24") == list(everything[-1:])


def test_a_drop_keeps_its_name_when_all_before_it_expires(server: Server, lake: FreshLake) -> None:
    """DuckLake deletes the rows of what no lake snapshot shows; the drop's own lake snapshot is still there."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE SCHEMA s; CREATE TABLE s.t AS SELECT range AS i FROM range(20); CREATE VIEW s.v AS SELECT 1 AS i")
        session.execute("DROP SCHEMA s CASCADE")
        before = read_all(server)
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
        assert lake.psycopg().execute("SELECT count(*) FROM ducklake_table").fetchone() == (0,)
        assert read_all(server) == list(before)
        session.execute("CREATE TABLE other (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    assert read_all(server)[: len(before)] == list(before)
    dropped = [event for event in before if event["type"].endswith(".dropped")]
    assert sorted(event["subject"] for event in dropped) == ["s", "s.t", "s.v"]


def test_the_copy_of_a_lake_snapshot_that_is_there_stays(server: Server, lake: FreshLake) -> None:
    """Only copies of expired lake snapshots are deleted with age, and only these move the first cursor."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE t AS SELECT range AS i FROM range(20)")
        session.execute("DROP TABLE t")
        session.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    conn = lake.psycopg()
    conn.execute("UPDATE iceberg_event SET kept_at = kept_at - interval '2 days'")
    from duckicelake.lake.events import delete_old_events  # noqa: PLC0415

    assert delete_old_events(conn, 1, 100) == 2
    assert summarise(read_all(server)) == [("table.dropped", "main.t")]


@pytest.mark.parametrize("commits", [30, pytest.param(3500, marks=pytest.mark.long)])
def test_a_reader_beside_writers_misses_nothing_and_sees_nothing_twice(server: Server, lake: FreshLake, commits: int) -> None:
    """Two sessions of DuckDB and a client commit; the reader starts anew at its cursor after each page, as one does that was killed."""
    client = open_client(server, lake)
    for name in ("a", "b", "c"):
        client.create(name)

    def insert(table: str) -> None:
        with closing(lake.duckdb()) as session:
            session.execute("SET ducklake_max_retry_count = 1000")
            for number in range(commits):
                session.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")

    def change(number: int) -> None:
        update = {"action": "set-properties", "updates": {"k": str(number)}}
        assert client.commit([update], name="c").status == 200

    found: list[Event] = []
    cursor = "-1"
    with ThreadPoolExecutor(3) as threads:
        writing = [threads.submit(insert, "a"), threads.submit(insert, "b"), threads.submit(lambda: list(map(change, range(commits))))]
        while not all(each.done() for each in writing):
            page = server.get(f"{EVENTS}?after={cursor}&limit=5").json
            found += page["events"]
            cursor = page["cursor"]
        for each in writing:
            each.result()
    found += read_all(server, after=cursor)
    assert [event["id"] for event in found] == [event["id"] for event in read_all(server)]
    changed = [event["subject"] for event in found if event["type"] in ("duckicelake.table.changed", "duckicelake.table.altered")]
    assert {name: changed.count(f"main.{name}") for name in ("a", "b", "c")} == dict.fromkeys(("a", "b", "c"), commits)


def test_a_long_message_is_cut(server: Server, lake: FreshLake) -> None:
    """Each of a lake snapshot's events has it, so that it could fill any page."""
    conn = lake.duckdb()
    conn.execute("BEGIN")
    conn.execute("CALL lake.set_commit_message('ann', repeat('m', 100000))")
    conn.execute("CREATE TABLE t AS SELECT 1 AS i")
    conn.execute("COMMIT")
    event = read_all(server)[-1]
    assert event["data"]["message"] == "m" * 4096
    assert event["data"]["author"] == "ann"
