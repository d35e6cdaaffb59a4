"""A lake's Postgres: one pool, two kinds of transaction, and SQLSTATE classes turned into our errors."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from duckicelake.errors import BadRequest, CatalogError, CommitFailed, Forbidden, ServiceUnavailable, Unsupported
from duckicelake.lake.install import format_search_path

BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
BEGIN_WRITING = "BEGIN ISOLATION LEVEL READ COMMITTED"
LIMIT_WAITS = "SET LOCAL lock_timeout = '10s'"

ERRORS_BY_SQLSTATE: dict[str, tuple[type[CatalogError], str]] = {
    "40": (CommitFailed, "Another transaction changed the same rows; try again."),
    "55P03": (CommitFailed, "Another transaction holds the lake's lock for too long; try again."),
    "42501": (Forbidden, "The server's Postgres role lacks a right on the lake; run `duckicelake check`."),
    "42P01": (Unsupported, "The lake misses a table; run `duckicelake init`, then `duckicelake check`."),
    "42703": (Unsupported, "The lake misses a column; run `duckicelake check`."),
    "3D": (ServiceUnavailable, "The lake's Postgres database does not exist."),
    "28": (ServiceUnavailable, "The lake's Postgres refuses the server's credentials."),
    "08": (ServiceUnavailable, "The lake's Postgres does not answer."),
    "53": (ServiceUnavailable, "The lake's Postgres is out of resources."),
    "57": (ServiceUnavailable, "The lake's Postgres is stopping or starting."),
    "58": (ServiceUnavailable, "The lake's Postgres has a disk or system error."),
}
"""By full SQLSTATE first, then by class."""


@dataclass(frozen=True, slots=True)
class Lake:
    """One DuckLake catalog: a Postgres schema reached through a pool of connections."""

    name: str
    metadata_schema: str
    dsn: str = field(repr=False)
    pool: ConnectionPool


def open_lake(name: str, dsn: str, metadata_schema: str, max_connections: int) -> Lake:
    """Return a lake whose pool connects in the background, so that a Postgres that is down delays nothing."""

    def configure(conn: psycopg.Connection) -> None:
        conn.execute(format_search_path(metadata_schema))
        conn.execute("SET TIME ZONE 'UTC'")

    pool: ConnectionPool[psycopg.Connection] = ConnectionPool(
        dsn,
        min_size=1,
        max_size=max_connections,
        open=False,
        configure=configure,
        kwargs={"autocommit": True, "connect_timeout": 5, "keepalives_idle": 5, "keepalives_interval": 2, "tcp_user_timeout": 10_000},
        timeout=5,
        reconnect_timeout=5,
        check=ConnectionPool.check_connection,
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
    with _transaction(lake, BEGIN_READING) as conn:
        yield conn


@contextmanager
def writing(lake: Lake) -> Generator[psycopg.Connection]:
    """One READ COMMITTED transaction that waits for locks only so long; committed at the end."""
    with _transaction(lake, BEGIN_WRITING) as conn:
        conn.execute(LIMIT_WAITS)
        yield conn


@contextmanager
def _transaction(lake: Lake, begin: str) -> Generator[psycopg.Connection]:
    with mapped_errors(lake.name), lake.pool.connection() as conn:
        conn.execute(begin.encode())
        try:
            yield conn
        except BaseException:
            if not conn.broken:
                conn.rollback()
            raise
        conn.commit()


@contextmanager
def mapped_errors(lake_name: str) -> Generator[None]:
    """Turn what psycopg raises into errors of ours; messages never carry a connection string."""
    try:
        yield
    except PoolTimeout as error:
        raise ServiceUnavailable(f"Lake {lake_name!r}: the lake's Postgres does not answer.") from error
    except psycopg.Error as error:
        kind, message = _find_error(error)
        raise kind(f"Lake {lake_name!r}: {message}") from error


def _find_error(error: psycopg.Error) -> tuple[type[CatalogError], str]:
    state = error.sqlstate
    if isinstance(error, psycopg.DataError):
        return (
            BadRequest,
            "The request holds a value that Postgres cannot store, such as a text with a NUL character or a number too large.",
        )
    if state is None:
        return ServiceUnavailable, "The lake's Postgres does not answer."
    found = ERRORS_BY_SQLSTATE.get(state) or ERRORS_BY_SQLSTATE.get(state[:2])
    return found or (Unsupported, f"Postgres refused a query (SQLSTATE {state}); run `duckicelake check`.")
