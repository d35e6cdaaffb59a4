"""The one transaction of a commit, which locks out every other committer, DuckDB included; `catalog` runs it on a worker thread, or in the
process of a command such as `undrop`.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from duckicelake.errors import BadRequest, CommitFailed, CommitStateUnknown, LakeBusy
from duckicelake.lake.audit_log import DONE, UNKNOWN, AuditContext, AuditLine, log_line, write_lines
from duckicelake.lake.changes import TABLE_KINDS, format_tokens
from duckicelake.lake.connect import (
    BEGIN_WRITING,
    LOCK_WAIT_S,
    SELECT_VERSION,
    Lake,
    RequestKey,
    mapped_errors,
    open_transaction,
    read_version,
)
from duckicelake.lake.lake_format import LakeFormat, get_format
from duckicelake.lake.rows import Position
from duckicelake.lake.server_turns import LOCK_CLASS
from duckicelake.lake.writing.idempotency import claim_key, note_object
from duckicelake.lake.writing.lookups import SELECT_KNOWN_SNAPSHOTS, SELECT_TOUCHED
from duckicelake.lake.writing.rows import LakeHead
from duckicelake.lake.writing.waiting_sessions import WAITING_AS_JSON, WaitingSessions

# FOR SHARE also locks the version: a migration updates it last, and a commit meanwhile would write rows of the old layout.
LOCK_LAKE = b"LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE; " + SELECT_VERSION.encode() + b" FOR SHARE"
BEGIN_LOCKED = BEGIN_WRITING + b"; " + LOCK_LAKE

SELECT_HEAD = """
SELECT snapshot_id, schema_version, next_catalog_id, next_file_id
  FROM ducklake_snapshot
 WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
"""


# Read everything that a commit to one table needs before it plans in one query: each round trip prolongs the lock.
SELECT_LOCKED_CHECK = "".join(
    (
        """
SELECT h.snapshot_id, h.schema_version, h.next_catalog_id, h.next_file_id,
       (SELECT coalesce(max(id), 0) FROM iceberg_change) AS change_id,
       -- NULL if the lake's newest time is outside of the calendar.
       (SELECT t.next FROM greatest(clock_timestamp(), h.snapshot_time + interval '1 microsecond') AS t(next)
         WHERE t.next BETWEEN '1970-01-01Z' AND '9999-01-01Z') AS next_time,
       (SELECT json_agg(ARRAY[k.client_snapshot_id, k.lake_snapshot_id]) FROM (""",
        SELECT_KNOWN_SNAPSHOTS,
        """) k) AS committed_ids,
       -- If no session waited recently, the check before COMMIT is enough: reading pg_locks takes all of Postgres' lock partitions.
       CASE WHEN %(checks_waiting)s THEN """,
        WAITING_AS_JSON,
        """ END AS waiting,
       (""",
        SELECT_TOUCHED,
        """) AS is_touched,
       -- Another server has the turn of the table, or asks for it: both must take turns now, so that neither loses every race.
       CASE WHEN %(turn_key)s::int IS NULL THEN false
            ELSE NOT pg_try_advisory_xact_lock_shared(%(turn_class)s::int, %(turn_key)s::int) END AS has_rival
  FROM ducklake_snapshot h
 WHERE h.snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
""",
    )
)


@dataclass(frozen=True, slots=True)
class WatchedTable:
    """The table of a commit, the position it was read at, and the client's snapshot ids that may have been committed before.

    `turn_key`: the key of the table's turns between servers (`lake.server_turns`), None if this server takes turns already.
    """

    table_id: int
    table_uuid: UUID
    since: Position
    client_ids: Sequence[int]
    turn_key: int | None = None


@dataclass(frozen=True, slots=True)
class LockedCheck:
    """The state of a watched table under the lake's lock: has anything concerned it since, and which of the client's ids are committed.

    `change_id` is the newest row of `iceberg_change`, and `next_time` the time of the next lake snapshot. `has_waiting_session`: DuckDB
    is about to commit, if that was checked. `has_rival`: another server has the turn of the table, if that was checked.
    """

    change_id: int
    next_time: datetime | None
    committed_ids: Mapping[int, int]
    is_touched: bool
    has_waiting_session: bool
    has_rival: bool = False


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction that holds the lake's lock, and the lake's head in it: no other commit can land before it ends.

    `audit_contexts` are the requests that ask for it: several when they are committed as a group. `lines` are those that it has written
    into the audit log, for the server's log.
    """

    conn: psycopg.Connection
    head: LakeHead
    waiting_sessions: WaitingSessions
    locked_check: LockedCheck | None = None
    audit_contexts: Sequence[AuditContext] = ()
    lines: list[AuditLine] = field(default_factory=list[AuditLine])
    request: RequestKey | None = None

    @property
    def has_waiting_session(self) -> bool:
        """Return True if DuckDB is about to commit: this commit would take the id that DuckDB's needs, and make it fail."""
        return bool(self.waiting_sessions.list_committing(self.conn))

    def note(self, lake_snapshot_id: int | None) -> None:
        """Write the audit lines of the requests, with the last lake snapshot that the commit makes, or None."""
        if self.audit_contexts:
            write_lines(self.conn, self.audit_contexts, lake_snapshot_id)
            self.add_log_lines(lake_snapshot_id)

    def write_object(self, object_uuid: UUID) -> None:
        """Store the table or view of the commit under its idempotency key: a repeated request is answered from it, even after a rename."""
        if self.request is not None:
            note_object(self.conn, self.request, object_uuid)

    def add_log_lines(self, lake_snapshot_id: int | None) -> None:
        """Keep a line for each request, to be written to the server's log after COMMIT."""
        self.lines.extend(AuditLine(audit_context, DONE, lake_snapshot_id) for audit_context in self.audit_contexts)


