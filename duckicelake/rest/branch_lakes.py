"""The branches that a server has opened, each as a lake of its own under the prefix `lake@branch`. Used on the event loop only."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.warehouse import Branch, find_served_branch
from duckicelake.errors import NoSuchWarehouse
from duckicelake.rest.context import OpenLake

SEPARATOR = "@"
OpenBranch = Callable[[OpenLake, Branch, AsyncExitStack], Awaitable[OpenLake]]


@dataclass(frozen=True, slots=True)
class _OpenedBranch:
    number: int
    lake: OpenLake
    closing: AsyncExitStack


class BranchLakes:
    """Opens a branch when a request names it first, and closes it when the branch is gone.

    Law: a request is answered from the branch that has the name when the request arrives, also after a deletion on another server.
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
            await self._replace(parent, prefix, branch)
        if branch is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {prefix[:64]!r}. `duckicelake branch list` lists the branches of the lake.")

    async def _replace(self, parent: OpenLake, prefix: str, branch: Branch | None) -> None:
        opened = self._opened.get(prefix)
        if opened is not None and (branch is None or opened.number < branch.number):
            del self._opened[prefix]
            await opened.closing.aclose()
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
