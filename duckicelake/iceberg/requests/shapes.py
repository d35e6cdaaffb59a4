"""How updates change a table's schemas, partition specs and sort orders. Each function gives the next draft."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import FIRST_FIELD_ID, UNASSIGNED, PartitionSpec, get_last_field_id, is_same_spec
from duckicelake.iceberg.requests.compatibility import check_columns, check_field_ids, check_sort_order, check_spec
from duckicelake.iceberg.requests.draft import TableDraft, change_metadata, resolve_last_added
from duckicelake.iceberg.requests.updates import (
    LAST_ADDED,
    AddSchema,
    AddSortOrder,
    AddSpec,
    RemoveSchemas,
    RemoveSpecs,
    SetCurrentSchema,
    SetDefaultSortOrder,
    SetDefaultSpec,
    TableUpdate,
)
from duckicelake.iceberg.schema import LAST_COLUMN_ID_MAX, Schema, check_format_version, get_highest_field_id, is_same_schema
from duckicelake.iceberg.types import walk_fields

FIRST_ORDER_ID = 1
COLUMN_ID_GAP_MAX = 1_000_000
"""How far beyond a table's last column a new one may be: DuckDB counts on from there, and there is an end to ids."""


def add_schema(draft: TableDraft, update: AddSchema) -> TableDraft:
    """The same columns get the id they have; others the next one. The last column id never goes down."""
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
    """Raises BadRequest when there is no such schema."""
    schema_id = resolve_last_added(update.schema_id, draft.last_schema_id, "schema")
    if all(item.schema_id != schema_id for item in draft.metadata.schemas):
        raise BadRequest(f"Cannot set current schema to unknown schema: {schema_id}")
    return change_metadata(draft, current_schema_id=schema_id)


def remove_schemas(draft: TableDraft, update: RemoveSchemas) -> TableDraft:
    """Ids that are not there are no error. The current schema stays."""
    if draft.metadata.current_schema_id in update.schema_ids:
        raise BadRequest("Cannot remove the current schema")
    schemas = tuple(item for item in draft.metadata.schemas if item.schema_id not in update.schema_ids)
    return replace(change_metadata(draft, schemas=schemas), removed_schema_ids=draft.removed_schema_ids | set(update.schema_ids))


def add_spec(draft: TableDraft, update: AddSpec) -> TableDraft:
    """The same fields get the spec id they have; others the next one. Fields without ids are numbered."""
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
    """Raises BadRequest when there is no such spec."""
    spec_id = resolve_last_added(update.spec_id, draft.last_spec_id, "spec")
    if all(item.spec_id != spec_id for item in draft.metadata.partition_specs):
        raise BadRequest(f"Cannot set default partition spec to unknown spec: {spec_id}")
    return change_metadata(draft, default_spec_id=spec_id)


def resolve_added_specs(updates: Sequence[TableUpdate], client_spec_ids: Collection[int]) -> list[TableUpdate]:
    """Return the updates with LAST_ADDED for a default spec that they add themselves, under an id that only their client knows.

    One that is not the last is added once more before, which makes it that, and so is the last one afterwards.
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
    """Return the ids of the specs that the updates add by the ids that their client takes for them, where these are others.

    A client knows of the specs that it is `client_spec_ids`, and gives the next id to a new one; others may have that id.
    """
    added = [update.spec for update in updates if isinstance(update, AddSpec) and update.spec.spec_id not in client_spec_ids]
    pairs = ((spec.spec_id, ours.spec_id) for spec in added for ours in reversed(new.partition_specs) if is_same_spec(ours, spec))
    return {theirs: ours for theirs, ours in dict(pairs).items() if theirs != ours}


def remove_specs(draft: TableDraft, update: RemoveSpecs) -> TableDraft:
    """Ids that are not there are no error. The default spec stays."""
    if draft.metadata.default_spec_id in update.spec_ids:
        raise BadRequest("Cannot remove the default partition spec")
    return change_metadata(
        draft, partition_specs=tuple(item for item in draft.metadata.partition_specs if item.spec_id not in update.spec_ids)
    )


def add_sort_order(draft: TableDraft, update: AddSortOrder) -> TableDraft:
    """No key is order 0; the same keys get the id they have; others the next one from 1."""
    metadata, order = draft.metadata, update.order
    check_sort_order(order, get_schema_so_far(metadata, "sort order"))
    found = next((item for item in metadata.sort_orders if item.fields == order.fields), None)
    if found is not None:
        return replace(draft, last_order_id=found.order_id)
    order_id = max([FIRST_ORDER_ID, *[item.order_id + 1 for item in metadata.sort_orders]]) if order.fields else 0
    orders = (*metadata.sort_orders, replace(order, order_id=order_id))
    return replace(change_metadata(draft, sort_orders=orders), last_order_id=order_id)


def set_default_sort_order(draft: TableDraft, update: SetDefaultSortOrder) -> TableDraft:
    """Raises BadRequest when there is no such order."""
    order_id = resolve_last_added(update.order_id, draft.last_order_id, "sort order")
    if all(item.order_id != order_id for item in draft.metadata.sort_orders):
        raise BadRequest(f"Cannot set default sort order to unknown sort order: {order_id}")
    return change_metadata(draft, default_sort_order_id=order_id)


def get_schema_so_far(metadata: TableMetadata, what: str) -> Schema:
    """The schema that a new spec or order is about: the current one as the updates stand.

    Raises: BadRequest — a create request names none yet
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
    """Fields without ids get the id that the same source and transform had before, else the next unused one (v1: by position)."""
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
