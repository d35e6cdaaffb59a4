"""Change detection for cached responses: one indexed look-up answers all requests that wait for it.

A request joins the *next* check, never the running one, which may have read before a commit that the request must see.
So every response includes all commits acknowledged before the request came.

`app` opens one for each lake and branch; `rest.layers.fast_paths` and the cache of access rules ask it on the event loop before they use a
cached answer. A lake's checks run there too, on one asynchronous autocommit connection outside of the pool; a branch's checks run on worker
threads, on connections of its pool. All only read.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
from psycopg import sql
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.lake.access_rules import RULE_KIND
from duckicelake.lake.changes import DATA_KINDS, parse_changes, touched_tables
from duckicelake.lake.connect import CONNECT_OPTIONS, Lake, mapped_errors, query_once
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

SELECT_NOTED_SINCE = """
SELECT id, table_id, kind FROM iceberg_change WHERE id > %(since)s AND id <= %(until)s
"""

SELECT_TABLES_SINCE = """
SELECT table_id, begin_snapshot FROM ducklake_table
 -- Created, renamed or moved: DuckDB's token for a rename has no id.
 WHERE begin_snapshot > %(since)s AND begin_snapshot <= %(until)s
"""

STATEMENT = "iceberg_watch"
MAX_REMEMBERED = 10_000
CHECK_TIMEOUT_S = 5.0
STOPPING = "The server is stopping."


@dataclass(frozen=True, slots=True)
class _News:
    """What happened between two positions: lake snapshots, notes without one, and tables that were made, renamed or moved."""

    changes: Sequence[tuple[int, str | None]] = ()
    noted: Sequence[tuple[int, int | None, str]] = ()
    tables: Sequence[tuple[int, int]] = ()


NO_NEWS = _News()


class Watch:
    """The change detection of one lake, on one connection of its own, inside one event loop.

    `branch`: the lake if it is a branch, whose checks run on connections of its pool, in threads: there may be many branches.
    """

    def __init__(self, dsn: str, metadata_schema: str, branch: Lake | None = None) -> None:
        self._dsn = dsn
        self._metadata_schema = metadata_schema
        self._branch = branch
        self._conn: psycopg.AsyncConnection | None = None
        self._connecting: asyncio.Task[psycopg.AsyncConnection] | None = None
        self._last_position: Position | None = None
        self._changed_tables: dict[int, int] = {}
        self._noted_tables: dict[int, int] = {}
        self._all_changed_at = Position(-1, -1)
        self._rules_changed_at = Position(-1, -1)
        self._locations_changed_at = Position(-1, -1)
        self._waiting: asyncio.Future[Position] | None = None
        self._running: asyncio.Task[None] | None = None
        self._abandoned: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.check_count = 0

    async def position(self) -> Position:
        """Return a position read after this call began.

        Raises: ServiceUnavailable: Postgres does not answer, or the server is stopping
        """
        if self._is_closed:
            raise ServiceUnavailable(STOPPING)
        future = self._waiting
        if future is None:
            future = self._waiting = asyncio.get_running_loop().create_future()
            if self._running is None:
                self._running = asyncio.create_task(self._run())
        return await asyncio.shield(future)

    def is_current(self, table_id: int, position: Position) -> bool:
        """Return True if, as of the last check, nothing that concerns the table happened after `position`."""
        return (
            self._has_reached(position)
            and _is_since(self._all_changed_at, position)
            and self._changed_tables.get(table_id, -1) <= position.lake_snapshot_id
            and self._noted_tables.get(table_id, -1) <= position.change_id
        )

    def are_rules_current(self, position: Position) -> bool:
        """Return True if, as of the last check, no access rule and no object's name changed after `position`."""
        return _is_since(self._rules_changed_at, position) and self._has_reached(position)

    def are_locations_current(self, position: Position) -> bool:
        """Return True if, as of the last check, no table was created or renamed after `position`: it might use another one's folder."""
        return _is_since(self._locations_changed_at, position) and self._has_reached(position)

    def _has_reached(self, position: Position) -> bool:
        """Return True if the last check saw at least this position; a restored Postgres may be behind it."""
        last = self._last_position
        return last is not None and position.lake_snapshot_id <= last.lake_snapshot_id and position.change_id <= last.change_id

    async def close(self) -> None:
        """Stop checking, fail all waiting requests, and close the connection."""
        self._is_closed = True
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self._cancel_connecting()
        await self._disconnect()
        if self._abandoned:
            await asyncio.wait(self._abandoned, timeout=CHECK_TIMEOUT_S)

    async def _run(self) -> None:
        future = None
        try:
            while (future := self._waiting) is not None:
                self._waiting = None
                try:
                    with mapped_errors(self._metadata_schema):
                        future.set_result(await self._check_in_time())
                except CatalogError as error:
                    await self._disconnect()
                    _fail(future, error)
                except (OSError, TimeoutError):
                    await self._disconnect()
                    _fail(future, ServiceUnavailable("The lake's Postgres does not answer."))
        finally:
            self._running = None
            for unanswered in (future, self._waiting):
                if unanswered is not None:
                    _fail(unanswered, ServiceUnavailable(STOPPING))
            self._waiting = None

    async def _check_in_time(self) -> Position:
        check = asyncio.create_task(self._check())
        try:
            await asyncio.wait({check}, timeout=CHECK_TIMEOUT_S)
        finally:
            if not check.done():
                # psycopg would cancel the query and wait for that, longer than the timeout.
                conn, self._conn = self._conn, None
                ending = asyncio.create_task(_end(check, conn))
                self._abandoned.add(ending)
                ending.add_done_callback(self._abandoned.discard)
        if not check.done():
            raise TimeoutError
        return check.result()

    async def _check(self) -> Position:
        if self._branch is not None:
            return await self._check_branch(self._branch)
        is_old = self._conn is not None or (self._connecting is not None and self._connecting.done())
        try:
            return await self._query_position(await self._connect())
        except psycopg.OperationalError:
            # A restarted Postgres has closed idle connections but accepts new ones, so try once more.
            if not is_old or (self._conn is not None and not self._conn.closed):
                raise
        return await self._query_position(await self._connect())

    async def _query_position(self, conn: psycopg.AsyncConnection) -> Position:
        self.check_count += 1
        now = Position(*await _execute_prepared(conn.pgconn, STATEMENT))
        if now != self._last_position:
            news = NO_NEWS if self._last_position is None or self._is_behind(now) else await _fetch_news(conn, self._last_position, now)
            self._record_changes(now, news)
        return now

    async def _check_branch(self, branch: Lake) -> Position:
        self.check_count += 1
        last = self._last_position
        now, news = await asyncio.to_thread(query_once, branch, partial(_read_news, last=last))
        if now != last:
            self._record_changes(now, news)
        return now

    def _is_behind(self, now: Position) -> bool:
        """Return True if what happened since the last check cannot be asked for: it was the first one, or Postgres was restored."""
        last = self._last_position
        return last is None or now.change_id < last.change_id or now.lake_snapshot_id < last.lake_snapshot_id

    def _record_changes(self, now: Position, news: "_News") -> None:
        last = self._last_position
        if last is None or self._is_behind(now):
            self._invalidate_all(now)
        else:
            self._record_own_changes(news.noted, now)
            self._add_changes(news.changes, news.tables)
            if news.tables:
                self._locations_changed_at = now
            if news.tables or any(change.kind not in DATA_KINDS for _, text in news.changes for change in parse_changes(text)):
                self._rules_changed_at = now
            is_complete = len(news.changes) == now.lake_snapshot_id - last.lake_snapshot_id
            if not is_complete or any(text is None for _, text in news.changes) or len(self._changed_tables) > MAX_REMEMBERED:
                self._invalidate_all(now)
        self._last_position = now

    def _record_own_changes(self, rows: Sequence[tuple[int, int | None, str]], now: Position) -> None:
        """Record which tables changed without a lake snapshot; a row without a table concerns all of them."""
        noted = [(id, table_id) for id, table_id, _ in rows]
        if any(kind == RULE_KIND for _, _, kind in rows):
            self._rules_changed_at = now
        if any(table_id is None for _, table_id in noted) or len(self._noted_tables) > MAX_REMEMBERED:
            self._invalidate_all(now)
        else:
            named = {table_id for _, table_id in noted if table_id is not None}
            self._noted_tables |= {table_id: max(id for id, other in noted if other == table_id) for table_id in named}

    def _add_changes(self, changes: Iterable[tuple[int, str | None]], tables: Iterable[tuple[int, int]]) -> None:
        named = [(table_id, snapshot_id) for snapshot_id, text in changes for table_id in touched_tables(text)]
        for table_id, snapshot_id in (*named, *tables):
            self._changed_tables[table_id] = max(snapshot_id, self._changed_tables.get(table_id, -1))

    def _invalidate_all(self, now: Position) -> None:
        self._changed_tables.clear()
        self._noted_tables.clear()
        self._all_changed_at = self._rules_changed_at = self._locations_changed_at = now

    async def _connect(self) -> psycopg.AsyncConnection:
        if self._conn is None or self._conn.broken or self._conn.closed:
            conn = await self._open_connection()
            try:
                await conn.execute(format_search_path(self._metadata_schema))
                await conn.execute(sql.SQL("PREPARE {} AS").format(sql.Identifier(STATEMENT)) + sql.SQL(SELECT_POSITION))
            except BaseException:
                await conn.close()
                raise
            self._conn = conn
        return self._conn

    async def _open_connection(self) -> psycopg.AsyncConnection:
        """Return a new connection. Connecting may take longer than one check, because a silent host may come before one that answers."""
        connecting = self._connecting
        if connecting is None or (connecting.done() and connecting.exception() is not None):
            connect = psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **CONNECT_OPTIONS)
            connecting = self._connecting = asyncio.create_task(connect)
        await asyncio.wait({connecting})
        self._connecting = None
        return connecting.result()

    async def _cancel_connecting(self) -> None:
        """Cancel a connection attempt that has not finished."""
        connecting, self._connecting = self._connecting, None
        if connecting is not None:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, psycopg.Error, OSError):
                await (await connecting).close()

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await conn.close()


