"""Changes of tables and views that are done in the turns of those, on a thread: `rest.routes` calls this on the event loop.

Commits to one table are not among them: `rest.routes.table_commits` prepares those before their turn, and groups them. Commits to several
tables are. The thread reads the request's idempotency key from Postgres first, and writes it if the change is refused
(`catalog.idempotency`); `catalog` opens the transaction of the change itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.idempotency import Repeat, RequestContext, reopen, run_once
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitGaveUp, TooManyRequests
from duckicelake.rest.context import ServerContext

Answer = TypeVar("Answer")
Parsed = TypeVar("Parsed")
PARSED_BYTES = 64 * 1024
"""Larger bodies are parsed in a thread, so that other requests need not wait."""
TOO_LATE = "Other changes of {} took so long that this one was not begun; nothing was done. Try again."


@dataclass(frozen=True, slots=True)
class RequestedChange(Generic[Answer]):
    """A change that a request asks for: what does it, and what answers a repetition of the request.

    `is_commit`: its clients take 409 for a commit that was not done, and otherwise for a name that is taken: then IF NOT EXISTS would go on
    without a table (source: tableErrorHandler of Java's ErrorHandlers; PyIceberg's RestCatalog.create_table).
    `has_landed` finds out if a change whose turn did not come was made before by a request without an idempotency key.
    """

    warehouse: Warehouse
    request: RequestContext
    act: Callable[[Warehouse], Answer]
    repeat: Repeat[Answer]
    has_landed: Callable[[Warehouse], bool] = lambda _: False
    is_commit: bool = False


async def parse_body(body: bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
    """Return what a body says, parsed in a thread if it is large."""
    return parse(body) if len(body) <= PARSED_BYTES else await run_in_threadpool(parse, body)


async def change_in_turn(context: ServerContext, idents: Sequence[Ident], change: RequestedChange[Answer]) -> Answer:
    """Do a change in the turns of the tables or views that it names.

    Raises: TooManyRequests: too many changes of one of them wait, or the turn of a change that is no commit did not come in time; nothing
    was done. CommitGaveUp: a commit's turn did not come in time, and it was not made before; nothing was done. What the change raises
    """
    if change.is_commit and change.request.key is not None:
        await run_in_threadpool(reopen, change.warehouse, change.request.key)
    began = monotonic()

    def do() -> Answer:
        context.metrics.observe_commit_wait(monotonic() - began)
        return run_once(change.warehouse, change.request, change.act, change.repeat)

    def refuse(warehouse: Warehouse) -> Answer:
        if change.has_landed(warehouse):
            return change.repeat(warehouse, None)
        refusal = CommitGaveUp if change.is_commit else TooManyRequests
        raise refusal(TOO_LATE.format(" and ".join(map(str, idents))))

    def refuse_unless_done() -> Answer:
        return run_once(change.warehouse, change.request, refuse, change.repeat)

    keys = [(change.warehouse.name, ident.namespace, ident.name) for ident in idents]
    return await context.turns.run(keys, do, refuse_unless_done)
