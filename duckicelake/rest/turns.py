"""Turns: changes of one table follow each other in the order in which they came, and wait on the event loop without a thread.

Turns only save work: a change that takes none is as correct, because the lake's lock decides. Routes that change tables or views by their
names take turns: commits to one table in `rest.routes.table_commits`, all others by `run`. Merges, reverts and undrops of namespaces take
none. Each worker process has its own turns, in memory, and waits on its event loop.

Law: a request that is refused for want of room has done nothing. A request whose turn does not come in time may have landed as a copy
before, so its caller looks for that before it refuses.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from duckicelake.errors import CatalogError, TooManyRequests

TableKey = tuple[str, tuple[str, ...], str]
"""A warehouse, a namespace and a table or view, as the request spells them."""
MAX_GROUP = 64
"""So many requests are committed together at most: what one transaction writes stays small."""

Request = TypeVar("Request")
Answer = TypeVar("Answer")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The number of changes of one table that may be in progress or wait at a time, and the seconds that each may wait.

    A change of several tables waits no longer for all of them.
    """

    requests: int = 256
    seconds: float = 20.0


class TurnTimeout(Exception):
    """The turn did not come in time."""


@dataclass(slots=True)
class Waiter(Generic[Request, Answer]):
    """A request that waits for its turn. `turn` is done when it has it (None), or when another request's turn has answered it."""

    turn: "asyncio.Future[Answer | CatalogError | None]"
    since_s: float
    request: Request | None = None
    timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        """Let the request wait as long as it takes: it is being answered."""
        if self.timer is not None:
            self.timer.cancel()


@dataclass(frozen=True, slots=True)
class MovingRefs:
    """The branches and tags that the commit which has the turn of a table moves. `done` is set when it has ended."""

    refs: Set[str]
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Turns(Generic[Request, Answer]):
    """The turns of all tables of this process. Used on the event loop only."""

    limits: TurnLimits = field(default_factory=TurnLimits)
    full_count: int = 0
    late_count: int = 0
    grouped_count: int = 0
    _waiting: dict[TableKey, "deque[Waiter[Request, Answer]]"] = field(default_factory=dict[TableKey, "deque[Waiter[Request, Answer]]"])
    _present: dict[TableKey, int] = field(default_factory=dict[TableKey, int])
    _moving: dict[TableKey, MovingRefs] = field(default_factory=dict[TableKey, MovingRefs])
    _deferred_count: int = 0

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait for a turn, or for the commit that has it before they are prepared."""
        return self._deferred_count + sum(map(len, self._waiting.values()))

    @contextmanager
    def place(self, key: TableKey) -> Generator[None]:
        """Hold one of the places of a table. Raises: TooManyRequests: all are taken."""
        present = self._present.get(key, 0)
        if present >= self.limits.requests:
            self.full_count += 1
            raise TooManyRequests(f"Too many changes of the table {key[2]!r} wait already; nothing was done. Try again later.")
        self._present[key] = present + 1
        try:
            yield
        finally:
            self._present[key] -= 1
            if not self._present[key]:
                del self._present[key]

    @contextmanager
    def moving_refs(self, key: TableKey, refs: Set[str]) -> Generator[None]:
        """Let requests that require one of these refs to be as it was wait in `wait_for_refs`. The caller has the turn of the table."""
        moving = self._moving[key] = MovingRefs(refs)
        try:
            yield
        finally:
            del self._moving[key]
            moving.done.set()

    async def wait_for_refs(self, key: TableKey, refs: Set[str]) -> float:
        """Return when the commit that has the turn of a table has ended, if it moves one of these refs; else at once.

        Return the seconds that this took, which are a part of the time that the caller may wait for its turn.
        Raises: TurnTimeout: the commit did not end in `limits.seconds`
        """
        moving = self._moving.get(key)
        if moving is None or not moving.refs & refs:
            return 0.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._deferred_count += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                await moving.done.wait()
        except TimeoutError as error:
            self.late_count += 1
            raise TurnTimeout from error
        finally:
            self._deferred_count -= 1
        return loop.time() - began

    async def run(self, keys: Sequence[TableKey], act: Callable[[], Result], late: Callable[[], Result]) -> Result:
        """Return what `act` does, on a thread, in the turns of tables, or what `late` does if these did not come in time.

        Raises: TooManyRequests: nothing was done. What the two raise
        """
        with ExitStack() as places:
            for key in sorted(set(keys)):
                places.enter_context(self.place(key))
            try:
                async with self.turn(keys):
                    return await run_in_threadpool(act)
            except TurnTimeout:
                return await run_in_threadpool(late)

    @asynccontextmanager
    async def turn(self, keys: Sequence[TableKey], waited_s: float = 0.0) -> AsyncGenerator[None]:
        """Hold the turns of tables, taken one after the other in their order, which is the same for all.

        Those that it has are held while it waits for the next one, `limits.seconds` in all; other changes of these tables wait meanwhile.
        `waited_s`: so much of that time the caller has waited before.
        Raises: TurnTimeout: the turns did not all come in that time
        """
        held: list[TableKey] = []
        until = asyncio.get_running_loop().time() + self.limits.seconds - waited_s
        try:
            for key in sorted(set(keys)):
                await self.wait(key, until=until)
                held.append(key)
            yield
        finally:
            for key in reversed(held):
                self.release(key)

    async def wait(self, key: TableKey, request: Request | None = None, *, until: float | None = None) -> Answer | CatalogError | None:
        """Return None when it is the caller's turn, who releases it; of a `request`, the answer if another one's turn has answered it.

        `until`: by the loop's clock, the time up to which it may wait, if it began to wait for another table before.

        Raises: TurnTimeout: the turn did not come in time
        """
        queue = self._waiting.get(key)
        if queue is None:
            self._waiting[key] = deque()
            return None
        loop = asyncio.get_running_loop()
        waiter = Waiter[Request, Answer](loop.create_future(), loop.time(), request)
        until = loop.time() + self.limits.seconds if until is None else until
        waiter.timer = loop.call_at(until, self._expire, queue, waiter)
        queue.append(waiter)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            waiter.stop_timer()
            if waiter in queue:
                queue.remove(waiter)
            elif waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.result() is None:
                self.release(key)
            raise

    def release(self, key: TableKey) -> None:
        """Give the turn to the request that has waited longest."""
        queue = self._waiting[key]
        while queue:
            waiter = queue.popleft()
            waiter.stop_timer()
            if not waiter.turn.done():
                waiter.turn.set_result(None)
                return
        del self._waiting[key]

    def gather(self, key: TableKey) -> "list[Waiter[Request, Answer]]":
        """Return the requests next in line that may be answered in the caller's turn, who answers each."""
        queue = self._waiting[key]
        gathered: list[Waiter[Request, Answer]] = []
        while queue and queue[0].request is not None and len(gathered) < MAX_GROUP - 1:
            waiter = queue.popleft()
            waiter.stop_timer()
            if not waiter.turn.done():
                gathered.append(waiter)
        return gathered

    def _expire(self, queue: "deque[Waiter[Request, Answer]]", waiter: Waiter[Request, Answer]) -> None:
        if waiter in queue:
            queue.remove(waiter)
            self.late_count += 1
            waiter.turn.set_exception(TurnTimeout())
