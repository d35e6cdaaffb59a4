"""The updates of the REST specification, one frozen value per action, and the parser of their JSON. No I/O.

`bodies` parses requests with it; `catalog.commits`, `catalog.incoming` and `translate` read the values, before the lake's lock and under
it. Ids are the client's; LAST_ADDED means the object that this request added last. `table_changes` applies updates to tables,
`view_changes` to views. An unknown action is refused with its place in the body; unknown keys are ignored, as the specification says.

Source: Iceberg REST specification, «TableUpdate», «ViewUpdate»
"""

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from duckicelake.errors import BadRequest, IllegalArgument
from duckicelake.iceberg.json_reader import (
    LONG_MAX,
    as_list,
    as_object,
    find_int,
    find_long,
    find_text_map,
    get_int,
    get_list,
    get_long,
    get_text,
    is_text,
    is_whole,
    list_ints,
    refuse,
)
from duckicelake.iceberg.partition import PartitionSpec, SortOrder, parse_sort_order, parse_spec
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.snapshots import (
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    parse_partition_statistics,
    parse_ref,
    parse_snapshot,
    parse_statistics,
)
from duckicelake.iceberg.view_metadata import ViewVersion, parse_version

LAST_ADDED = -1


@dataclass(frozen=True, slots=True)
class AssignUuid:
    """Give a new table or view its uuid."""

    uuid: str


@dataclass(frozen=True, slots=True)
class UpgradeFormatVersion:
    """Raise the format version; it never goes down."""

    format_version: int


@dataclass(frozen=True, slots=True)
class AddSchema:
    """Add a schema; its id is assigned when it is applied."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class SetCurrentSchema:
    """Make a schema the current one."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class AddSpec:
    """Add a partition spec; its id, and the ids of UNASSIGNED fields, are assigned when it is applied."""

    spec: PartitionSpec


@dataclass(frozen=True, slots=True)
class SetDefaultSpec:
    """Write new files with this partition spec."""

    spec_id: int


@dataclass(frozen=True, slots=True)
class AddSortOrder:
    """Add a sort order; its id is assigned when it is applied."""

    order: SortOrder


@dataclass(frozen=True, slots=True)
class SetDefaultSortOrder:
    """Write new files in this order."""

    order_id: int


@dataclass(frozen=True, slots=True)
class AddSnapshot:
    """Add a snapshot. No ref points to it until an update sets one."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class SetSnapshotRef:
    """Create or move a branch or tag."""

    name: str
    ref: SnapshotRef


@dataclass(frozen=True, slots=True)
class RemoveSnapshots:
    """Remove snapshots, the refs to them and their statistics."""

    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveSnapshotRef:
    """Remove a branch or tag; without `main` the table has no current snapshot."""

    name: str


@dataclass(frozen=True, slots=True)
class SetLocation:
    """Write new files under this location."""

    location: str


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Add or replace properties."""

    updates: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RemoveProperties:
    """Remove properties; unknown names are ignored."""

    removals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetStatistics:
    """Set the statistics file of its snapshot."""

    statistics: StatisticsFile


@dataclass(frozen=True, slots=True)
class RemoveStatistics:
    """Remove a snapshot's statistics file."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SetPartitionStatistics:
    """Set the partition statistics file of its snapshot."""

    statistics: PartitionStatisticsFile


@dataclass(frozen=True, slots=True)
class RemovePartitionStatistics:
    """Remove a snapshot's partition statistics file."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class RemoveSpecs:
    """Remove partition specs that no file uses."""

    spec_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveSchemas:
    """Remove schemas that no snapshot uses."""

    schema_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddViewVersion:
    """Add a version of a view; its id is assigned when it is applied. Its schema id may be LAST_ADDED."""

    version: ViewVersion


@dataclass(frozen=True, slots=True)
class SetCurrentViewVersion:
    """Make a version of a view the current one."""

    version_id: int


TableUpdate: TypeAlias = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | AddSpec
    | SetDefaultSpec
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | SetSnapshotRef
    | RemoveSnapshots
    | RemoveSnapshotRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | SetStatistics
    | RemoveStatistics
    | SetPartitionStatistics
    | RemovePartitionStatistics
    | RemoveSpecs
    | RemoveSchemas
)
ViewUpdate: TypeAlias = (
    AssignUuid | UpgradeFormatVersion | AddSchema | SetLocation | SetProperties | RemoveProperties | AddViewVersion | SetCurrentViewVersion
)


