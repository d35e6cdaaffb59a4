"""DuckDB commits while Iceberg clients commit without a pause: it gives up after ten lost races, so servers let it pass."""

import json
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from threading import Event

import pytest
from psycopg import sql
from psycopg.errors import DeadlockDetected

from tests.crashes.asked import Asked, Stand
from tests.crashes.kinds import append, delete_inlined
from tests.crashes.process import Running, running
from tests.crashes.story import break_off, list_effects
from tests.rest.serving import BASE, Server, make_settings
from tests.rest.writing.client import Client, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after
from tests.support.waiting import count_waiting, wait_for

WRITERS = 8
TRIES = 5
SELECT_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
INSERT_NEXT = """
INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1
"""


@pytest.fixture
def servers(lake: FreshLake) -> Generator[list[Running]]:
    """Two processes that serve one lake."""
    with ExitStack() as opened:
        yield [opened.enter_context(running(make_settings(lake))) for _ in range(2)]


def write_until(stop: Event, server: Server, table: str) -> int:
    """Commit one change after the other; how many landed."""
    landed = 0
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        while not stop.is_set():
            body = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"count": str(landed)}}]}
            connection.request("POST", f"{BASE}/namespaces/main/tables/{table}", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == 200, said
            landed += 1
    return landed


@pytest.mark.whole
@pytest.mark.parametrize("commits", [pytest.param(15, id="short"), pytest.param(200, id="two hundred", marks=pytest.mark.long)])
def test_duckdb_never_gives_up(lake: FreshLake, servers: list[Running], commits: int) -> None:
    """With its default settings, against eight clients at two servers that commit without a pause, and go on committing."""
    client, duck, stop = open_client(servers[0].server, lake), lake.duckdb(), Event()
    tables = [f"t{number}" for number in range(WRITERS)]
    for table in tables:
        assert client.create(table).status == 200
    duck.execute("CREATE TABLE d (i bigint)")
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(write_until, stop, servers[number % 2].server, table) for number, table in enumerate(tables)]
        try:
            for number in range(commits):
                duck.execute(f"INSERT INTO d VALUES ({number})")
        finally:
            stop.set()
    assert duck.execute("SELECT count(*), count(DISTINCT i) FROM d").fetchone() == (commits, commits)
    assert all(writer.result() for writer in writing)


@pytest.mark.whole
@pytest.mark.parametrize("make", long_after(1, [append, delete_inlined]), ids=["at once", "step by step"])
def test_whoever_begins_before_our_commit_is_let_pass(lake: FreshLake, servers: list[Running], make: Callable[[Stand, str], Asked]) -> None:
    """A session that has waited for the lake reads which id is next when all of ours is written but not committed.

    Servers forget it after a while, which may pass where a machine stands still: tried again then.
    """
    stand = Stand(open_client(servers[0].server, lake), lake.duckdb())
    assert any(gets_the_next_id(lake, servers[0].server, stand, make, number) for number in range(TRIES))


def gets_the_next_id(lake: FreshLake, server: Server, stand: Stand, make: Callable[[Stand, str], Asked], number: int) -> bool:
    """Whether the session commits what it began; ours are done all the same, before or after it."""
    first, then = list_effects(server, delete_inlined(stand, f"a{number}")), list_effects(server, make(stand, f"b{number}"))
    asked, late = delete_inlined(stand, f"c{number}"), make(stand, f"d{number}")
    other, look, taken = lake.psycopg(autocommit=False), lake.psycopg(), list[Future[None]]()
    with ThreadPoolExecutor(1) as pool:

        def take_the_next_id() -> None:
            other.execute(INSERT_NEXT)
            other.commit()

        def wait_for_the_lake() -> None:
            taken.append(pool.submit(take_the_next_id))
            wait_for(lambda: look.execute(SELECT_WAITING, [other.info.backend_pid]).fetchone() == (1,), "the session to wait")

        def begin_and_wait() -> None:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT max(snapshot_id) FROM ducklake_snapshot")
            wait_for_the_lake()

        at = next(number for number, name in enumerate(first) if name.startswith('UPDATE "ducklake_inlined_data'))
        answers = [break_off(server, asked, at, wait_for_the_lake)[1]]
        taken[0].result()
        answers.append(break_off(server, late, then.index("before COMMIT"), begin_and_wait)[1])
    assert [None if answer is None else answer.status for answer in answers] == [200, 200]
    return taken[1].exception() is None


@pytest.mark.whole
def test_a_flush_of_duckdb_outlives_a_deadlock(lake: FreshLake, servers: list[Running]) -> None:
    """It holds rows that our commit waits for, and waits for the lake that our commit holds: ours is refused, before Postgres acts."""
    stand = Stand(open_client(servers[0].server, lake), lake.duckdb())
    effects = list_effects(servers[0].server, delete_inlined(stand, "whole"))
    asked = delete_inlined(stand, "t")
    [(inlined,)] = stand.duck.execute("SELECT table_id FROM ducklake_table_info('lake') WHERE table_name = 't'").fetchall()
    flush, look = lake.psycopg(autocommit=False), lake.psycopg()
    [(rows,)] = look.execute("SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = %s", [inlined]).fetchall()
    flush.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(rows)))
    with ThreadPoolExecutor(1) as pool:

        def wait_for_the_lake() -> None:
            waiting.append(pool.submit(flush.execute, INSERT_NEXT))
            wait_for(lambda: look.execute(SELECT_WAITING, [flush.info.backend_pid]).fetchone() == (1,), "the flush to wait")

        waiting: list[object] = []
        at = next(number for number, name in enumerate(effects) if name.startswith('UPDATE "ducklake_inlined_data'))
        _, answer = break_off(servers[0].server, asked, at, wait_for_the_lake)
    assert answer is not None
    assert answer.error == (409, "CommitFailedException")
    flush.commit()


@pytest.mark.whole
def test_a_commit_whose_first_read_meets_a_deadlock_reads_again(lake: FreshLake, servers: list[Running]) -> None:
    """The lake is not locked by then, so nobody is sent away. The server knows nothing of the table yet, so it has to look."""
    client, late = open_client(servers[0].server, lake), open_client(servers[1].server, lake)
    for number in range(TRIES):
        table = f"t{number}"
        assert client.create(table).status == 200
        was_first = end_first_read(late, table, lake)
        assert late.load(table)["properties"]["k"] == "v"
        if was_first:
            return
    raise AssertionError(f"Postgres ended the other one {TRIES} times")


def end_first_read(late: Client, table: str, lake: FreshLake) -> bool:
    """Whether it was the commit that Postgres ended: that is the one whose second of waiting is over first once both wait."""
    other, look = lake.psycopg(autocommit=False), lake.psycopg()
    other.execute("LOCK TABLE iceberg_snapshot IN ACCESS EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(late.commit, [{"action": "set-properties", "updates": {"k": "v"}}], name=table)
        wait_for(lambda: count_waiting(look, "iceberg_snapshot") == 1, "the commit's first read to wait")
        try:
            other.execute("LOCK TABLE ducklake_table IN ACCESS EXCLUSIVE MODE")
        except DeadlockDetected:
            return False
        finally:
            other.rollback()
            assert answer.result().status == 200
    return True
