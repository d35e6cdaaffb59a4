"""A warehouse: one lake and the objects beside it, open for work."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

from duckicelake.catalog.adopting.kept import PlanMemory
from duckicelake.catalog.memory import Named, TableMemory, count_parts, estimate_bytes
from duckicelake.catalog.scanning.memory import ScanMemory
from duckicelake.iceberg.decoding.avro_types import Readers
from duckicelake.lake.connect import Lake, close_lake, open_lake, reading
from duckicelake.lake.read import read_data_path
from duckicelake.lake.writing.lookups import Past
from duckicelake.store.keys.sessions import StsSettings, Vendor
from duckicelake.store.keys.signer import Signer
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from duckicelake.translate.locations import NO_CHOICE, Roots, parse_roots

__all__ = [
    "NO_CHOICE",
    "Limits",
    "Memories",
    "StsSettings",
    "Warehouse",
    "close_warehouse",
    "open_warehouse",
    "to_client_properties",
    "with_roots",
    "with_signer",
    "with_vendor",
]

NOWHERE = Roots()
GROWS = 1.25
"""How much a table's memory grows until it is weighed again."""
FEW_PARTS = 256
"""A young table's grows by that much with every commit, and is next to nothing."""
PLANNED = 4
"""What part of the memory for tables may be taken for manifests that scans were planned from, beside it."""
NEVER = (-1, 0)
RECENT = 100
"""By how many lake snapshots what is remembered may be behind: whether they concern a table is looked up under the lake's lock."""
MAX_CONNECTIONS = 48
"""Not below the threads that requests run in."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server keeps and how long it waits: tables and bytes in memory, seconds for one statement of Postgres."""

    tables: int = 1024
    memory_bytes: int = 1024 * 1024 * 1024
    postgres_timeout_s: float = 60.0


@dataclass(slots=True)
class Memories:
    """What the process remembers of the tables used last: only to save work, every part can be made again."""

    limits: Limits = field(default_factory=Limits)
    _by_table: OrderedDict[int, TableMemory] = field(default_factory=OrderedDict[int, TableMemory])
    _size_bytes: dict[int, int] = field(default_factory=dict[int, int])
    _parts: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    _by_name: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _newest: int = 0
    _lock: Lock = field(default_factory=Lock)

    def of(self, table_id: int) -> TableMemory:
        """Return the memory of a table, empty at first; the table used longest ago is forgotten."""
        with self._lock:
            memory = self._by_table.get(table_id)
            if memory is None:
                memory = self._by_table[table_id] = TableMemory()
            self._by_table.move_to_end(table_id)
            self._forget_oldest()
            return memory

    def name(self, name: tuple[str, str], past: Past) -> None:
        """Remember the table that a schema's and a table's name stand for."""
        if past.seen.table is None:
            return
        memory = self.of(past.seen.table.table_id)
        with self._lock:
            if memory.named is not None:
                # one spelling each: names have as many as clients like
                self._by_name.pop(memory.named.name, None)
            memory.named = Named(name, past)
            self._by_name[name] = past.seen.table.table_id
            self._newest = max(self._newest, past.seen.position.lake_snapshot_id)

    def find_named(self, name: tuple[str, str]) -> TableMemory | None:
        """Return the memory of the table that a name stood for, if it was published not long ago, or None."""
        with self._lock:
            memory = self._by_table.get(self._by_name.get(name, -1))
            if memory is None or memory.published is None or memory.named is None or memory.named.name != name:
                return None
            position = memory.published.position.lake_snapshot_id
            self._newest = max(self._newest, position)
            return memory if position > self._newest - RECENT else None

    def weigh(self, table_id: int, memory: TableMemory) -> None:
        """Take note of how large a table's memory is now; those used longest ago make room for it.

        That looks at much of it: what holds about as much as when it was weighed last is not weighed again.
        """
        parts = count_parts(memory)
        large, small = self._parts.get(table_id, NEVER)
        if parts[0] == large and small <= parts[1] <= small * GROWS + FEW_PARTS:
            return
        size_bytes = estimate_bytes(memory)
        with self._lock:
            if self._by_table.get(table_id) is memory:
                self._size_bytes[table_id], self._parts[table_id] = size_bytes, parts
                self._forget_oldest()

    def forget(self, table_id: int, memory: TableMemory) -> None:
        """Forget this memory of a table."""
        with self._lock:
            if self._by_table.get(table_id) is memory:
                self._forget(table_id)

    def __len__(self) -> int:
        return len(self._by_table)

    def items(self) -> list[tuple[int, TableMemory]]:
        """Return what is remembered by table, and count none of it as used."""
        with self._lock:
            return list(self._by_table.items())

    def table_ids(self) -> list[int]:
        """Return the tables that are remembered, the one used longest ago first."""
        return list(self._by_table)

    @property
    def size_bytes(self) -> int:
        """About how many bytes are remembered."""
        return sum(self._size_bytes.values())

    def _forget_oldest(self) -> None:
        limits = self.limits
        while len(self._by_table) > 1 and (len(self._by_table) > limits.tables or self.size_bytes > limits.memory_bytes):
            self._forget(next(iter(self._by_table)))

    def _forget(self, table_id: int) -> None:
        memory = self._by_table.pop(table_id)
        if memory.named is not None:
            self._by_name.pop(memory.named.name, None)
        self._size_bytes.pop(table_id, None)
        self._parts.pop(table_id, None)


