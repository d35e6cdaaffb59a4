"""Where a request leads, and who sent it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from fastapi import Depends, Path, Request
from starlette.concurrency import run_in_threadpool

from duckicelake.access.policy import LakePolicy
from duckicelake.access.rate_limit import RateLimit
from duckicelake.access.sessions import ANONYMOUS, Session
from duckicelake.access.token_endpoint import Accounts
from duckicelake.catalog.keys.ducklake import RoleMemory
from duckicelake.catalog.record.trail import Trail
from duckicelake.catalog.tables import Position
from duckicelake.catalog.warehouse import NO_CHOICE, Warehouse
from duckicelake.errors import NoSuchWarehouse
from duckicelake.rest.auth.oidc import TokenIssuers
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.params import decode_segment
from duckicelake.values import replace


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The warehouse that a request names, by its prefix, still percent-encoded, and who asks."""

    prefix: str
    session: Session


async def read_target(
    request: Request, prefix: Annotated[str, Path(description="The warehouse's prefix, as the configuration gives it.")]
) -> RequestTarget:
    """Return where a request leads and who sent it; everybody may do everything where nobody has to say who they are."""
    return RequestTarget(prefix, request.scope.get("session", ANONYMOUS))


Target = Annotated[RequestTarget, Depends(read_target)]


class ChangeWatch(Protocol):
    """Knows whether something happened in a lake; asked from the event loop only."""

    @property
    def check_count(self) -> int:
        """Checks made so far."""
        ...

    async def position(self) -> Position:
        """Return a position read after this call began. Raises: ServiceUnavailable."""
        ...

    def is_current(self, table_id: int, position: Position) -> bool:
        """Tell whether nothing that concerns the table happened after `position`, as of the last check."""
        ...

    def is_ruled(self, position: Position) -> bool:
        """Tell whether nothing after `position` changed who may do what, or any name, as of the last check."""
        ...

    def is_placed(self, position: Position) -> bool:
        """Tell whether no table came or got another name after `position`, as of the last check."""
        ...


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


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake that is served: its verbs' warehouse, its watch, the trail of what is denied in it, who may do what there, and the
    roles that DuckDB users were given.
    """

    prefix: str
    warehouse: Warehouse
    watch: ChangeWatch
    audit_log: Trail | None = None
    policies: PolicyCache | None = None
    roles: RoleMemory = field(default_factory=RoleMemory)

    @property
    def restricted_warehouse(self) -> Warehouse:
        """The warehouse for those who may not choose where files lie."""
        return replace(self.warehouse, roots=NO_CHOICE)


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The served lakes by prefix, empty until the server has started, and what all their requests share.

    `accounts` None: nobody has to say who they are, and everybody may do everything. `issuers`: whose tokens are believed too.
    `rate_limit`: how often each may ask, None: as often as it likes.
    `body_timeout_s`: how long the body of a request may take to come.
    """

    cache: ResponseCache
    metrics: Metrics
    accounts: Accounts | None = None
    lakes: dict[str, OpenLake] = field(default_factory=dict[str, OpenLake])
    body_timeout_s: float = 60.0
    issuers: TokenIssuers | None = None
    rate_limit: RateLimit | None = None

    def get_lake(self, prefix: str) -> OpenLake:
        """Return the lake of a path's prefix, still percent-encoded.

        Raises: NoSuchWarehouse: no lake of that name is served here
        """
        return self.get_lake_by_name(decode_segment(prefix, "prefix"))

    def get_warehouse(self, target: RequestTarget) -> Warehouse:
        """Return the warehouse as it is for who asks: without all rights, nobody chooses where files lie.

        Raises: NoSuchWarehouse: no lake of that name is served here
        """
        lake = self.get_lake(target.prefix)
        return lake.warehouse if target.session.may_choose_locations else lake.restricted_warehouse

    def get_lake_by_name(self, name: str) -> OpenLake:
        """Return the lake of that prefix. Raises: NoSuchWarehouse."""
        lake = self.lakes.get(name)
        if lake is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {name[:64]!r}. Ask for one of those this server was started with.")
        return lake


async def get_policies(context: ServerContext) -> dict[str, LakePolicy]:
    """Return the policies of all lakes, by their names. Raises: ServiceUnavailable."""
    lakes: list[OpenLake] = list(context.lakes.values())
    return {lake.prefix: await lake.policies.get() for lake in lakes if lake.policies is not None}
