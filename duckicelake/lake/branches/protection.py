"""The protection of a lake: while it is on, no account changes the lake itself over REST, only its branches.

`commands.branches` changes it, in a transaction that `protect` begins. `catalog.access_rules` reads it in the one that reads the lake's
policy. A branch has no such setting.
"""

import psycopg

from duckicelake.lake.access_rules import INSERT_RULE_CHANGE
from duckicelake.lake.notes import LOCK_CHANGES

SELECT_IS_PROTECTED = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'protected' AND value = 'main')
"""


def is_protected(conn: psycopg.Connection) -> bool:
    """Return True if the lake is protected."""
    row = conn.execute(SELECT_IS_PROTECTED).fetchone()
    return bool(row and row[0])


UPSERT_PROTECTED = """
INSERT INTO iceberg_setting (key, value) VALUES ('protected', 'main') ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

DELETE_PROTECTED = """
DELETE FROM iceberg_setting WHERE key = 'protected'
"""


def protect(conn: psycopg.Connection, *, is_on: bool) -> None:
    """Turn the protection on or off; every server uses it from its next request on."""
    with conn.transaction():
        conn.execute(LOCK_CHANGES)
        conn.execute(UPSERT_PROTECTED if is_on else DELETE_PROTECTED)
        conn.execute(INSERT_RULE_CHANGE)
