"""Turns between servers: those that commit to one table over and over take an advisory lock of Postgres, one after the other.

`app` opens one `ServerTurns` for each lake and branch, and `rest.routes.table_commits` uses it on the event loop. A commit that takes no
turn tries the same lock in its own transaction (`lake.writing.transaction`), to see if another server has the turn.

`rest.turns` orders the commits of one process; the one commit that has the process's turn asks for the server's. One connection holds all
turns of a process, and a turn that another server holds is asked for again and again. So no connection is held while waiting. Who waits
holds a second lock, which everybody must have for a moment before the turn: without it, a server that gives a turn back and wants
it again at once would always be first.

Law: a turn only saves work. A commit that does not get it in time, or loses the connection, goes on without it.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from time import monotonic

import psycopg

from duckicelake.lake.connect import CONNECT_OPTIONS

WAIT_MAX_S = 5.0
ASK_INTERVAL_S = 0.005
ASK_TIMEOUT_S = 2.0
HOLD_MAX_S = 0.1
KEPT_IDLE_S = 0.01
LOCK_CLASS = 1145654605
NEXT_CLASS = LOCK_CLASS + 1
"""The first keys of the advisory locks of turns and of those that are next, which separate them from those of other programs."""

# A CASE evaluates its conditions in order, and no further than needed.
SELECT_PLACE = """
SELECT CASE WHEN NOT pg_try_advisory_lock(%(next)s, %(key)s) THEN 'behind'
            WHEN NOT pg_try_advisory_lock(%(class)s, %(key)s) THEN 'next'
            WHEN pg_advisory_unlock(%(next)s, %(key)s) THEN 'taken' END
"""
SELECT_TAKEN = """
SELECT CASE WHEN NOT pg_try_advisory_lock(%(class)s, %(key)s) THEN 'next'
            WHEN pg_advisory_unlock(%(next)s, %(key)s) THEN 'taken'
            -- The second lock was lost with an earlier connection, and this one has the turn.
            ELSE 'taken' END
"""
SELECT_LEFT = "SELECT pg_advisory_unlock(%(next)s, %(key)s)::text"
SELECT_UNLOCKED = "SELECT pg_advisory_unlock(%(class)s, %(key)s)::text"


def compute_key(metadata_schema: str, table: str) -> int:
    """Return the second key of the advisory locks of a table."""
    return zlib.crc32(f"{metadata_schema}\0{table}".encode()) - 2**31


@dataclass(frozen=True, slots=True)
class KeptTurn:
    """A turn that the next commit of this process may take over, no later than `until`. The timer gives it back."""

    until: float
    timer: asyncio.TimerHandle


class ServerTurns:
    """The turns of one lake that this process holds. Used on the event loop only.

    `of_lake`: those of the lake if this is a branch of it, whose connection is used.
    """

    def __init__(self, dsn: str, metadata_schema: str, of_lake: "ServerTurns | None" = None) -> None:
        self._dsn = dsn
        self._metadata_schema = metadata_schema
        self._of_lake = of_lake
        self._conn: psycopg.AsyncConnection | None = None
        self._connecting = asyncio.Lock()
        self._kept: dict[int, KeptTurn] = {}
        self._releasing: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def turn(self, table: str) -> AsyncGenerator[bool]:
        """Hold the turn of a table, or go on without it if another server keeps it for too long.

        A turn is kept for a moment for the process's next commits, because the first one after another server's has to read the table
        again. Returns True if the turn was kept.
        """
        key = compute_key(self._metadata_schema, table)
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.timer.cancel()
        has_turn = kept is not None or await self._take(key)
        until = kept.until if kept is not None else monotonic() + HOLD_MAX_S
        try:
            yield kept is not None
        finally:
            if has_turn and monotonic() < until:
                timer = asyncio.get_running_loop().call_later(KEPT_IDLE_S, self._release_kept, key)
                self._kept[key] = KeptTurn(until, timer)
            elif has_turn:
                await self._ask(SELECT_UNLOCKED, key)

    async def close(self) -> None:
        """Give all turns back, and close the connection unless it is the lake's."""
        conn, self._conn = self._conn, None
        kept_turns, self._kept = self._kept, {}
        for key, kept in kept_turns.items():
            kept.timer.cancel()
            if self._of_lake is not None:
                await self._unlock(key)
        if conn is not None:
            with suppress(psycopg.Error):
                await conn.close()

    def _release_kept(self, key: int) -> None:
        """Give a turn back that no commit has taken over."""
        if self._kept.pop(key, None) is not None:
            task = asyncio.create_task(self._unlock(key))
            self._releasing.add(task)
            task.add_done_callback(self._releasing.discard)

    async def _unlock(self, key: int) -> None:
        await self._ask(SELECT_UNLOCKED, key)

    async def _take(self, key: int) -> bool:
        """Return True if the turn was taken, False if it did not come in time or the connection was lost."""
        until, place = monotonic() + WAIT_MAX_S, await self._ask(SELECT_PLACE, key)
        while place in ("behind", "next"):
            if monotonic() > until:
                if place == "next":
                    await self._ask(SELECT_LEFT, key)
                return False
            await asyncio.sleep(ASK_INTERVAL_S)
            place = await self._ask(SELECT_PLACE if place == "behind" else SELECT_TAKEN, key)
        return place == "taken"

    async def _ask(self, query: str, key: int) -> str | None:
        """Return the answer of Postgres, or None if there is none: then all turns are lost with the connection."""
        if self._of_lake is not None:
            return await self._of_lake._ask(query, key)
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                conn = await self._connect()
                cursor = await conn.execute(query.encode(), {"class": LOCK_CLASS, "next": NEXT_CLASS, "key": key})
                row = await cursor.fetchone()
                return None if row is None else row[0]
        except (psycopg.Error, OSError, TimeoutError):
            await self.close()
            return None

    async def _connect(self) -> psycopg.AsyncConnection:
        async with self._connecting:
            if self._conn is None or self._conn.closed:
                self._conn = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **CONNECT_OPTIONS)
            return self._conn
