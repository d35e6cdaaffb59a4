"""The watch: one look-up for all, and never an answer older than the question."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import uvloop

import duckicelake.lake.watch
from duckicelake.errors import ServiceUnavailable
from duckicelake.lake.rows import Position
from duckicelake.lake.watch import Watch
from tests.lake.wire import wire_to
from tests.support.lakes import FreshLake

TERMINATE_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@asynccontextmanager
async def watching(lake: FreshLake, dsn: str | None = None) -> AsyncGenerator[Watch]:
    """A watch on the lake, closed at the end."""
    watch = Watch(dsn or lake.dsn, lake.metadata_schema)
    try:
        yield watch
    finally:
        await watch.close()


def add_snapshot(conn: psycopg.Connection, changes_made: str | None = 'created_view:"main"."v"') -> int:
    """Commit an empty lake snapshot; returns its id."""
    row = conn.execute(
        "INSERT INTO ducklake_snapshot SELECT max(snapshot_id) + 1, now(), 1, 1, 0 FROM ducklake_snapshot RETURNING snapshot_id"
    ).fetchone()
    assert row is not None
    conn.execute("INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (%s, %s)", [row[0], changes_made])
    return row[0]


def test_a_commit_acknowledged_before_the_question_is_in_the_answer(lake: FreshLake) -> None:
    """Whoever commits, and however many ask at the same time."""

    async def ask(watch: Watch) -> None:
        conn = await psycopg.AsyncConnection.connect(lake.dsn, autocommit=True, options=f"-c search_path={lake.metadata_schema}")
        async with conn:
            for _ in range(25):
                await conn.execute("INSERT INTO iceberg_change (kind) VALUES ('test')")
                row = await (await conn.execute("SELECT max(id) FROM iceberg_change")).fetchone()
                assert row is not None
                assert (await watch.position()).change_id >= row[0]

    async def story() -> None:
        async with watching(lake) as watch:
            await asyncio.gather(*(ask(watch) for _ in range(8)))
            assert 25 <= watch.check_count < 8 * 25

    asyncio.run(story())


def test_a_question_asked_during_a_check_gets_the_next_one(lake: FreshLake) -> None:
    """The running check may have read before the commit the question is about."""

    async def story() -> None:
        conn = lake.psycopg()
        with wire_to(lake.dsn) as (wire, dsn):
            async with watching(lake, dsn) as watch:
                await watch.position()
                wire.freeze()
                first = asyncio.create_task(watch.position())
                while watch.check_count < 2:
                    await asyncio.sleep(0)
                snapshot_id = add_snapshot(conn)
                others = [asyncio.create_task(watch.position()) for _ in range(100)]
                await asyncio.sleep(0)
                wire.thaw()
                await first
                assert {(await other).lake_snapshot_id for other in others} == {snapshot_id}
                assert watch.check_count == 3

    asyncio.run(story())


@pytest.mark.parametrize("callers", [1, 2, 200])
def test_all_who_ask_at_once_share_one_look_up(lake: FreshLake, callers: int) -> None:
    """However many there are."""

    async def story() -> None:
        async with watching(lake) as watch:
            assert set(await asyncio.gather(*(watch.position() for _ in range(callers)))) == {Position(0, 0)}
            assert watch.check_count <= 2

    asyncio.run(story())


def test_the_check_does_no_more_than_it_must(lake: FreshLake) -> None:
    """What did not move is not read again, and nothing is remembered of it."""

    async def story() -> None:
        async with watching(lake) as watch:
            before = await watch.position()
            for _ in range(5):
                assert await watch.position() == before
                assert watch.is_current(1, before)

    asyncio.run(story())


CHANGES_OF_T = {
    "an inlined insert": "INSERT INTO t VALUES (1)",
    "an insert": "INSERT INTO t SELECT range FROM range(100)",
    "an inlined delete": "DELETE FROM t WHERE i = 5",
    "a delete": "DELETE FROM t WHERE i BETWEEN 10 AND 60",
    "an update": "UPDATE t SET i = 70 WHERE i = 71",
    "a flush": "CALL ducklake_flush_inlined_data('lake')",
    "a rewrite": "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)",
    "a new column": "ALTER TABLE t ADD COLUMN c INTEGER",
    "a comment": "COMMENT ON TABLE t IS 'x'",
    "a column's comment": "COMMENT ON COLUMN t.i IS 'x'",
    "a partitioning": "ALTER TABLE t SET PARTITIONED BY (i)",
    "a sort order": "ALTER TABLE t SET SORTED BY (i ASC)",
    "a transaction": "BEGIN; CREATE TABLE another (i INTEGER); INSERT INTO t VALUES (1, 2); COMMIT",
    "a rename": "ALTER TABLE t RENAME TO t2",
    "a replacement": "CREATE OR REPLACE TABLE t2 (i INTEGER)",
}
CHANGES_OF_OTHERS = (
    "INSERT INTO u VALUES (1)",
    'CREATE TABLE "x,inserted_into_table:1,y" (i INTEGER)',
    "CREATE SCHEMA s",
    "CREATE VIEW v AS SELECT 1",
    "ALTER TABLE u RENAME TO u2",
)


def table_id(lake: FreshLake, name: str) -> int:
    """The id of a live table."""
    row = lake.psycopg().execute("SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL", [name]).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.whole
def test_a_table_is_current_until_duckdb_changes_it(lake: FreshLake) -> None:
    """Rows, columns, comments, names: each change ends what was read before, for that table alone."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("CREATE TABLE u (i INTEGER)")
    t, u = table_id(lake, "t"), table_id(lake, "u")

    async def story() -> None:
        async with watching(lake) as watch:
            await watch.position()
            for name, statement in CHANGES_OF_T.items():
                before = await watch.position()
                assert watch.is_current(t, before)
                session.execute(statement)
                after = await watch.position()
                assert not watch.is_current(t, before), name
                assert watch.is_current(t, after), name
                assert watch.is_current(u, before), name
            before = await watch.position()
            for statement in CHANGES_OF_OTHERS:
                session.execute(statement)
                await watch.position()
                assert watch.is_current(t, before), statement

    asyncio.run(story())


