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
PATIENCE_S = 1.0
LOOK_S = 0.02

SELECT_OTHERS = """
SELECT pid, virtualtransaction, bool_or(mode = 'RowExclusiveLock' AND NOT granted) AS is_waiting
  FROM pg_locks
 WHERE locktype = 'relation' AND relation = 'ducklake_snapshot'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   -- what an INSERT waits for; our own commits wait for another mode
   AND (mode = 'RowExclusiveLock' AND NOT granted OR pid = ANY(%(known)s))
 GROUP BY pid, virtualtransaction
"""

OTHERS = "".join(("(SELECT json_agg(json_build_array(o.pid, o.virtualtransaction, o.is_waiting)) FROM (", SELECT_OTHERS, ") o)"))
"""The same as one value of another statement, NULL when there is nobody."""


@dataclass(slots=True)
class Others:
    """The sessions of Postgres that others were seen committing in, and when last. Each server keeps its own."""

    _seen: dict[int, float] = field(default_factory=dict[int, float])
    _lock: Lock = field(default_factory=Lock)

    @property
    def are_about(self) -> bool:
        """Tell whether anybody was seen of late."""
        return bool(self.list_known())

    def find_committing(self, conn: psycopg.Connection) -> set[str]:
        """Return the transactions that wait for the lake's lock, or are of sessions that have waited in vain."""
        return self.take_note(conn.execute(SELECT_OTHERS, {"known": self.list_known()}).fetchall())

    def take_note(self, rows: Sequence[tuple[int, str, bool]] | None) -> set[str]:
        """Remember those who wait, as `SELECT_OTHERS` finds them (None: nobody), and return all transactions that it found."""
        if not rows:
            return set()
        now = time.monotonic()
        with self._lock:
            self._seen |= {pid: now for pid, _, is_waiting in rows if is_waiting}
        return {transaction for _, transaction, _ in rows}

    def let_pass(self, conn: psycopg.Connection) -> None:
        """Return when those who are committing now are done, or patience ends."""
        until = time.monotonic() + PATIENCE_S
        first = self.find_committing(conn)
        while first & self.find_committing(conn) and time.monotonic() < until:
            time.sleep(LOOK_S)

    def list_known(self) -> list[int]:
        """Return the sessions seen of late."""
        if not self._seen:
            return []
        oldest = time.monotonic() - REMEMBERED_S
        with self._lock:
            self._seen = {pid: at for pid, at in self._seen.items() if at > oldest}
            return list(self._seen)