ENCRYPTION_ACTIONS = ("add-encryption-key", "remove-encryption-key")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)

Node = Mapping[str, object]
Update = TypeVar("Update")
Value = TypeVar("Value")


def parse_table_updates(value: object, path: str = "updates") -> tuple[TableUpdate, ...]:
    """Return the table updates of a JSON array, in its order.

    Raises: BadRequest — an unknown action, one of views, or a malformed one, with its place in the body
    """
    return _parse_updates(value, path, _TABLE_ACTIONS, "table")


def parse_view_updates(value: object, path: str = "updates") -> tuple[ViewUpdate, ...]:
    """Return the view updates of a JSON array; see `parse_table_updates`."""
    return _parse_updates(value, path, _VIEW_ACTIONS, "view")


@contextmanager
def located(path: str) -> Generator[None, None, None]:
    """Put the place in the body before the message of any BadRequest raised within."""
    try:
        yield
    except IllegalArgument:
        # Java's client shows the message unchanged, so it gets no prefix.
        raise
    except BadRequest as error:
        raise BadRequest(f"{path}: {error.message}") from error


def parse_child(node: Node, key: str, path: str, parse: Callable[[object], Value]) -> Value:
    """Return the result of `parse` for the object under a key."""
    if node.get(key) is None:
        refuse(path, key, "an object")
    with located(f"{path}.{key}"):
        return parse(node[key])


def _parse_updates(value: object, path: str, actions: Mapping[str, Callable[[Node, str], Update]], kind: str) -> tuple[Update, ...]:
    return tuple(_parse_update(item, f"{path}[{i}]", actions, kind) for i, item in enumerate(as_list(value, path)))


def _parse_update(value: object, path: str, actions: Mapping[str, Callable[[Node, str], Update]], kind: str) -> Update:
    node = as_object(value, path)
    action = get_text(node, "action", path).lower()
    if action in actions:
        return actions[action](node, path)
    if action in ENCRYPTION_ACTIONS:
        raise BadRequest(f"Cannot apply {path}: {action} needs table encryption, which this catalog does not have; write plain tables")
    known = action in _TABLE_ACTIONS or action in _VIEW_ACTIONS
    problem = f"cannot change a {kind}" if known else "is unknown"
    raise BadRequest(f"Cannot apply {path}: action {action[:100]!r} {problem}; send one of {', '.join(actions)}")


def _assign_uuid(node: Node, path: str) -> AssignUuid:
    uuid = get_text(node, "uuid", path)
    return AssignUuid(uuid.lower()) if UUID.fullmatch(uuid) else refuse(path, "uuid", "a UUID")


def _upgrade_format_version(node: Node, path: str) -> UpgradeFormatVersion:
    return UpgradeFormatVersion(get_int(node, "format-version", path))


def _add_schema(node: Node, path: str) -> AddSchema:
    find_int(node, "last-column-id", path)  # Deprecated: the schema contains it. Only its type is checked.
    return AddSchema(parse_child(node, "schema", path, parse_schema))


def _set_current_schema(node: Node, path: str) -> SetCurrentSchema:
    return SetCurrentSchema(get_int(node, "schema-id", path))


def _add_spec(node: Node, path: str) -> AddSpec:
    return AddSpec(parse_child(node, "spec", path, parse_spec))


def _set_default_spec(node: Node, path: str) -> SetDefaultSpec:
    return SetDefaultSpec(get_int(node, "spec-id", path))


def _add_sort_order(node: Node, path: str) -> AddSortOrder:
    return AddSortOrder(parse_child(node, "sort-order", path, parse_sort_order))


def _set_default_sort_order(node: Node, path: str) -> SetDefaultSortOrder:
    return SetDefaultSortOrder(get_int(node, "sort-order-id", path))


def _add_snapshot(node: Node, path: str) -> AddSnapshot:
    return AddSnapshot(parse_child(node, "snapshot", path, parse_snapshot))


def _set_snapshot_ref(node: Node, path: str) -> SetSnapshotRef:
    name = _get_name(node, "ref-name", path)
    with located(path):
        return SetSnapshotRef(name, parse_ref(node))


def _remove_snapshots(node: Node, path: str) -> RemoveSnapshots:
    ids = get_list(node, "snapshot-ids", path)
    if not all(is_whole(item, LONG_MAX) for item in ids):
        refuse(path, "snapshot-ids", "an array of 64-bit integers")
    return RemoveSnapshots(tuple(item for item in ids if isinstance(item, int)))


