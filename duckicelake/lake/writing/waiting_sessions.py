"""Pacing: DuckDB gives up a commit after ten lost races, and ours can wait; so they let it pass.

DuckDB takes the next lake snapshot's id when its transaction begins, and waits for the lock with the first statement that
writes: whatever commits between the two makes it fail. Whoever has been seen waiting comes back in a transaction of the
same session, and is let pass from its first statement on.
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
   -- what an INSERT waits for; our own commits wait for another mode
   AND (mode = 'RowExclusiveLock' AND NOT granted OR pid = ANY(%(known)s))
"""

SELECT_WAITING = "".join(
    (
        "SELECT pid, virtualtransaction, bool_or(mode = 'RowExclusiveLock' AND NOT granted) AS is_waiting",
        FROM_WAITING,
        "GROUP BY pid, virtualtransaction",
    )
)

WAITING_AS_JSON = "".join(("(SELECT json_agg(json_build_array(o.pid, o.virtualtransaction, o.is_waiting)) FROM (", SELECT_WAITING, ") o)"))
"""The same as one value of another statement, NULL when there is nobody."""


LOCK_YIELDED = "DL001"

COMMIT_UNLESS_WAITING = f"""
DO $$ BEGIN
  IF EXISTS (SELECT {FROM_WAITING}) THEN
    RAISE EXCEPTION 'a session that waited for the lake has begun to commit, and is let pass' USING ERRCODE = '{LOCK_YIELDED}';
  END IF;
END $$; COMMIT""".encode()
"""One message: between a look and a COMMIT that is sent after it, a transaction has time to begin."""


class LockYielded(Exception):
    """Another session is to commit first; nothing was done."""


@dataclass(slots=True)
class WaitingSessions:
    """The sessions of Postgres that others were seen committing in, and when last. Each server keeps its own."""

    _seen: dict[int, float] = field(default_factory=dict[int, float])
    _lock: Lock = field(default_factory=Lock)

    @property
    def has_recent(self) -> bool:
        """Tell whether anybody was seen of late."""
        return bool(self.list_recent())

    def list_committing(self, conn: psycopg.Connection) -> set[str]:
        """Return the transactions that wait for the lake's lock, or are of sessions that have waited in vain."""
        return self.record(conn.execute(SELECT_WAITING, {"known": self.list_recent()}).fetchall())

    def record(self, rows: Sequence[tuple[int, str, bool]] | None) -> set[str]:
        """Remember those who wait, as `SELECT_WAITING` finds them (None: nobody), and return all transactions that it found."""
        if not rows:
            return set()
        now = time.monotonic()
        with self._lock:
            self._seen |= {pid: now for pid, _, is_waiting in rows if is_waiting}
        return {transaction for _, transaction, _ in rows}

    def wait_for_others(self, conn: psycopg.Connection) -> None:
        """Return when those who are committing now are done, or patience ends."""
        until = time.monotonic() + YIELD_MAX_S
        first = self.list_committing(conn)
        while first & self.list_committing(conn) and time.monotonic() < until:
            time.sleep(POLL_INTERVAL_S)

    def commit(self, conn: psycopg.Connection) -> None:
        """Commit. Raises: GivenWay: a session that was seen of late has begun since the last look, or somebody waits."""
        known = self.list_recent()
        if not known:
            conn.commit()
            return
        try:
            conn.execute(COMMIT_UNLESS_WAITING % {b"known": b"ARRAY[%b]" % b",".join(b"%d" % pid for pid in known)})
        except psycopg.Error as error:
            if error.sqlstate != LOCK_YIELDED:
                raise
            raise LockYielded from error

    def list_recent(self) -> list[int]:
        """Return the sessions seen of late."""
        if not self._seen:
            return []
        oldest = time.monotonic() - REMEMBERED_S
        with self._lock:
            self._seen = {pid: at for pid, at in self._seen.items() if at > oldest}
            return list(self._seen)
