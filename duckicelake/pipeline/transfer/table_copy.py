"""The table to create for a copy, the requests that create it, and views under the names of the target; pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import format_spec
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.snapshots import MAIN, Snapshot, format_snapshot
from duckicelake.iceberg.sorting import UNSORTED, format_sort_order
from duckicelake.iceberg.view_metadata import ViewMetadata, ViewVersion, get_current_version
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.transfer.catalogs import TransferTable

UUID, SNAPSHOT, SCHEMA = "duckicelake.copy.uuid", "duckicelake.copy.snapshot-id", "duckicelake.copy.schema-id"
ORIGIN = (UUID, SNAPSHOT, SCHEMA)
JOB = "duckicelake.job"
JOBS = ("import", "export")
OLDEST_VERSION = 2
STAYING = (
    *("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path"),
    *("gc.enabled", "location", "owner", "write.format.default", "write.delete.format.default"),
)
"""Properties that are about where a table was, or derived there; a copy is of Parquet."""
STAYING_BELOW = ("ducklake.", "duckicelake.copy.", "write.location-provider.", "schema.name-mapping.")
"""How the names of others begin."""
LAST_ADDED = -1


def format_origin(metadata: TableMetadata) -> dict[str, str]:
    """Return properties of a copy that say what it is a copy of."""
    state = metadata.table_uuid or metadata.location, str(metadata.current_snapshot_id), str(metadata.current_schema_id)
    return dict(zip(ORIGIN, state, strict=True))


def describe_copy(loaded: TransferTable, name: str) -> CreateTable:
    """Return the table to make for a table's present rows: columns, partitions, order and properties are the same."""
    metadata = loaded.metadata
    properties = {key: value for key, value in metadata.properties.items() if key not in STAYING and not key.startswith(STAYING_BELOW)}
    properties |= format_origin(metadata) | {"format-version": str(max(metadata.format_version, OLDEST_VERSION))}
    order = next((one for one in metadata.sort_orders if one.order_id == metadata.default_sort_order_id), UNSORTED)
    spec = get_default_spec(metadata)
    # A partition of a column that is gone has no place in a new table; format version 1 keeps such parts as `void`.
    fields = tuple(part for part in spec.fields if part.transform != "void")
    return CreateTable(name, _without_defaults(get_current_schema(metadata)), replace(spec, fields=fields), order, None, properties)


def _without_defaults(schema: Schema) -> Schema:
    """Return the schema without initial defaults: every row of a copy has its values written out."""
    return replace(schema, fields=tuple(replace(item, initial_default=None) for item in schema.fields))


def format_staged_create(asked: CreateTable) -> dict[str, Any]:
    """Return the request that says what the table would be."""
    return {
        "name": asked.name,
        "schema": format_schema(asked.schema),
        "partition-spec": format_spec(asked.spec),
        "write-order": format_sort_order(asked.order),
        "properties": dict(asked.properties),
        "stage-create": True,
    }


def format_creation(ident: TableIdent, new: TableMetadata) -> dict[str, Any]:
    """Return the commit that makes a table with the snapshot that it has."""
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": new.table_uuid},
        {"action": "upgrade-format-version", "format-version": new.format_version},
        {"action": "add-schema", "schema": format_schema(get_current_schema(new)), "last-column-id": new.last_column_id},
        {"action": "set-current-schema", "schema-id": LAST_ADDED},
        {"action": "add-spec", "spec": format_spec(get_default_spec(new))},
        {"action": "set-default-spec", "spec-id": LAST_ADDED},
        {"action": "add-sort-order", "sort-order": format_sort_order(new.sort_orders[-1])},
        {"action": "set-default-sort-order", "sort-order-id": LAST_ADDED},
        {"action": "set-location", "location": new.location},
        {"action": "set-properties", "updates": dict(new.properties)},
    ]
    snapshot = find_snapshot(new, new.current_snapshot_id)
    if snapshot is not None:
        updates.append({"action": "add-snapshot", "snapshot": format_snapshot(snapshot)})
        updates.append({"action": "set-snapshot-ref", "ref-name": MAIN, "type": "branch", "snapshot-id": snapshot.snapshot_id})
    identifier = {"namespace": list(ident.namespace), "name": ident.name}
    return {"identifier": identifier, "requirements": [{"type": "assert-create"}], "updates": updates}


