"""From a snapshot's manifests to the tasks of a scan, a bounded part at a time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONEncoder

from duckicelake.catalog.scanning.sources import ManifestSource, ScanInput
from duckicelake.errors import Unsupported
from duckicelake.iceberg.manifest import POSITION_DELETES
from duckicelake.iceberg.manifest_list import UNKNOWN_COUNT, ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scanning.expressions import BoundExpression, count_comparisons, format_bound
from duckicelake.iceberg.scanning.files import PartitionTypes, ScanFile, add_stats, encode_file, list_readable_types
from duckicelake.iceberg.scanning.plans import ScanSpan
from duckicelake.iceberg.scanning.pruning import FileTest, ManifestTest, Residual, build_manifest_test, build_metrics_test, build_residual
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import PrimitiveType

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
        for item, told in deletes:
            place = self._places.setdefault(id(item), len(self.deletes))
            if place == len(self.deletes):
                self.deletes.append(told)
                self.size_bytes += len(told)
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
        told = [(delete, encode_file(delete, self._types_of(self._specs.get(delete.spec_id, spec)))) for delete in deletes]
        found.add(data, self._encode_residual(item, kept[1]), told)
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
