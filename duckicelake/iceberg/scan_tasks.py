"""Requests to plan a scan, the plan ids and plan tasks that answer them, and the files of a task with their delete files. No I/O.

A token contains the whole plan, so any server can continue a plan, without state. The checksum detects damaged tokens; it is no
signature. A forged token gains nothing: it names only parts of the requested table, and the request must be allowed to read that table.
`catalog.scanning` and `rest/routes/scans.py` call this on worker threads.

Shape:  base64url of (kind 1 byte | sha-256 of the rest, 12 bytes | span 4 × u32 BE | zlib of compact JSON)
Source: Iceberg spec «Scan Planning»; DeleteFileIndex and ContentFileParser of Iceberg 1.11; REST specification, «PlanTableScanRequest»,
«FetchScanTasksRequest», «ContentFile»
"""

import base64
import binascii
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from json import JSONEncoder, dumps, loads
from typing import TypeVar, cast

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.json_reader import as_object, find_list, find_long, get_flag, get_text, is_text, refuse
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import format_value
from duckicelake.iceberg.transforms import result_type
from duckicelake.iceberg.types import PrimitiveType, walk_fields

FILE_PATH_ID = 2147483546
PUFFIN = "PUFFIN"
NAN = "NaN"
Partition = tuple[int, tuple[object, ...]]


@dataclass(slots=True, eq=False)
class ScanFile:
    """A live file of a manifest with its inherited values. `encoded_json` caches its JSON, with the partition types it was made for.

    `is_global`: its spec is unpartitioned, so its equality deletes apply to all data files.
    """

    file: DataFile
    spec_id: int
    snapshot_id: int
    sequence_number: int
    is_added: bool
    is_global: bool
    encoded_json: tuple[object, bytes] | None = field(default=None, repr=False)


@dataclass(slots=True)
class _FilesBySequence:
    """Delete files by sequence number, ascending."""

    files: list[ScanFile] = field(default_factory=list[ScanFile])
    numbers: list[int] = field(default_factory=list[int])

    def sort(self) -> None:
        self.files.sort(key=lambda item: item.sequence_number)
        self.numbers = [item.sequence_number for item in self.files]

    def since(self, sequence_number: int) -> Sequence[ScanFile]:
        return self.files[bisect_left(self.numbers, sequence_number) :]


def _get_partition_key(item: ScanFile) -> Partition:
    # NaN is not equal to itself, but all NaN values are one partition.
    return item.spec_id, tuple(NAN if value != value else value for value in item.file.partition)


class DeleteIndex:
    """The delete files of a snapshot, by the files or partitions that they apply to."""

    def __init__(self, files: Iterable[ScanFile]) -> None:
        self._vectors: dict[str, ScanFile] = {}
        self._by_path: dict[str, _FilesBySequence] = {}
        self._positions: dict[Partition, _FilesBySequence] = {}
        self._equality: dict[Partition, _FilesBySequence] = {}
        self._everywhere = _FilesBySequence()
        self.file_count = 0
        for item in files:
            self.file_count += 1
            self._put(item)
        for group in (*self._by_path.values(), *self._positions.values(), *self._equality.values(), self._everywhere):
            group.sort()

    def _put(self, item: ScanFile) -> None:
        file, partition = item.file, _get_partition_key(item)
        if file.content == EQUALITY_DELETES:
            group = self._everywhere if item.is_global else self._equality.setdefault(partition, _FilesBySequence())
            group.files.append(item)
            return
        path = find_referenced(file)
        if path is not None and file.file_format == PUFFIN:
            known = self._vectors.get(path)
            if known is None or known.sequence_number <= item.sequence_number:
                self._vectors[path] = item
        elif path is not None:
            self._by_path.setdefault(path, _FilesBySequence()).files.append(item)
        else:
            self._positions.setdefault(partition, _FilesBySequence()).files.append(item)

    def find(self, data: ScanFile) -> list[ScanFile]:
        """Return the delete files that may delete rows of a data file."""
        number, partition = data.sequence_number, _get_partition_key(data)
        found = [*self._everywhere.since(number + 1)]
        if self._equality:
            found += self._equality.get(partition, _FilesBySequence()).since(number + 1)
        vector = self._vectors.get(data.file.file_path)
        if vector is not None and vector.sequence_number >= number:
            # The vector includes the older position deletes of the file.
            return [*found, vector]
        if self._positions:
            found += self._positions.get(partition, _FilesBySequence()).since(number)
        if self._by_path:
            found += self._by_path.get(data.file.file_path, _FilesBySequence()).since(number)
        return found


