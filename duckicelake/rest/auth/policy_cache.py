"""Who may do what in each lake, in memory: read anew as soon as something of it has changed, by whomever.

Law: what a request is let do shows every change of grants, and of names, that was acknowledged before it came.
"""

import asyncio
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from duckicelake.access.policy import LakePolicy
from duckicelake.catalog.tables import Position
from duckicelake.rest.context import ChangeWatch, OpenLake, ServerContext

Read = Callable[[], tuple[LakePolicy, Position]]


class PolicyCache:
    """Keeps one lake's policy; asked from the event loop only."""

    def __init__(self, watch: ChangeWatch, read: Read) -> None:
        self._watch = watch
        self._read = read
        self._cached: tuple[LakePolicy, Position] | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> LakePolicy:
        """Return the policy as of a check of the lake that began after this call. Raises: ServiceUnavailable."""
        await self._watch.position()
        cached = self._cached
        if cached is not None and self._watch.is_ruled(cached[1]):
            return cached[0]
        async with self._reading:
            cached = self._cached
            if cached is None or not self._watch.is_ruled(cached[1]):
                # should the reading fail, what a restored Postgres has outdated must not come back when its numbers have grown again
                self._cached = None
                cached = self._cached = await run_in_threadpool(self._read)
            return cached[0]


async def get_policies(context: ServerContext) -> dict[str, LakePolicy]:
    """Return the policies of all lakes, by their names. Raises: ServiceUnavailable."""
    lakes: list[OpenLake] = list(context.lakes.values())
    return {lake.prefix: await lake.policies.get() for lake in lakes if lake.policies is not None}
