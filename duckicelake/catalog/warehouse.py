"""A warehouse: one lake and its object store, opened, with the caches of its tables.

`app` opens one for each lake and for each branch that is used; some commands open one. Every operation takes it as a parameter.
`find_served_branch` and `has_served_snapshot` read Postgres; `rest` calls them on worker threads. `OtherDataPaths.find` reads the Postgres
of the server's other lakes, once each.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.function_binder import FunctionBinder
from duckicelake.catalog.manifest_import.plan_cache import PlanCache
from duckicelake.catalog.scanning.sources import ScanCache
from duckicelake.catalog.table_cache import TableCaches, WarehouseLimits
from duckicelake.iceberg.avro.reader import ReaderPool
from duckicelake.lake.branches.registry import Branch, check_installed, find_branch, find_tag_of, has_snapshot, is_installed
from duckicelake.lake.connect import Lake, close_lake, open_branch, open_lake, reading
from duckicelake.lake.read import read_data_path
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.signing import RequestSigner
from duckicelake.store.vending import StsSettings, Vendor
from duckicelake.translate.locations import FIXED_LOCATIONS, Roots, parse_roots

__all__ = [
    "Branch",
    "FIXED_LOCATIONS",
    "WarehouseLimits",
    "TableCaches",
    "StsSettings",
    "Warehouse",
    "close_warehouse",
    "find_served_branch",
    "has_served_snapshot",
    "is_snapshot_id",
    "open_branch_warehouse",
    "open_warehouse",
    "to_client_properties",
    "with_roots",
    "with_signer",
    "with_vendor",
]

NO_ROOTS = Roots()
SCAN_CACHE_SHARE = 4
"""What part of the memory for tables may be taken for manifests that scans were planned from, in addition to it."""
MAX_CONNECTIONS = 48
"""Not below the threads that requests run in."""


class OtherDataPaths:
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
    """One DuckLake as one REST prefix. `client_properties` are sent to every client.

    `roots` are where clients may put files, in addition to ICEBERG_PATH and a table's own location. `vendor` None: no keys are vended.
    `signer` None: nothing is signed. `repository`: the metadata schema of the lake if this is a branch of it, `repository_lake` that lake.
    `neighbours`: the other lakes that are served, in whose DATA_PATH no folder is a table's alone.
    `server_roots`: `roots`, also for principals that may not choose a location: where namespaces may have theirs.
    `purge_grace_hours`: how long the files of a table that was dropped with them stay.
    """

    name: str
    lake: Lake
    objects: Objects
    client_properties: dict[str, str]
    caches: TableCaches
    roots: Roots = NO_ROOTS
    vendor: Vendor | None = None
    signer: RequestSigner | None = None
    repository: str | None = None
    repository_lake: Lake | None = None
    neighbours: OtherDataPaths = field(default_factory=lambda: OtherDataPaths(tuple))
    readers: ReaderPool = field(default_factory=ReaderPool)
    scans: ScanCache = field(default_factory=ScanCache)
    plans: PlanCache = field(default_factory=PlanCache)
    binder: FunctionBinder = field(default_factory=FunctionBinder)
    purge_grace_hours: int = 0
    server_roots: Roots = NO_ROOTS


def open_warehouse(name: str, dsn: str, metadata_schema: str, store: StoreSettings, limits: WarehouseLimits | None = None) -> Warehouse:
    """Return a warehouse; nothing is contacted before its first use, so Postgres and the store may be down."""
    limits = limits or WarehouseLimits()
    lake = open_lake(name, dsn, metadata_schema, MAX_CONNECTIONS, limits.postgres_timeout_s)
    scans = ScanCache(limits.memory_bytes // SCAN_CACHE_SHARE)
    return Warehouse(name, lake, open_objects(store), to_client_properties(store), TableCaches(limits), scans=scans)


def open_branch_warehouse(parent: Warehouse, branch: Branch, store: StoreSettings, limits: WarehouseLimits) -> Warehouse:
    """Return a branch as a warehouse, which shares the connections of all branches of its lake."""
    name = f"{parent.name}@{branch.name}"
    lake = open_branch(parent.lake, name, branch.schema_name)
    scans = ScanCache(limits.memory_bytes // SCAN_CACHE_SHARE)
    opened = Warehouse(name, lake, open_objects(store), to_client_properties(store), TableCaches(limits), scans=scans)
    return replace(opened, repository=parent.lake.metadata_schema, repository_lake=parent.lake, neighbours=parent.neighbours)


def with_roots(warehouse: Warehouse, paths: Sequence[str]) -> Warehouse:
    """Return the warehouse with these folders open to clients, as settings name them."""
    roots = parse_roots(paths)
    return replace(warehouse, roots=roots, server_roots=roots)


def with_vendor(warehouse: Warehouse, store: StoreSettings, sts: StsSettings) -> Warehouse:
    """Return the warehouse with keys vended to those who ask for them."""
    return replace(warehouse, vendor=Vendor(store, sts))


def with_signer(warehouse: Warehouse, store: StoreSettings) -> Warehouse:
    """Return the warehouse with requests to the store signed for those who may send them."""
    return replace(warehouse, signer=RequestSigner(store))


def close_warehouse(warehouse: Warehouse) -> None:
    """Close its connections."""
    close_lake(warehouse.lake)


def is_snapshot_id(name: str) -> bool:
    """Return True if the name of a branch is the id of a lake snapshot, written without zeros in front."""
    return name.isascii() and name.isdigit() and len(name) < len(str(2**63)) and name == str(int(name))


def has_served_snapshot(warehouse: Warehouse, snapshot_id: int) -> bool:
    """Return True if a lake has a snapshot of that id."""
    with reading(warehouse.lake) as conn:
        return has_snapshot(conn, snapshot_id)


def find_served_branch(warehouse: Warehouse, name: str) -> Branch | None:
    """Return the branch or tag of a lake with exactly that name, or a tag of the snapshot with that id; None if there is none.

    Raises: Unsupported: another version of DuckIceLake made it
    """
    with reading(warehouse.lake) as conn:
        if is_snapshot_id(name):
            branch = find_tag_of(conn, warehouse.lake.metadata_schema, int(name))
            if branch is not None and branch.is_automatic and not is_installed(conn, branch):
                return None
        else:
            branch = find_branch(conn, name)
            branch = None if branch is None or branch.name != name else branch
        if branch is None:
            return None
        check_installed(conn, branch)
    return branch


def to_client_properties(store: StoreSettings) -> dict[str, str]:
    """Return where clients find the object store, in the words of Java, PyIceberg and DuckDB; never a key."""
    properties = {"s3.region": store.region, "client.region": store.region}
    if store.client_endpoint is not None:
        properties["s3.endpoint"] = store.client_endpoint
        properties["s3.path-style-access"] = str(store.path_style).lower()
    return properties
