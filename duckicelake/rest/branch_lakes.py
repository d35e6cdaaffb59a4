"""The branches that a server has opened, each as a lake of its own under the prefix `lake@branch`. Used on the event loop only, except
`note_made`.

The layers of `rest` open and find branches here, and a task of `app` closes them. Postgres is asked on worker threads: for the branch, with
each request that names one, and for those that are gone. To show a lake snapshot without a tag, `catalog.repositories` makes a tag for it,
which the last server that shows it deletes; meanwhile each server notes in Postgres every minute that it shows it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from uuid import uuid4
from weakref import WeakValueDictionary

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.repositories import close_snapshot, list_names, note_shown, open_snapshot, prepare_spare, remove_spare
from duckicelake.catalog.warehouse import Branch, find_served_branch, has_served_snapshot, is_snapshot_id
from duckicelake.errors import CatalogError, NoSuchWarehouse, ServiceUnavailable
from duckicelake.rest.context import OpenLake

SEPARATOR = "@"
OpenBranch = Callable[[OpenLake, Branch, AsyncExitStack], Awaitable[OpenLake]]
MAX_SNAPSHOTS = 8
"""How many snapshots without a tag a server shows at a time: each is a schema of views in Postgres, and keeps the snapshot from expiry."""
IDLE_S, ROUND_S = 600.0, 60.0
"""After how long without a request a branch or such a snapshot is closed, and how often the server looks."""
SPARE_DELAY_S, SPARE_IDLE_S = 1.0, 3600.0
"""How long after a branch was made the server prepares the relations of the next one, and how long it keeps them for it."""


@dataclass(slots=True)
class _OpenedBranch:
    """A branch that is open, and how many requests use it; `is_replaced`: the last of them closes it.

    `is_untagged`: a server has made its tag, which the last server that shows it deletes. `parent`: its lake.
    """

    branch: Branch
    lake: OpenLake
    parent: OpenLake
    closing: AsyncExitStack
    request_count: int = 0
    is_replaced: bool = False
    used_at_s: float = field(default_factory=time.monotonic)

    @property
    def number(self) -> int:
        """The number of the branch."""
        return self.branch.number

    @property
    def is_untagged(self) -> bool:
        """True if a server has made its tag."""
        return self.branch.is_automatic

    async def retire(self) -> None:
        """Close the branch, at once or after its last request."""
        self.is_replaced = True
        if self.request_count == 0:
            await self.closing.aclose()


class BranchLakes:
    """Opens a branch when a request names it first, and closes it when the branch is gone.

    Laws: a request is answered from the branch that has the name when the request arrives, also after a deletion on another server. What
    runs when the branch is merged or deleted keeps its connections: a commit is then refused as a conflict, and its outcome is known.
    """

    def __init__(self, open_branch: OpenBranch) -> None:
        self._open_branch = open_branch
        self._opened: dict[str, _OpenedBranch] = {}
        self._server = uuid4().hex
        self._opening = WeakValueDictionary[str, asyncio.Lock]()
        # The lake's lock is waited for within it, so other branches are opened without it.
        self._opening_snapshot = asyncio.Lock()
        self._closing = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spares: dict[str, OpenLake] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}

    def find(self, prefix: str) -> OpenLake | None:
        """Return the branch if `check` has opened it."""
        opened = self._opened.get(prefix)
        return None if opened is None else opened.lake

    async def check(self, parent: OpenLake, prefix: str, *, opens_snapshots: bool = True) -> None:
        """Open the branch that a prefix names, unless it is open; and a snapshot without a tag if the caller may have one opened.

        Raises: NoSuchWarehouse, BadRequest, Unsupported, ServiceUnavailable
        """
        name = prefix.partition(SEPARATOR)[2]
        branch = await run_in_threadpool(find_served_branch, parent.warehouse, name)
        opened = self._opened.get(prefix)
        if opened is not None and branch is not None and opened.number == branch.number:
            opened.used_at_s = time.monotonic()
            return
        async with self._opening.setdefault(prefix, asyncio.Lock()):
            # Another request may have opened a younger branch meanwhile, or a renamed one has the name now.
            branch = await run_in_threadpool(find_served_branch, parent.warehouse, name)
            if branch is None and opens_snapshots and is_snapshot_id(name):
                async with self._opening_snapshot:
                    branch = await self._open_snapshot(parent, prefix, int(name))
                    await self._replace(parent, prefix, branch)
            else:
                await self._replace(parent, prefix, branch)
        if branch is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {prefix[:64]!r}. `duckicelake branch list` lists the branches of the lake.")

    @asynccontextmanager
    async def using(self, prefix: str) -> AsyncGenerator[None]:
        """Keep the branch that `check` has just opened open for a request."""
        opened = self._opened.get(prefix)
        if opened is None:
            # It has been deleted since; the request is refused when it looks its lake up.
            yield
            return
        opened.request_count += 1
        try:
            yield
        finally:
            opened.request_count -= 1
            if opened.is_replaced:
                await opened.retire()

    async def _replace(self, parent: OpenLake, prefix: str, branch: Branch | None) -> None:
        opened = self._opened.get(prefix)
        if opened is not None and (branch is None or opened.number != branch.number):
            del self._opened[prefix]
            await opened.retire()
            opened = None
        if opened is None and branch is not None:
            # A branch that cannot be opened leaves no tag, and no row of a reader, by which the snapshot would not expire.
            async with AsyncExitStack() as closing:
                if branch.is_automatic:
                    if not await run_in_threadpool(note_shown, parent.warehouse, branch, self._server):
                        raise ServiceUnavailable(f"Another server has just deleted the tag of snapshot {branch.name}; try again.")
                    # Closed last, after the connections that read it.
                    closing.push_async_callback(delete_tag, parent, branch, self._server)
                lake = await self._open_branch(parent, branch, closing)
                self._opened[prefix] = _OpenedBranch(branch, lake, parent, closing.pop_all())

    async def _open_snapshot(self, parent: OpenLake, prefix: str, snapshot_id: int) -> Branch | None:
        """Make the tag of a snapshot, None if there is no such snapshot; of too many the one that was not asked for longest is closed.

        Raises: ServiceUnavailable: all of them are in use, or the lake is not idle. BadRequest: the snapshot cannot be shown
        """
        if not await run_in_threadpool(has_served_snapshot, parent.warehouse, snapshot_id):
            return None
        idle = self._list_idle(prefix)
        if idle == []:
            raise ServiceUnavailable(f"Other snapshots without a tag are read, {MAX_SNAPSHOTS} at most: try again, or make a tag.")
        branch = await run_in_threadpool(open_snapshot, parent.warehouse, snapshot_id)
        self._begin_spare(parent)
        # Nothing was closed for a snapshot that is not shown; and requests may have begun meanwhile.
        idle = self._list_idle(prefix)
        if branch is not None and idle:
            await self._opened.pop(idle[0]).retire()
        return branch

    def _list_idle(self, prefix: str) -> list[str] | None:
        """Return the snapshots besides that one which no request uses, the longest unused first; None: there is room for one more."""
        shown = {name: each for name, each in self._opened.items() if each.is_untagged and name != prefix}
        if len(shown) < MAX_SNAPSHOTS:
            return None
        idle = [name for name, each in shown.items() if each.request_count == 0]
        return sorted(idle, key=lambda name: shown[name].used_at_s)

    def note_made(self, parent: OpenLake) -> None:
        """Note, on any thread, that a branch of a lake was made, so that the next one finds its relations prepared."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_spare, parent)

    def _begin_spare(self, parent: OpenLake) -> None:
        preparing = self._preparing.get(parent.prefix)
        if preparing is None or preparing.done():
            self._preparing[parent.prefix] = asyncio.create_task(self._prepare_spare(parent))

    async def _prepare_spare(self, parent: OpenLake) -> None:
        # What the clients of the new branch ask for goes first.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), SPARE_DELAY_S)
        if not self._closing.is_set():
            self._spares[parent.prefix] = parent
            # Without a spare the next branch makes its relations itself.
            with suppress(CatalogError):
                await run_in_threadpool(prepare_spare, parent.warehouse)

    async def remove_spares(self, idle_s: float) -> None:
        """Remove the spares of this server's lakes that no branch has claimed for so long."""
        for prefix, parent in list(self._spares.items()):
            with suppress(CatalogError):
                if await run_in_threadpool(remove_spare, parent.warehouse, idle_s):
                    self._spares.pop(prefix, None)

    async def close_idle(self, idle_s: float) -> None:
        """Close branches and snapshots that no request has named for so long, and those that have been deleted or renamed."""
        entries = list(self._opened.items())
        served: dict[str, set[str]] = {}
        for parent in {each.parent.prefix: each.parent for _, each in entries}.values():
            # While Postgres does not answer, only what is idle is closed.
            with suppress(CatalogError):
                served[parent.prefix] = await run_in_threadpool(list_names, parent.warehouse)
        now_s = time.monotonic()
        for prefix, each in entries:
            # A name that another branch has now, or that was merged, is opened again by the next request for it.
            name, names = each.lake.prefix.partition(SEPARATOR)[2], served.get(each.parent.prefix)
            is_gone = names is not None and name not in names
            is_idle = each.request_count == 0 and now_s - each.used_at_s >= idle_s
            if (is_gone or is_idle) and self._opened.get(prefix) is each:
                del self._opened[prefix]
                await each.retire()

    async def watch(self) -> None:
        """Close what is idle or gone until the task is cancelled."""
        self._loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(ROUND_S)
            await self.close_idle(IDLE_S)
            await self.note_shown()
            await self.remove_spares(SPARE_IDLE_S)

    async def note_shown(self) -> None:
        """Note for the other servers which snapshots without a tag this one shows."""
        for each in [opened for opened in self._opened.values() if opened.is_untagged]:
            with suppress(CatalogError):
                await run_in_threadpool(note_shown, each.parent.warehouse, each.branch, self._server)

    async def close(self) -> None:
        """Close all branches, and delete the schemas of snapshots without a tag, and the spares."""
        self._closing.set()
        await asyncio.gather(*self._preparing.values())
        await self.remove_spares(0.0)
        async with self._opening_snapshot:
            for prefix in list(self._opened):
                await self._opened.pop(prefix).closing.aclose()


async def delete_tag(parent: OpenLake, tag: Branch, server: str) -> None:
    """Delete the tag of a snapshot unless other servers show it. If Postgres does not answer, a server does it a day later."""
    with suppress(CatalogError):
        await run_in_threadpool(close_snapshot, parent.warehouse, tag, server)
