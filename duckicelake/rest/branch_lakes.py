"""The branches that a server has opened, each as a lake of its own under the prefix `lake@branch`. Used on the event loop only."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.warehouse import Branch, find_served_branch
from duckicelake.errors import NoSuchWarehouse
from duckicelake.rest.context import OpenLake

SEPARATOR = "@"
OpenBranch = Callable[[OpenLake, Branch, AsyncExitStack], Awaitable[OpenLake]]


@dataclass(slots=True)
class _OpenedBranch:
    """A branch that is open, and how many requests use it; `is_replaced`: the last of them closes it."""

    number: int
    lake: OpenLake
    closing: AsyncExitStack
    request_count: int = 0
    is_replaced: bool = False

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

    async def check(self, parent: OpenLake, prefix: str) -> None:
        """Open the branch that a prefix names, unless it is open. Raises: NoSuchWarehouse, Unsupported, ServiceUnavailable."""
        branch = await run_in_threadpool(find_served_branch, parent.warehouse, prefix.partition(SEPARATOR)[2])
        opened = self._opened.get(prefix)
        if opened is not None and branch is not None and opened.number == branch.number:
            return
        async with self._opening:
            # Another request may have opened a younger branch meanwhile, or a renamed one has the name now.
            branch = await run_in_threadpool(find_served_branch, parent.warehouse, prefix.partition(SEPARATOR)[2])
            await self._replace(parent, prefix, branch)
        if branch is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {prefix[:64]!r}. `duckicelake branch list` lists the branches of the lake.")

    @asynccontextmanager
    async def using(self, parent: OpenLake, prefix: str, *, is_checked: bool) -> AsyncGenerator[None]:
        """Open the branch that a prefix names, unless `check` just did so, and keep it open for a request. Raises: what `check` raises."""
        if not is_checked:
            await self.check(parent, prefix)
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
            self._opened[prefix] = _OpenedBranch(branch.number, lake, closing)

    async def close(self) -> None:
        """Close all branches."""
        async with self._opening:
            opened, self._opened = self._opened, {}
            for each in opened.values():
                await each.closing.aclose()
