"""Who may do what in each lake, in memory: read anew as soon as something of it has changed, by whomever.

Law: what a request is let do shows every change of grants, and of names, that was acknowledged before it came.
"""

import asyncio
from collections.abc import Callable

from starlette.concurrency import run_in_threadpool

from duckicelake.access.policy import Policy
from duckicelake.catalog.tables import Position
from duckicelake.rest.door import Door, OpenLake, Watching

Read = Callable[[], tuple[Policy, Position]]


class Rules:
    """Keeps one lake's policy; asked from the event loop only."""

    def __init__(self, watch: Watching, read: Read) -> None:
        self._watch = watch
        self._read = read
        self._kept: tuple[Policy, Position] | None = None
        self._reading = asyncio.Lock()

    async def find(self) -> Policy:
        """Return the policy as of a check of the lake that began after this call. Raises: ServiceUnavailable."""
        await self._watch.position()
        kept = self._kept
        if kept is not None and self._watch.is_ruled(kept[1]):
            return kept[0]
        async with self._reading:
            kept = self._kept
            if kept is None or not self._watch.is_ruled(kept[1]):
                # should the reading fail, what a restored Postgres has outdated must not come back when its numbers have grown again
                self._kept = None
                kept = self._kept = await run_in_threadpool(self._read)
            return kept[0]


async def find_policies(door: Door) -> dict[str, Policy]:
    """Return the policies of all lakes, by their names. Raises: ServiceUnavailable."""
    lakes: list[OpenLake] = list(door.lakes.values())
    return {lake.prefix: await lake.rules.find() for lake in lakes if lake.rules is not None}
