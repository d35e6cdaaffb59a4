"""Turns between servers: one at a time has a table's, and whoever cannot get it goes on without it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from duckicelake.lake import server_turns
from duckicelake.lake.server_turns import ServerTurns
from tests.support.lakes import FreshLake

ADVISORY = "FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"


@asynccontextmanager
async def opened(lake: FreshLake) -> AsyncGenerator[tuple[ServerTurns, ServerTurns]]:
    """The turns of two servers."""
    async with AsyncExitStack() as closing:
        both = ServerTurns(lake.dsn, lake.metadata_schema), ServerTurns(lake.dsn, lake.metadata_schema)
        for turns in both:
            closing.push_async_callback(turns.close)
        yield both


def test_a_turn_is_waited_for(lake: FreshLake) -> None:
    """Another table's is free meanwhile, and the other server gets it when it is given back."""

    async def play() -> list[str]:
        seen: list[str] = []
        async with opened(lake) as (first, second):

            async def wait() -> None:
                async with second.turn("main.t"):
                    seen.append("second")

            async with first.turn("main.t"):
                waiting = asyncio.create_task(wait())
                async with second.turn("main.u"), first.turn("main.v"):
                    seen.append("others")
                seen.append("first")
            await waiting
        return seen

    assert asyncio.run(play()) == ["others", "first", "second"]


def test_who_wants_the_turn_again_lets_the_other_one_go_first(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose clients never pause would else have it for ever, once it has kept it as long as it may."""
    monkeypatch.setattr(server_turns, "HOLD_MAX_S", 0.0)

    async def play() -> list[str]:
        seen: list[str] = []
        conn = lake.psycopg()
        async with opened(lake) as (first, second):

            async def take() -> None:
                async with second.turn("main.t"):
                    seen.append("second")

            async with first.turn("main.t"):
                waiting = asyncio.create_task(take())
                async with asyncio.timeout(30):
                    while conn.execute(f"SELECT count(*) {ADVISORY}").fetchall() != [(2,)]:
                        await asyncio.sleep(0)
            async with first.turn("main.t"):
                seen.append("first")
            await waiting
        return seen

    assert asyncio.run(play()) == ["second", "first"]


def test_a_turn_is_kept_for_the_next_commit(lake: FreshLake) -> None:
    """The server has not lost it in between, and gives it back when no commit comes."""

    async def play() -> list[bool]:
        async with opened(lake) as (first, second):
            async with first.turn("main.t") as once:
                pass
            async with first.turn("main.t") as again:
                pass
            async with second.turn("main.t") as other:
                pass
        return [once, again, other]

    assert asyncio.run(play()) == [False, True, False]


def test_a_turn_that_does_not_come_is_done_without(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stands still with a turn holds nobody up for ever."""
    monkeypatch.setattr(server_turns, "WAIT_MAX_S", 0.1)

    async def play() -> bool:
        async with opened(lake) as (first, second), first.turn("main.t"), second.turn("main.t"):
            return True

    assert asyncio.run(play())


def test_a_lost_connection_gives_the_turn_back(lake: FreshLake) -> None:
    """The other server gets it, and the one that lost it goes on."""

    async def play() -> bool:
        async with opened(lake) as (first, second), first.turn("main.t"):
            lake.psycopg().execute(f"SELECT pg_terminate_backend(pid) {ADVISORY}")
            async with second.turn("main.t"):
                return True

    assert asyncio.run(play())
    assert lake.psycopg().execute(f"SELECT count(*) {ADVISORY}").fetchall() == [(0,)]


def test_who_loses_the_connection_while_next_gives_the_turn_back(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table's question that is not answered in time closes the connection of all; the next one takes the turn, and holds it."""
    monkeypatch.setattr(server_turns, "HOLD_MAX_S", 0.0)
    conn, sleep = lake.psycopg(), asyncio.sleep

    async def play() -> tuple[object, object]:
        is_next, goes_on = asyncio.Event(), asyncio.Event()

        async def rest(seconds: float) -> None:
            if seconds == server_turns.ASK_INTERVAL_S:
                is_next.set()
                await goes_on.wait()
            await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", rest)
        async with opened(lake) as (first, second):

            async def take() -> object:
                async with second.turn("main.t"):
                    return conn.execute(f"SELECT count(*) {ADVISORY}").fetchall()

            async with first.turn("main.t"):
                waiting = asyncio.create_task(take())
                # It knows that it is next, and asks nothing when its connection is closed.
                async with asyncio.timeout(30):
                    await is_next.wait()
                assert conn.execute(f"SELECT count(*) {ADVISORY}").fetchall() == [(2,)]
                await second.close()
            goes_on.set()
            return await waiting, conn.execute(f"SELECT count(*) {ADVISORY}").fetchall()

    assert asyncio.run(play()) == ([(1,)], [(0,)])
