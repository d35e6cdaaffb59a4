"""Table metadata: the content of a metadata.json for format versions 1 to 3, its parser, its checks and its encoder. No I/O.

`catalog` and `translate` use this in the server, jobs of `pipeline.transfer` in their drivers. `EncodedHistory` belongs to the
table's cache and keeps encoded JSON, because a table with a long history is encoded after every commit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from json import JSONEncoder
from operator import is_
from typing import Generic, TypeVar

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import (
    as_object,
    find_int,
    find_list,
    find_long,
    find_text,
    find_text_map,
    get_int,
    get_list,
    get_long,
    get_text,
    list_objects,
)
from duckicelake.iceberg.partition import (
    UNSORTED,
    PartitionSpec,
    SortOrder,
    assign_field_ids,
    format_sort_order,
    format_spec,
    format_spec_fields,
    get_last_field_id,
    parse_sort_order,
    parse_spec,
    parse_spec_fields,
)
from duckicelake.iceberg.schema import Schema, format_schema, parse_schema
from duckicelake.iceberg.snapshots import (
    MAIN,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    encode_snapshot,
    format_partition_statistics,
    format_ref,
    format_snapshot,
    format_statistics,
    may_contain,
    parse_partition_statistics,
    parse_ref,
    parse_snapshot,
    parse_statistics,
)

FORMAT_VERSIONS = (1, 2, 3)
WHAT = "table metadata"
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
SNAPSHOTS, END_OF_SNAPSHOTS = b',"snapshots":[', b'],"snapshot-log":['
CACHED_LOG_ENTRIES_MAX, LOG_ENTRY_BYTES = 250, 512
"""How many encoded entries of the metadata log are kept for each table, and about how many bytes one takes."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TableMetadata:
    """The metadata of a table. `table_uuid` is "" for an old v1 table that has none.

    Units: logs are (timestamp_ms, snapshot_id) and (timestamp_ms, metadata_file), oldest first
    """

    format_version: int
    table_uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    schemas: tuple[Schema, ...]
    current_schema_id: int
    partition_specs: tuple[PartitionSpec, ...]
    default_spec_id: int
    last_partition_id: int
    sort_orders: tuple[SortOrder, ...] = (UNSORTED,)
    default_sort_order_id: int = 0
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    current_snapshot_id: int | None = None
    snapshots: tuple[Snapshot, ...] = ()
    snapshot_log: tuple[tuple[int, int], ...] = ()
    metadata_log: tuple[tuple[int, str], ...] = ()
    refs: Mapping[str, SnapshotRef] = field(default_factory=dict[str, SnapshotRef], hash=False)
    statistics: tuple[StatisticsFile, ...] = ()
    partition_statistics: tuple[PartitionStatisticsFile, ...] = ()
    next_row_id: int = 0
    encryption_keys: tuple[Mapping[str, object], ...] = field(default=(), hash=False)


def get_current_schema(metadata: TableMetadata) -> Schema:
    """Return the schema that new rows are written with."""
    return next(schema for schema in metadata.schemas if schema.schema_id == metadata.current_schema_id)


def get_default_spec(metadata: TableMetadata) -> PartitionSpec:
    """Return the partition spec that new files are written with."""
    return next(spec for spec in metadata.partition_specs if spec.spec_id == metadata.default_spec_id)


def find_snapshot(metadata: TableMetadata, snapshot_id: int | None) -> Snapshot | None:
    """Return the snapshot of that id, searching from the newest."""
    if snapshot_id is None or not may_contain(metadata.snapshots, snapshot_id):
        return None
    return next((item for item in reversed(metadata.snapshots) if item.snapshot_id == snapshot_id), None)


def format_metadata(metadata: TableMetadata) -> dict[str, object]:
    """Return table metadata as JSON, keys in the specification's order."""
    return {
        **_format_head(metadata),
        "snapshots": [format_snapshot(item) for item in metadata.snapshots],
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": snapshot_id} for at, snapshot_id in metadata.snapshot_log],
        **_format_tail(metadata),
    }


