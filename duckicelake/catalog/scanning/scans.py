"""Server-side scan planning: plan a scan, return a plan again by its id, return the tasks of a plan task.

`rest/routes/scans.py` calls this on worker threads. A table is published first, as a load does; then manifests are read from the object
store without a transaction. Snapshot ids that clients chose, and earlier locations of the table, are looked up in read transactions of
their own. Manifests become tasks a bounded part at a time.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from json import JSONEncoder, dumps

from duckicelake.catalog.location_rules import AllowedLocations
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
from duckicelake.errors import BadRequest, NoSuchPlanId, NoSuchPlanTask, NotFound, Unsupported
from duckicelake.iceberg.manifest import POSITION_DELETES
from duckicelake.iceberg.manifest_list import UNKNOWN_COUNT, ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scan_filters import (
    BoundExpression,
    SchemaColumns,
    bind,
    build_schema_columns,
    check_selected,
    count_comparisons,
    format_bound,
    format_expression,
    parse_expression,
)
from duckicelake.iceberg.scan_pruning import FileTest, ManifestTest, Residual, build_manifest_test, build_metrics_test, build_residual
from duckicelake.iceberg.scan_tasks import (
    WHOLE_SCAN,
    InvalidToken,
    PartitionTypes,
    PinnedScan,
    ScanFile,
    ScanRequest,
    ScanSpan,
    add_stats,
    encode_file,
    encode_scan,
    format_plan_id,
    format_task,
    list_readable_types,
    parse_plan_id,
    parse_task,
)
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.connect import reading
from duckicelake.lake.locations import list_earlier_locations
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import read_client_snapshots

TASKS_MAX = 2_000
"""Tasks in one answer."""
ENTRIES_MAX = 20_000
"""Entries of manifests that one answer looks at; 2,000 where no filter leaves out any."""
BYTES_MAX = 16 * 1024 * 1024
"""An answer ends with the task that brings it beyond."""
WORK_MAX = 200_000
"""Predicates that one answer holds against entries; an answer looks at fewer entries for a larger filter, and at `ENTRIES_MIN` at least."""
ENTRIES_MIN = 16
OPENED_ENTRIES = 10
"""What opening a manifest counts as, however few entries it has."""
SPANS_MAX = 64
"""Plan tasks in one answer; those of a larger rest have plan tasks of their own."""
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
UNTYPED = PrimitiveType("unknown")
Partition = tuple[int, tuple[object, ...]]
PartitionFilter = tuple[FileTest, BoundExpression]
"""The test of files of a partition, and the residual filter for their rows."""


@dataclass(frozen=True, slots=True)
class ScanLimits:
    """The limits of one response."""

    tasks: int = TASKS_MAX
    entries: int = ENTRIES_MAX
    bytes: int = BYTES_MAX
    spans: int = SPANS_MAX


@dataclass(slots=True)
class ScanTasks:
    """Tasks of a scan as JSON, and what is left of the scan. Each task names its deletes by their places in `deletes`."""

    tasks: list[bytes] = field(default_factory=list[bytes])
    deletes: list[bytes] = field(default_factory=list[bytes])
    rest: list[ScanSpan] = field(default_factory=list[ScanSpan])
    size_bytes: int = 0
    sure_rows: int = 0
    _places: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, data: bytes, residual: bytes, deletes: Sequence[tuple[ScanFile, bytes]]) -> None:
        """Add a task."""
        places: list[int] = []
        for item, delete_json in deletes:
            place = self._places.setdefault(id(item), len(self.deletes))
            if place == len(self.deletes):
                self.deletes.append(delete_json)
                self.size_bytes += len(delete_json)
            places.append(place)
        references = b',"delete-file-references":%b' % JSON.encode(places).encode() if places else b""
        task = b'{"data-file":%b%b,"residual-filter":%b}' % (data, references, residual)
        self.tasks.append(task)
        self.size_bytes += len(task)


@dataclass(slots=True)
class Scan:
    """A scan to be planned: what it is planned from, and what it asks. `min_rows`: as many rows are enough."""

    source: ManifestSource
    scan_input: ScanInput
    metadata: TableMetadata
    bound: BoundExpression
    stats_ids: Sequence[int] = ()
    min_rows: int | None = None
    limits: ScanLimits = field(default_factory=ScanLimits)
    _residuals: dict[int, Residual] = field(default_factory=dict[int, Residual])
    _partition_filters: dict[Partition, PartitionFilter | None] = field(default_factory=dict[Partition, PartitionFilter | None])
    _encoded_residuals: dict[Partition, bytes] = field(default_factory=dict[Partition, bytes])
    _types: dict[int, PartitionTypes] = field(default_factory=dict[int, PartitionTypes])
    _tests: dict[int, ManifestTest] = field(default_factory=dict[int, ManifestTest])
    _pruned: dict[int, bool] = field(default_factory=dict[int, bool])
    _specs: Mapping[int, PartitionSpec] = field(init=False)

    def __post_init__(self) -> None:
        self._specs = {spec.spec_id: spec for spec in self.metadata.partition_specs}

    def plan(self, span: ScanSpan) -> ScanTasks:
        """Return the tasks of a part of the scan, as many as fit one answer, and the parts that are left of it."""
        found, seen, step = ScanTasks(), 0, self._compute_step()
        opened = min(OPENED_ENTRIES, step // OPENED_ENTRIES)
        for number, first, end in self._walk(span):
            if seen >= step:
                found.rest = self._split(ScanSpan(number, first, span.end_manifest, span.end_entry), step)
                return found
            spec, entries = self.source.read_entries(self.scan_input.manifests[number])
            seen += opened
            for place in range(first, min(end, len(entries))):
                seen += 1
                item = entries[place]
                if item is not None and (self.scan_input.appended is None or self._is_appended(item)):
                    self._add(found, spec, item)
                if self.min_rows is not None and found.sure_rows >= self.min_rows:
                    return found
                if len(found.tasks) >= self.limits.tasks or seen >= step or found.size_bytes > self.limits.bytes:
                    at = (number, place + 1) if place + 1 < len(entries) else (number + 1, 0)
                    found.rest = self._split(ScanSpan(*at, span.end_manifest, span.end_entry), step)
                    return found
        return found

    def _compute_step(self) -> int:
        """Return the number of entries that one response examines."""
        if self.bound is True:
            return min(self.limits.entries, self.limits.tasks)
        return min(self.limits.entries, max(ENTRIES_MIN, WORK_MAX // max(1, count_comparisons(self.bound))))

    def _walk(self, span: ScanSpan) -> Iterator[tuple[int, int, int]]:
        """Yield each manifest of a part that may hold files that fit: its number, and its first entry and the end."""
        for number in range(span.first_manifest, min(span.end_manifest + 1, len(self.scan_input.manifests))):
            end = span.end_entry if number == span.end_manifest else 1 << 32
            first = span.first_entry if number == span.first_manifest else 0
            if first < end and self._may_match(number):
                yield number, first, end

    def _split(self, span: ScanSpan, step: int) -> list[ScanSpan]:
        """Return a part of the scan in parts that are fetched side by side.

        Lists say how many entries manifests have; where they are wrong, parts are larger or smaller, and nothing is left out.
        """
        pieces = [(number, first, min(end, max(first, self._count(number, step)))) for number, first, end in self._walk(span)]
        pieces = [piece for piece in pieces if piece[1] < piece[2]]
        total = sum(end - first for _, first, end in pieces)
        if not total:
            return [span] if any(True for _ in self._walk(span)) else []
        step *= max(1, -(-total // (step * self.limits.spans)))
        starts: list[tuple[int, int]] = []
        left = 0
        for number, first, end in pieces:
            at = first + left
            while at < end:
                starts.append((number, at))
                at += step
            left = at - end
        starts[0] = (span.first_manifest, span.first_entry)
        ends = [*starts[1:], (span.end_manifest, span.end_entry)]
        return [ScanSpan(*start, *stop) for start, stop in zip(starts, ends, strict=True)]

    def _count(self, number: int, unknown: int) -> int:
        """Return how many entries a manifest has by its list; `unknown` where that does not say."""
        listed = self.scan_input.manifests[number]
        counts = (listed.added_files_count, listed.existing_files_count, listed.deleted_files_count)
        return unknown if UNKNOWN_COUNT in counts else sum(counts)

    def _may_match(self, number: int) -> bool:
        known = self._pruned.get(number)
        if known is None:
            known = self._pruned[number] = self.bound is True or self._may_match_summary(self.scan_input.manifests[number])
        return known

    def _may_match_summary(self, listed: ManifestFile) -> bool:
        spec = self._specs.get(listed.partition_spec_id)
        if spec is None:
            return True
        test = self._tests.get(spec.spec_id)
        if test is None:
            types = [UNTYPED if type is None else type for type in self._types_of(spec)]
            test = self._tests[spec.spec_id] = build_manifest_test(self.bound, spec, types)
        return test(listed.partitions)

    def _types_of(self, spec: PartitionSpec) -> PartitionTypes:
        found = self._types.get(spec.spec_id)
        if found is None:
            found = self._types[spec.spec_id] = list_readable_types(spec, get_current_schema(self.metadata))
        return found

    def _is_appended(self, item: ScanFile) -> bool:
        return item.is_added and self.scan_input.appended is not None and item.snapshot_id in self.scan_input.appended

    def _add(self, found: ScanTasks, spec: PartitionSpec, item: ScanFile) -> None:
        spec = self._specs.get(item.spec_id, spec)
        if len(item.file.partition) != len(spec.fields):
            raise Unsupported(f"{item.file.file_path} has another partition than its spec {spec.spec_id} says.")
        kept = self._get_partition_filter(spec, item)
        if kept is None or not kept[0](item.file):
            return
        data = encode_file(item, self._types_of(spec))
        if self.stats_ids:
            data = add_stats(data, item.file, self.stats_ids)
        deletes = self.scan_input.deletes.find(item) if self.scan_input.deletes.file_count else []
        encoded_deletes = [(delete, encode_file(delete, self._types_of(self._specs.get(delete.spec_id, spec)))) for delete in deletes]
        found.add(data, self._encode_residual(item, kept[1]), encoded_deletes)
        # The number of rows that an equality delete removes is unknown.
        if kept[1] is True and all(delete.file.content == POSITION_DELETES for delete in deletes):
            found.sure_rows += max(0, item.file.record_count - sum(delete.file.record_count for delete in deletes))

    def _get_partition_filter(self, spec: PartitionSpec, item: ScanFile) -> PartitionFilter | None:
        """Return what the filter asks of files of one partition; None: none of them matches."""
        key = (item.spec_id, item.file.partition)
        if key not in self._partition_filters:
            residual = self._residuals.get(item.spec_id)
            if residual is None:
                residual = self._residuals[item.spec_id] = build_residual(self.bound, spec)
            left = residual(item.file.partition)
            self._partition_filters[key] = None if left is False else (build_metrics_test(left), left)
        return self._partition_filters[key]

    def _encode_residual(self, item: ScanFile, left: BoundExpression) -> bytes:
        """Return what is left to ask of the rows of a file's partition as JSON."""
        key = (item.spec_id, item.file.partition)
        if key not in self._encoded_residuals:
            self._encoded_residuals[key] = JSON.encode(format_bound(left)).encode()
        return self._encoded_residuals[key]


