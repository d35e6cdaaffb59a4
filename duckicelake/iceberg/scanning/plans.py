"""Requests to plan a scan, and the plan ids and plan tasks that answer them.

A token contains the whole plan, so any server can continue a plan, without state. The checksum detects damaged tokens; it is no
signature. A forged token gains nothing: it names only parts of the requested table, and the request must be allowed to read that table.

Shape:  base64url of (kind 1 byte | sha-256 of the rest, 12 bytes | span 4 × u32 BE | zlib of compact JSON)
Source: Iceberg REST specification, «PlanTableScanRequest», «FetchScanTasksRequest»
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from json import dumps, loads
from typing import TypeVar, cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, find_list, find_long, get_flag, get_text, is_text, refuse

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