def name_run(written: TableMetadata, properties: Mapping[str, str]) -> TableMetadata:
    """Return the table with the run's properties in the summary of its only snapshot."""
    return replace(written, snapshots=tuple(_add_summary(snapshot, properties) for snapshot in written.snapshots))


def _add_summary(snapshot: Snapshot, properties: Mapping[str, str]) -> Snapshot:
    return replace(snapshot, summary={**snapshot.summary, **properties})


def is_same(source: TableMetadata, there: TableMetadata) -> bool:
    """Return True if a table holds what the source does: it is a copy of this state, or the same table that has come at least as far."""
    if format_origin(source).items() <= there.properties.items():
        return True
    has_state = find_snapshot(there, source.current_snapshot_id) is not None
    if source.table_uuid != there.table_uuid:
        # Old tables of format version 1 have no uuid.
        return not source.table_uuid and has_state
    return has_state or source.current_snapshot_id is None


def is_untouched(source: TableMetadata, there: TableMetadata) -> bool:
    """Return True if no client has written to the table since it was brought."""
    now = find_snapshot(there, there.current_snapshot_id)
    if now is None or now.snapshot_id == source.current_snapshot_id:
        return now is not None or source.current_snapshot_id is None
    # Deletes by equality become positions, in a snapshot of their own.
    is_converted = now.parent_snapshot_id == source.current_snapshot_id and now.summary.get("operation") == "replace"
    return is_converted or now.summary.get(JOB) in JOBS


def count_rows(metadata: TableMetadata) -> int | None:
    """Return how many rows a table has, as its snapshot says; None when it does not."""
    snapshot = find_snapshot(metadata, metadata.current_snapshot_id)
    if snapshot is None:
        return 0 if metadata.current_snapshot_id is None else None
    told, deleted, by_value = (snapshot.summary.get(f"total-{name}", "0") for name in ("records", "position-deletes", "equality-deletes"))
    is_known = "total-records" in snapshot.summary and told.isdigit() and deleted.isdigit() and by_value == "0"
    return int(told) - int(deleted) if is_known else None


FIRST_VERSION, FIRST_SCHEMA = 1, 0


def localise(view: ViewMetadata, catalog_name: str | None, into: tuple[str, ...]) -> ViewMetadata:
    """The present version alone, as the first one. Names without a catalog mean the target, and their namespaces are where `into` put them.

    `catalog_name`: what the source calls itself.
    """
    version = get_current_version(view)
    schema = next(one for one in view.schemas if one.schema_id == version.schema_id)
    default_catalog = None if version.default_catalog == catalog_name else version.default_catalog
    moved = replace(
        version,
        version_id=FIRST_VERSION,
        schema_id=FIRST_SCHEMA,
        default_catalog=default_catalog,
        default_namespace=(*into, *version.default_namespace) if default_catalog is None else version.default_namespace,
    )
    return replace(
        view, current_version_id=FIRST_VERSION, versions=(moved,), schemas=(replace(schema, schema_id=FIRST_SCHEMA),), version_log=()
    )


def same_view(one: ViewMetadata, other: ViewMetadata) -> bool:
    """Return True if both say the same."""
    return _get_content(get_current_version(one)) == _get_content(get_current_version(other))


def _get_content(version: ViewVersion) -> tuple[object, ...]:
    texts = frozenset((item.dialect, item.sql) for item in version.representations)
    return texts, version.default_namespace, version.default_catalog