def find_schema(metadata: TableMetadata, schema_id: int) -> Schema | None:
    """Return the schema of that id."""
    return next((item for item in metadata.schemas if item.schema_id == schema_id), None)


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
    named = _bind_names(metadata, snapshot, request)
    scan_input, start_id = _read_input(opened, snapshot, request)
    snapshot_id = NO_SNAPSHOT if snapshot is None else snapshot.snapshot_id
    pinned = PinnedScan(
        metadata.table_uuid,
        snapshot_id,
        start_id,
        scan_input.list_name,
        named.schema_id,
        named.filter_json,
        request.case_sensitive,
        named.stats_ids,
        request.min_rows,
    )
    scan = Scan(opened.source, scan_input, metadata, named.bound, named.stats_ids, request.min_rows, limits)
    return _plan_part(opened, pinned, scan, WHOLE_SCAN)


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


@dataclass(frozen=True, slots=True)
class _BoundNames:
    """The columns of one schema that the names of a request stand for."""

    schema_id: int
    bound: BoundExpression
    filter_json: object
    stats_ids: tuple[int, ...]


def _bind_names(metadata: TableMetadata, snapshot: Snapshot | None, request: ScanRequest) -> _BoundNames:
    """Return what the names of a request mean: in the table's schema, or in the snapshot's if the request asks for that.

    Spark reads a branch by its snapshot's id and asks for the snapshot's schema, but names the table's columns. So names that the
    snapshot's schema lacks are looked up in the table's.
    Raises: BadRequest: it names what the table has not
    """
    current = find_schema(metadata, metadata.current_schema_id)
    assert current is not None
    wanted = snapshot.schema_id if snapshot is not None and request.use_snapshot_schema else None
    own = None if wanted is None else find_schema(metadata, wanted)
    if own is None:
        return _bind_in_schema(current, request)
    try:
        return _bind_in_schema(own, request)
    except BadRequest:
        with suppress(BadRequest):
            return _bind_in_schema(current, request)
        raise


def _bind_in_schema(schema: Schema, request: ScanRequest) -> _BoundNames:
    names = build_schema_columns(schema, request.case_sensitive)
    check_selected(names, request.select)
    bound, node = _read_filter(request.filter, names)
    stats_ids = tuple(dict.fromkeys(names.get(name, "'stats-fields'").field_id for name in request.stats_fields))
    return _BoundNames(schema.schema_id, bound, node, stats_ids)


def _read_filter(node: object, names: SchemaColumns) -> Filtered:
    """Return a filter for the table's columns and its JSON. Raises: BadRequest: it asks what the table has not"""
    if node is None:
        return True, None
    expression = parse_expression(node)
    filter_json = format_expression(expression)
    if len(dumps(filter_json)) > FILTER_BYTES_MAX:
        raise BadRequest(f"Cannot read filter: it has more than {FILTER_BYTES_MAX} bytes; ask for less at once")
    return bind(expression, names), filter_json


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
