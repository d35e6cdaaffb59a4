"""Transactions, and what Postgres says turned into our errors."""

import math
import select
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from psycopg import sql
from psycopg.conninfo import make_conninfo

from duckicelake.errors import CatalogError, CommitFailed, Forbidden, LakeMoved, NoSuchTable, PostgresRefused, ServiceUnavailable
from duckicelake.lake import connect
from duckicelake.lake.connect import (
    ERRORS_BY_SQLSTATE,
    Lake,
    close_lake,
    connecting,
    open_lake,
    query_once,
    reading,
    writing,
    writing_on_new_connection,
)
from duckicelake.lake.read import read_position
from tests.lake.wire import wire_to
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

INSERT_SETTING = "INSERT INTO iceberg_setting (key, value) VALUES (%(key)s, 'x')"
SELECT_KEYS = """
SELECT key FROM iceberg_setting
 WHERE key NOT IN ('forgotten_purged', 'gone_files', 'gone_locations', 'installed', 'refs', 'revocation')
 ORDER BY key
"""
PASSWORD = "pa55word"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres is waited for as long as a busy machine needs, and no longer: the test waits to the end."""
    monkeypatch.setattr(connect, "CONNECTION_WAIT_S", 2.0)
    monkeypatch.setattr(connect, "SILENCE_MAX_S", 2.0)


@contextmanager
def opening(dsn: str, metadata_schema: str = "lake", timeout_s: float = math.inf) -> Generator[Lake]:
    """A lake reached so."""
    found = open_lake("mine", dsn, metadata_schema, 4, timeout_s)
    try:
        yield found
    finally:
        close_lake(found)


def keys(lake: FreshLake) -> list[str]:
    """The keys that others see."""
    return [key for (key,) in lake.psycopg().execute(SELECT_KEYS)]


def test_a_writing_transaction_is_committed_at_its_end(opened: Lake, lake: FreshLake) -> None:
    """Others see nothing before, everything after."""
    with writing(opened) as conn:
        conn.execute(INSERT_SETTING, {"key": "new"})
        assert keys(lake) == ["iceberg_path"]
    assert keys(lake) == ["iceberg_path", "new"]


@pytest.mark.parametrize("error", [LakeMoved("moved"), ValueError("ours"), KeyboardInterrupt()], ids=["catalog", "bug", "interrupt"])
def test_an_error_inside_leaves_nothing(opened: Lake, lake: FreshLake, error: BaseException) -> None:
    """The transaction is rolled back, the error goes on unchanged, and the connection is good for the next."""
    with pytest.raises(type(error)) as found, writing(opened) as conn:
        conn.execute(INSERT_SETTING, {"key": "new"})
        raise error
    assert found.value is error
    assert keys(lake) == ["iceberg_path"]
    with writing(opened) as conn:
        conn.execute(INSERT_SETTING, {"key": "next"})
    assert keys(lake) == ["iceberg_path", "next"]


def test_a_look_that_finds_nothing_costs_no_connection(opened: Lake) -> None:
    """What its caller makes of the answer goes on unchanged, and the next looks have the connections that were there."""
    opened.pool.wait()
    with ExitStack() as stack:
        there = {stack.enter_context(opened.pool.connection()).info.backend_pid for _ in range(opened.pool.min_size)}

    def find_nothing(conn: psycopg.Connection) -> None:
        assert conn.info.backend_pid in there
        conn.execute("SELECT 1")
        raise NoSuchTable("Table does not exist: main.t")

    for _ in range(5):
        with pytest.raises(NoSuchTable):
            query_once(opened, find_nothing)


def test_a_reading_transaction_writes_nothing(opened: Lake, lake: FreshLake) -> None:
    """Postgres itself refuses."""
    with pytest.raises(ServiceUnavailable, match="read-only"), reading(opened) as conn:
        conn.execute(INSERT_SETTING, {"key": "new"})
    assert keys(lake) == ["iceberg_path"]


def test_a_reading_transaction_sees_one_state(opened: Lake, lake: FreshLake) -> None:
    """What DuckDB commits meanwhile is for the next one."""
    session = lake.duckdb()
    with reading(opened) as conn:
        before = read_position(conn)
        session.execute("CREATE TABLE t (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', versions => [0])")
        assert read_position(conn) == before
    with reading(opened) as conn:
        assert read_position(conn) > before


def test_a_transaction_outside_the_pool_sees_what_others_have_committed(lake: FreshLake) -> None:
    """What waited for a lock reads what its holder has written, whatever isolation the database has by default."""
    dsn = make_conninfo(lake.dsn, options="-c default_transaction_isolation=serializable")
    with opening(dsn) as opened, connecting(opened) as conn, conn.transaction():
        assert conn.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_transaction_has_only_the_lake_on_its_search_path(opened: Lake) -> None:
    """Unqualified names mean the lake's tables, and times are in UTC, whatever the role's defaults."""
    with reading(opened) as conn:
        row = conn.execute("SELECT current_schemas(false)::text, current_setting('timezone')").fetchone()
    assert row == ("{lake}", "UTC")


def fail(opened: Lake, statement: str) -> CatalogError:
    """What becomes of a statement that Postgres refuses; afterwards the pool works as before."""
    with pytest.raises(CatalogError) as found, writing(opened) as conn:
        conn.execute(sql.SQL(statement))  # pyright: ignore
    assert can_read(opened)
    return found.value


def test_each_sqlstate_has_its_error(opened: Lake) -> None:
    """Full states and classes alike; the message names the lake and what to do, never what Postgres said."""
    told: dict[str, tuple[type[CatalogError], str]] = {}
    for pattern in ERRORS_BY_SQLSTATE:
        state = pattern if len(pattern) == 5 else {"40": "40001", "3D": "3D000", "28": "28P01"}.get(pattern, f"{pattern}000")
        error = fail(opened, f"DO $$ BEGIN RAISE EXCEPTION 'secret detail' USING ERRCODE = '{state}'; END $$")
        told[pattern] = (type(error), error.message.removeprefix("Lake 'mine': "))
    assert told == ERRORS_BY_SQLSTATE


REFUSED: dict[str, type[CatalogError]] = {
    "SELECT 1 FROM ducklake_nowhere": PostgresRefused,
    "SELECT nothing FROM ducklake_snapshot": PostgresRefused,
    "INSERT INTO iceberg_setting VALUES ('iceberg_path', 'x')": PostgresRefused,
    "SET ROLE postgres": Forbidden,
    "SELECT pg_terminate_backend(pg_backend_pid())": ServiceUnavailable,
}


def test_what_postgres_really_says(opened: Lake) -> None:
    """Missing tables and columns, rights that lack and connections that end are the errors of the table."""
    assert {statement: type(fail(opened, statement)) for statement in REFUSED} == REFUSED


@pytest.mark.parametrize("state", ["40P01", "40001"], ids=["deadlock", "conflict with recovery"])
def test_a_reader_who_is_in_the_way_reads_again(opened: Lake, state: str) -> None:
    """It commits nothing, so nothing of it has failed."""
    refusal = sql.SQL("DO $$ BEGIN RAISE EXCEPTION 'in the way' USING ERRCODE = {}; END $$").format(state)
    with pytest.raises(LakeMoved, match="try again"), reading(opened) as conn:
        conn.execute(refusal)
    with pytest.raises(LakeMoved, match="try again"):
        query_once(opened, lambda conn: conn.execute(refusal))
    assert can_read(opened)


def test_postgres_compiles_none_of_our_queries(opened: Lake) -> None:
    """That would take it longer than the queries do."""
    for begin in (reading, writing, writing_on_new_connection):
        with begin(opened) as conn:
            assert conn.execute("SHOW jit").fetchone() == ("off",), begin


def test_a_transaction_that_postgres_ended_may_come_again(opened: Lake) -> None:
    """One that was idle for longer than Postgres allows: nothing of it is wrong.

    Where the connection is closed before libpq has read the reason, there is none.
    """
    with pytest.raises(ServiceUnavailable, match="idle for too long|does not answer"), reading(opened) as conn:
        conn.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
        wait_for(lambda: bool(select.select([conn], [], [], 0)[0]), "Postgres to end it")
        read_position(conn)
    assert can_read(opened)


def test_a_lock_is_not_waited_for_without_end(opened: Lake, lake: FreshLake) -> None:
    """Who does not get it may come again: nothing landed."""
    holder = lake.psycopg(autocommit=False)
    holder.execute("LOCK TABLE iceberg_setting IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(CommitFailed, match="too long"), writing(opened) as conn:
        assert conn.execute("SHOW lock_timeout").fetchone() == ("10s",)
        conn.execute("SET LOCAL lock_timeout = '50ms'")
        conn.execute(INSERT_SETTING, {"key": "new"})


@pytest.mark.usefixtures("impatient")
def test_a_postgres_that_is_gone_is_said_so_and_found_again(lake: FreshLake) -> None:
    """The answer comes within the timeout; when Postgres is back the same pool works."""
    with wire_to(lake.dsn) as (wire, dsn), opening(dsn) as opened:
        with pytest.raises(ServiceUnavailable), reading(opened) as conn:
            read_position(conn)
            wire.cut()
            read_position(conn)
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable, match="does not answer"), reading(opened):
            raise AssertionError("there is no connection")
        assert time.monotonic() - began < 15
        wire.mend()
        wait_for(lambda: can_read(opened), "the pool to connect again")


@pytest.mark.whole
@pytest.mark.usefixtures("impatient")
def test_a_postgres_that_is_frozen_is_given_up_on(lake: FreshLake) -> None:
    """Neither a statement on its way nor an idle connection waits for a server that keeps the line open and is silent."""
    with wire_to(lake.dsn) as (wire, dsn), opening(dsn, timeout_s=1.0) as opened:
        began = time.monotonic()
        with pytest.raises(ServiceUnavailable, match="does not answer"), reading(opened) as conn:
            wire.freeze()
            read_position(conn)
        with pytest.raises(ServiceUnavailable, match="does not answer"), reading(opened):
            raise AssertionError("nobody answers")
        assert time.monotonic() - began < 30
        wire.thaw()
        wait_for(lambda: can_read(opened), "the pool to connect again")


def test_a_statement_has_its_time(lake: FreshLake) -> None:
    """Postgres itself ends one that takes longer; the connection is good for the next."""
    with opening(lake.dsn, timeout_s=0.2) as opened:
        with pytest.raises(ServiceUnavailable, match="postgres_timeout_s"), reading(opened) as conn:
            conn.execute("SELECT pg_sleep(60)")
        assert can_read(opened)


def can_read(opened: Lake) -> bool:
    """Whether Postgres answers."""
    try:
        with reading(opened) as conn:
            return read_position(conn).lake_snapshot_id == 0
    except ServiceUnavailable:
        return False


@pytest.mark.usefixtures("impatient")
def test_no_message_holds_a_secret(lake: FreshLake, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the answer nor what is logged meanwhile, nor what a lake looks like in a trace."""
    dsns = [
        make_conninfo(lake.dsn, password=PASSWORD),
        make_conninfo(lake.dsn, password=PASSWORD, dbname="nowhere"),
        make_conninfo(lake.dsn, password=PASSWORD, host="nowhere.invalid"),
        f"user=x password {PASSWORD}",
        f"postgresql://x:{PASSWORD}@127.0.0.1:port/lake",
    ]

    def ask(dsn: str) -> str:
        with opening(dsn) as opened, pytest.raises(ServiceUnavailable) as found, reading(opened):
            raise AssertionError("there is no connection")
        return f"{found.value} {opened}"

    with ThreadPoolExecutor(len(dsns)) as threads:
        told = list(threads.map(ask, dsns))
    assert PASSWORD not in "\n".join([*told, caplog.text])
    assert all("does not answer" in answer for answer in told)


@given(texts=st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
@example(texts=["null", "NULL", None, "", " ", "{}", "a,b", '"', "\\", "\\n", "\n", "\u2028", "it's", "{1,2}"])
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lists_of_texts_arrive_as_they_are(opened: Lake, texts: list[str | None]) -> None:
    """What has quotes, backslashes, control characters and words that mean something to Postgres, too."""
    with reading(opened) as conn:
        row = conn.execute("SELECT %(texts)s::text[]", {"texts": texts}).fetchone()
    assert row == (texts,)


@given(numbers=st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)), flags=st.lists(st.none() | st.booleans()))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lists_of_numbers_arrive_as_they_are(opened: Lake, numbers: list[int | None], flags: list[bool | None]) -> None:
    """Longs and booleans, NULL among them; an empty list is an empty array."""
    with reading(opened) as conn:
        row = conn.execute("SELECT %(numbers)s::bigint[], %(flags)s::boolean[]", {"numbers": numbers, "flags": flags}).fetchone()
    assert row == (numbers, flags)
