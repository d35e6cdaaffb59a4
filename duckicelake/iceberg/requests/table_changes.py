"""The metadata of a table that a request creates or commits to, or the reason why the request is refused.

`catalog.table_changes` calls `build_new_metadata` for new tables. `catalog.commits` calls `apply_updates` under the lake's lock, also for
transactions that create a table, and before it with the schemas and specs of a request alone. The jobs `import` and `export` describe new
tables with it. No I/O. The rules and messages are those of Java's `TableMetadata.Builder`, with three differences: LAST_ADDED also means a
schema, spec or order that existed before the request added it again; a schema that a snapshot was written with cannot be removed;
last-sequence-number never decreases.

Source: Iceberg REST specification «TableUpdate»; Java `TableMetadata.Builder`
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import FORMAT_VERSIONS, TableMetadata, check_metadata, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import FIRST_FIELD_ID, UNPARTITIONED, UNSORTED, PartitionSpec, SortOrder, get_last_field_id
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.compatibility import check_partition_names, check_sort_order, check_spec
from duckicelake.iceberg.requests.table_draft import (
    FIRST_ORDER_ID,
    TableDraft,
    add_schema,
    add_snapshot,
    add_sort_order,
    add_spec,
    build_snapshot_log,
    change_metadata,
    remove_partition_statistics,
    remove_schemas,
    remove_snapshot_ref,
    remove_snapshots,
    remove_specs,
    remove_statistics,
    set_current_schema,
    set_default_sort_order,
    set_default_spec,
    set_partition_statistics,
    set_snapshot_ref,
    set_statistics,
)
from duckicelake.iceberg.requests.updates import (
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    AssignUuid,
    RemovePartitionStatistics,
    RemoveProperties,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveSpecs,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetLocation,
    SetPartitionStatistics,
    SetProperties,
    SetSnapshotRef,
    SetStatistics,
    TableUpdate,
    UpgradeFormatVersion,
)
from duckicelake.iceberg.schema import Schema, check_format_version, get_highest_field_id
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, walk_fields

FORMAT_VERSION = "format-version"
DEFAULT_FORMAT_VERSION = 2
RESERVED_PROPERTIES = frozenset(
    {
        FORMAT_VERSION,
        "uuid",
        "snapshot-count",
        "current-snapshot-summary",
        "current-snapshot-id",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Names that Iceberg reserves for derived values. They are never stored."""

NEW_TABLE_DEFAULTS: Mapping[str, str] = {"write.parquet.compression-codec": "zstd"}
"""Properties that Java sets on new tables unless the client sets them."""

PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_DEFAULT = 100
METRICS_PREFIX = "write.metadata.metrics.column."
COMMIT_NUMBER_PROPERTIES = (
    "commit.retry.num-retries",
    "commit.retry.min-wait-ms",
    "commit.retry.max-wait-ms",
    "commit.retry.total-timeout-ms",
)

_COUNT = re.compile(r"[+-]?\d{1,10}", re.ASCII)