class Neighbours:
    """The DATA_PATHs of other lakes, each read once. Safe to share between threads."""

    def __init__(self, list_lakes: Callable[[], Iterable[Lake]]) -> None:
        self._list_lakes = list_lakes
        self._known: dict[str, str] = {}

    def find(self) -> tuple[str, ...]:
        """Return them. Raises: ServiceUnavailable: that of one is not known, and its Postgres does not answer."""
        lakes = list(self._list_lakes())
        for lake in lakes:
            if lake.name not in self._known:
                with reading(lake) as conn:
                    self._known[lake.name] = read_data_path(conn)
        return tuple(self._known[lake.name] for lake in lakes)


@dataclass(frozen=True, slots=True)
class Warehouse:
    """One DuckLake as one REST prefix. `client_properties` are what every client of it is told.

    `roots` are where clients may put tables and files beside ICEBERG_PATH and a table's own location. `vendor` None: no keys are vended.
    `signer` None: nothing is signed. `neighbours`: the other lakes that are served, in whose DATA_PATH no folder is a table's alone.
    """

    name: str
    lake: Lake
    objects: Objects
    client_properties: dict[str, str]
    memories: Memories
    roots: Roots = NOWHERE
    vendor: Vendor | None = None
    signer: Signer | None = None
    neighbours: Neighbours = field(default_factory=lambda: Neighbours(tuple))
    readers: Readers = field(default_factory=Readers)
    scans: ScanMemory = field(default_factory=ScanMemory)
    plans: PlanMemory = field(default_factory=PlanMemory)


def open_warehouse(name: str, dsn: str, metadata_schema: str, store: StoreSettings, limits: Limits | None = None) -> Warehouse:
    """Return a warehouse; nothing is contacted before its first use, so Postgres and the store may be down."""
    limits = limits or Limits()
    lake = open_lake(name, dsn, metadata_schema, MAX_CONNECTIONS, limits.postgres_timeout_s)
    scans = ScanMemory(limits.memory_bytes // PLANNED)
    return Warehouse(name, lake, open_objects(store), to_client_properties(store), Memories(limits), scans=scans)


def with_roots(warehouse: Warehouse, paths: Sequence[str]) -> Warehouse:
    """Return the warehouse with these folders open to clients, as settings name them."""
    return replace(warehouse, roots=parse_roots(paths))


def with_vendor(warehouse: Warehouse, store: StoreSettings, sts: StsSettings) -> Warehouse:
    """Return the warehouse with keys vended to those who ask for them."""
    return replace(warehouse, vendor=Vendor(store, sts))


def with_signer(warehouse: Warehouse, store: StoreSettings) -> Warehouse:
    """Return the warehouse with requests to the store signed for those who may send them."""
    return replace(warehouse, signer=Signer(store))


def close_warehouse(warehouse: Warehouse) -> None:
    """Close its connections."""
    close_lake(warehouse.lake)


def to_client_properties(store: StoreSettings) -> dict[str, str]:
    """Return where clients find the object store, in the words of Java, PyIceberg and DuckDB; never a key."""
    properties = {"s3.region": store.region, "client.region": store.region}
    if store.client_endpoint is not None:
        properties["s3.endpoint"] = store.client_endpoint
        properties["s3.path-style-access"] = str(store.path_style).lower()
    return properties
