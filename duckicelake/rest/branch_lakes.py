"""The branches that a server has opened, each as a lake of its own under the prefix `lake@branch`. Used on the event loop only."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.repositories.branches import close_snapshot, open_snapshot
from duckicelake.catalog.warehouse import Branch, find_served_branch, is_snapshot_id
from duckicelake.errors import CatalogError, NoSuchWarehouse, ServiceUnavailable
from duckicelake.rest.context import OpenLake

SEPARATOR = "@"
OpenBranch = Callable[[OpenLake, Branch, AsyncExitStack], Awaitable[OpenLake]]
MAX_SNAPSHOTS = 8
"""How many snapshots without a tag a server shows at a time: each is a schema of views in Postgres, and keeps the snapshot from expiry."""
IDLE_S, ROUND_S = 600.0, 60.0
"""After how long without a request such a snapshot is closed, and how often the server looks."""


@dataclass(slots=True)
class _OpenedBranch:
    """A branch that is open, and how many requests use it; `is_replaced`: the last of them closes it.

    `snapshot`: the name of the tag that this server has made for it, else empty. `parent`: its lake.
    """

    number: int
    lake: OpenLake
    parent: OpenLake
    closing: AsyncExitStack
    snapshot: str = ""
    request_count: int = 0
    is_replaced: bool = False
    used_at_s: float = field(default_factory=time.monotonic)

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
        self._opening = asyncio.Lock()

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
        async with self._opening:
            # Another request may have opened a younger branch meanwhile, or a renamed one has the name now.
            branch = await run_in_threadpool(find_served_branch, parent.warehouse, name)
            if branch is None and opens_snapshots and is_snapshot_id(name):
                await self._make_room(prefix)
                branch = await run_in_threadpool(open_snapshot, parent.warehouse, int(name))
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
            closing = AsyncExitStack()
            lake = await self._open_branch(parent, branch, closing)
            self._opened[prefix] = _OpenedBranch(branch.number, lake, parent, closing, branch.name if branch.is_automatic else "")

    async def _make_room(self, prefix: str) -> None:
        """Close the snapshot that was not asked for longest if there are too many. Raises: ServiceUnavailable: all of them are in use"""
        shown = {name: each for name, each in self._opened.items() if each.snapshot and name != prefix}
        if len(shown) < MAX_SNAPSHOTS:
            return
        idle = [name for name, each in shown.items() if each.request_count == 0]
        if not idle:
            raise ServiceUnavailable(f"Other snapshots without a tag are read, {MAX_SNAPSHOTS} at most: try again, or make a tag.")
        await self._close_snapshot(min(idle, key=lambda name: shown[name].used_at_s))

    async def close_idle(self, idle_s: float) -> None:
        """Close the snapshots without a tag that no request has named for so long, and delete their schemas."""
        async with self._opening:
            now_s = time.monotonic()
            for prefix, each in list(self._opened.items()):
                if each.snapshot and each.request_count == 0 and now_s - each.used_at_s >= idle_s:
                    await self._close_snapshot(prefix)

    async def _close_snapshot(self, prefix: str) -> None:
        opened = self._opened.pop(prefix)
        await opened.retire()
        # Postgres may not answer: the tag is deleted when a snapshot is opened after a day.
        with suppress(CatalogError):
            await run_in_threadpool(close_snapshot, opened.parent.warehouse, opened.snapshot)

    async def watch(self) -> None:
        """Close idle snapshots until the task is cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self.close_idle(IDLE_S)

    async def close(self) -> None:
        """Close all branches, and delete the schemas of snapshots without a tag."""
        async with self._opening:
            for prefix, each in list(self._opened.items()):
                if each.snapshot:
                    await self._close_snapshot(prefix)
                else:
                    await self._opened.pop(prefix).closing.aclose()