class EncodedHistory:
    """The parts of a table's JSON that are kept between two encodings: the history, and parts that seldom change.

    One object belongs to one table and is used by one thread at a time.
    """

    def __init__(self) -> None:
        self.snapshots = EncodedList(encode_snapshot)
        self.log = EncodedList(_encode_log_entry)
        self.files = _EncodedLogEntries()
        self._schemas: tuple[Schema, ...] = ()
        self._schemas_json = b"[]"
        self._shapes: tuple[object, object] = ((), ())
        self._shapes_json = (b"[]", b"[]")

    @property
    def nbytes(self) -> int:
        """Return about how much memory this takes."""
        return self.snapshots.nbytes + self.log.nbytes + len(self._schemas_json) + LOG_ENTRY_BYTES * len(self.files)

    def encode_schemas(self, schemas: tuple[Schema, ...]) -> bytes:
        """Return the schemas as JSON. They are compared by identity, because equal defaults may be written differently."""
        if len(schemas) != len(self._schemas) or not all(map(is_, schemas, self._schemas)):
            self._schemas, self._schemas_json = schemas, _compact([format_schema(item) for item in schemas])
        return self._schemas_json

    def encode_shapes(self, specs: tuple[PartitionSpec, ...], orders: tuple[SortOrder, ...]) -> tuple[bytes, bytes]:
        """Return the partition specs and the sort orders as JSON."""
        if (specs, orders) != self._shapes:
            specs_json, orders_json = [format_spec(item) for item in specs], [format_sort_order(item) for item in orders]
            self._shapes, self._shapes_json = (specs, orders), (_compact(specs_json), _compact(orders_json))
        return self._shapes_json


class _EncodedLogEntries(dict[tuple[int, str], bytes]):
    """A bounded cache of encoded entries of the metadata log: a log has many entries, and only one of them is new."""

    def __missing__(self, entry: tuple[int, str]) -> bytes:
        if len(self) >= CACHED_LOG_ENTRIES_MAX:
            self.clear()
        encoded = self[entry] = b'{"timestamp-ms":%d,"metadata-file":%b}' % (entry[0], _compact(entry[1]))
        return encoded


def encode_metadata(metadata: TableMetadata, history: EncodedHistory | None = None) -> bytes:
    """Return table metadata as compact UTF-8 JSON: the content of `format_metadata`, always with the same bytes.

    `history` saves work for long histories; one history belongs to one table.
    """
    return encode_with_digest(metadata, history or EncodedHistory())[0]


def encode_with_digest(metadata: TableMetadata, history: EncodedHistory) -> tuple[bytes, bytes]:
    """Return table metadata as JSON, and a digest that differs whenever the JSON does, at the cost of the new part of the history."""
    head, tail = _encode_head(metadata, history), _encode_tail(metadata, history)
    snapshots, log = history.snapshots.follow(metadata.snapshots), history.log.follow(metadata.snapshot_log)
    encoded = b"".join((b"{", head, SNAPSHOTS, snapshots, END_OF_SNAPSHOTS, log, b"],", tail, b"}"))
    return encoded, _digest(head, tail, metadata, history)


def add_encoded_snapshots(encoded: bytes, added: Sequence[Snapshot]) -> bytes:
    """Return encoded metadata with snapshots added to the end of its list, without encoding the rest again."""
    # Within a JSON string the quotes would be escaped, so this is the end of the list of snapshots and nothing else.
    before, end, after = encoded.partition(END_OF_SNAPSHOTS)
    first = b"" if before.endswith(SNAPSHOTS) else b","
    return b"".join((before, first, b",".join(map(encode_snapshot, added)), end, after))


def digest_metadata(metadata: TableMetadata, history: EncodedHistory | None = None) -> str:
    """Return the digest of table metadata, without encoding all of it."""
    history = history or EncodedHistory()
    return _digest(_encode_head(metadata, history), _encode_tail(metadata, history), metadata, history).hex()


def _digest(head: bytes, tail: bytes, metadata: TableMetadata, history: EncodedHistory) -> bytes:
    lists = history.snapshots.digest(metadata.snapshots) + history.log.digest(metadata.snapshot_log)
    return sha256(b"{%b}{%b}%b" % (head, tail, lists)).digest()