def find_referenced(file: DataFile) -> str | None:
    """Return the only data file that position deletes refer to; None when there may be several.

    Source: Iceberg's ContentFileUtil: equal bounds of the path column also name a single data file
    """
    if file.referenced_data_file is not None:
        return file.referenced_data_file
    lower, upper = (bounds.get(FILE_PATH_ID) if bounds else None for bounds in (file.lower_bounds, file.upper_bounds))
    return lower.decode("utf-8", "replace") if lower is not None and lower == upper else None


CONTENT_NAMES = ("data", "position-deletes", "equality-deletes")
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
PartitionTypes = tuple[PrimitiveType | None, ...]


def list_readable_types(spec: PartitionSpec, schema: Schema) -> PartitionTypes:
    """Return the types by which clients read values of a spec; None for a dropped column, whose values they cannot read."""
    types = {item.field_id: item.type for _, item in walk_fields(schema.fields)}
    return tuple(None if item.source_id not in types else result_type(item.transform, types[item.source_id]) for item in spec.fields)


def encode_file(item: ScanFile, types: PartitionTypes) -> bytes:
    """Return a file as JSON without column metrics. The result is cached in the file.

    Raises: Unsupported — a partition value that JSON cannot represent
    """
    cached = item.encoded_json
    if cached is not None and cached[0] == types:
        return cached[1]
    encoded = JSON.encode(_format_file(item, types)).encode()
    item.encoded_json = (types, encoded)
    return encoded


def add_stats(encoded: bytes, file: DataFile, field_ids: Sequence[int]) -> bytes:
    """Return the JSON of a file with counts and bounds of some columns. Bounds are hexadecimal, as in Java."""
    metrics = {
        "column-sizes": _pick(file.column_sizes, field_ids),
        "value-counts": _pick(file.value_counts, field_ids),
        "null-value-counts": _pick(file.null_value_counts, field_ids),
        "nan-value-counts": _pick(file.nan_value_counts, field_ids),
        "lower-bounds": _pick_bounds(file.lower_bounds, field_ids),
        "upper-bounds": _pick_bounds(file.upper_bounds, field_ids),
    }
    more = {key: found for key, found in metrics.items() if found is not None}
    return encoded[:-1] + b"," + JSON.encode(more).encode()[1:] if more else encoded


def _format_file(item: ScanFile, types: PartitionTypes) -> dict[str, object]:
    file = item.file
    node: dict[str, object] = {
        "spec-id": item.spec_id,
        "content": CONTENT_NAMES[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.lower(),
        "partition": format_partition(file, types),
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    optional: dict[str, object] = {
        "split-offsets": file.split_offsets,
        "equality-ids": file.equality_ids,
        "sort-order-id": file.sort_order_id,
        "first-row-id": file.first_row_id if file.content == DATA else None,
        "referenced-data-file": file.referenced_data_file,
        "content-offset": file.content_offset,
        "content-size-in-bytes": file.content_size_in_bytes,
    }
    return node | {key: value for key, value in optional.items() if value is not None}


def format_partition(file: DataFile, types: PartitionTypes) -> list[object]:
    """Return the partition tuple of a file as JSON single values; null where clients do not know the type."""
    try:
        return [None if type is None else format_value(type, value) for type, value in zip(types, file.partition, strict=True)]
    except (BadRequest, ValueError) as error:
        raise Unsupported(f"{file.file_path} has a partition value that JSON cannot represent; plan the scan in the client.") from error


def _pick(counts: Mapping[int, int] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, counts[field_id]) for field_id in field_ids if field_id in counts] if counts else []
    return {"keys": [key for key, _ in found], "values": [value for _, value in found]} if found else None


def _pick_bounds(bounds: Mapping[int, bytes] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, bounds[field_id]) for field_id in field_ids if field_id in bounds] if bounds else []
    return {"keys": [key for key, _ in found], "values": [value.hex().upper() for _, value in found]} if found else None


