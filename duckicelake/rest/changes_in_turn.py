"""Changes of tables and views that are done in the turns of those, on a thread: `rest.routes` calls this on the event loop.

Commits to one table are not among them: `rest.routes.table_commits` prepares those before their turn, and groups them. Commits to several
tables are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.idempotency import Repeat, RequestContext, run_once
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CommitFailed
from duckicelake.rest.context import ServerContext

Answer = TypeVar("Answer")
Parsed = TypeVar("Parsed")
PARSED_BYTES = 64 * 1024
"""Larger bodies are parsed in a thread, so that other requests need not wait."""
TOO_LATE = "Other changes of {} took so long that this one was not begun; nothing was done. Try again."


@dataclass(frozen=True, slots=True)
class RequestedChange(Generic[Answer]):
    """A change that a request asks for: what does it, and what answers a repetition of the request.

    `has_landed` finds out if a change whose turn did not come was made before by a request without an idempotency key.
    """

    warehouse: Warehouse
    request: RequestContext
    act: Callable[[Warehouse], Answer]
    repeat: Repeat[Answer]
    has_landed: Callable[[Warehouse], bool] = lambda _: False


async def parse_body(body: bytes, parse: Callable[[bytes], Parsed]) -> Parsed:
    """Return what a body says, parsed in a thread if it is large."""
    return parse(body) if len(body) <= PARSED_BYTES else await run_in_threadpool(parse, body)


async def change_in_turn(context: ServerContext, idents: Sequence[Ident], change: RequestedChange[Answer]) -> Answer:
    """Do a change in the turns of the tables or views that it names.

    Raises: TooManyRequests: too many changes of one of them wait, and nothing was done. CommitFailed: its turn did not come in time, and
    it was not made before; nothing was done. What the change raises
    """
    began = monotonic()

    def do() -> Answer:
        context.metrics.observe_commit_wait(monotonic() - began)
        return run_once(change.warehouse, change.request, change.act, change.repeat)

    def refuse(warehouse: Warehouse) -> Answer:
        if change.has_landed(warehouse):
            return change.repeat(warehouse, None)
        raise CommitFailed(TOO_LATE.format(" and ".join(map(str, idents))))

    def refuse_unless_done() -> Answer:
        return run_once(change.warehouse, change.request, refuse, change.repeat)

    keys = [(change.warehouse.name, ident.namespace, ident.name) for ident in idents]
    return await context.turns.run(keys, do, refuse_unless_done)
