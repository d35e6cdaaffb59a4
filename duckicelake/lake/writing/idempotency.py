"""Requests that clients may send again: what became of those with a key, for as long as clients are told, and a little longer.

Of those over several tables, which have landed.
"""

from dataclasses import dataclass
from uuid import UUID

import psycopg

from duckicelake.lake.connect import RequestKey
from duckicelake.lake.read import fetch_rows


class RequestRepeated(Exception):
    """Under the lock it shows that a request with this key has landed."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request: it landed, or (`refusal`, an error's name) why it did not.

    `object_uuid`: of the one table or view that it made or changed.
    """

    key: UUID
    fingerprint: str
    refusal: str | None
    message: str | None
    object_uuid: UUID | None


SELECT_OUTCOME = """
SELECT key, fingerprint, refusal, message, object_uuid FROM iceberg_idempotency WHERE key = %(key)s
"""


def find_outcome(conn: psycopg.Connection, request: RequestKey) -> RequestOutcome | None:
    """Return what became of the request with this key, or None when nobody knows of one."""
    found = fetch_rows(conn, RequestOutcome, SELECT_OUTCOME, key=request.key)
    return found[0] if found else None


DELETE_OLD = """
DELETE FROM iceberg_idempotency WHERE created_at < clock_timestamp() - interval '1 hour'
"""

INSERT_OUTCOME = """
INSERT INTO iceberg_idempotency (key, fingerprint, refusal, message, object_uuid)
VALUES (%(key)s, %(fingerprint)s, %(refusal)s, %(message)s, %(object_uuid)s)
ON CONFLICT (key) DO NOTHING
"""


def claim_key(conn: psycopg.Connection, request: RequestKey, object_uuid: UUID | None = None) -> None:
    """Let the key become known with the transaction that does what is asked, and with what it is about if that is known by then.

    Raises: Repeated: another transaction did, or refused to
    """
    conn.execute(DELETE_OLD)
    known = {"key": request.key, "fingerprint": request.fingerprint, "refusal": None, "message": None, "object_uuid": object_uuid}
    if conn.execute(INSERT_OUTCOME, known).rowcount == 0:
        raise RequestRepeated


UPDATE_OBJECT = """
UPDATE iceberg_idempotency SET object_uuid = %(object_uuid)s WHERE key = %(key)s
"""


def note_object(conn: psycopg.Connection, request: RequestKey, object_uuid: UUID) -> None:
    """Remember which table or view a request made or changed, in the transaction that claimed its key."""
    conn.execute(UPDATE_OBJECT, {"key": request.key, "object_uuid": object_uuid})


def note_refusal(conn: psycopg.Connection, request: RequestKey, refusal: str, message: str) -> bool:
    """Remember why a request was refused, unless its key is known already, and tell whether it was not."""
    known = {"key": request.key, "fingerprint": request.fingerprint, "refusal": refusal, "message": message, "object_uuid": None}
    return conn.execute(INSERT_OUTCOME, known).rowcount == 1


DELETE_OLD_TRANSACTIONS = """
DELETE FROM iceberg_transaction WHERE created_at < clock_timestamp() - interval '30 days'
"""

INSERT_TRANSACTION = """
INSERT INTO iceberg_transaction (digest) VALUES (%(digest)s) ON CONFLICT (digest) DO NOTHING
"""


def note_transaction(conn: psycopg.Connection, digest: str) -> None:
    """Let a request over several tables become known with the transaction that does what it asks."""
    conn.execute(DELETE_OLD_TRANSACTIONS)
    conn.execute(INSERT_TRANSACTION, {"digest": digest})


SELECT_HAS_TRANSACTION = """
SELECT EXISTS (SELECT FROM iceberg_transaction WHERE digest = %(digest)s)
"""


def has_transaction(conn: psycopg.Connection, digest: str) -> bool:
    """Tell whether a request over several tables is known to have landed."""
    row = conn.execute(SELECT_HAS_TRANSACTION, {"digest": digest}).fetchone()
    return bool(row and row[0])
