"""Outcomes of requests that clients may send again: those with an idempotency key, and commits to several tables.

Outcomes of keys are kept for an hour, a little longer than clients are promised.

`lake.writing.transaction`, `catalog.commits.write` and `catalog.repositories` write outcomes in the transaction of the change, so both are
committed together. `catalog.idempotency` writes refusals in transactions of its own. `catalog` reads outcomes before,
in and after a commit.
"""

from dataclasses import dataclass
from uuid import UUID

import psycopg

from duckicelake.lake.connect import RequestKey
from duckicelake.lake.read import fetch_rows


class RequestRepeated(Exception):
    """Another transaction with the same idempotency key has committed; found under the lake's lock."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The outcome of a request: it landed, or it was refused (`refusal` is the name of the error).

    `object_uuid`: the one table or view that it created or changed.
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
    """Return the outcome of the request with this key, or None if there is none."""
    outcomes = fetch_rows(conn, RequestOutcome, SELECT_OUTCOME, key=request.key)
    return outcomes[0] if outcomes else None


DELETE_OLD = """
DELETE FROM iceberg_idempotency
 WHERE key IN (SELECT key FROM iceberg_idempotency WHERE created_at < statement_timestamp() - interval '1 hour'
               -- Skip keys that another request is deleting: it may wait for the lake's lock, which this one may hold.
               FOR UPDATE SKIP LOCKED)
"""

INSERT_OUTCOME = """
INSERT INTO iceberg_idempotency (key, fingerprint, refusal, message, object_uuid)
VALUES (%(key)s, %(fingerprint)s, %(refusal)s, %(message)s, %(object_uuid)s)
ON CONFLICT (key) DO NOTHING
"""


def claim_key(conn: psycopg.Connection, request: RequestKey, object_uuid: UUID | None = None) -> None:
    """Insert the idempotency key in the transaction that applies the request, with the table or view if it is known.

    Raises: RequestRepeated: the key is taken, because another transaction applied or refused the request
    """
    conn.execute(DELETE_OLD)
    parameters = {"key": request.key, "fingerprint": request.fingerprint, "refusal": None, "message": None, "object_uuid": object_uuid}
    if conn.execute(INSERT_OUTCOME, parameters).rowcount == 0:
        raise RequestRepeated


UPDATE_OBJECT = """
UPDATE iceberg_idempotency SET object_uuid = %(object_uuid)s WHERE key = %(key)s
"""


def note_object(conn: psycopg.Connection, request: RequestKey, object_uuid: UUID) -> None:
    """Store the table or view that a request created or changed, in the transaction that claimed its key."""
    conn.execute(UPDATE_OBJECT, {"key": request.key, "object_uuid": object_uuid})


UPDATE_ANSWER = """
UPDATE iceberg_idempotency SET message = %(answer)s WHERE key = %(key)s
"""


def note_answer(conn: psycopg.Connection, request: RequestKey, answer: str) -> None:
    """Store what a request was answered, in the transaction that claimed its key: `find_outcome` returns it as the message."""
    conn.execute(UPDATE_ANSWER, {"key": request.key, "answer": answer})


def note_refusal(conn: psycopg.Connection, request: RequestKey, refusal: str, message: str) -> bool:
    """Store why a request was refused; False if its key was known already."""
    parameters = {"key": request.key, "fingerprint": request.fingerprint, "refusal": refusal, "message": message, "object_uuid": None}
    return conn.execute(INSERT_OUTCOME, parameters).rowcount == 1


DELETE_REFUSAL = """
DELETE FROM iceberg_idempotency WHERE key = %(key)s AND fingerprint = %(fingerprint)s AND refusal = %(refusal)s
"""


def delete_refusal(conn: psycopg.Connection, request: RequestKey, refusal: str) -> None:
    """Forget that a request was refused by the error of this name."""
    conn.execute(DELETE_REFUSAL, {"key": request.key, "fingerprint": request.fingerprint, "refusal": refusal})


DELETE_OLD_TRANSACTIONS = """
DELETE FROM iceberg_transaction WHERE created_at < statement_timestamp() - interval '30 days'
"""

INSERT_TRANSACTION = """
INSERT INTO iceberg_transaction (digest) VALUES (%(digest)s) ON CONFLICT (digest) DO NOTHING
"""


def note_transaction(conn: psycopg.Connection, digest: str) -> None:
    """Store the digest of a commit to several tables in the transaction that applies it."""
    conn.execute(DELETE_OLD_TRANSACTIONS)
    conn.execute(INSERT_TRANSACTION, {"digest": digest})


SELECT_HAS_TRANSACTION = """
SELECT EXISTS (SELECT FROM iceberg_transaction WHERE digest = %(digest)s)
"""


def has_transaction(conn: psycopg.Connection, digest: str) -> bool:
    """Return True if a commit to several tables with this digest has landed."""
    row = conn.execute(SELECT_HAS_TRANSACTION, {"digest": digest}).fetchone()
    return bool(row and row[0])