WHAT = "scan to plan"


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """A scan of a snapshot (None: the current one), or of the appends between two snapshots.

    `filter` is JSON; None selects all rows. `start_snapshot_id` is exclusive, `end_snapshot_id` inclusive.
    """

    snapshot_id: int | None = None
    start_snapshot_id: int | None = None
    end_snapshot_id: int | None = None
    select: tuple[str, ...] = ()
    filter: object = None
    case_sensitive: bool = True
    use_snapshot_schema: bool = False
    stats_fields: tuple[str, ...] = ()
    min_rows: int | None = None


def parse_scan_request(value: object) -> ScanRequest:
    """Return the scan of a JSON value.

    Raises: BadRequest — malformed, or both of one snapshot and of what lies between two
    """
    node = as_object(value, WHAT)
    request = ScanRequest(
        snapshot_id=find_long(node, "snapshot-id", WHAT),
        start_snapshot_id=find_long(node, "start-snapshot-id", WHAT),
        end_snapshot_id=find_long(node, "end-snapshot-id", WHAT),
        select=_list_texts(node, "select"),
        filter=node.get("filter"),
        case_sensitive=_get_flag_or(node, "case-sensitive", default=True),
        use_snapshot_schema=_get_flag_or(node, "use-snapshot-schema", default=False),
        stats_fields=_list_texts(node, "stats-fields"),
        min_rows=find_long(node, "min-rows-requested", WHAT),
    )
    if (request.start_snapshot_id is None) != (request.end_snapshot_id is None):
        raise BadRequest(f"Cannot read {WHAT}: 'start-snapshot-id' and 'end-snapshot-id' belong together")
    if request.snapshot_id is not None and request.end_snapshot_id is not None:
        raise BadRequest(f"Cannot read {WHAT}: it has 'snapshot-id' and 'end-snapshot-id'; send one of them")
    if request.min_rows is not None and request.min_rows < 0:
        refuse(WHAT, "min-rows-requested", "a number that is not negative")
    return request


def parse_plan_task(value: object) -> str:
    """Return the plan task of a request to fetch its tasks. Raises BadRequest when malformed."""
    what = "request for scan tasks"
    return get_text(as_object(value, what), "plan-task", what)


def _get_flag_or(node: Mapping[str, object], key: str, *, default: bool) -> bool:
    return default if node.get(key) is None else get_flag(node, key, WHAT)


def _list_texts(node: Mapping[str, object], key: str) -> tuple[str, ...]:
    found = find_list(node, key, WHAT) or []
    if not all(is_text(item) for item in found):
        refuse(WHAT, key, "an array of strings")
    return tuple(str(item) for item in found)


PLAN, LARGE_PLAN, TASK = b"p", b"l", b"t"
CHECK_BYTES, SPAN = 12, struct.Struct(">IIII")
HEAD_BYTES = 1 + CHECK_BYTES + SPAN.size
TOKEN_MAX = 2 * 1024 * 1024
CONTENT_BYTES_MAX = 4 * 1024 * 1024
PLAN_ID_MAX = 4096
"""The most characters of a plan id, because it is part of a path."""
Value = TypeVar("Value")
KEYS = ("table", "snapshot", "start", "list", "schema", "filter", "case", "stats", "rows")


@dataclass(frozen=True, slots=True)
class PinnedScan:
    """A scan whose snapshot, schema and filter are fixed: the content of a plan id.

    `list_name` identifies the manifest list, or all lists of an incremental scan. The names in the filter are those of `schema_id`.
    """

    table_uuid: str
    snapshot_id: int
    start_snapshot_id: int | None
    list_name: str
    schema_id: int
    filter: object
    case_sensitive: bool
    stats_ids: tuple[int, ...] = ()
    min_rows: int | None = None


@dataclass(frozen=True, slots=True)
class ScanSpan:
    """A part of the manifests of a scan: from an entry of one manifest up to, not including, an entry of another. Numbers start at 0."""

    first_manifest: int
    first_entry: int
    end_manifest: int
    end_entry: int


WHOLE_SCAN = ScanSpan(0, 0, 0xFFFFFFFF, 0)


