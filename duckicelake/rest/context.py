"""State that all requests of a server share: the open lakes with their caches, the issuers of tokens, the counters.

`app.py` builds one `ServerContext` per process; routes and layers receive it as a parameter. Watches and policy caches are used on the
event loop only; a `Warehouse` is used by the threads that run catalog operations. To get a policy or to find a branch may read Postgres, on
a worker thread.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol

from fastapi import Depends, Path, Request
from starlette.concurrency import run_in_threadpool

from duckicelake.access.policy import LakePolicy
from duckicelake.access.rate_limit import RateLimit
from duckicelake.access.sessions import ANONYMOUS, Bearer, Session
from duckicelake.access.tokens import Accounts
from duckicelake.catalog.audit_log import AuditLog
from duckicelake.catalog.credentials.ducklake import RoleCache
from duckicelake.catalog.events import Webhook
from duckicelake.catalog.tables import Position
from duckicelake.catalog.warehouse import FIXED_LOCATIONS, Warehouse
from duckicelake.errors import BadRequest, Forbidden, NoSuchWarehouse
from duckicelake.gateway.upstream import Gateway
from duckicelake.rest.auth.oidc import TokenIssuers
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.diff_process import DiffProcess
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.operations import CHANGING
from duckicelake.rest.params import decode_segment
from duckicelake.rest.turns import Turns


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The warehouse prefix of a request's path, still percent-encoded, the session of its sender, and the whole path as it was sent."""

    prefix: str
    session: Session
    raw_path: bytes = b""


async def read_target(
    request: Request, prefix: Annotated[str, Path(description="The warehouse's prefix, as the configuration gives it.")]
) -> RequestTarget:
    """Return the request's prefix and session. Without `require_auth` every request has the session that may do everything."""
    return RequestTarget(prefix, request.scope.get("session", ANONYMOUS), request.scope.get("raw_path") or b"")


Target = Annotated[RequestTarget, Depends(read_target)]


class ChangeWatch(Protocol):
    """Change detection for one lake (`lake.watch`). Used on the event loop only."""

    @property
    def check_count(self) -> int:
        """Number of checks made so far."""
        ...

    async def position(self) -> Position:
        """Return a position read after this call began. Raises: ServiceUnavailable."""
        ...

    def is_current(self, table_id: int, position: Position) -> bool:
        """True if, as of the last check, the table is unchanged since `position`."""
        ...

    def are_rules_current(self, position: Position) -> bool:
        """True if, as of the last check, grants and names are unchanged since `position`."""
        ...

    def are_locations_current(self, position: Position) -> bool:
        """True if, as of the last check, no table was created or renamed since `position`."""
        ...


class ServerTurns(Protocol):
    """Turns of tables between the servers of one lake (`lake.server_turns`). Used on the event loop only."""

    def turn(self, table: str) -> AbstractAsyncContextManager[bool]:
        """Hold the turn of a table, or go on without it if another server keeps it for too long.

        Returns True if this process has had the turn without a break since its last commit
        """
        ...


Read = Callable[[], tuple[LakePolicy, Position]]


class PolicyCache:
    """Cache of one lake's policy (principals, roles, grants). Used on the event loop only.

    Law: a decision shows every change of grants and names that was acknowledged before the request arrived.
    """

    def __init__(self, watch: ChangeWatch, read: Read) -> None:
        self._watch = watch
        self._read = read
        self._cached: tuple[LakePolicy, Position] | None = None
        self._reading = asyncio.Lock()

    async def get(self) -> LakePolicy:
        """Return the policy as of a check of the lake that began after this call. Raises: ServiceUnavailable."""
        await self._watch.position()
        cached = self._cached
        if cached is not None and self._watch.are_rules_current(cached[1]):
            return cached[0]
        async with self._reading:
            cached = self._cached
            if cached is None or not self._watch.are_rules_current(cached[1]):
                # If the read fails, drop the cached policy: after a restore of Postgres its position could count as current again.
                self._cached = None
                cached = self._cached = await run_in_threadpool(self._read)
            return cached[0]


class Policies(Protocol):
    """The policy of a lake. Used on the event loop only."""

    async def get(self) -> LakePolicy:
        """Return the policy as of a check of the lake that began after this call. Raises: ServiceUnavailable."""
        ...


class BranchPolicies:
    """The policy of a branch: the accounts and grants of its lake, on the objects that the branch has. Used on the event loop only.

    Law: a decision shows every change of grants on the lake, and of names on the branch, that was acknowledged before the request arrived.
    """

    def __init__(self, parent: Policies, open_cache: Callable[[], PolicyCache]) -> None:
        self._parent = parent
        self._open_cache = open_cache
        self._cached: tuple[LakePolicy, PolicyCache] | None = None

    async def get(self) -> LakePolicy:
        """Return the policy. Raises: ServiceUnavailable."""
        of_lake = await self._parent.get()
        # Another policy of the lake means that grants may have changed since the branch's was read.
        if self._cached is None or self._cached[0] is not of_lake:
            self._cached = of_lake, self._open_cache()
        return await self._cached[1].get()


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake that this server serves: warehouse, change detection, audit log, policy, and the Postgres roles of DuckDB users.

    `policies` None: the server runs without authentication. `server_turns` None: servers take no turns.
    `webhook` None: events are not sent. `repository`: the prefix of the lake if this is a branch of it.
    `read_only`: why it is never changed, empty if it is. `is_untagged`: it is a snapshot without a tag, which only principals that may
    manage the warehouse read: it shows what was there then by the grants of today. `diff_process`: reads differences with rows; None: it is
    a branch.
    """

    prefix: str
    warehouse: Warehouse
    watch: ChangeWatch
    audit_log: AuditLog | None = None
    policies: Policies | None = None
    webhook: Webhook | None = None
    roles: RoleCache = field(default_factory=RoleCache)
    server_turns: ServerTurns | None = None
    repository: str = ""
    read_only: str = ""
    is_untagged: bool = False
    diff_process: DiffProcess | None = None

    @property
    def restricted_warehouse(self) -> Warehouse:
        """The warehouse for principals that may not choose a table's location."""
        return replace(self.warehouse, roots=FIXED_LOCATIONS)


