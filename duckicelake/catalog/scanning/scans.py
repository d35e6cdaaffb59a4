"""Server-side scan planning: plan a scan, return a plan again by its id, return the tasks of a plan task."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from json import dumps

from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.catalog.scanning.planning import Scan, ScanLimits, ScanTasks, find_schema
from duckicelake.catalog.scanning.sources import (
    EMPTY_INPUT,
    NO_SNAPSHOT,
    ManifestSource,
    ScanInput,
    get_snapshot,
    pick_snapshot,
    read_appended_input,
    read_planned_input,
    read_snapshot_input,
)
from duckicelake.catalog.table_cache import PublishedTable
from duckicelake.catalog.tables import Ident, LoadedTable, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, NoSuchPlanId, NoSuchPlanTask, NotFound
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.scanning.binding import SchemaColumns, bind, build_schema_columns, check_selected
from duckicelake.iceberg.scanning.expressions import BoundExpression, format_expression, parse_expression
from duckicelake.iceberg.scanning.plans import (
    WHOLE_SCAN,
    InvalidToken,
    PinnedScan,
    ScanRequest,
    ScanSpan,
    encode_scan,
    format_plan_id,
    format_task,
    parse_plan_id,
    parse_task,
)
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.connect import reading
from duckicelake.lake.locations import list_earlier_locations
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import read_client_snapshots

FILTER_BYTES_MAX = 1024 * 1024
TASKS_BYTES_MAX = 4 * 1024 * 1024
"""About how much the plan tasks of one answer take, each with its own copy of the filter."""
DEFAULT_SCAN_LIMITS = ScanLimits()
Filtered = tuple[BoundExpression, object]


@dataclass(frozen=True, slots=True)
class PlannedScan:
    """A part of a plan: tasks and deletes as JSON, the plan tasks that are left, and the loaded table."""

    plan_id: str
    tasks: Sequence[bytes]
    deletes: Sequence[bytes]
    plan_tasks: Sequence[str]
    loaded: LoadedTable


@dataclass(slots=True)
class _OwnLocations:
    """Test if a URI lies in the table's present location or an earlier one."""

    warehouse: Warehouse
    table_id: int
    location: str
    earlier: AllowedLocations | None = None

    def __call__(self, uri: str) -> bool:
        if AllowedLocations((self.location,)).is_own(uri):
            return True
        if self.earlier is None:
            with reading(self.warehouse.lake) as conn:
                self.earlier = AllowedLocations(list_earlier_locations(conn, self.table_id))
        return self.earlier.is_own(uri)


@dataclass(frozen=True, slots=True)
class _ScannedTable:
    """A table to be scanned."""

    warehouse: Warehouse
    table: TableRow
    published: PublishedTable
    source: ManifestSource

    @property
    def metadata(self) -> TableMetadata:
        return self.published.metadata

    @property
    def loaded(self) -> LoadedTable:
        published, table = self.published, self.table
        location = published.metadata.location
        return LoadedTable(published.metadata_location, b"", {}, table.table_id, published.position, None, location, table.table_uuid)

    def find_lake_id(self, snapshot_id: int) -> int | None:
        with reading(self.warehouse.lake) as conn:
            return read_client_snapshots(conn, self.table.table_id, [snapshot_id]).get(snapshot_id)


def _open(warehouse: Warehouse, ident: Ident) -> _ScannedTable:
    """Return a table as it is published. Raises what loading a table raises."""
    table, published = publish_table(warehouse, ident)
    is_own = _OwnLocations(warehouse, table.table_id, published.metadata.location)
    return _ScannedTable(warehouse, table, published, ManifestSource(warehouse.objects, warehouse.scans, warehouse.readers, is_own))


def plan_scan(warehouse: Warehouse, ident: Ident, request: ScanRequest, limits: ScanLimits = DEFAULT_SCAN_LIMITS) -> PlannedScan:
    """Plan a scan.

    Raises: BadRequest: it names what the table has not. Unsupported: it cannot be planned here; and what loading a table raises
    """
    opened = _open(warehouse, ident)
    metadata = opened.metadata
    snapshot = pick_snapshot(metadata, request, opened.find_lake_id)
    schema = _pick_schema(metadata, snapshot, request)
    names = build_schema_columns(schema, request.case_sensitive)
    check_selected(names, request.select)
    bound, node = _read_filter(request.filter, names)
    stats_ids = tuple(dict.fromkeys(names.get(name, "'stats-fields'").field_id for name in request.stats_fields))
    scan_input, start_id = _read_input(opened, snapshot, request)
    snapshot_id = NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id
    pinned = PinnedScan(
        metadata.table_uuid,
        snapshot_id,
        start_id,
        scan_input.list_name,
        schema.schema_id,
        node,
        request.case_sensitive,
        stats_ids,
        request.min_rows,
    )
    return _plan_part(opened, pinned, Scan(opened.source, scan_input, metadata, bound, stats_ids, request.min_rows, limits), WHOLE_SCAN)


def fetch_plan(warehouse: Warehouse, ident: Ident, plan_id: str, limits: ScanLimits = DEFAULT_SCAN_LIMITS) -> PlannedScan:
    """Return a plan again. Raises: NoSuchPlanId: the table has none of that id, or none any more; and what loading a table raises."""
    opened = _open(warehouse, ident)
    try:
        pinned = parse_plan_id(plan_id)
        if pinned is None:
            raise NoSuchPlanId("The plan's filter is too large to be planned again; plan the scan again.")
        return _plan_part(opened, pinned, _reopen(opened, pinned, limits), WHOLE_SCAN)
    except (InvalidToken, BadRequest, NotFound) as error:
        raise NoSuchPlanId(f"The table {ident} has no plan of this id; plan the scan again.") from error


