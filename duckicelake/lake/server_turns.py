"""Turns between servers: those that commit to one table over and over take an advisory lock of Postgres, one after the other.

`rest.turns` orders the commits of one process; the one commit that has the process's turn asks for the server's. One connection holds all
turns of a process, and a turn that another server holds is asked for again and again. So no connection is held while waiting.

Law: a turn only saves work. A commit that does not get it in time, or loses the connection, goes on without it.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from time import monotonic

import psycopg

from duckicelake.lake.connect import CONNECT_OPTIONS

WAIT_MAX_S = 5.0
ASK_INTERVAL_S = 0.005
ASK_TIMEOUT_S = 2.0
LOCK_CLASS = 1145654605
"""The first key of the advisory locks, which separates them from those of other programs."""

SELECT_LOCKED = "SELECT pg_try_advisory_lock(%(class)s, %(key)s)"
SELECT_UNLOCKED = "SELECT pg_advisory_unlock(%(class)s, %(key)s)"


class ServerTurns:
    """The turns of one lake that this process holds. Used on the event loop only."""

    def __init__(self, dsn: str, metadata_schema: str) -> None:
        self._dsn = dsn
        self._metadata_schema = metadata_schema
        self._conn: psycopg.AsyncConnection | None = None
        self._connecting = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, table: str) -> AsyncGenerator[None]:
        """Hold the turn of a table, or go on without it if another server keeps it for too long."""
        key = zlib.crc32(f"{self._metadata_schema}\0{table}".encode()) - 2**31
        has_turn = await self._take(key)
        try:
            yield
        finally:
            if has_turn:
                await self._ask(SELECT_UNLOCKED, key)

    async def close(self) -> None:
        """Close the connection, which gives all turns back."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with suppress(psycopg.Error):
                await conn.close()

    async def _take(self, key: int) -> bool:
        until = monotonic() + WAIT_MAX_S
        while monotonic() < until:
            answer = await self._ask(SELECT_LOCKED, key)
            if answer is not False:
                return answer is True
            await asyncio.sleep(ASK_INTERVAL_S)
        return False

    async def _ask(self, query: str, key: int) -> bool | None:
        """Return the answer of Postgres, or None if there is none: then all turns are lost with the connection."""
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                conn = await self._connect()
                cursor = await conn.execute(query.encode(), {"class": LOCK_CLASS, "key": key})
                row = await cursor.fetchone()
                return bool(row and row[0])
        except (psycopg.Error, OSError, TimeoutError):
            await self.close()
            return None

    async def _connect(self) -> psycopg.AsyncConnection:
        async with self._connecting:
            if self._conn is None or self._conn.closed:
                self._conn = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **CONNECT_OPTIONS)
            return self._conn
