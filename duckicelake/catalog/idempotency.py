"""Idempotency keys: a request is executed once, and every repetition gets the same answer.

`rest` calls this on worker threads. The key of a change is written in the transaction of the change; the key of a refused request is
written in a transaction of its own, after the change was rolled back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import (
    AlreadyExists,
    BadRequest,
    CatalogError,
    CommitFailed,
    CommitGaveUp,
    MergeConflicts,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchRef,
    NoSuchTable,
    NoSuchView,
    Unprocessable,
)
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.connect import RequestKey, query_once, reading, writing
from duckicelake.lake.writing.idempotency import RequestOutcome, RequestRepeated, delete_refusal, find_outcome, note_refusal

Answer = TypeVar("Answer")
Repeat = Callable[[Warehouse, UUID | None], Answer]
"""Shows again what a request has done: to the table or view with that uuid, if it was about one."""

FINAL = (
    AlreadyExists,
    BadRequest,
    CommitFailed,
    CommitGaveUp,
    MergeConflicts,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchRef,
    NoSuchTable,
    NoSuchView,
    Unprocessable,
)
"""Errors that are noted with a request's key, so that no copy in progress lands after its client was answered by them."""
REFUSALS: Mapping[str, type[CatalogError]] = {kind.__name__: kind for kind in FINAL}


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The context of a change: the caller, the idempotency key, and summary entries from the headers.

    `needs_client_ids`: the client looks in the answer for snapshots under the ids that it chose. `checks_types`: the client may store
    columns in other types than the table's.
    """

    audit_context: AuditContext
    key: RequestKey | None = None
    summary: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    needs_client_ids: bool = False
    checks_types: bool = False

    def about(self, *objects: str) -> "RequestContext":
        """Return the request, about these objects."""
        return replace(self, audit_context=replace(self.audit_context, objects=objects))


def run_once(warehouse: Warehouse, asked: RequestContext, act: Callable[[Warehouse], Answer], repeat: Repeat[Answer]) -> Answer:
    """Return what `act` does, or what `repeat` shows of it when a request with this key has landed before.

    What is done is in the record with who asked for it.
    Raises: Unprocessable: the key was another request's. What `act` raises, now or when the key came first
    """
    request = asked.key
    if request is None:
        return act(replace(warehouse, lake=replace(warehouse.lake, audit_context=asked.audit_context)))
    with reading(warehouse.lake) as conn:
        found = find_outcome(conn, request)
    if found is not None:
        return _repeat(found, request, lambda: repeat(warehouse, found.object_uuid))
    try:
        return act(replace(warehouse, lake=replace(warehouse.lake, request=request, audit_context=asked.audit_context)))
    except RequestRepeated:
        return run_once(warehouse, asked, act, repeat)
    except FINAL as error:
        with writing(warehouse.lake) as conn:
            is_first = note_refusal(conn, request, type(error).__name__, error.message.replace("\0", ""))
        if not is_first:
            # A concurrent repetition finished first; its outcome is the outcome of this request.
            return run_once(warehouse, asked, act, repeat)
        raise


def reopen(warehouse: Warehouse, request: RequestKey | None) -> None:
    """Let the repetition of a commit that gave up be done. To be called when a request comes, before it waits for anything.

    So a copy that came before, and is still in progress, stays refused as the client was answered, unless the client sends it again.
    """
    if request is None:
        return
    found = query_once(warehouse.lake, lambda conn: find_outcome(conn, request))
    if found is not None and found.refusal == CommitGaveUp.__name__:
        with writing(warehouse.lake) as conn:
            delete_refusal(conn, request, CommitGaveUp.__name__)


def _repeat(found: RequestOutcome, request: RequestKey, repeat: Callable[[], Answer]) -> Answer:
    if found.fingerprint != request.fingerprint:
        raise Unprocessable(f"The Idempotency-Key {request.key} was used for another request; send a new one.")
    if found.refusal is not None:
        raise REFUSALS[found.refusal](found.message or "")
    return repeat()