def _list_spans(last: Position, now: Position) -> tuple[Mapping[str, int], Mapping[str, int] | None]:
    """Return the parameters of the queries for lake snapshots and for notes; None: there are no new notes."""
    noted = {"since": last.change_id, "until": now.change_id} if now.change_id != last.change_id else None
    return {"since": last.lake_snapshot_id, "until": now.lake_snapshot_id}, noted


async def _fetch_news(conn: psycopg.AsyncConnection, last: Position, now: Position) -> _News:
    span, notes = _list_spans(last, now)
    noted = [] if notes is None else await (await conn.execute(SELECT_NOTED_SINCE, notes)).fetchall()
    changes = await (await conn.execute(SELECT_CHANGES_SINCE, span)).fetchall()
    return _News(changes, noted, await (await conn.execute(SELECT_TABLES_SINCE, span)).fetchall())


def _read_news(conn: psycopg.Connection, last: Position | None) -> tuple[Position, _News]:
    """Return the position, and what happened since the last one, on a thread."""
    row = conn.execute(SELECT_POSITION).fetchone()
    assert row is not None
    now = Position(*(-1 if value is None else value for value in row))
    if last is None or now == last or now.change_id < last.change_id or now.lake_snapshot_id < last.lake_snapshot_id:
        return now, NO_NEWS
    span, notes = _list_spans(last, now)
    noted = [] if notes is None else conn.execute(SELECT_NOTED_SINCE, notes).fetchall()
    changes = conn.execute(SELECT_CHANGES_SINCE, span).fetchall()
    return now, _News(changes, noted, conn.execute(SELECT_TABLES_SINCE, span).fetchall())


