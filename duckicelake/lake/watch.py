"""Has anything changed? One indexed look-up answers every request that waits for it.

A request joins the *next* check, never the one already running: that one may have read before the
commit the request must see. So every answer shows all commits acknowledged before the request came.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import psycopg

from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.lake.changes import touched_tables
from duckicelake.lake.connect import mapped_errors
from duckicelake.lake.install import format_search_path
from duckicelake.lake.rows import Position

SELECT_POSITION = """
SELECT (SELECT max(snapshot_id) FROM ducklake_snapshot), (SELECT coalesce(max(id), 0) FROM iceberg_change)
"""

SELECT_CHANGES_SINCE = """
SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes
 WHERE snapshot_id > %(since)s AND snapshot_id <= %(until)s
 ORDER BY snapshot_id
"""

SELECT_TABLES_SINCE = """
SELECT table_id, begin_snapshot FROM ducklake_table
 -- created, renamed or moved: DuckDB's token for a rename names no id
 WHERE begin_snapshot > %(since)s AND begin_snapshot <= %(until)s
"""

MAX_REMEMBERED = 10_000
CHECK_TIMEOUT_S = 5.0


class Watch:
    """Watches one lake on one connection of its own, inside one event loop."""

    def __init__(self, dsn: str, metadata_schema: str) -> None:
        self._dsn = dsn
        self._metadata_schema = metadata_schema
        self._conn: psycopg.AsyncConnection | None = None
        self._seen: Position | None = None
        self._touched: dict[int, int] = {}
        self._all_touched_at = Position(-1, -1)
        self._waiting: asyncio.Future[Position] | None = None
        self._running: asyncio.Task[None] | None = None
        self.check_count = 0

    async def position(self) -> Position:
        """Return a position read after this call began.

        Raises: ServiceUnavailable: Postgres does not answer
        """
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = asyncio.get_running_loop().create_future()
            if self._running is None:
                self._running = asyncio.create_task(self._run())
        return await asyncio.shield(waiting)

    def is_current(self, table_id: int, position: Position) -> bool:
        """Tell whether nothing that concerns the table happened after `position`, as of the last check."""
        return (
            position.lake_snapshot_id >= self._all_touched_at.lake_snapshot_id
            and position.change_id >= self._all_touched_at.change_id
            and self._touched.get(table_id, -1) <= position.lake_snapshot_id
        )

    async def close(self) -> None:
        """Stop checking and close the connection."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        if self._conn is not None:
            await self._conn.close()

    async def _run(self) -> None:
        try:
            while (waiting := self._waiting) is not None:
                self._waiting = None
                try:
                    with mapped_errors(self._metadata_schema):
                        waiting.set_result(await asyncio.wait_for(self._check(), CHECK_TIMEOUT_S))
                except CatalogError as error:
                    await self._disconnect()
                    waiting.set_exception(error)
                except (OSError, TimeoutError):
                    await self._disconnect()
                    waiting.set_exception(ServiceUnavailable("The lake's Postgres does not answer."))
                except BaseException:
                    waiting.cancel()
                    raise
        finally:
            self._running = None

    async def _check(self) -> Position:
        conn = await self._connect()
        self.check_count += 1
        row = await (await conn.execute(SELECT_POSITION, prepare=True)).fetchone()
        assert row is not None
        now = Position(row[0], row[1])
        if now != self._seen:
            await self._learn(conn, now)
        return now

    async def _learn(self, conn: psycopg.AsyncConnection, now: Position) -> None:
        seen = self._seen
        if seen is None or now.change_id != seen.change_id or now.lake_snapshot_id < seen.lake_snapshot_id:
            self._touch_all(now)
        else:
            span = {"since": seen.lake_snapshot_id, "until": now.lake_snapshot_id}
            changes = await (await conn.execute(SELECT_CHANGES_SINCE, span)).fetchall()
            tables = await (await conn.execute(SELECT_TABLES_SINCE, span)).fetchall()
            self._touch(changes, tables)
            if any(text is None for _, text in changes) or len(self._touched) > MAX_REMEMBERED:
                self._touch_all(now)
        self._seen = now

    def _touch(self, changes: Iterable[tuple[int, str | None]], tables: Iterable[tuple[int, int]]) -> None:
        named = [(table_id, snapshot_id) for snapshot_id, text in changes for table_id in touched_tables(text)]
        for table_id, snapshot_id in (*named, *tables):
            self._touched[table_id] = max(snapshot_id, self._touched.get(table_id, -1))

    def _touch_all(self, now: Position) -> None:
        self._touched.clear()
        self._all_touched_at = now

    async def _connect(self) -> psycopg.AsyncConnection:
        if self._conn is None or self._conn.broken or self._conn.closed:
            self._conn = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, connect_timeout=5)
            await self._conn.execute(format_search_path(self._metadata_schema))
        return self._conn

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()