def check_plan(warehouse: Warehouse, ident: Ident, plan_id: str) -> None:
    """Raise NoSuchPlanId unless it is an id of a plan of the table; and what loading a table raises."""
    opened = _open(warehouse, ident)
    try:
        pinned = parse_plan_id(plan_id)
    except InvalidToken as error:
        raise NoSuchPlanId(f"The table {ident} has no plan of this id.") from error
    if pinned is not None and pinned.table_uuid != opened.metadata.table_uuid:
        raise NoSuchPlanId(f"The table {ident} has no plan of this id.")


def fetch_tasks(warehouse: Warehouse, ident: Ident, plan_task: str, limits: ScanLimits = DEFAULT_SCAN_LIMITS) -> PlannedScan:
    """Return the tasks of part of a plan. Raises: NoSuchPlanTask: the table has no such task; and what loading raises."""
    opened = _open(warehouse, ident)
    try:
        pinned, span = parse_task(plan_task)
        return _plan_part(opened, pinned, _reopen(opened, pinned, limits), span)
    except (InvalidToken, BadRequest, NotFound) as error:
        raise NoSuchPlanTask(f"The table {ident} has no such plan task, or its snapshot has gone; plan the scan again.") from error


def _pick_schema(metadata: TableMetadata, snapshot: Snapshot | None, request: ScanRequest) -> Schema:
    """Return the schema whose names a request means."""
    wanted = snapshot.schema_id if snapshot is not None and request.use_snapshot_schema else None
    found = None if wanted is None else find_schema(metadata, wanted)
    current = find_schema(metadata, metadata.current_schema_id)
    assert current is not None
    return current if found is None else found


def _read_filter(node: object, names: SchemaColumns) -> Filtered:
    """Return a filter for the table's columns and its JSON. Raises: BadRequest: it asks what the table has not"""
    if node is None:
        return True, None
    expression = parse_expression(node)
    told = format_expression(expression)
    if len(dumps(told)) > FILTER_BYTES_MAX:
        raise BadRequest(f"Cannot read filter: it has more than {FILTER_BYTES_MAX} bytes; ask for less at once")
    return bind(expression, names), told


def _read_input(opened: _ScannedTable, snapshot: Snapshot | None, request: ScanRequest) -> tuple[ScanInput, int | None]:
    """Return what a scan is planned from, and DuckLake's id of the snapshot that an incremental one starts behind."""
    if snapshot is None:
        return EMPTY_INPUT, None
    start = request.start_snapshot_id
    if start is None:
        return read_snapshot_input(opened.source, snapshot), None
    # one that has gone may be the parent of the oldest that is left
    with suppress(BadRequest):
        start = get_snapshot(opened.metadata, start, opened.find_lake_id).snapshot_id
    return read_appended_input(opened.source, opened.metadata, start, snapshot), start


def _reopen(opened: _ScannedTable, pinned: PinnedScan, limits: ScanLimits) -> Scan:
    """Return a scan that was planned before. Raises: BadRequest, NotFound: it is of another table, or what it is of has gone"""
    metadata = opened.metadata
    if pinned.table_uuid != metadata.table_uuid:
        raise NotFound("It is a plan of another table.")
    schema = find_schema(metadata, pinned.schema_id)
    if schema is None:
        raise NotFound("Its schema has gone.")
    names = build_schema_columns(schema, pinned.case_sensitive)
    bound, _ = _read_filter(pinned.filter, names)
    stats_ids = tuple(dict.fromkeys(item for item in pinned.stats_ids if item in names.by_id))
    scan_input = _read_input_again(opened, pinned)
    return Scan(opened.source, scan_input, metadata, bound, stats_ids, pinned.min_rows, limits)


def _read_input_again(opened: _ScannedTable, pinned: PinnedScan) -> ScanInput:
    if pinned.snapshot_id == NO_SNAPSHOT:
        return EMPTY_INPUT
    if pinned.start_snapshot_id is None:
        return read_planned_input(opened.source, opened.metadata, pinned.snapshot_id, pinned.list_name)
    end = get_snapshot(opened.metadata, pinned.snapshot_id, opened.find_lake_id)
    scan_input = read_appended_input(opened.source, opened.metadata, pinned.start_snapshot_id, end)
    if scan_input.list_name != pinned.list_name:
        raise NotFound("The appended files are in other manifests by now.")
    return scan_input


def _plan_part(opened: _ScannedTable, pinned: PinnedScan, scan: Scan, span: ScanSpan) -> PlannedScan:
    packed = encode_scan(pinned)
    most = max(1, min(scan.limits.spans, TASKS_BYTES_MAX // max(1, len(packed) * 4 // 3)))
    scan.limits = ScanLimits(scan.limits.tasks, scan.limits.entries, scan.limits.bytes, most)
    found: ScanTasks = scan.plan(span)
    tasks = [format_task(packed, part) for part in found.rest]
    loaded = replace(opened.loaded, snapshot_id=None if pinned.snapshot_id == NO_SNAPSHOT else pinned.snapshot_id)
    return PlannedScan(format_plan_id(packed), found.tasks, found.deletes, tasks, loaded)