async def _execute_prepared(pgconn: PGconn, name: str) -> Sequence[int]:
    """Return the integers in the only row of a prepared statement, at a quarter of the cost of psycopg's cursors."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()
    results: list[PGresult] = []

    def take() -> None:
        try:
            # uvloop calls this only once for a connection that was reset after it sent data: read the data first, then the end.
            for _ in range(2):
                pgconn.consume_input()
                while not pgconn.is_busy():
                    result = pgconn.get_result()
                    if result is None:
                        loop.remove_reader(socket)
                        answered.set_result(None)
                        return
                    results.append(result)
        except psycopg.Error as error:
            loop.remove_reader(socket)
            answered.set_exception(error)

    socket = pgconn.socket
    pgconn.send_query_prepared(name.encode(), None)
    while pgconn.flush():
        await asyncio.sleep(0)
    loop.add_reader(socket, take)
    try:
        await answered
    finally:
        loop.remove_reader(socket)
    failed = next((result for result in results if result.status != ExecStatus.TUPLES_OK), None)
    if failed is not None:
        raise error_from_result(failed)
    [result] = results
    return [int(result.get_value(0, column) or b"-1") for column in range(result.nfields)]


def _is_since(at: Position, position: Position) -> bool:
    return position.lake_snapshot_id >= at.lake_snapshot_id and position.change_id >= at.change_id


def _fail(future: asyncio.Future[Position], error: CatalogError) -> None:
    """Set an error on a future; read it back, so that asyncio does not log it if no request waits any more."""
    if not future.done():
        future.set_exception(error)
        future.exception()


async def _end(check: asyncio.Task[Position], conn: psycopg.AsyncConnection | None) -> None:
    check.cancel()
    with contextlib.suppress(asyncio.CancelledError, psycopg.Error, OSError):
        await check
    if conn is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            await conn.close()
