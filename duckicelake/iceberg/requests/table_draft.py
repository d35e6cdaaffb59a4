"""The updates of one request that change schemas, specs, sort orders, snapshots, refs and statistics of a table.

Each function applies one update to a `TableDraft` and returns the next draft; `table_changes.apply_updates` calls them in order. Only
`resolve_added_specs` and `map_spec_ids` do not: `catalog` calls them around `apply_updates`, because clients guess the ids of specs. No
I/O.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.json_reader import LONG_MAX
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.partition import FIRST_FIELD_ID, UNASSIGNED, PartitionSpec, get_last_field_id, is_same_spec
from duckicelake.iceberg.requests.compatibility import check_columns, check_field_ids, check_sort_order, check_spec
from duckicelake.iceberg.requests.updates import (
    LAST_ADDED,
    AddSchema,
    AddSnapshot,
    AddSortOrder,
    AddSpec,
    RemovePartitionStatistics,
    RemoveSchemas,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveSpecs,
    RemoveStatistics,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    SetPartitionStatistics,
    SetSnapshotRef,
    SetStatistics,
    TableUpdate,
)
from duckicelake.iceberg.schema import LAST_COLUMN_ID_MAX, Schema, check_format_version, get_highest_field_id, is_same_schema
from duckicelake.iceberg.snapshots import MAIN, Snapshot
from duckicelake.iceberg.types import walk_fields


@dataclass(frozen=True, slots=True)
class TableDraft:
    """The metadata so far. `last_…` is the meaning of LAST_ADDED; the sets hold what this request added or removed."""

    metadata: TableMetadata
    now_ms: int
    last_schema_id: int | None = None
    last_spec_id: int | None = None
    last_order_id: int | None = None
    added_snapshot_ids: frozenset[int] = frozenset()
    removed_snapshot_ids: frozenset[int] = frozenset()
    removed_schema_ids: frozenset[int] = frozenset()


def change_metadata(draft: TableDraft, **changes: Any) -> TableDraft:
    """Return the draft with some fields of its metadata replaced."""
    return replace(draft, metadata=replace(draft.metadata, **changes))


def resolve_last_added(wanted: int, last_added: int | None, what: str) -> int:
    """Return the id, or that of the last added object for LAST_ADDED.

    Raises: BadRequest — LAST_ADDED before anything was added
    """
    if wanted != LAST_ADDED:
        return wanted
    if last_added is None:
        raise BadRequest(f"Cannot set last added {what}: no {what} has been added")
    return last_added


FIRST_ORDER_ID = 1
COLUMN_ID_GAP_MAX = 1_000_000
"""How far beyond the last column of a table a new id may be: DuckDB continues from there, and ids are 32-bit integers."""


def add_schema(draft: TableDraft, update: AddSchema) -> TableDraft:
    """Add a schema. Equal columns keep the existing schema id, others get the next one. The last column id never decreases."""
    metadata, schema = draft.metadata, update.schema
    check_format_version(schema, metadata.format_version)
    _check_column_ids(schema, metadata.last_column_id)
    check_columns(schema, metadata)
    last_column_id = max(metadata.last_column_id, get_highest_field_id(schema))
    found = next((item for item in metadata.schemas if is_same_schema(item, schema)), None)
    if found is not None:
        return replace(change_metadata(draft, last_column_id=last_column_id), last_schema_id=found.schema_id)
    schema_id = max([metadata.current_schema_id, *[item.schema_id + 1 for item in metadata.schemas]])
    schemas = (*metadata.schemas, replace(schema, schema_id=schema_id))
    return replace(change_metadata(draft, schemas=schemas, last_column_id=last_column_id), last_schema_id=schema_id)


def set_current_schema(draft: TableDraft, update: SetCurrentSchema) -> TableDraft:
    """Set the current schema. Raises BadRequest when there is no such schema."""
    schema_id = resolve_last_added(update.schema_id, draft.last_schema_id, "schema")
    if all(item.schema_id != schema_id for item in draft.metadata.schemas):
        raise BadRequest(f"Cannot set current schema to unknown schema: {schema_id}")
    return change_metadata(draft, current_schema_id=schema_id)


def remove_schemas(draft: TableDraft, update: RemoveSchemas) -> TableDraft:
    """Remove schemas. Unknown ids are ignored; the current schema cannot be removed."""
    if draft.metadata.current_schema_id in update.schema_ids:
        raise BadRequest("Cannot remove the current schema")
    schemas = tuple(item for item in draft.metadata.schemas if item.schema_id not in update.schema_ids)
    return replace(change_metadata(draft, schemas=schemas), removed_schema_ids=draft.removed_schema_ids | set(update.schema_ids))


def add_spec(draft: TableDraft, update: AddSpec) -> TableDraft:
    """Add a spec. Equal fields keep the existing spec id, others get the next one. Fields without ids are numbered."""
    metadata = draft.metadata
    spec = _number_fields(update.spec, metadata)
    check_spec(spec, get_schema_so_far(metadata, "partition spec"))
    found = next((item for item in metadata.partition_specs if is_same_spec(item, spec)), None)
    if found is not None:
        return replace(draft, last_spec_id=found.spec_id)
    check_field_ids(spec, metadata.partition_specs, metadata.format_version)
    spec_id = max([0, *[item.spec_id + 1 for item in metadata.partition_specs]])
    specs = (*metadata.partition_specs, replace(spec, spec_id=spec_id))
    last_partition_id = max(metadata.last_partition_id, get_last_field_id((spec,)))
    return replace(change_metadata(draft, partition_specs=specs, last_partition_id=last_partition_id), last_spec_id=spec_id)


def set_default_spec(draft: TableDraft, update: SetDefaultSpec) -> TableDraft:
    """Set the default spec. Raises BadRequest when there is no such spec."""
    spec_id = resolve_last_added(update.spec_id, draft.last_spec_id, "spec")
    if all(item.spec_id != spec_id for item in draft.metadata.partition_specs):
        raise BadRequest(f"Cannot set default partition spec to unknown spec: {spec_id}")
    return change_metadata(draft, default_spec_id=spec_id)


def resolve_added_specs(updates: Sequence[TableUpdate], client_spec_ids: Collection[int]) -> list[TableUpdate]:
    """Return the updates with LAST_ADDED in place of the id of a spec that they add themselves.

    The client chose that id; another client may have used it meanwhile. A spec that is not the last one added is added once more before
    it becomes the default, and the last one again after it, so that LAST_ADDED keeps its meaning.
    """
    named: list[TableUpdate] = []
    added: dict[int, AddSpec] = {}
    last: AddSpec | None = None
    for update in updates:
        if isinstance(update, AddSpec):
            added[update.spec.spec_id] = last = update
        own = added.get(update.spec_id) if isinstance(update, SetDefaultSpec) and update.spec_id not in client_spec_ids else None
        if own is None or last is None:
            named.append(update)
        elif own is last:
            named.append(SetDefaultSpec(LAST_ADDED))
        else:
            named += [own, SetDefaultSpec(LAST_ADDED), last]
    return named


def map_spec_ids(updates: Sequence[TableUpdate], client_spec_ids: Collection[int], new: TableMetadata) -> dict[int, int]:
    """Return the assigned ids of the added specs by the ids that the client assumed, where the two differ.

    A client gives the id after `client_spec_ids` to a new spec; another spec may have that id by now.
    """
    added = [update.spec for update in updates if isinstance(update, AddSpec) and update.spec.spec_id not in client_spec_ids]
    pairs = ((spec.spec_id, ours.spec_id) for spec in added for ours in reversed(new.partition_specs) if is_same_spec(ours, spec))
    return {theirs: ours for theirs, ours in dict(pairs).items() if theirs != ours}


def remove_specs(draft: TableDraft, update: RemoveSpecs) -> TableDraft:
    """Remove specs. Unknown ids are ignored; the default spec cannot be removed."""
    if draft.metadata.default_spec_id in update.spec_ids:
        raise BadRequest("Cannot remove the default partition spec")
    return change_metadata(
        draft, partition_specs=tuple(item for item in draft.metadata.partition_specs if item.spec_id not in update.spec_ids)
    )


def add_sort_order(draft: TableDraft, update: AddSortOrder) -> TableDraft:
    """Add a sort order. An order without keys has id 0, equal keys keep their id, others get the next id from 1."""
    metadata, order = draft.metadata, update.order
    check_sort_order(order, get_schema_so_far(metadata, "sort order"))
    found = next((item for item in metadata.sort_orders if item.fields == order.fields), None)
    if found is not None:
        return replace(draft, last_order_id=found.order_id)
    order_id = max([FIRST_ORDER_ID, *[item.order_id + 1 for item in metadata.sort_orders]]) if order.fields else 0
    orders = (*metadata.sort_orders, replace(order, order_id=order_id))
    return replace(change_metadata(draft, sort_orders=orders), last_order_id=order_id)


def set_default_sort_order(draft: TableDraft, update: SetDefaultSortOrder) -> TableDraft:
    """Set the default sort order. Raises BadRequest when there is no such order."""
    order_id = resolve_last_added(update.order_id, draft.last_order_id, "sort order")
    if all(item.order_id != order_id for item in draft.metadata.sort_orders):
        raise BadRequest(f"Cannot set default sort order to unknown sort order: {order_id}")
    return change_metadata(draft, default_sort_order_id=order_id)


def get_schema_so_far(metadata: TableMetadata, what: str) -> Schema:
    """Return the current schema after the updates so far, to which a new spec or order refers.

    Raises: BadRequest — a create request has not set one yet
    """
    found = next((item for item in metadata.schemas if item.schema_id == metadata.current_schema_id), None)
    if found is None:
        raise BadRequest(f"Cannot add a {what} before a schema is added")
    return found


def _check_column_ids(schema: Schema, last_column_id: int) -> None:
    most = min(max(last_column_id, 0) + COLUMN_ID_GAP_MAX, LAST_COLUMN_ID_MAX)
    for path, item in walk_fields(schema.fields):
        if not 1 <= item.field_id <= most:
            raise BadRequest(f"Invalid schema: {path} has id {item.field_id}; send ids from 1 to {most}")


def _number_fields(spec: PartitionSpec, metadata: TableMetadata) -> PartitionSpec:
    """Return the spec with ids: that of the same source and transform in an older spec, else the next unused id (v1: by position)."""
    if all(item.field_id != UNASSIGNED for item in spec.fields):
        return spec
    known: dict[tuple[int, str], int] = {}
    if metadata.format_version > 1:
        known = {(item.source_id, item.transform): item.field_id for other in metadata.partition_specs for item in other.fields}
    next_id = FIRST_FIELD_ID if metadata.format_version == 1 else max(metadata.last_partition_id + 1, FIRST_FIELD_ID)
    numbered = list(spec.fields)
    for i, item in enumerate(spec.fields):
        field_id = known.pop((item.source_id, item.transform), None)
        numbered[i] = replace(item, field_id=next_id if field_id is None else field_id)
        next_id += field_id is None
    return replace(spec, fields=tuple(numbered))


OPERATIONS = ("append", "replace", "overwrite", "delete")


def add_snapshot(draft: TableDraft, update: AddSnapshot) -> TableDraft:
    """Add a snapshot to the history. No ref moves.

    Raises: BadRequest — malformed, or its id is taken · CommitFailed — its sequence number or row ids were assigned meanwhile
    """
    metadata, snapshot = draft.metadata, update.snapshot
    for kind, found in (
        ("schema", metadata.schemas),
        ("partition spec", metadata.partition_specs),
        ("sort order", metadata.sort_orders),
    ):
        if not found:
            raise BadRequest(f"Attempting to add a snapshot before a {kind} is added")
    if find_snapshot(metadata, snapshot.snapshot_id) is not None:
        raise BadRequest(f"Snapshot already exists for id: {snapshot.snapshot_id}")
    _check_snapshot(snapshot, metadata.format_version)
    snapshot = _drop_newer_fields(snapshot, metadata.format_version)
    _check_sequence_number(metadata, snapshot)
    next_row_id = _compute_next_row_id(metadata, snapshot)
    added = change_metadata(
        draft,
        snapshots=(*metadata.snapshots, snapshot),
        last_sequence_number=max(metadata.last_sequence_number, snapshot.sequence_number),
        next_row_id=next_row_id,
    )
    return replace(added, added_snapshot_ids=draft.added_snapshot_ids | {snapshot.snapshot_id})


def set_snapshot_ref(draft: TableDraft, update: SetSnapshotRef) -> TableDraft:
    """Set a ref. Main also sets the current snapshot and gets an entry in the snapshot log."""
    metadata, name, ref = draft.metadata, update.name, update.ref
    snapshot = find_snapshot(metadata, ref.snapshot_id)
    if snapshot is None:
        raise BadRequest(f"Cannot set {name} to unknown snapshot: {ref.snapshot_id}")
    if name == MAIN and ref.type != "branch":
        raise BadRequest(f"Cannot set {MAIN} to a tag, it must be a branch")
    moved = change_metadata(draft, refs={**metadata.refs, name: ref})
    if name != MAIN or metadata.current_snapshot_id == ref.snapshot_id:
        return moved
    at_ms = snapshot.timestamp_ms if ref.snapshot_id in draft.added_snapshot_ids else draft.now_ms
    return change_metadata(moved, current_snapshot_id=ref.snapshot_id, snapshot_log=(*metadata.snapshot_log, (at_ms, ref.snapshot_id)))


def remove_snapshot_ref(draft: TableDraft, update: RemoveSnapshotRef) -> TableDraft:
    """Remove a ref. An unknown ref is ignored."""
    return _keep_refs(draft, [name for name in draft.metadata.refs if name != update.name])


def remove_snapshots(draft: TableDraft, update: RemoveSnapshots) -> TableDraft:
    """Remove snapshots, the refs to them and their statistics. Unknown ids are ignored."""
    metadata = draft.metadata
    gone = {item.snapshot_id for item in metadata.snapshots} & set(update.snapshot_ids)
    kept = change_metadata(
        draft,
        snapshots=tuple(item for item in metadata.snapshots if item.snapshot_id not in gone),
        statistics=tuple(item for item in metadata.statistics if item.snapshot_id not in gone),
        partition_statistics=tuple(item for item in metadata.partition_statistics if item.snapshot_id not in gone),
    )
    marked = replace(kept, removed_snapshot_ids=draft.removed_snapshot_ids | gone)
    return _keep_refs(marked, [name for name, ref in metadata.refs.items() if ref.snapshot_id not in gone])


def set_statistics(draft: TableDraft, update: SetStatistics) -> TableDraft:
    """Set the statistics file of a snapshot. It replaces an older one."""
    others = [item for item in draft.metadata.statistics if item.snapshot_id != update.statistics.snapshot_id]
    return change_metadata(draft, statistics=(*others, update.statistics))


def remove_statistics(draft: TableDraft, update: RemoveStatistics) -> TableDraft:
    """Remove the statistics file of a snapshot, if it has one."""
    return change_metadata(draft, statistics=tuple(item for item in draft.metadata.statistics if item.snapshot_id != update.snapshot_id))


def set_partition_statistics(draft: TableDraft, update: SetPartitionStatistics) -> TableDraft:
    """Set the partition statistics file of a snapshot. It replaces an older one."""
    others = [item for item in draft.metadata.partition_statistics if item.snapshot_id != update.statistics.snapshot_id]
    return change_metadata(draft, partition_statistics=(*others, update.statistics))


def remove_partition_statistics(draft: TableDraft, update: RemovePartitionStatistics) -> TableDraft:
    """Remove the partition statistics file of a snapshot, if it has one."""
    kept = tuple(item for item in draft.metadata.partition_statistics if item.snapshot_id != update.snapshot_id)
    return change_metadata(draft, partition_statistics=kept)


def build_snapshot_log(base: TableMetadata | None, draft: TableDraft) -> tuple[tuple[int, int], ...]:
    """Return the snapshot log of the finished request: snapshots that were current after a request, ordered by time, without gaps.

    Source: Iceberg spec «snapshot-log»; the entry of a removed snapshot also removes the entries before it
    """
    metadata, log = draft.metadata, draft.metadata.snapshot_log
    earlier = len(base.snapshot_log) if base is not None else 0
    gone = draft.removed_snapshot_ids and draft.removed_snapshot_ids - {item.snapshot_id for item in metadata.snapshots}
    cut = next((i for i in reversed(range(len(log))) if log[i][1] in gone), -1) + 1 if gone else 0
    settled = log[cut:earlier]
    for at_ms, snapshot_id in log[max(cut, earlier) :]:
        if snapshot_id not in draft.added_snapshot_ids or snapshot_id == metadata.current_snapshot_id:
            settled += ((max(at_ms, settled[-1][0]) if settled else at_ms, snapshot_id),)
    return settled


def _keep_refs(draft: TableDraft, names: Iterable[str]) -> TableDraft:
    refs = {name: draft.metadata.refs[name] for name in names}
    return change_metadata(draft, refs=refs, current_snapshot_id=draft.metadata.current_snapshot_id if MAIN in refs else None)


def _check_snapshot(snapshot: Snapshot, format_version: int) -> None:
    what = f"Cannot add snapshot {snapshot.snapshot_id}"
    operation = snapshot.summary.get("operation")
    problems = {
        "it is encrypted (key-id); write plain tables": snapshot.key_id is not None,
        f"sequence number {snapshot.sequence_number} is negative": snapshot.sequence_number < 0,
        "it is its own parent": snapshot.parent_snapshot_id == snapshot.snapshot_id,
        "it has no manifest-list; send one": format_version > 1 and not snapshot.manifest_list,
        f"operation {operation!r} of its summary is unknown; send one of {', '.join(OPERATIONS)}": operation not in OPERATIONS
        and (format_version > 1 or operation is not None),
    }
    for problem, found in problems.items():
        if found:
            raise BadRequest(f"{what}: {problem}")


def _drop_newer_fields(snapshot: Snapshot, format_version: int) -> Snapshot:
    if format_version >= 3:
        return snapshot
    plain = replace(snapshot, first_row_id=None, added_rows=None)
    return replace(plain, sequence_number=0) if format_version == 1 else plain


def _check_sequence_number(metadata: TableMetadata, snapshot: Snapshot) -> None:
    stale = snapshot.sequence_number <= metadata.last_sequence_number
    if metadata.format_version > 1 and stale and snapshot.parent_snapshot_id is not None:
        raise CommitFailed(
            "Validation failed, please retry: Cannot add snapshot with sequence number"
            f" {snapshot.sequence_number} older than last sequence number {metadata.last_sequence_number}"
        )


def _compute_next_row_id(metadata: TableMetadata, snapshot: Snapshot) -> int:
    if metadata.format_version < 3:
        return metadata.next_row_id
    if snapshot.first_row_id is None:
        raise BadRequest("Cannot add a snapshot: first-row-id is null")
    if snapshot.added_rows is None:
        raise BadRequest("Invalid added-rows (required when first-row-id is set): null")
    if snapshot.first_row_id < metadata.next_row_id:
        raise CommitFailed(
            "Validation failed, please retry: Cannot add a snapshot, first-row-id is behind table next-row-id:"
            f" {snapshot.first_row_id} < {metadata.next_row_id}"
        )
    if snapshot.first_row_id + snapshot.added_rows > LONG_MAX:
        raise BadRequest(f"Cannot add snapshot {snapshot.snapshot_id}: its row ids do not fit 64 bits; send its true added-rows")
    return snapshot.first_row_id + snapshot.added_rows
