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

FROM_OTHERS = """
  FROM pg_locks
 WHERE locktype = 'relation' AND relation = 'ducklake_snapshot'::regclass
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   -- what an INSERT waits for; our own commits wait for another mode
   AND (mode = 'RowExclusiveLock' AND NOT granted OR pid = ANY(%(known)s))
"""

SELECT_OTHERS = "".join(
    (
        "SELECT pid, virtualtransaction, bool_or(mode = 'RowExclusiveLock' AND NOT granted) AS is_waiting",
        FROM_OTHERS,
        "GROUP BY pid, virtualtransaction",
    )
)

OTHERS = "".join(("(SELECT json_agg(json_build_array(o.pid, o.virtualtransaction, o.is_waiting)) FROM (", SELECT_OTHERS, ") o)"))
"""The same as one value of another statement, NULL when there is nobody."""


GIVEN_WAY = "DL001"

COMMIT_UNLESS_OTHERS = f"""
DO $$ BEGIN
  IF EXISTS (SELECT {FROM_OTHERS}) THEN
    RAISE EXCEPTION 'a session that waited for the lake has begun to commit, and is let pass' USING ERRCODE = '{GIVEN_WAY}';
  END IF;
END $$; COMMIT""".encode()
"""One message: between a look and a COMMIT that is sent after it, a transaction has time to begin."""


class GivenWay(Exception):
    """Another session is to commit first; nothing was done."""


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

    def commit(self, conn: psycopg.Connection) -> None:
        """Commit. Raises: GivenWay: a session that was seen of late has begun since the last look, or somebody waits."""
        known = self.list_known()
        if not known:
            conn.commit()
            return
        try:
            conn.execute(COMMIT_UNLESS_OTHERS % {b"known": b"ARRAY[%b]" % b",".join(b"%d" % pid for pid in known)})
        except psycopg.Error as error:
            if error.sqlstate != GIVEN_WAY:
                raise
            raise GivenWay from error

    def list_known(self) -> list[int]:
        """Return the sessions seen of late."""
        if not self._seen:
            return []
        oldest = time.monotonic() - REMEMBERED_S
        with self._lock:
            self._seen = {pid: at for pid, at in self._seen.items() if at > oldest}
            return list(self._seen)