def drop_reserved(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a table stores."""
    return {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}


def find_format_version(properties: Mapping[str, str]) -> int | None:
    """Return the format version that the properties ask for.

    Raises: BadRequest — not a number
    """
    text = properties.get(FORMAT_VERSION)
    if text is None:
        return None
    if _COUNT.fullmatch(text) is None:
        raise BadRequest(f"Invalid table property {FORMAT_VERSION}: {text[:100]!r} is no number; send 1, 2 or 3")
    return int(text)


def check_new_version(format_version: int) -> None:
    """Raise BadRequest when a new table cannot have that format version."""
    if format_version not in FORMAT_VERSIONS:
        raise BadRequest(f"Unsupported format version: v{format_version} (supported: v{FORMAT_VERSIONS[-1]})")


def get_previous_versions_max(properties: Mapping[str, str]) -> int:
    """Return how many entries the metadata log keeps: at least 1, and the default when the property is no number."""
    text = properties.get(PREVIOUS_VERSIONS, "")
    return max(1, int(text)) if _COUNT.fullmatch(text) else PREVIOUS_VERSIONS_DEFAULT


def check_properties(properties: Mapping[str, str], schema: Schema) -> None:
    """Raise BadRequest when properties of a new table name missing columns or are no numbers, as Java's catalogs do."""
    paths = {path for path, _ in walk_fields(schema.fields)}
    for name, value in properties.items():
        column = name.removeprefix(METRICS_PREFIX)
        if column != name and column not in paths:
            raise BadRequest(f"Invalid metrics config, could not find column {column} from table prop {name} in schema; name a column")
        if name in COMMIT_NUMBER_PROPERTIES and _COUNT.fullmatch(value) is None:
            raise BadRequest(f"Table property {name} must have integer value")
        if name in COMMIT_NUMBER_PROPERTIES and int(value) < 0:
            raise BadRequest(f"Table property {name} must have non negative integer value")


@dataclass(frozen=True, slots=True)
class NewIdentity:
    """The uuid, location and time that the catalog, not the client, gives to a new table or view."""

    uuid: str
    location: str
    now_ms: int


def build_new_metadata(request: CreateTable, identity: NewIdentity) -> TableMetadata:
    """Return the metadata of a new table: schema 0, spec 0, order 1 (0 when unsorted), no snapshot.

    Raises: BadRequest — columns, spec, order or properties that do not fit together or not the format version
    """
    requested = find_format_version(request.properties)
    format_version = DEFAULT_FORMAT_VERSION if requested is None else requested
    check_new_version(format_version)
    schema, new_ids = assign_fresh_ids(request.schema)
    check_format_version(schema, format_version)
    spec = _fresh_spec(request.spec, new_ids)
    check_spec(spec, schema)
    order = _fresh_order(request.order, new_ids)
    check_sort_order(order, schema)
    properties = {**NEW_TABLE_DEFAULTS, **drop_reserved(request.properties)}
    check_properties(properties, schema)
    return TableMetadata(
        format_version=format_version,
        table_uuid=identity.uuid,
        location=identity.location,
        last_sequence_number=0,
        last_updated_ms=identity.now_ms,
        last_column_id=get_highest_field_id(schema),
        schemas=(schema,),
        current_schema_id=0,
        partition_specs=(spec,),
        default_spec_id=0,
        last_partition_id=get_last_field_id((spec,)),
        sort_orders=(order,),
        default_sort_order_id=order.order_id,
        properties=properties,
    )


def assign_fresh_ids(schema: Schema) -> tuple[Schema, dict[int, int]]:
    """Return the schema under id 0 with its columns numbered from 1, and the new id of each old one.

    The fields of a struct are numbered before the fields inside them, as in Java and PyIceberg.
    """
    new_ids: dict[int, int] = {}
    fields = _fresh_fields(schema.fields, count(1), new_ids)
    return Schema(0, fields, tuple(new_ids[item] for item in schema.identifier_field_ids)), new_ids


def _fresh_fields(fields: tuple[NestedField, ...], ids: Iterator[int], new_ids: dict[int, int]) -> tuple[NestedField, ...]:
    for item in fields:
        new_ids[item.field_id] = next(ids)
    return tuple(replace(item, field_id=new_ids[item.field_id], type=_fresh_type(item.type, ids, new_ids)) for item in fields)


def _fresh_type(type: IcebergType, ids: Iterator[int], new_ids: dict[int, int]) -> IcebergType:
    match type:
        case PrimitiveType():
            return type
        case StructType(fields):
            return StructType(_fresh_fields(fields, ids, new_ids))
        case ListType(element_id, element_type):
            new_ids[element_id] = next(ids)
            return replace(type, element_id=new_ids[element_id], element_type=_fresh_type(element_type, ids, new_ids))
        case MapType(key_id, key_type, value_id, value_type):
            new_ids[key_id], new_ids[value_id] = next(ids), next(ids)
            fresh_key = _fresh_type(key_type, ids, new_ids)
            fresh_value = _fresh_type(value_type, ids, new_ids)
            return replace(type, key_id=new_ids[key_id], key_type=fresh_key, value_id=new_ids[value_id], value_type=fresh_value)


def _fresh_spec(spec: PartitionSpec, new_ids: dict[int, int]) -> PartitionSpec:
    fields = tuple(
        replace(item, source_id=_get_new_id(item.source_id, new_ids, f"partition field: {item.name}"), field_id=FIRST_FIELD_ID + i)
        for i, item in enumerate(spec.fields)
    )
    return PartitionSpec(0, fields)


def _fresh_order(order: SortOrder, new_ids: dict[int, int]) -> SortOrder:
    fields = tuple(replace(item, source_id=_get_new_id(item.source_id, new_ids, "sort field")) for item in order.fields)
    return SortOrder(FIRST_ORDER_ID, fields) if fields else UNSORTED


def _get_new_id(source_id: int, new_ids: dict[int, int], what: str) -> int:
    if source_id not in new_ids:
        raise BadRequest(f"Cannot find source column for {what}: the schema has no id {source_id}; send one of its ids")
    return new_ids[source_id]


def apply_updates(base: TableMetadata | None, updates: Sequence[TableUpdate], now_ms: int) -> TableMetadata:
    """Return the metadata after the updates, in their order; `base` itself when they change nothing.

    Without a base the updates create a table; its uuid and location are "" when no update sets them.
    Raises: BadRequest — malformed, unknown or contradictory · CommitFailed — sequence numbers or row ids were assigned meanwhile
    """
    draft = TableDraft(_empty_metadata(updates, now_ms) if base is None else base, now_ms)
    draft = reduce(lambda so_far, update: _STEPS[type(update)](so_far, update), updates, draft)
    if base is None:
        draft = _with_defaults(draft)
    if base is not None and draft.metadata == base:
        return base
    log = build_snapshot_log(base, draft)
    times = [now_ms, *([] if base is None else [base.last_updated_ms]), *[at_ms for at_ms, _ in log[-1:]]]
    metadata = replace(draft.metadata, snapshot_log=log, last_updated_ms=max(times))
    check_metadata(metadata, base)
    if base is None or _list_shape_ids(base) != _list_shape_ids(metadata):
        _check_references(metadata)
    _check_snapshot_schemas(draft, metadata)
    return metadata


def _empty_metadata(updates: Sequence[TableUpdate], now_ms: int) -> TableMetadata:
    """Return the metadata that Java's builder starts from. Unset ids are 0, so a spec may come before the current schema is set."""
    versions = [update.format_version for update in updates if isinstance(update, UpgradeFormatVersion)]
    format_version = versions[0] if versions else DEFAULT_FORMAT_VERSION
    check_new_version(format_version)
    return TableMetadata(
        format_version=format_version,
        table_uuid="",
        location="",
        last_sequence_number=0,
        last_updated_ms=now_ms,
        last_column_id=0,
        schemas=(),
        current_schema_id=0,
        partition_specs=(),
        default_spec_id=0,
        last_partition_id=FIRST_FIELD_ID - 1,
        sort_orders=(),
    )


def _with_defaults(draft: TableDraft) -> TableDraft:
    metadata = draft.metadata
    if not metadata.schemas:
        raise BadRequest("Cannot create table: the updates give it no schema; send one")
    return change_metadata(
        draft,
        partition_specs=metadata.partition_specs or (UNPARTITIONED,),
        sort_orders=metadata.sort_orders or (UNSORTED,),
    )


def _check_references(metadata: TableMetadata) -> None:
    schema = get_current_schema(metadata)
    check_spec(get_default_spec(metadata), schema)
    for spec in metadata.partition_specs:
        check_partition_names(spec, schema)
    for order in metadata.sort_orders:
        if order.order_id == metadata.default_sort_order_id:
            check_sort_order(order, schema)


def _list_shape_ids(metadata: TableMetadata) -> tuple[object, ...]:
    current = (metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id)
    return (current, metadata.schemas, metadata.partition_specs, metadata.sort_orders)


def _check_snapshot_schemas(draft: TableDraft, metadata: TableMetadata) -> None:
    schema_ids = {item.schema_id for item in metadata.schemas}
    added = len(draft.added_snapshot_ids)
    for snapshot in metadata.snapshots if draft.removed_schema_ids else metadata.snapshots[-added:] if added else ():
        lost = snapshot.schema_id is not None and snapshot.schema_id not in schema_ids
        if lost and snapshot.snapshot_id in draft.added_snapshot_ids:
            raise BadRequest(f"Cannot add snapshot {snapshot.snapshot_id}: its schema {snapshot.schema_id} is unknown; add it first")
        if lost and snapshot.schema_id in draft.removed_schema_ids:
            raise BadRequest(
                f"Cannot remove schema {snapshot.schema_id}: snapshot {snapshot.snapshot_id} was written with it; remove the snapshot first"
            )


def _assign_uuid(draft: TableDraft, update: AssignUuid) -> TableDraft:
    present = draft.metadata.table_uuid
    if present and present.lower() != update.uuid.lower():
        raise BadRequest(f"Cannot reassign uuid: the table has {present}, not {update.uuid}")
    return draft if present else change_metadata(draft, table_uuid=update.uuid)


def _upgrade_format_version(draft: TableDraft, update: UpgradeFormatVersion) -> TableDraft:
    present, wanted = draft.metadata.format_version, update.format_version
    if wanted > FORMAT_VERSIONS[-1]:
        raise BadRequest(f"Cannot upgrade table to unsupported format version: v{wanted} (supported: v{FORMAT_VERSIONS[-1]})")
    if wanted < present:
        raise BadRequest(f"Cannot downgrade v{present} table to v{wanted}")
    return change_metadata(draft, format_version=wanted)


def _set_location(draft: TableDraft, update: SetLocation) -> TableDraft:
    return change_metadata(draft, location=update.location)


def _set_properties(draft: TableDraft, update: SetProperties) -> TableDraft:
    format_version = find_format_version(update.updates)
    if format_version is not None:
        draft = _upgrade_format_version(draft, UpgradeFormatVersion(format_version))
    return change_metadata(draft, properties={**draft.metadata.properties, **drop_reserved(update.updates)})


def _remove_properties(draft: TableDraft, update: RemoveProperties) -> TableDraft:
    removals = set(update.removals) - RESERVED_PROPERTIES
    return change_metadata(draft, properties={name: value for name, value in draft.metadata.properties.items() if name not in removals})


_STEPS: Mapping[type[TableUpdate], Callable[[TableDraft, Any], TableDraft]] = {
    AssignUuid: _assign_uuid,
    UpgradeFormatVersion: _upgrade_format_version,
    AddSchema: add_schema,
    SetCurrentSchema: set_current_schema,
    RemoveSchemas: remove_schemas,
    AddSpec: add_spec,
    SetDefaultSpec: set_default_spec,
    RemoveSpecs: remove_specs,
    AddSortOrder: add_sort_order,
    SetDefaultSortOrder: set_default_sort_order,
    AddSnapshot: add_snapshot,
    SetSnapshotRef: set_snapshot_ref,
    RemoveSnapshotRef: remove_snapshot_ref,
    RemoveSnapshots: remove_snapshots,
    SetStatistics: set_statistics,
    RemoveStatistics: remove_statistics,
    SetPartitionStatistics: set_partition_statistics,
    RemovePartitionStatistics: remove_partition_statistics,
    SetLocation: _set_location,
    SetProperties: _set_properties,
    RemoveProperties: _remove_properties,
}