def _encode_log_entry(entry: tuple[int, int]) -> bytes:
    at, snapshot_id = entry
    return b'{"timestamp-ms":%d,"snapshot-id":%d}' % (at, snapshot_id)


def parse_metadata(value: object) -> TableMetadata:
    """Return the table metadata of a JSON value. Optional members of v1 get the values that the specification says.

    Raises: BadRequest — malformed, of another format version, or with ids that it does not contain
    """
    node = as_object(value, WHAT)
    version = get_int(node, "format-version", WHAT)
    if version not in FORMAT_VERSIONS:
        raise BadRequest(f"Cannot read table metadata: format version {version} is not supported; write it as version 1, 2 or 3")
    schemas, current_schema_id = _parse_schemas(node)
    specs, default_spec_id = _parse_specs(node)
    current_snapshot_id = _find_current_snapshot_id(node)
    last_partition_id = find_int(node, "last-partition-id", WHAT)
    metadata = TableMetadata(
        format_version=version,
        table_uuid=(find_text(node, "table-uuid", WHAT) or "") if version == 1 else get_text(node, "table-uuid", WHAT),
        location=get_text(node, "location", WHAT),
        last_sequence_number=0 if version == 1 else get_long(node, "last-sequence-number", WHAT),
        last_updated_ms=get_long(node, "last-updated-ms", WHAT),
        last_column_id=get_int(node, "last-column-id", WHAT),
        schemas=schemas,
        current_schema_id=current_schema_id,
        partition_specs=specs,
        default_spec_id=default_spec_id,
        last_partition_id=get_last_field_id(specs) if last_partition_id is None else last_partition_id,
        sort_orders=_parse_each(node, "sort-orders", parse_sort_order) or (UNSORTED,),
        default_sort_order_id=find_int(node, "default-sort-order-id", WHAT) or 0,
        properties=find_text_map(node, "properties", WHAT) or {},
        current_snapshot_id=current_snapshot_id,
        snapshots=_parse_each(node, "snapshots", parse_snapshot),
        snapshot_log=_parse_snapshot_log(node),
        metadata_log=_parse_metadata_log(node),
        refs=_parse_refs(node, current_snapshot_id),
        statistics=_parse_each(node, "statistics", parse_statistics),
        partition_statistics=_parse_each(node, "partition-statistics", parse_partition_statistics),
        next_row_id=get_long(node, "next-row-id", WHAT) if version >= 3 else 0,
        encryption_keys=tuple(list_objects(node, "encryption-keys", WHAT)),
    )
    check_metadata(metadata)
    return metadata


def check_metadata(metadata: TableMetadata, base: TableMetadata | None = None) -> None:
    """Raise BadRequest when the metadata names a schema, spec, order or snapshot that it does not contain.

    `base`: valid metadata from which updates made this one. Each update checked the ids that it added, so unchanged ones are not checked.
    """
    main, dangling = metadata.refs.get(MAIN), _list_dangling(metadata, base)
    problems = {
        f"current-schema-id {metadata.current_schema_id} is not in schemas": all(
            item.schema_id != metadata.current_schema_id for item in metadata.schemas
        ),
        f"default-spec-id {metadata.default_spec_id} is not in partition-specs": all(
            item.spec_id != metadata.default_spec_id for item in metadata.partition_specs
        ),
        f"default-sort-order-id {metadata.default_sort_order_id} is not in sort-orders": metadata.default_sort_order_id != 0
        and all(item.order_id != metadata.default_sort_order_id for item in metadata.sort_orders),
        f"refs {dangling} point to no snapshot": bool(dangling),
        "current-snapshot-id is not where the main branch points": metadata.current_snapshot_id
        != (None if main is None else main.snapshot_id),
        "a snapshot id occurs twice": base is None and len({item.snapshot_id for item in metadata.snapshots}) < len(metadata.snapshots),
    }
    for problem, found in problems.items():
        if found:
            raise BadRequest(f"Invalid table metadata: {problem}; correct the metadata file")