def _remove_snapshot_ref(node: Node, path: str) -> RemoveSnapshotRef:
    return RemoveSnapshotRef(_get_name(node, "ref-name", path))


def _set_location(node: Node, path: str) -> SetLocation:
    return SetLocation(_get_name(node, "location", path))


def _set_properties(node: Node, path: str) -> SetProperties:
    key = "updated" if "updated" in node and "updates" not in node else "updates"  # Java's name of the key before 1.0.
    updates = find_text_map(node, key, path)
    return refuse(path, key, "an object whose values are strings") if updates is None else SetProperties(updates)


def _remove_properties(node: Node, path: str) -> RemoveProperties:
    key = "removed" if "removed" in node and "removals" not in node else "removals"
    removals = get_list(node, key, path)
    if not all(is_text(item) for item in removals):
        refuse(path, key, "an array of strings")
    return RemoveProperties(tuple(str(item) for item in removals))


def _set_statistics(node: Node, path: str) -> SetStatistics:
    statistics = parse_child(node, "statistics", path, parse_statistics)
    if find_long(node, "snapshot-id", path) not in (None, statistics.snapshot_id):
        raise BadRequest(f"Cannot read {path}: 'snapshot-id' is not the one of its statistics; leave it out")
    return SetStatistics(statistics)


def _remove_statistics(node: Node, path: str) -> RemoveStatistics:
    return RemoveStatistics(get_long(node, "snapshot-id", path))


def _set_partition_statistics(node: Node, path: str) -> SetPartitionStatistics:
    return SetPartitionStatistics(parse_child(node, "partition-statistics", path, parse_partition_statistics))


def _remove_partition_statistics(node: Node, path: str) -> RemovePartitionStatistics:
    return RemovePartitionStatistics(get_long(node, "snapshot-id", path))


def _remove_specs(node: Node, path: str) -> RemoveSpecs:
    return RemoveSpecs(_get_ints(node, "spec-ids", path))


def _remove_schemas(node: Node, path: str) -> RemoveSchemas:
    return RemoveSchemas(_get_ints(node, "schema-ids", path))


def _add_view_version(node: Node, path: str) -> AddViewVersion:
    return AddViewVersion(parse_child(node, "view-version", path, parse_version))


def _set_current_view_version(node: Node, path: str) -> SetCurrentViewVersion:
    return SetCurrentViewVersion(get_int(node, "view-version-id", path))


def _get_name(node: Node, key: str, path: str) -> str:
    return get_text(node, key, path) or refuse(path, key, "a string that is not empty")


def _get_ints(node: Node, key: str, path: str) -> tuple[int, ...]:
    get_list(node, key, path)
    return list_ints(node, key, path)


_COMMON_ACTIONS: Mapping[
    str,
    Callable[[Node, str], AssignUuid | UpgradeFormatVersion | AddSchema | SetLocation | SetProperties | RemoveProperties],
] = {
    "assign-uuid": _assign_uuid,
    "upgrade-format-version": _upgrade_format_version,
    "add-schema": _add_schema,
    "set-location": _set_location,
    "set-properties": _set_properties,
    "remove-properties": _remove_properties,
}
_TABLE_ACTIONS: Mapping[str, Callable[[Node, str], TableUpdate]] = {
    **_COMMON_ACTIONS,
    "set-current-schema": _set_current_schema,
    "add-spec": _add_spec,
    "set-default-spec": _set_default_spec,
    "add-sort-order": _add_sort_order,
    "set-default-sort-order": _set_default_sort_order,
    "add-snapshot": _add_snapshot,
    "set-snapshot-ref": _set_snapshot_ref,
    "remove-snapshots": _remove_snapshots,
    "remove-snapshot-ref": _remove_snapshot_ref,
    "set-statistics": _set_statistics,
    "remove-statistics": _remove_statistics,
    "set-partition-statistics": _set_partition_statistics,
    "remove-partition-statistics": _remove_partition_statistics,
    "remove-partition-specs": _remove_specs,
    "remove-schemas": _remove_schemas,
}
_VIEW_ACTIONS: Mapping[str, Callable[[Node, str], ViewUpdate]] = {
    **_COMMON_ACTIONS,
    "add-view-version": _add_view_version,
    "set-current-view-version": _set_current_view_version,
}
