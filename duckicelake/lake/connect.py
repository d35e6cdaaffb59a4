"""Connections to a lake's Postgres: a pool, and one for all branches, transactions to read and to write, and the mapping from SQLSTATE to
`CatalogError`.

Operations of `catalog` open these transactions, in a server on threads of Starlette's pool or of the object checks, else in a command,
which may open them itself. Of `lake` only `access_rules`, `notes`, `readers`, `watch` and `writing.transaction` do; the others take the
connection. The threads of the audit log and of the webhook, and some operations of `catalog.repositories`, use connections outside the
pools.
"""

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

from duckicelake.errors import CatalogError, CommitFailed, Damaged, Forbidden, LakeBusy, LakeMoved, PostgresRefused, ServiceUnavailable
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.bulk_rows import tune_connection
from duckicelake.lake.install import format_search_path
from duckicelake.lake.lake_format import LakeFormat, get_format
from duckicelake.lake.writing.waiting_sessions import WaitingSessions

Result = TypeVar("Result")

POLL_S = 0.1
SILENCE_MAX_S = 5.0
"""The longest time a connection may stay silent before it counts as dead."""

CONNECT_OPTIONS: Mapping[str, Any] = {"connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "tcp_user_timeout": 10_000}
"""With these, a broken network path is noticed within seconds even while no query runs, and firewalls see no idle connection.

The connect timeout applies to each host of a connection string with several.
"""

SELECT_VERSION = "SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL"
"""Sent last of the statements that begin a transaction, in the same round trip: a migration of DuckLake makes no lake snapshot."""

CONNECTION_WAIT_S = 5.0
"""The longest time that a request waits for a connection of the pool."""

BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
LOCK_WAIT_S = 10.0
NEW_CONNECTION_TIMEOUT_S = 30.0
SET_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '10s'"
BEGIN_WRITING = b"BEGIN ISOLATION LEVEL READ COMMITTED; " + SET_LOCK_TIMEOUT.encode()

RETRYABLE_ERRORS = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
ALIVE_ERRORS = (*RETRYABLE_ERRORS, psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""Errors that a live Postgres may return for the first statement of a transaction."""

ERRORS_BY_SQLSTATE: dict[str, tuple[type[CatalogError], str]] = {
    "25006": (ServiceUnavailable, "The lake's Postgres does not accept writes: it is a standby, or was made read-only."),
    "25P03": (ServiceUnavailable, "The lake's Postgres ended a transaction that was idle for too long."),
    "25P04": (ServiceUnavailable, "The lake's Postgres ended a transaction that took too long."),
    "40": (CommitFailed, "Another transaction changed the same rows; try again."),
    "55P03": (CommitFailed, "Another transaction holds the lake's lock for too long; try again."),
    "42501": (Forbidden, "The server's Postgres role lacks a right on the lake; run `duckicelake check`."),
    "42P01": (PostgresRefused, "The lake lacks a table; run `duckicelake init`, then `duckicelake check`."),
    "42703": (PostgresRefused, "The lake lacks a column; run `duckicelake check`."),
    "3D": (ServiceUnavailable, "The lake's Postgres database does not exist."),
    "28": (ServiceUnavailable, "The lake's Postgres refuses the server's credentials."),
    "08": (ServiceUnavailable, "The lake's Postgres does not answer."),
    "53100": (ServiceUnavailable, "The disk of the lake's Postgres is full."),
    "53": (ServiceUnavailable, "The lake's Postgres is out of resources."),
    "57014": (ServiceUnavailable, "A query of the lake's Postgres took longer than `postgres_timeout_s` allows."),
    "57": (ServiceUnavailable, "The lake's Postgres is stopping or starting."),
    "58": (ServiceUnavailable, "The lake's Postgres has a disk or system error."),
}
"""Looked up by the full SQLSTATE first, then by its class."""


class LakeConnection(psycopg.Connection):
    """A connection that is closed when Postgres neither answers nor hangs up within `timeout_s`."""

    timeout_s = math.inf
    schema = ""
    """The metadata schema that unqualified names mean."""

    def wait(self, gen: PQGen[Result], interval: float = POLL_S, timeout: float | None = None) -> Result:
        """Return what Postgres sends. Raises: psycopg.OperationalError: no answer came within `timeout_s`."""
        limit = self.timeout_s if timeout is None else timeout
        try:
            return super().wait(gen, interval, None if math.isinf(limit) else limit)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                self.close()
            raise


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The idempotency key of a client's request, and a fingerprint of the request's content."""

    key: UUID
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Lake:
    """One DuckLake catalog: a Postgres schema reached through a pool of connections.

    `request` identifies the request that the lake is used for; `audit_context` names the principal in the audit log.
    `branch_pool` is the pool of all branches of the lake, which is opened with the first; None: this is a branch, whose pool is that one.
    """

    name: str
    metadata_schema: str
    dsn: str = field(repr=False)
    pool: ConnectionPool[LakeConnection]
    branch_pool: ConnectionPool[LakeConnection] | None = None
    request: RequestKey | None = None
    audit_context: AuditContext | None = None
    waiting_sessions: WaitingSessions = field(default_factory=WaitingSessions)


MAX_BRANCH_CONNECTIONS = 24


def open_lake(name: str, dsn: str, metadata_schema: str, max_connections: int, timeout_s: float = math.inf) -> Lake:
    """Return a lake whose pool connects in the background, so that an unavailable Postgres does not delay the start.

    Units: `timeout_s` limits one statement, by Postgres' clock; the client waits `SILENCE_MAX_S` longer before it closes the connection
    """
    pool = _build_pool(f"lake-{name}", dsn, metadata_schema, timeout_s, (1, max_connections))
    pool.open(wait=False)
    branch_pool = _build_pool(f"branches-{name}", dsn, metadata_schema, timeout_s, (0, MAX_BRANCH_CONNECTIONS))
    return Lake(name, metadata_schema, dsn, pool, branch_pool)


def open_branch(parent: Lake, name: str, metadata_schema: str) -> Lake:
    """Return a branch of a lake. All branches share one pool, so that connections belong to the server and not to the branch."""
    assert parent.branch_pool is not None
    parent.branch_pool.open(wait=False)
    return Lake(name, metadata_schema, parent.dsn, parent.branch_pool)


def _build_pool(name: str, dsn: str, metadata_schema: str, timeout_s: float, sizes: tuple[int, int]) -> ConnectionPool[LakeConnection]:
    """Return a pool that is not open yet; `sizes` are the least and the largest number of connections."""
    is_shared = not sizes[0]

    def configure(conn: LakeConnection) -> None:
        conn.timeout_s = timeout_s + SILENCE_MAX_S
        conn.schema = metadata_schema
        if is_shared:
            # The types of a prepared statement's columns must not change, and those of a branch's views differ from those of tables.
            conn.prepare_threshold = None
        settings = [format_search_path(metadata_schema), sql.SQL("SET TIME ZONE 'UTC'")]
        if not math.isinf(timeout_s):
            settings.append(sql.SQL("SET statement_timeout = {}").format(math.ceil(timeout_s * 1000)))
        tune_connection(conn, *settings)

    return ConnectionPool(
        dsn,
        connection_class=LakeConnection,
        min_size=sizes[0],
        max_size=sizes[1],
        open=False,
        configure=configure,
        kwargs={"autocommit": True, **CONNECT_OPTIONS},
        timeout=CONNECTION_WAIT_S,
        reconnect_timeout=5,
        name=name,
    )


def close_lake(lake: Lake) -> None:
    """Close all connections to Postgres, those of branches too. Those that a branch has used stay in the pool of all branches."""
    if lake.branch_pool is not None:
        lake.pool.close(timeout=5)
        lake.branch_pool.close(timeout=5)


@contextmanager
def reading(lake: Lake) -> Generator[psycopg.Connection]:
    """Open a REPEATABLE READ, READ ONLY transaction: all queries in it see one state of the lake."""
    with _transaction(lake, BEGIN_READING) as conn, _mapped_read_conflicts(lake.name):
        yield conn


@contextmanager
def writing(lake: Lake) -> Generator[psycopg.Connection]:
    """Open a READ COMMITTED transaction with a lock timeout; it commits at the end of the block."""
    with _transaction(lake, BEGIN_WRITING) as conn:
        yield conn


@contextmanager
def writing_on_new_connection(lake: Lake) -> Generator[psycopg.Connection]:
    """Open a transaction on a connection outside the pool, for work that may wait without taking a connection from requests."""
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
    with mapped_errors(lake.name), open_transaction(lake, b"; ".join((begin, SELECT_VERSION.encode()))) as (conn, _):
        yield conn
        conn.commit()


@contextmanager
def open_transaction(lake: Lake, begin: bytes, waits_s: float = 0.0) -> Generator[tuple[psycopg.Connection, LakeFormat]]:
    """Open a transaction with `begin`, and return the lake's format in it; the caller commits, any error rolls back.

    The last statement of `begin` must return the lake's version of DuckLake.
    A connection on which Postgres does not begin the transaction within seconds (plus `waits_s` for a lock) is closed and replaced.
    Raises: PoolTimeout: no live connection is available. psycopg.errors.LockNotAvailable, DeadlockDetected: the lock was not granted.
    Unsupported: this catalog does not serve the lake's version of DuckLake
    """
    conn, version = _get_live_connection(lake, lambda conn: read_version(conn, begin), waits_s)
    try:
        yield conn, get_format(version)
    except BaseException:
        if not conn.closed:
            conn.rollback()
        raise
    finally:
        lake.pool.putconn(conn)


def read_version(conn: psycopg.Connection, statements: bytes) -> str | None:
    """Run statements of which the last one selects the lake's version of DuckLake, and return the version."""
    cursor = conn.execute(statements)
    while cursor.nextset():
        pass
    row = cursor.fetchone()
    return None if row is None else row[0]


def read_format(conn: psycopg.Connection) -> LakeFormat:
    """Return the lake's format in a transaction. Raises: Unsupported: this catalog does not serve the version"""
    return get_format(read_version(conn, SELECT_VERSION.encode()))


def query_once(lake: Lake, query: Callable[[psycopg.Connection], Result]) -> Result:
    """Return the result of one small query that needs no transaction of its own."""
    with mapped_errors(lake.name), _mapped_read_conflicts(lake.name):
        conn, result = _get_live_connection(lake, query)
        lake.pool.putconn(conn)
        return result


@contextmanager
def _mapped_read_conflicts(lake_name: str) -> Generator[None]:
    """Turn conflicts of read-only transactions into LakeMoved: a concurrent DROP, or the replay on a standby, caused them."""
    try:
        yield
    except RETRYABLE_ERRORS as error:
        raise LakeMoved(f"Lake {lake_name!r}: what was being read was changed meanwhile; try again.") from error


def _get_live_connection(lake: Lake, query: Callable[[psycopg.Connection], Result], waits_s: float = 0.0) -> tuple[LakeConnection, Result]:
    """Return a connection and the result of a first query on it; a dead connection is closed and the next one tried."""
    pool = lake.pool
    deadline = monotonic() + pool.timeout
    while True:
        conn = pool.getconn(max(0.0, deadline - monotonic()))
        usual_timeout_s, conn.timeout_s = conn.timeout_s, SILENCE_MAX_S + waits_s
        try:
            if conn.schema != lake.metadata_schema:
                conn.schema = ""
                conn.execute(format_search_path(lake.metadata_schema))
                conn.schema = lake.metadata_schema
            result = query(conn)
        except ALIVE_ERRORS:
            conn.timeout_s = usual_timeout_s
            conn.rollback()
            pool.putconn(conn)
            raise
        except psycopg.OperationalError:
            conn.close()
            pool.putconn(conn)
            if monotonic() > deadline:
                raise
        except BaseException:
            # The query's result could not be used; the connection itself is fine.
            conn.timeout_s = usual_timeout_s
            pool.putconn(conn)
            raise
        else:
            conn.timeout_s = usual_timeout_s
            return conn, result


@contextmanager
def connecting(lake: Lake) -> Generator[psycopg.Connection]:
    """Yield a connection outside the pool, for work that changes its settings. The caller begins transactions, which are READ COMMITTED.

    Raises: ServiceUnavailable, Forbidden
    """
    with mapped_errors(lake.name), psycopg.connect(lake.dsn, autocommit=True, **CONNECT_OPTIONS) as conn:
        conn.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        conn.execute(format_search_path(lake.metadata_schema))
        yield conn


@contextmanager
def in_transaction(conn: psycopg.Connection) -> Generator[None]:
    """A transaction, or a savepoint, which an error rolls back; the connection is one of `connecting` or in a transaction of `writing`.

    Raises: LakeBusy: another session held a lock for ten seconds, or waited for one of this transaction
    """
    try:
        with conn.transaction():
            conn.execute(SET_LOCK_TIMEOUT)
            yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
        raise LakeBusy("Another session holds what this request changes; nothing was done. Try again.") from error


@contextmanager
def mapped_errors(lake_name: str) -> Generator[None]:
    """Turn psycopg's errors into `CatalogError`s whose messages never contain a connection string."""
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
    mapped = ERRORS_BY_SQLSTATE.get(state) or ERRORS_BY_SQLSTATE.get(state[:2])
    return mapped or (PostgresRefused, f"Postgres refused a query (SQLSTATE {state}); run `duckicelake check`.")