def test_a_postgres_that_was_restored_ends_what_was_read_before(lake: FreshLake) -> None:
    """Whichever of its two numbers went back: who may do what, and every table, are read again."""
    conn = lake.psycopg()

    async def story() -> None:
        async with watching(lake) as watch:
            await watch.position()
            add_snapshot(conn)
            conn.execute("INSERT INTO iceberg_change (kind) VALUES ('test')")
            for statement in ("DELETE FROM ducklake_snapshot WHERE snapshot_id = 1", "DELETE FROM iceberg_change"):
                before = await watch.position()
                assert watch.is_current(1, before) and watch.are_rules_current(before) and watch.are_locations_current(before)
                conn.execute(statement)
                after = await watch.position()
                assert not watch.is_current(1, before), statement
                assert not watch.are_rules_current(before), statement
                assert not watch.are_locations_current(before), statement
                assert watch.is_current(1, after) and watch.are_rules_current(after) and watch.are_locations_current(after)

    asyncio.run(story())


def test_a_table_that_comes_or_moves_may_take_anybodys_folder(lake: FreshLake) -> None:
    """Made, made and dropped again, or renamed; what else is done to tables, rows and columns takes none."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")

    async def story() -> None:
        async with watching(lake) as watch:
            for statement, are_locations_current in (
                ("INSERT INTO t VALUES (1)", True),
                ("ALTER TABLE t ADD COLUMN j INTEGER", True),
                ("CREATE TABLE u (i INTEGER)", False),
                ("CREATE TABLE v (i INTEGER); DROP TABLE v", False),
                ("ALTER TABLE t RENAME TO w", False),
                ("DROP TABLE u", True),
            ):
                before = await watch.position()
                session.execute(statement)
                after = await watch.position()
                assert watch.are_locations_current(before) is are_locations_current, statement
                assert watch.are_locations_current(after), statement

    asyncio.run(story())


def test_a_dropped_schema_takes_its_tables_along(lake: FreshLake) -> None:
    """No table of it is current any more."""
    session = lake.duckdb()
    session.execute("CREATE SCHEMA s")
    session.execute("CREATE TABLE s.t (i INTEGER)")
    t = table_id(lake, "t")

    async def story() -> None:
        async with watching(lake) as watch:
            before = await watch.position()
            session.execute("DROP SCHEMA s CASCADE")
            await watch.position()
            assert not watch.is_current(t, before)

    asyncio.run(story())


def test_expiry_and_notes_end_what_was_read_of_any_table(lake: FreshLake) -> None:
    """They make no lake snapshot, and may concern every table."""
    session, conn = lake.duckdb(), lake.psycopg()
    for name in ("t", "u"):
        session.execute(f"CREATE TABLE {name} (i INTEGER)")

    async def story() -> None:
        async with watching(lake) as watch:
            before = await watch.position()
            session.execute("CALL ducklake_expire_snapshots('lake', versions => [0])")
            after = await watch.position()
            assert after > before
            assert not any(watch.is_current(table, before) for table in (1, 2))
            assert all(watch.is_current(table, after) for table in (1, 2))
            conn.execute("INSERT INTO iceberg_change (kind, table_id) VALUES ('properties', 1)")
            await watch.position()
            assert not watch.is_current(1, after)

    asyncio.run(story())


@pytest.mark.parametrize("told", [pytest.param(None, id="null"), pytest.param("nothing", id="no row")])
def test_a_snapshot_that_does_not_say_what_it_changed_may_have_changed_anything(lake: FreshLake, told: str | None) -> None:
    """Another writer left it out, or it expired between two statements of the check."""

    async def story() -> None:
        conn = lake.psycopg()
        async with watching(lake) as watch:
            before = await watch.position()
            with conn.transaction():
                snapshot_id = add_snapshot(conn, None)
                if told is not None:
                    conn.execute("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = %s", [snapshot_id])
            after = await watch.position()
            assert not watch.is_current(1, before)
            assert watch.is_current(1, after)

    asyncio.run(story())


def test_it_does_not_remember_without_end(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many touched tables are all tables: more than it must is forgotten, never less."""
    monkeypatch.setattr(duckicelake.lake.watch, "MAX_REMEMBERED", 3)

    async def story() -> None:
        conn = lake.psycopg()
        async with watching(lake) as watch:
            for table in range(10):
                before = await watch.position()
                with conn.transaction():
                    add_snapshot(conn, f"inserted_into_table:{table}")
                after = await watch.position()
                assert not watch.is_current(table, before)
                assert watch.is_current(table, after)

    asyncio.run(story())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_it_connects_again(lake: FreshLake, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Its connection ends while nobody asks: the next question is answered over a new one, at once."""

    async def story() -> None:
        async with watching(lake) as watch:
            before = await watch.position()
            for _ in range(3):
                lake.psycopg().execute(TERMINATE_OTHERS)
                began = time.monotonic()
                assert await watch.position() == before
                assert time.monotonic() - began < duckicelake.lake.watch.CHECK_TIMEOUT_S

    run(story())


def test_a_postgres_that_is_gone_is_said_so_to_all_who_ask(lake: FreshLake) -> None:
    """Within the timeout, and everything works again when it is back."""

    async def story() -> None:
        with wire_to(lake.dsn) as (wire, dsn):
            async with watching(lake, dsn) as watch:
                before = await watch.position()
                wire.cut()
                for _ in range(2):
                    asked = await asyncio.gather(*(watch.position() for _ in range(20)), return_exceptions=True)
                    assert {type(answer) for answer in asked} == {ServiceUnavailable}
                wire.mend()
                assert await watch.position() == before

    asyncio.run(story())


def test_a_postgres_that_does_not_answer_is_waited_for_only_so_long(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that lives and says nothing is given up; the next question does not wait for it."""
    monkeypatch.setattr(duckicelake.lake.watch, "CHECK_TIMEOUT_S", 1.0)

    async def story() -> None:
        with wire_to(lake.dsn) as (wire, dsn):
            async with watching(lake, dsn) as watch:
                before = await watch.position()
                wire.freeze()
                began = time.monotonic()
                with pytest.raises(ServiceUnavailable):
                    await watch.position()
                assert time.monotonic() - began < 4
                wire.thaw()
                assert await watch.position() == before

    asyncio.run(story())


def test_who_gives_up_waiting_disturbs_nobody(lake: FreshLake) -> None:
    """A request that is cancelled leaves the check to the others, and no error that nobody hears."""

    async def story() -> list[dict[str, object]]:
        unheard: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        with wire_to(lake.dsn) as (wire, dsn):
            async with watching(lake, dsn) as watch:
                await watch.position()
                wire.freeze()
                asked = [asyncio.create_task(watch.position()) for _ in range(6)]
                await asyncio.sleep(0)
                for one in asked[::2]:
                    one.cancel()
                wire.thaw()
                answers = await asyncio.gather(*asked, return_exceptions=True)
                assert [type(answer) for answer in answers] == [asyncio.CancelledError, Position] * 3
                wire.cut()
                alone = asyncio.create_task(watch.position())
                await asyncio.sleep(0)
                alone.cancel()
                await asyncio.gather(alone, return_exceptions=True)
                wire.mend()
                await watch.position()
        gc.collect()
        return unheard

    assert asyncio.run(story()) == []


def test_nobody_waits_for_a_watch_that_is_closed(lake: FreshLake) -> None:
    """Those of the running check and those of the next are told, and whoever asks later too."""

    async def story() -> None:
        with wire_to(lake.dsn) as (wire, dsn):
            async with watching(lake, dsn) as watch:
                await watch.position()
                wire.freeze()
                first = asyncio.create_task(watch.position())
                while watch.check_count < 2:
                    await asyncio.sleep(0)
                second = asyncio.create_task(watch.position())
                await asyncio.sleep(0)
                wire.thaw()
                await watch.close()
                answers = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 30)
                assert [type(answer) for answer in answers] == [ServiceUnavailable, ServiceUnavailable]

    asyncio.run(story())