def _list_dangling(metadata: TableMetadata, base: TableMetadata | None) -> list[str]:
    """Return the refs that point to no snapshot."""
    if base is not None and metadata.snapshots[: len(base.snapshots)] == base.snapshots:
        moved = [name for name, ref in metadata.refs.items() if base.refs.get(name) != ref]
        return [name for name in moved if find_snapshot(metadata, metadata.refs[name].snapshot_id) is None]
    snapshot_ids = {item.snapshot_id for item in metadata.snapshots}
    return [name for name, ref in metadata.refs.items() if ref.snapshot_id not in snapshot_ids]


def _compact(value: object) -> bytes:
    return JSON.encode(value).encode()


def _encode_head(metadata: TableMetadata, history: EncodedHistory) -> bytes:
    """Return the encoded members of `_format_head`."""
    if metadata.format_version == 1:
        return _compact(_format_head(metadata))[1:-1]
    specs, _ = history.encode_shapes(metadata.partition_specs, metadata.sort_orders)
    parts = (
        b'"format-version":%d' % metadata.format_version,
        *([b'"table-uuid":%b' % _compact(metadata.table_uuid)] if metadata.table_uuid else []),
        b'"location":%b' % _compact(metadata.location),
        b'"last-sequence-number":%d' % metadata.last_sequence_number,
        b'"last-updated-ms":%d' % metadata.last_updated_ms,
        b'"last-column-id":%d' % metadata.last_column_id,
        b'"schemas":%b' % history.encode_schemas(metadata.schemas),
        b'"current-schema-id":%d' % metadata.current_schema_id,
        b'"partition-specs":%b' % specs,
        b'"default-spec-id":%d' % metadata.default_spec_id,
        b'"last-partition-id":%d' % metadata.last_partition_id,
        b'"properties":%b' % _compact(dict(metadata.properties)),
        *([] if metadata.current_snapshot_id is None else [b'"current-snapshot-id":%d' % metadata.current_snapshot_id]),
    )
    return b",".join(parts)


def _encode_tail(metadata: TableMetadata, history: EncodedHistory) -> bytes:
    """Return the encoded members of `_format_tail`."""
    if metadata.statistics or metadata.partition_statistics or metadata.encryption_keys:
        return _compact(_format_tail(metadata))[1:-1]
    _, orders = history.encode_shapes(metadata.partition_specs, metadata.sort_orders)
    parts = (
        b'"metadata-log":[%b]' % b",".join(map(history.files.__getitem__, metadata.metadata_log)),
        b'"sort-orders":%b' % orders,
        b'"default-sort-order-id":%d' % metadata.default_sort_order_id,
        b'"refs":%b' % _compact({name: format_ref(ref) for name, ref in metadata.refs.items()}),
        b'"statistics":[],"partition-statistics":[]',
        *([b'"next-row-id":%d' % metadata.next_row_id] if metadata.format_version >= 3 else []),
    )
    return b",".join(parts)


def _format_head(metadata: TableMetadata) -> dict[str, object]:
    version = metadata.format_version
    optional: dict[str, object | None] = {
        "format-version": version,
        "table-uuid": metadata.table_uuid or None,
        "location": metadata.location,
        "last-sequence-number": metadata.last_sequence_number if version > 1 else None,
        "last-updated-ms": metadata.last_updated_ms,
        "last-column-id": metadata.last_column_id,
        "schema": format_schema(get_current_schema(metadata)) if version == 1 else None,
        "schemas": [format_schema(item) for item in metadata.schemas],
        "current-schema-id": metadata.current_schema_id,
        "partition-spec": format_spec_fields(get_default_spec(metadata)) if version == 1 else None,
        "partition-specs": [format_spec(item) for item in metadata.partition_specs],
        "default-spec-id": metadata.default_spec_id,
        "last-partition-id": metadata.last_partition_id,
        "properties": dict(metadata.properties),
        "current-snapshot-id": metadata.current_snapshot_id,
    }
    return {key: value for key, value in optional.items() if value is not None}


