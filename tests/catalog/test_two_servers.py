"""Stories of servers that publish the same lake at once."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from duckicelake.catalog.publish import PublishContext, assign_metadata_version
from duckicelake.catalog.tables import LOAD_TRIES, LoadedTable
from duckicelake.lake.rows import TableNotes
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, load, open_static
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

SELECT_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def version(loaded: LoadedTable) -> int:
    """Return N of `v<N>.metadata.json`."""
    return int(str(loaded.metadata_location).rsplit("/v", 1)[1].split(".")[0])


@pytest.mark.whole
def test_servers_publishing_at_once_agree(lake: FreshLake, open_server: Opener) -> None:
    """The same version is the same metadata, whoever answers, and no version goes back."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER)")
    servers = [open_server(lake) for _ in range(3)]

    def load_often(number: int) -> list[LoadedTable]:
        return [load(servers[number % 3]) for _ in range(6)]

    def insert_often() -> None:
        for number in range(12):
            conn.execute(f"INSERT INTO t VALUES ({number})")

    with ThreadPoolExecutor(7) as pool:
        writing = pool.submit(insert_often)
        loads = [answer.result() for answer in [pool.submit(load_often, number) for number in range(6)]]
        writing.result()
    by_version: dict[int, bytes] = {}
    for answers in loads:
        assert [version(a) for a in answers] == sorted(version(a) for a in answers)
        for answer in answers:
            assert by_version.setdefault(version(answer), answer.metadata) == answer.metadata
    last = [load(server) for server in servers]
    assert len({answer.metadata for answer in last}) == 1
    check_every_snapshot(lake, conn, last[0])


def test_servers_agree_on_what_expiry_left(lake: FreshLake, open_server: Opener) -> None:
    """An expired snapshot is shown while it is the current one, and not beside a newer one, whatever a server remembers."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER)")
    conn.execute("INSERT INTO t VALUES (1)")
    conn.execute("ALTER TABLE t ADD COLUMN x INTEGER")
    conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMPTZ + INTERVAL 1 DAY)")
    before = open_server(lake)
    expired = open_static(lake, load(before)).metadata.snapshots
    assert [snapshot.snapshot_id for snapshot in expired] == [2]
    conn.execute("INSERT INTO t VALUES (2, 2)")
    after = load(before)
    assert [snapshot.snapshot_id for snapshot in open_static(lake, after).metadata.snapshots] == [4]
    assert load(open_server(lake)).metadata == after.metadata


@pytest.mark.whole
def test_a_server_that_loses_every_race_publishes_in_the_end(lake: FreshLake, open_server: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it is about to number its state, another server has numbered a newer one, as long as it lets itself be overtaken."""
    conn, watcher = lake.duckdb(), lake.psycopg()
    conn.execute("CREATE TABLE t (id INTEGER)")
    slow, quick = open_server(lake), open_server(lake)
    load(slow)
    overtaken: list[int] = []
    late: list[Future[LoadedTable]] = []

    with ThreadPoolExecutor(1) as pool:

        def overtake(reader: PublishContext, *arguments: Any) -> TableNotes:
            if reader.warehouse is slow and all(each.done() for each in late):
                conn.execute(f"INSERT INTO t VALUES ({len(overtaken)})")
                late.append(pool.submit(load, quick))
                wait_for(lambda: late[-1].done() or watcher.execute(SELECT_WAITING).fetchone() == (1,), "the other server")
                overtaken.append(int(late[-1].done()))
                # so that the state that is read next has no number either
                conn.execute("INSERT INTO t VALUES (0)")
            return assign_metadata_version(reader, *arguments)

        monkeypatch.setattr("duckicelake.catalog.publish.assign_metadata_version", overtake)
        conn.execute("INSERT INTO t VALUES (-1)")
        found = load(slow)
        answers = [each.result(timeout=30) for each in late]
        monkeypatch.undo()
    assert overtaken[-1] == 0
    assert 1 <= sum(overtaken) < LOAD_TRIES
    assert version(found) < version(answers[-1])
    last = load(quick)
    assert load(slow).metadata == last.metadata
    check_every_snapshot(lake, conn, last)
