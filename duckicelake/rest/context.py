"""What every route needs: the lakes that are open, the answers that are ready, and the counters."""

from dataclasses import dataclass, field
from typing import Protocol

from duckicelake.access.policy import LakePolicy
from duckicelake.access.rate_limit import RateLimit
from duckicelake.access.token_endpoint import Accounts
from duckicelake.catalog.keys.ducklake import RoleMemory
from duckicelake.catalog.record.trail import Trail
from duckicelake.catalog.tables import Position
from duckicelake.catalog.warehouse import NO_CHOICE, Warehouse
from duckicelake.errors import NoSuchWarehouse
from duckicelake.rest.auth.oidc.issuers import TokenIssuers
from duckicelake.rest.auth.target import RequestTarget
from duckicelake.rest.cache import ResponseCache
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.params import decode_segment
from duckicelake.values import replace


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


class PolicySource(Protocol):
    """Knows who may do what in a lake; asked from the event loop only."""

    async def get(self) -> LakePolicy:
        """Return the policy as of a check that began after this call. Raises: ServiceUnavailable."""
        ...


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake that is served: its verbs' warehouse, its watch, the trail of what is denied in it, who may do what there, and the
    roles that DuckDB users were given.
    """

    prefix: str
    warehouse: Warehouse
    watch: ChangeWatch
    audit_log: Trail | None = None
    policies: PolicySource | None = None
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
