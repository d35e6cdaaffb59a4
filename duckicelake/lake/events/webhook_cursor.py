"""The cursor of the webhook: how far its receiver has acknowledged the events of a lake. `catalog.events.webhook` moves it.

Every function takes the connection of one transaction, which holds the lock of the webhook until its end: of several servers one sends.
"""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg

LOCK_CLASS = 0x77656268
"""The first key of the advisory lock, which separates it from those of other programs."""

LOCK_WEBHOOK = """
SELECT pg_try_advisory_xact_lock(%(class)s, hashtext(current_schema()))
"""


@contextmanager
def locking_webhook(conn: psycopg.Connection) -> Generator[bool]:
    """Lock the webhook of the lake for one transaction, which is committed at the end. Yield False if another server sends now.

    An error leaves the transaction open: the connection is closed then.
    """
    row = conn.execute(LOCK_WEBHOOK, {"class": LOCK_CLASS}).fetchone()
    yield bool(row and row[0])
    conn.commit()


SELECT_CURSOR = """
SELECT value FROM iceberg_setting WHERE key = 'events_webhook_cursor'
"""


def find_webhook_cursor(conn: psycopg.Connection) -> str | None:
    """Return the cursor that the receiver has acknowledged; None before the first one is written."""
    row = conn.execute(SELECT_CURSOR).fetchone()
    return None if row is None else row[0]


UPSERT_CURSOR = """
INSERT INTO iceberg_setting (key, value) VALUES ('events_webhook_cursor', %(cursor)s)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""


def write_webhook_cursor(conn: psycopg.Connection, cursor: str) -> None:
    """Write the cursor that the receiver has acknowledged."""
    conn.execute(UPSERT_CURSOR, {"cursor": cursor})
