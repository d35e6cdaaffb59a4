"""The one transaction of a commit: locked against every other committer, DuckDB's included."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from duckicelake.errors import BadRequest, CommitFailed, CommitStateUnknown, LakeBusy
from duckicelake.lake.connect import BEGIN_WRITING, Lake, begun, mapped_errors
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.writing.idempotency import claim
from duckicelake.lake.writing.pacing import Others
from duckicelake.lake.writing.rows import LakeHead

LOCK_LAKE = "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"

SELECT_HEAD = """
SELECT snapshot_id, schema_version, next_catalog_id, next_file_id
  FROM ducklake_snapshot
 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
"""


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction that holds the lake's lock, and the head it found: nobody commits until it ends."""

    conn: psycopg.Connection
    head: LakeHead
    others: Others

    @property
    def is_in_the_way(self) -> bool:
        """Tell whether DuckDB is about to commit: its commit has the id that this one takes, and would fail."""
        return bool(self.others.find_committing(self.conn))


@contextmanager
def committing(lake: Lake) -> Generator[Commit]:
    """Hold the lake's lock in one transaction, committed at the end and rolled back by any error.

    DuckDB's readers are not held up; its committers wait and then commit after us.
    Raises: LakeBusy: the lock was not to be had in time, and nothing was done. CommitStateUnknown: the connection was
    lost in COMMIT. Repeated: the request that the lake is used for has landed
    """
    with mapped_errors(lake.name), begun(lake, BEGIN_WRITING) as conn:
        with _told_apart():
            _lock(conn, lake.others)
            if lake.request is not None:
                claim(conn, lake.request)
            head = fetch_rows(conn, LakeHead, SELECT_HEAD)[0]
            yield Commit(conn, head, lake.others)
        _commit(conn)


def _lock(conn: psycopg.Connection, others: Others) -> None:
    """Take the lake's lock; when others have lost races of late and are about to commit again, after them, but not for ever."""
    conn.execute(LOCK_LAKE)
    if others.are_about and others.find_committing(conn):
        conn.rollback()
        conn.execute(BEGIN_WRITING)
        others.let_pass(conn)
        conn.execute(LOCK_LAKE)


@contextmanager
def _told_apart() -> Generator[None]:
    """Waiting too long, or in a circle, is no conflict of content: the same request may come again."""
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise LakeBusy("The lake is busy with other commits; nothing was done. Try again.") from error
    except psycopg.DataError as error:
        raise BadRequest(
            "The request holds a value that Postgres cannot store, such as a text with a NUL character or a number too large."
        ) from error


def _commit(conn: psycopg.Connection) -> None:
    try:
        conn.commit()
    except psycopg.errors.IntegrityError as error:
        raise CommitFailed("Another commit took the same ids; nothing was done. Try again.") from error
    except psycopg.Error as error:
        raise CommitStateUnknown(
            "The connection to Postgres was lost while the commit was being written; look before trying again."
        ) from error