class OpenBranches(Protocol):
    """The branches that are open (`rest.branch_lakes`). Used on the event loop only, except `note_made`."""

    async def check(self, parent: OpenLake, prefix: str, *, opens_snapshots: bool = True) -> None:
        """Open the branch that a prefix names, unless it is open; a snapshot without a tag only with `opens_snapshots`.

        Raises: NoSuchWarehouse, BadRequest, Unsupported, ServiceUnavailable
        """
        ...

    def find(self, prefix: str) -> OpenLake | None:
        """Return the branch of that prefix, or None."""
        ...

    def note_made(self, parent: OpenLake) -> None:
        """Note, on any thread, that a branch of a lake was made, so that the next one finds its relations prepared."""
        ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The state of one server process. `lakes` is keyed by prefix and empty until the server has started.

    `accounts` None: no authentication, every request may do everything. `issuers`: external issuers whose tokens are accepted too.
    `rate_limit` None: principals may send as many requests as they like.
    `gateway`: the routes to other catalogs, None if there are none.
    `branches` None: no branches are served. `audits_reads`: reads are counted for the audit logs of their lakes.
    `body_timeout_s`: how long the body of a request may take to arrive. `turns`: changes of one table follow each other.
    """

    cache: ResponseCache
    metrics: Metrics
    accounts: Accounts | None = None
    lakes: dict[str, OpenLake] = field(default_factory=dict[str, OpenLake])
    body_timeout_s: float = 60.0
    issuers: TokenIssuers | None = None
    rate_limit: RateLimit | None = None
    gateway: Gateway | None = None
    turns: Turns[Any, Any] = field(default_factory=Turns[Any, Any])
    branches: OpenBranches | None = None
    audits_reads: bool = False

    def get_lake(self, prefix: str) -> OpenLake:
        """Return the lake that a path names by its percent-encoded prefix.

        Raises: NoSuchWarehouse: no lake of that name is served here
        """
        return self.get_lake_by_name(decode_segment(prefix, "prefix"))

    def get_warehouse(self, target: RequestTarget) -> Warehouse:
        """Return the warehouse that a request names, restricted unless its principal may choose locations.

        Raises: NoSuchWarehouse: no lake of that name is served here
        """
        lake = self.get_lake(target.prefix)
        return lake.warehouse if target.session.may_choose_locations else lake.restricted_warehouse

    def get_lake_by_name(self, name: str) -> OpenLake:
        """Return the lake of that prefix. Raises: NoSuchWarehouse."""
        lake = self.find_lake(name)
        if lake is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {name[:64]!r}. Ask for one of those this server was started with.")
        return lake

    def find_lake(self, name: str) -> OpenLake | None:
        """Return the lake, or the open branch of a lake, of that prefix, or None."""
        lake = self.lakes.get(name)
        return lake if lake is not None or self.branches is None else self.branches.find(name)

    async def find_member(self, name: str, *, opens_snapshots: bool = True) -> OpenLake | None:
        """Return the lake of that prefix, or the branch, which is opened if need be; None if there is no such lake.

        A snapshot without a tag is opened only with `opens_snapshots`.
        Raises: NoSuchWarehouse: the lake has no such branch. BadRequest, Unsupported, ServiceUnavailable
        """
        if name in self.lakes or self.branches is None:
            return self.lakes.get(name)
        parent = self.lakes.get(name.partition("@")[0]) if "@" in name else None
        if parent is not None:
            await self.branches.check(parent, name, opens_snapshots=opens_snapshots)
        return self.branches.find(name)

    def check_writable(self, operation: str, prefix: str) -> None:
        """Raise Forbidden if an operation changes what is never changed. `prefix`: as in a path."""
        lake = self.find_lake(decode_segment(prefix, "prefix")) if operation in CHANGING else None
        if lake is not None and lake.read_only:
            raise Forbidden(lake.read_only)

    def get_repository(self, prefix: str) -> OpenLake:
        """Return the lake that a path names by its percent-encoded prefix.

        Raises: NoSuchWarehouse. BadRequest: it is a branch, and accounts, grants and audited reads are its lake's
        """
        lake = self.get_lake(prefix)
        if lake.repository:
            raise BadRequest(
                f"Accounts, grants and audited reads are those of the lake: use the warehouse {lake.repository!r}, not its branch."
            )
        return lake


async def may_read_untagged(context: ServerContext, bearer: Bearer | None, name: str) -> bool:
    """Return True if a principal may read snapshots of a lake that have no tag. `name`: the prefix of the lake, or of a branch."""
    lake = context.lakes.get(name.partition("@")[0])
    if lake is None or lake.policies is None:
        return True
    return bearer is not None and bearer.within(lake.prefix, await lake.policies.get()).may_choose_locations


async def get_policies(context: ServerContext) -> dict[str, LakePolicy]:
    """Return the current policy of each lake, by the lake's name. Raises: ServiceUnavailable."""
    lakes: list[OpenLake] = list(context.lakes.values())
    return {lake.prefix: await lake.policies.get() for lake in lakes if lake.policies is not None}
