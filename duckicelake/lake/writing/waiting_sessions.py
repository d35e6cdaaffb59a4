"""Waiting for DuckDB's commits: DuckDB gives up a commit after ten lost races, while ours can wait, so ours let it go first.

DuckDB takes the next lake snapshot's id when its transaction begins, and waits for the lock with its first statement that writes.
Any commit in between makes its commit fail. It retries in a new transaction of the same session, so for some seconds our commits
let a session that has waited go first, from its first statement on. `lake.writing.transaction` calls this in each commit, on
the commit's thread; while that waits, it does not hold the lake's lock.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import psycopg

REMEMBERED_S = 5.0
YIELD_MAX_S = 1.0
POLL_INTERVAL_S = 0.02

FROM_WAITING = """
  FROM pg_locks
 WHERE locktype = 'relation' AND relation = 'ducklake_snapshot'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   -- Mode of an INSERT's lock; our own commits wait for another mode.
   AND (mode = 'RowExclusiveLock' AND NOT granted OR pid = ANY(%(recent_pids)s))
"""

SELECT_WAITING = "".join(
    (
        "SELECT pid, virtualtransaction, bool_or(mode = 'RowExclusiveLock' AND NOT granted) AS is_waiting",
        FROM_WAITING,
        "GROUP BY pid, virtualtransaction",
    )
)

WAITING_AS_JSON = "".join(("(SELECT json_agg(json_build_array(o.pid, o.virtualtransaction, o.is_waiting)) FROM (", SELECT_WAITING, ") o)"))
"""The rows of `SELECT_WAITING` as one value for another statement; NULL if there are none."""


LOCK_YIELDED = "DL001"

COMMIT_UNLESS_WAITING = f"""
DO $$ BEGIN
  IF EXISTS (SELECT {FROM_WAITING}) THEN
    RAISE EXCEPTION 'a session that waited for the lake has begun to commit, and goes first' USING ERRCODE = '{LOCK_YIELDED}';
  END IF;
END $$; COMMIT""".encode()
"""One message for check and COMMIT: between two messages, another transaction could begin."""


class LockYielded(Exception):
    """The commit was rolled back so that another session can commit first; nothing was done."""


@dataclass(slots=True)
class WaitingSessions:
    """The Postgres sessions that were seen waiting for the lake's lock, with the time. Each server process keeps its own."""

    _last_waits: dict[int, float] = field(default_factory=dict[int, float])
    _lock: Lock = field(default_factory=Lock)

    @property
    def has_recent(self) -> bool:
        """Return True if a session waited recently."""
        return bool(self.list_recent())

    def list_committing(self, conn: psycopg.Connection) -> set[str]:
        """Return the transactions that wait for the lake's lock, or belong to sessions that waited recently."""
        return self.record(conn.execute(SELECT_WAITING, {"recent_pids": self.list_recent()}).fetchall())

    def record(self, rows: Sequence[tuple[int, str, bool]] | None) -> set[str]:
        """Record the sessions that wait, from the rows of `SELECT_WAITING` (None: no rows), and return the transactions of all rows."""
        if not rows:
            return set()
        now = time.monotonic()
        with self._lock:
            self._last_waits |= {pid: now for pid, _, is_waiting in rows if is_waiting}
        return {transaction for _, transaction, _ in rows}

    def wait_for_others(self, conn: psycopg.Connection) -> None:
        """Wait until the transactions that are committing now have ended, or `YIELD_MAX_S` has passed."""
        deadline = time.monotonic() + YIELD_MAX_S
        first = self.list_committing(conn)
        while first & self.list_committing(conn) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)

    def commit(self, conn: psycopg.Connection) -> None:
        """Commit. Raises: LockYielded: a session that waited recently has begun a transaction, or one waits now."""
        recent = self.list_recent()
        if not recent:
            conn.commit()
            return
        try:
            conn.execute(COMMIT_UNLESS_WAITING % {b"recent_pids": b"ARRAY[%b]" % b",".join(b"%d" % pid for pid in recent)})
        except psycopg.Error as error:
            if error.sqlstate != LOCK_YIELDED:
                raise
            raise LockYielded from error

    def list_recent(self) -> list[int]:
        """Return the sessions that waited recently."""
        if not self._last_waits:
            return []
        earliest = time.monotonic() - REMEMBERED_S
        with self._lock:
            self._last_waits = {pid: at for pid, at in self._last_waits.items() if at > earliest}
            return list(self._last_waits)
