"""A warehouse: one lake and the objects beside it, open for work."""

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.catalog.memory import TableMemory
from duckicelake.lake.connect import Lake, close_lake, open_lake
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings

MAX_CONNECTIONS = 48
"""Not below the threads that requests run in."""


@dataclass(slots=True)
class Memories:
    """What the process remembers of the tables used last: only to save work, every part can be made again."""

    most: int
    _by_table: OrderedDict[int, TableMemory] = field(default_factory=OrderedDict[int, TableMemory])
    _lock: Lock = field(default_factory=Lock)

    def of(self, table_id: int) -> TableMemory:
        """Return the memory of a table, empty at first; the table used longest ago is forgotten."""
        with self._lock:
            memory = self._by_table.setdefault(table_id, TableMemory())
            self._by_table.move_to_end(table_id)
            while len(self._by_table) > self.most:
                self._by_table.popitem(last=False)
            return memory


@dataclass(frozen=True, slots=True)
class Warehouse:
    """One DuckLake as one REST prefix. `client_properties` are what every client of it is told."""

    name: str
    lake: Lake
    objects: Objects
    client_properties: dict[str, str]
    memories: Memories


def open_warehouse(name: str, dsn: str, metadata_schema: str, store: StoreSettings, cache_max: int = 1024) -> Warehouse:
    """Return a warehouse; nothing is contacted before its first use, so Postgres and the store may be down."""
    lake = open_lake(name, dsn, metadata_schema, MAX_CONNECTIONS)
    return Warehouse(name, lake, open_objects(store), to_client_properties(store), Memories(cache_max))


def close_warehouse(warehouse: Warehouse) -> None:
    """Close its connections."""
    close_lake(warehouse.lake)


def to_client_properties(store: StoreSettings) -> dict[str, str]:
    """Return where clients find the object store, in the words of Java, PyIceberg and DuckDB; never a key."""
    properties = {"s3.region": store.region, "client.region": store.region}
    if store.endpoint is not None:
        properties["s3.endpoint"] = store.endpoint
        properties["s3.path-style-access"] = str(store.path_style).lower()
    return properties