class InvalidToken(ValueError):
    """The text is not a token of the expected kind."""


def encode_scan(pinned: PinnedScan) -> bytes:
    """Return the part that all tokens of a plan share."""
    values = (
        pinned.table_uuid,
        pinned.snapshot_id,
        pinned.start_snapshot_id,
        pinned.list_name,
        pinned.schema_id,
        pinned.filter,
        pinned.case_sensitive,
        pinned.stats_ids,
        pinned.min_rows,
    )
    return zlib.compress(dumps(dict(zip(KEYS, values, strict=True)), separators=(",", ":")).encode())


def format_plan_id(packed: bytes) -> str:
    """Return the id of a plan. The id of a plan with a large filter contains only a digest."""
    found = _format(PLAN, WHOLE_SCAN, packed)
    return found if len(found) <= PLAN_ID_MAX else _format(LARGE_PLAN, WHOLE_SCAN, sha256(packed).digest())


def format_task(packed: bytes, span: ScanSpan) -> str:
    """Return the plan task of a part of a plan."""
    return _format(TASK, span, packed)


def parse_plan_id(text: str) -> PinnedScan | None:
    """Return the scan of a plan id; None when the id contains only a digest. Raises InvalidToken."""
    kind, _, packed = _parse(text)
    if kind == LARGE_PLAN:
        return None
    if kind != PLAN:
        raise InvalidToken("another kind")
    return _decode_scan(packed)


def parse_task(text: str) -> tuple[PinnedScan, ScanSpan]:
    """Return the scan of a plan task, and its part of the scan. Raises InvalidToken."""
    kind, span, packed = _parse(text)
    if kind != TASK:
        raise InvalidToken("another kind")
    return _decode_scan(packed), span


def _format(kind: bytes, span: ScanSpan, content: bytes) -> str:
    rest = SPAN.pack(span.first_manifest, span.first_entry, span.end_manifest, span.end_entry) + content
    return base64.urlsafe_b64encode(kind + _compute_check(kind, rest) + rest).rstrip(b"=").decode()


def _compute_check(kind: bytes, rest: bytes) -> bytes:
    return sha256(kind + rest).digest()[:CHECK_BYTES]


def _parse(text: str) -> tuple[bytes, ScanSpan, bytes]:
    if len(text) > TOKEN_MAX or not text.isascii():
        raise InvalidToken("too long")
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error as error:
        raise InvalidToken("no base64") from error
    kind, check, rest = content[:1], content[1 : 1 + CHECK_BYTES], content[1 + CHECK_BYTES :]
    if len(content) < HEAD_BYTES or check != _compute_check(kind, rest):
        raise InvalidToken("damaged")
    return kind, ScanSpan(*SPAN.unpack_from(rest)), rest[SPAN.size :]


def _decode_scan(packed: bytes) -> PinnedScan:
    try:
        decompress = zlib.decompressobj()
        content = decompress.decompress(packed, CONTENT_BYTES_MAX)
        node: object = loads(content)
    except (zlib.error, ValueError, RecursionError) as error:
        raise InvalidToken("damaged") from error
    if not isinstance(node, dict) or tuple(cast("dict[str, object]", node)) != KEYS:
        raise InvalidToken("other keys")
    return _to_pinned(cast("dict[str, object]", node))


def _to_pinned(node: Mapping[str, object]) -> PinnedScan:
    stats = node["stats"]
    found = PinnedScan(
        table_uuid=_get(node, "table", str),
        snapshot_id=_get(node, "snapshot", int),
        start_snapshot_id=None if node["start"] is None else _get(node, "start", int),
        list_name=_get(node, "list", str),
        schema_id=_get(node, "schema", int),
        filter=node["filter"],
        case_sensitive=_get(node, "case", bool),
        stats_ids=tuple(item for item in cast("list[object]", stats) if isinstance(item, int)) if isinstance(stats, list) else (),
        min_rows=None if node["rows"] is None else _get(node, "rows", int),
    )
    return found


def _get(node: Mapping[str, object], key: str, kind: type[Value]) -> Value:
    value = node[key]
    if type(value) is not kind or (isinstance(value, int) and not -(1 << 63) <= value < 1 << 63):
        raise InvalidToken(f"{key} is of another kind")
    return value
