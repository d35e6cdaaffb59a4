"""What every route needs: the lakes that are open, the answers that are ready, and the counters."""

from dataclasses import dataclass, field
from typing import Protocol

from duckicelake.catalog.tables import Position
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchWarehouse
from duckicelake.rest.cache import TableCache
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.params import decode_segment


class Watching(Protocol):
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


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake that is served: its verbs' warehouse, and its watch."""

    prefix: str
    warehouse: Warehouse
    watch: Watching


@dataclass(frozen=True, slots=True)
class Door:
    """The served lakes by prefix, empty until the server has started, and what all their requests share."""

    cache: TableCache
    metrics: Metrics
    lakes: dict[str, OpenLake] = field(default_factory=dict[str, OpenLake])

    def get_lake(self, prefix: str) -> OpenLake:
        """Return the lake of a path's prefix, still percent-encoded.

        Raises: NoSuchWarehouse: no lake of that name is served here
        """
        return self.find_lake(decode_segment(prefix, "prefix"))

    def find_lake(self, name: str) -> OpenLake:
        """Return the lake of that prefix. Raises: NoSuchWarehouse."""
        lake = self.lakes.get(name)
        if lake is None:
            raise NoSuchWarehouse(f"Warehouse does not exist: {name[:64]!r}. Ask for one of those this server was started with.")
        return lake
