"""A lake's Postgres: one pool, two kinds of transaction, and SQLSTATE classes turned into our errors."""

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from duckicelake.errors import CatalogError, CommitFailed, Damaged, Forbidden, LakeMoved, PostgresRefused, ServiceUnavailable
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.bulk_rows import tune_connection
from duckicelake.lake.install import check_version, format_search_path
from duckicelake.lake.writing.waiting_sessions import WaitingSessions

Result = TypeVar("Result")

POLL_S = 0.1
SILENCE_MAX_S = 5.0
"""How long an idle connection may keep silent before it counts as dead."""

CONNECT_OPTIONS: Mapping[str, Any] = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "tcp_user_timeout": 10_000}
"""A line that drops what is sent over it is noticed within seconds, also while nothing is asked, and none is idle to firewalls.

Of several hosts in a connection string each has these seconds.
"""

SELECT_VERSION = "SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL"
"""Last of the statements that begin a transaction, in their round trip: a migration makes no lake snapshot that would tell of it."""

BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
LOCK_WAIT_S = 10.0
NEW_CONNECTION_TIMEOUT_S = 30.0
BEGIN_WRITING = b"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '10s'"

RETRYABLE_ERRORS = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
ALIVE_ERRORS = (*RETRYABLE_ERRORS, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""What a Postgres that is alive may say to the first statement of a transaction."""

ERRORS_BY_SQLSTATE: dict[str, tuple[type[CatalogError], str]] = {
    "25006": (ServiceUnavailable, "The lake's Postgres lets nothing be written: it is a standby, or was made read-only."),
    "25P03": (ServiceUnavailable, "The lake's Postgres ended a transaction that was idle for too long."),
    "25P04": (ServiceUnavailable, "The lake's Postgres ended a transaction that took too long."),
    "40": (CommitFailed, "Another transaction changed the same rows; try again."),
    "55P03": (CommitFailed, "Another transaction holds the lake's lock for too long; try again."),
    "42501": (Forbidden, "The server's Postgres role lacks a right on the lake; run `duckicelake check`."),
    "42P01": (PostgresRefused, "The lake misses a table; run `duckicelake init`, then `duckicelake check`."),
    "42703": (PostgresRefused, "The lake misses a column; run `duckicelake check`."),
    "3D": (ServiceUnavailable, "The lake's Postgres database does not exist."),
    "28": (ServiceUnavailable, "The lake's Postgres refuses the server's credentials."),
    "08": (ServiceUnavailable, "The lake's Postgres does not answer."),
    "53100": (ServiceUnavailable, "The disk of the lake's Postgres is full."),
    "53": (ServiceUnavailable, "The lake's Postgres is out of resources."),
    "57014": (ServiceUnavailable, "A query of the lake's Postgres took longer than `postgres_timeout_s` allows."),
    "57": (ServiceUnavailable, "The lake's Postgres is stopping or starting."),
    "58": (ServiceUnavailable, "The lake's Postgres has a disk or system error."),
}
"""By full SQLSTATE first, then by class."""


class LakeConnection(psycopg.Connection):
    """A connection that gives up on a Postgres that neither answers nor hangs up, and is closed then."""

    timeout_s = math.inf

    def wait(self, gen: PQGen[Result], interval: float = POLL_S, timeout: float | None = None) -> Result:
        """Return what the server sends. Raises: psycopg.OperationalError: nothing came within `timeout_s`."""
        limit = self.timeout_s if timeout is None else timeout
        try:
            return super().wait(gen, interval, None if math.isinf(limit) else limit)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What tells a client's request from all others; the fingerprint is of what it asks."""

    key: UUID
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Lake:
    """One DuckLake catalog: a Postgres schema reached through a pool of connections.

    `request` is what it is used for, and `audit_context` who is named in the record of what is changed.
    """

    name: str
    metadata_schema: str
    dsn: str = field(repr=False)
    pool: ConnectionPool[LakeConnection]
    request: RequestKey | None = None
    audit_context: AuditContext | None = None
    waiting_sessions: WaitingSessions = field(default_factory=WaitingSessions)


def open_lake(name: str, dsn: str, metadata_schema: str, max_connections: int, timeout_s: float = math.inf) -> Lake:
    """Return a lake whose pool connects in the background, so that a Postgres that is down delays nothing.

    Units: `timeout_s` is what one statement may take, by Postgres' clock; a Postgres that is frozen is given little more
    """

    def configure(conn: LakeConnection) -> None:
        conn.timeout_s = timeout_s + SILENCE_MAX_S
        settings = [format_search_path(metadata_schema), sql.SQL("SET TIME ZONE 'UTC'")]
        if not math.isinf(timeout_s):
            settings.append(sql.SQL("SET statement_timeout = {}").format(math.ceil(timeout_s * 1000)))
        tune_connection(conn, *settings)

    pool: ConnectionPool[LakeConnection] = ConnectionPool(
        dsn,
        connection_class=LakeConnection,
        min_size=1,
        max_size=max_connections,
        open=False,
        configure=configure,
        kwargs={"autocommit": True, **CONNECT_OPTIONS},
        timeout=5,
        reconnect_timeout=5,
        name=f"lake-{name}",
    )
    pool.open(wait=False)
    return Lake(name, metadata_schema, dsn, pool)


def close_lake(lake: Lake) -> None:
    """Give all connections back to Postgres."""
    lake.pool.close(timeout=5)


@contextmanager
def reading(lake: Lake) -> Generator[psycopg.Connection]:
    """One REPEATABLE READ, READ ONLY transaction: everything read on it is one state of the lake."""
    with _transaction(lake, BEGIN_READING) as conn, _mapped_read_conflicts(lake.name):
        yield conn


@contextmanager
def writing(lake: Lake) -> Generator[psycopg.Connection]:
    """One READ COMMITTED transaction that waits for locks only so long; committed at the end."""
    with _transaction(lake, BEGIN_WRITING) as conn:
        yield conn


@contextmanager
def writing_on_new_connection(lake: Lake) -> Generator[psycopg.Connection]:
    """The same on a connection of its own, which none of those is missing that answer requests; for what may wait."""
    with mapped_errors(lake.name), LakeConnection.connect(lake.dsn, **CONNECT_OPTIONS) as conn:
        conn.timeout_s = NEW_CONNECTION_TIMEOUT_S + SILENCE_MAX_S
        tune_connection(
            conn,
            format_search_path(lake.metadata_schema),
            sql.SQL("SET statement_timeout = {}").format(math.ceil(NEW_CONNECTION_TIMEOUT_S * 1000)),
        )
        yield conn


@contextmanager
def _transaction(lake: Lake, begin: bytes) -> Generator[psycopg.Connection]:
    with mapped_errors(lake.name), open_transaction(lake, b"; ".join((begin, SELECT_VERSION.encode()))) as conn:
        yield conn
        conn.commit()


@contextmanager
def open_transaction(lake: Lake, begin: bytes, waits_s: float = 0.0) -> Generator[psycopg.Connection]:
    """A connection in a transaction just begun, rolled back by any error; whoever asks for it commits.

    The last statement of `begin` returns the lake's version of DuckLake.
    That Postgres begins it within seconds, after `waits_s` for a lock, shows that the connection is alive; those that are not are closed.
    Raises: PoolTimeout: no live connection is to be had. psycopg.errors.LockNotAvailable, DeadlockDetected: nor the lock.
    Unsupported: the lake has another version of DuckLake by now
    """
    conn, version = _get_live_connection(lake.pool, lambda conn: read_version(conn, begin), waits_s)
    try:
        check_version(version)
        yield conn
    except BaseException:
        if not conn.closed:
            conn.rollback()
        raise
    finally:
        lake.pool.putconn(conn)


def read_version(conn: psycopg.Connection, statements: bytes) -> str | None:
    """Run statements of which the last one selects the lake's version of DuckLake, and return that."""
    cursor = conn.execute(statements)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    return None if row is None else row[0]


def query_once(lake: Lake, ask: Callable[[psycopg.Connection], Result]) -> Result:
    """Return what one small statement finds, which needs no transaction to see one state of the lake."""
    with mapped_errors(lake.name), _mapped_read_conflicts(lake.name):
        conn, found = _get_live_connection(lake.pool, ask)
        lake.pool.putconn(conn)
        return found


@contextmanager
def _mapped_read_conflicts(lake_name: str) -> Generator[None]:
    """Who only reads commits nothing: somebody who drops tables was in the way, or the primary of a standby."""
    try:
        yield
    except RETRYABLE_ERRORS as error:
        raise LakeMoved(f"Lake {lake_name!r}: what was being read was changed meanwhile; try again.") from error


def _get_live_connection(
    pool: ConnectionPool[LakeConnection], ask: Callable[[psycopg.Connection], Result], waits_s: float = 0.0
) -> tuple[LakeConnection, Result]:
    """Return a connection with its answer, within seconds, to a first statement: one that is dead is closed, another tried."""
    ends = monotonic() + pool.timeout
    while True:
        conn = pool.getconn(max(0.0, ends - monotonic()))
        usual, conn.timeout_s = conn.timeout_s, SILENCE_MAX_S + waits_s
        try:
            found = ask(conn)
        except ALIVE_ERRORS:
            conn.timeout_s = usual
            conn.rollback()
            pool.putconn(conn)
            raise
        except psycopg.OperationalError:
            conn.close()
            pool.putconn(conn)
            if monotonic() > ends:
                raise
        except BaseException:
            # an answer was taken badly: the connection is as good as before
            conn.timeout_s = usual
            pool.putconn(conn)
            raise
        else:
            conn.timeout_s = usual
            return conn, found


@contextmanager
def mapped_errors(lake_name: str) -> Generator[None]:
    """Turn what psycopg raises into errors of ours; messages never carry a connection string."""
    try:
        yield
    except PoolTimeout as error:
        raise ServiceUnavailable(f"Lake {lake_name!r}: the lake's Postgres does not answer.") from error
    except psycopg.Error as error:
        kind, message = _map_error(error)
        raise kind(f"Lake {lake_name!r}: {message}") from error


def _map_error(error: psycopg.Error) -> tuple[type[CatalogError], str]:
    state = error.sqlstate
    if isinstance(error, psycopg.DataError) and state is None:
        return Damaged, "A row of the lake holds a value that cannot be read; run `duckicelake check`."
    if state is None:
        return ServiceUnavailable, "The lake's Postgres does not answer."
    found = ERRORS_BY_SQLSTATE.get(state) or ERRORS_BY_SQLSTATE.get(state[:2])
    return found or (PostgresRefused, f"Postgres refused a query (SQLSTATE {state}); run `duckicelake check`.")