def _format_tail(metadata: TableMetadata) -> dict[str, object]:
    node: dict[str, object] = {
        "metadata-log": [{"timestamp-ms": at, "metadata-file": path} for at, path in metadata.metadata_log],
        "sort-orders": [format_sort_order(item) for item in metadata.sort_orders],
        "default-sort-order-id": metadata.default_sort_order_id,
        "refs": {name: format_ref(ref) for name, ref in metadata.refs.items()},
        "statistics": [format_statistics(item) for item in metadata.statistics],
        "partition-statistics": [format_partition_statistics(item) for item in metadata.partition_statistics],
    }
    if metadata.format_version >= 3:
        node["next-row-id"] = metadata.next_row_id
    if metadata.encryption_keys:
        node["encryption-keys"] = [dict(key) for key in metadata.encryption_keys]
    return node


def _parse_each(node: Mapping[str, object], key: str, parse: Callable[[object], Item]) -> tuple[Item, ...]:
    return tuple(parse(item) for item in find_list(node, key, WHAT) or [])


def _find_current_snapshot_id(node: Mapping[str, object]) -> int | None:
    found = find_long(node, "current-snapshot-id", WHAT)
    return None if found == -1 else found


def _parse_schemas(node: Mapping[str, object]) -> tuple[tuple[Schema, ...], int]:
    if node["format-version"] == 1 and node.get("schemas") is None:
        schema = parse_schema(node.get("schema"))
        return (schema,), schema.schema_id
    schemas = tuple(parse_schema(item) for item in get_list(node, "schemas", WHAT))
    return schemas, get_int(node, "current-schema-id", WHAT)


def _parse_specs(node: Mapping[str, object]) -> tuple[tuple[PartitionSpec, ...], int]:
    if node["format-version"] == 1 and node.get("partition-specs") is None:
        return (_assign_field_ids(PartitionSpec(0, parse_spec_fields(node.get("partition-spec")))),), 0
    specs = tuple(_assign_field_ids(parse_spec(item)) for item in get_list(node, "partition-specs", WHAT))
    return specs, get_int(node, "default-spec-id", WHAT)


def _assign_field_ids(spec: PartitionSpec) -> PartitionSpec:
    return assign_field_ids(spec, 0)


def _parse_snapshot_log(node: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    entries: Iterable[Mapping[str, object]] = list_objects(node, "snapshot-log", WHAT)
    return tuple((get_long(entry, "timestamp-ms", "snapshot log"), get_long(entry, "snapshot-id", "snapshot log")) for entry in entries)


def _parse_metadata_log(node: Mapping[str, object]) -> tuple[tuple[int, str], ...]:
    entries: Iterable[Mapping[str, object]] = list_objects(node, "metadata-log", WHAT)
    return tuple((get_long(entry, "timestamp-ms", "metadata log"), get_text(entry, "metadata-file", "metadata log")) for entry in entries)


def _parse_refs(node: Mapping[str, object], current_snapshot_id: int | None) -> dict[str, SnapshotRef]:
    refs = {name: parse_ref(ref) for name, ref in as_object(node.get("refs") or {}, "refs").items()}
    if current_snapshot_id is not None and MAIN not in refs:
        refs[MAIN] = SnapshotRef(current_snapshot_id, "branch")
    return refs


ListItem = TypeVar("ListItem")


class EncodedList(Generic[ListItem]):
    """The JSON of an append-only list: every item is encoded and digested once, however often the whole list is needed."""

    def __init__(self, encode: Callable[[ListItem], bytes]) -> None:
        self._encode = encode
        self._items: tuple[ListItem, ...] = ()
        self._json = bytearray()
        self._digest = sha256()

    def follow(self, items: tuple[ListItem, ...]) -> bytearray:
        """Return the items without brackets. Everything is encoded again when they do not continue those of the last call."""
        if items is not self._items:
            self._take(items)
        return self._json

    def _take(self, items: tuple[ListItem, ...]) -> None:
        if items[: len(self._items)] != self._items:
            self._items, self._json, self._digest = (), bytearray(), sha256()
        fresh = b"".join([b"," + self._encode(item) for item in items[len(self._items) :]])
        self._digest.update(fresh)
        self._json += fresh if self._json else fresh[1:]
        self._items = items

    def digest(self, items: tuple[ListItem, ...]) -> bytes:
        """Return a digest of the list."""
        self.follow(items)
        return self._digest.digest()

    @property
    def nbytes(self) -> int:
        """Return how many bytes the JSON has."""
        return len(self._json)
