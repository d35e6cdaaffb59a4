"""Waiting for a condition instead of for a time."""

import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

Found = TypeVar("Found")

SELECT_WAITING = """
SELECT count(*)
  FROM pg_locks
 WHERE NOT granted AND relation = %s::regclass
   -- tables of other databases have the same oid where both were copied from one
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def wait_for(find: Callable[[], Found | None], what: str, timeout_seconds: float = 30.0) -> Found:
    """Return what `find` returns as soon as it is neither None nor False; fail after the time, saying what was awaited."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        found = find()
        if found is not None and found is not False:
            return found
        time.sleep(0.02)
    raise AssertionError(f"Waited {timeout_seconds:.0f} s in vain for {what}")


def count_waiting(conn: psycopg.Connection, table: str) -> int:
    """How many sessions wait for a lock on a table of the connection's own database."""
    row = conn.execute(SELECT_WAITING, [table]).fetchone()
    assert row is not None
    return row[0]
