"""Updates applied to a table's metadata: what the table is after the request, or why it cannot be.

Source: Iceberg REST specification «TableUpdate»; the rules and texts of Java's `TableMetadata.Builder`. Three differences:
LAST_ADDED also means a schema, spec or order that was there before this request added it again; a schema that a snapshot
was written with cannot be removed; last-sequence-number never goes down.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import FORMAT_VERSIONS, TableMetadata, check_metadata, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import FIRST_FIELD_ID, UNPARTITIONED
from duckicelake.iceberg.requests import histories, shapes
from duckicelake.iceberg.requests.compatibility import check_partition_names, check_sort_order, check_spec
from duckicelake.iceberg.requests.draft import TableDraft, change_metadata
from duckicelake.iceberg.requests.properties import (
    DEFAULT_FORMAT_VERSION,
    RESERVED_PROPERTIES,
    check_new_version,
    drop_reserved,
    find_format_version,
    get_previous_versions_max,
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
from duckicelake.iceberg.sorting import UNSORTED
from duckicelake.values import replace


def apply_updates(base: TableMetadata | None, updates: Sequence[TableUpdate], now_ms: int) -> TableMetadata:
    """The metadata after those updates, in their order; `base` itself when they change nothing.

    Without a base the updates make a new table; its uuid and location are "" when none is given.
    Raises: BadRequest — malformed, unknown or contradictory · CommitFailed — numbers were given out meanwhile
    """
    draft = TableDraft(_empty_metadata(updates, now_ms) if base is None else base, now_ms)
    draft = reduce(lambda so_far, update: _STEPS[type(update)](so_far, update), updates, draft)
    if base is None:
        draft = _with_defaults(draft)
    if base is not None and draft.metadata == base:
        return base
    log = histories.build_snapshot_log(base, draft)
    times = [now_ms, *([] if base is None else [base.last_updated_ms]), *[at_ms for at_ms, _ in log[-1:]]]
    metadata = replace(draft.metadata, snapshot_log=log, last_updated_ms=max(times))
    check_metadata(metadata, base)
    if base is None or _list_shape_ids(base) != _list_shape_ids(metadata):
        _check_references(metadata)
    _check_snapshot_schemas(draft, metadata)
    return metadata


def log_metadata_file(metadata: TableMetadata, base: TableMetadata, base_location: str) -> TableMetadata:
    """The metadata with its predecessor's file in the log, which keeps as many entries as the properties say."""
    kept = get_previous_versions_max(metadata.properties)
    entries = (*base.metadata_log, (base.last_updated_ms, base_location))
    return replace(metadata, metadata_log=entries[-kept:])


def _empty_metadata(updates: Sequence[TableUpdate], now_ms: int) -> TableMetadata:
    """What Java's builder starts from: ids that are not given yet are 0, so a spec may come before the current schema is set."""
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
    AddSchema: shapes.add_schema,
    SetCurrentSchema: shapes.set_current_schema,
    RemoveSchemas: shapes.remove_schemas,
    AddSpec: shapes.add_spec,
    SetDefaultSpec: shapes.set_default_spec,
    RemoveSpecs: shapes.remove_specs,
    AddSortOrder: shapes.add_sort_order,
    SetDefaultSortOrder: shapes.set_default_sort_order,
    AddSnapshot: histories.add_snapshot,
    SetSnapshotRef: histories.set_snapshot_ref,
    RemoveSnapshotRef: histories.remove_snapshot_ref,
    RemoveSnapshots: histories.remove_snapshots,
    SetStatistics: histories.set_statistics,
    RemoveStatistics: histories.remove_statistics,
    SetPartitionStatistics: histories.set_partition_statistics,
    RemovePartitionStatistics: histories.remove_partition_statistics,
    SetLocation: _set_location,
    SetProperties: _set_properties,
    RemoveProperties: _remove_properties,
}