@contextmanager
def committing(lake: Lake, watched: WatchedTable | None = None, *, yields: bool = False) -> Generator[Commit]:
    """Hold the lake's lock in one transaction, committed at the end and rolled back by any error.

    DuckDB's readers are not blocked; its committers wait and then commit after us. A watched table is checked in the same round trip.
    Raises: LakeBusy: the lock was not granted in time, and nothing was done. CommitStateUnknown: the connection was
    lost in COMMIT. Unsupported: this catalog does not serve the lake's version of DuckLake.
    RequestRepeated: the request with the lake's idempotency key has landed. LockYielded: with `yields`, other sessions go first
    """
    with mapped_errors(lake.name), ExitStack() as stack:
        with _mapped_lock_errors():
            conn, lake_format = stack.enter_context(open_transaction(lake, BEGIN_LOCKED, LOCK_WAIT_S))
            lake_format = _yield_to_waiting(conn, lake.waiting_sessions) or lake_format
            if lake.request is not None:
                claim_key(conn, lake.request, None if watched is None else watched.table_uuid)
            commit = _build_commit(conn, lake, lake_format, watched)
            yield commit
        _commit(conn, commit.lines, lake.waiting_sessions if yields else None)


def _build_commit(conn: psycopg.Connection, lake: Lake, lake_format: LakeFormat, watched: WatchedTable | None) -> Commit:
    waiting_sessions = lake.waiting_sessions
    audit_contexts = () if lake.audit_context is None else (lake.audit_context,)
    if watched is None:
        row = conn.execute(SELECT_HEAD).fetchone()
        assert row is not None
        head = LakeHead(*row, lake_format=lake_format)
        return Commit(conn, head, waiting_sessions, audit_contexts=audit_contexts, request=lake.request)
    recent = waiting_sessions.list_recent()
    parameters = {
        "table_id": watched.table_id,
        "tokens": format_tokens(watched.table_id, TABLE_KINDS),
        "lake_snapshot_id": watched.since.lake_snapshot_id,
        "change_id": watched.since.change_id,
        "ids": list(watched.client_ids),
        "recent_pids": recent,
        "checks_waiting": bool(recent),
        "turn_class": LOCK_CLASS,
        "turn_key": watched.turn_key,
    }
    row = conn.execute(SELECT_LOCKED_CHECK, parameters).fetchone()
    assert row is not None
    *head, change_id, next_time, ids, waiting, is_touched, has_rival = row
    has_waiting = bool(waiting_sessions.record(waiting))
    locked_check = LockedCheck(change_id, next_time, dict(ids or ()), bool(is_touched), has_waiting, has_rival)
    return Commit(conn, LakeHead(*head, lake_format=lake_format), waiting_sessions, locked_check, audit_contexts, request=lake.request)


def _yield_to_waiting(conn: psycopg.Connection, waiting_sessions: WaitingSessions) -> LakeFormat | None:
    """Release the lock for sessions that lost a race recently and are about to commit again; take it again after them, or after a while.

    Returns the lake's format under the new lock, None if the lock was not released.
    """
    if waiting_sessions.has_recent and waiting_sessions.list_committing(conn):
        conn.rollback()
        conn.execute(BEGIN_WRITING)
        waiting_sessions.wait_for_others(conn)
        return get_format(read_version(conn, LOCK_LAKE))
    return None


@contextmanager
def _mapped_lock_errors() -> Generator[None]:
    """Turn lock timeouts and deadlocks into LakeBusy: they are no commit conflicts, and the client may repeat the request."""
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise LakeBusy("The lake is busy with other commits; nothing was done. Try again.") from error
    except psycopg.DataError as error:
        raise BadRequest(
            "The request holds a value that Postgres cannot store, such as a text with a NUL character or a number too large."
        ) from error


def _commit(conn: psycopg.Connection, lines: Sequence[AuditLine], waiting_sessions: WaitingSessions | None) -> None:
    try:
        if waiting_sessions is None:
            conn.commit()
        else:
            waiting_sessions.commit(conn)
    except psycopg.errors.IntegrityError as error:
        raise CommitFailed("Another commit took the same ids; nothing was done. Try again.") from error
    except psycopg.Error as error:
        if conn.info.transaction_status is TransactionStatus.INERROR:
            raise CommitFailed("Postgres refused the check for other commits, so nothing was done. Try again.") from error
        for line in lines:
            log_line(replace(line, outcome=UNKNOWN))
        raise CommitStateUnknown(
            "The connection to Postgres was lost during COMMIT; load the table to see if the commit landed before trying again."
        ) from error
    for line in lines:
        log_line(line)
