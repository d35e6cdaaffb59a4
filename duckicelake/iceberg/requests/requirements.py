"""Requirements of a commit: assertions about the table or view that must hold before its updates apply.

Messages of failed requirements are those of Java's library, because clients and Iceberg's compatibility kit compare them.
`catalog` checks the requirements before the lake's lock, to refuse early, and under it. No I/O.

Source: Iceberg REST specification «TableRequirement», «ViewRequirement»; Java `UpdateRequirement`
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.json_reader import as_list, as_object, find_long, get_int, get_text
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.updates import RemoveSnapshotRef, RemoveSnapshots, SetSnapshotRef, TableUpdate
from duckicelake.iceberg.snapshots import MAIN
from duckicelake.iceberg.view_metadata import ViewMetadata


@dataclass(frozen=True, slots=True)
class AssertCreate:
    """The table does not exist."""


@dataclass(frozen=True, slots=True)
class AssertTableUuid:
    """The table has this uuid, so it is not a later table of the same name."""

    uuid: str


@dataclass(frozen=True, slots=True)
class AssertRefSnapshotId:
    """The branch or tag points to this snapshot; None: the ref does not exist."""

    ref: str
    snapshot_id: int | None


@dataclass(frozen=True, slots=True)
class AssertLastAssignedFieldId:
    """The last assigned column id is this one."""

    field_id: int


@dataclass(frozen=True, slots=True)
class AssertCurrentSchemaId:
    """The current schema has this id."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class AssertLastAssignedPartitionId:
    """The last assigned partition field id is this one."""

    field_id: int


@dataclass(frozen=True, slots=True)
class AssertDefaultSpecId:
    """The default partition spec has this id."""

    spec_id: int


@dataclass(frozen=True, slots=True)
class AssertDefaultSortOrderId:
    """The default sort order has this id."""

    order_id: int


@dataclass(frozen=True, slots=True)
class AssertViewUuid:
    """The view has this uuid, so it is not a later view of the same name."""

    uuid: str


TableRequirement: TypeAlias = (
    AssertCreate
    | AssertTableUuid
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)
Requirement: TypeAlias = TableRequirement | AssertViewUuid


def parse_requirements(value: object, path: str = "requirements") -> tuple[Requirement, ...]:
    """Return the requirements of a JSON array; none for null.

    Raises: BadRequest — an unknown or malformed one, with its place in the body
    """
    items = [] if value is None else as_list(value, path)
    return tuple(_parse_requirement(item, f"{path}[{i}]") for i, item in enumerate(items))


def is_create(requirements: Iterable[Requirement]) -> bool:
    """True if the request creates a table.

    Raises: BadRequest — it also has requirements on a table that must not exist
    """
    found = list(requirements)
    others = [type(item).__name__ for item in found if not isinstance(item, AssertCreate)]
    if others and len(others) < len(found):
        raise BadRequest(f"Invalid create requirements: {others}; send assert-create alone")
    return bool(found) and not others


def check_removed_refs(metadata: TableMetadata | None, requirements: Iterable[Requirement], updates: Iterable[TableUpdate]) -> None:
    """Raise CommitFailed when removed snapshots are the target of a ref that the request does not mention: the ref was created meanwhile.

    Java silently drops such a ref; its `expireSnapshots` and PyIceberg mention every ref that they remove.
    """
    found = list(updates)
    gone = {snapshot_id for update in found if isinstance(update, RemoveSnapshots) for snapshot_id in update.snapshot_ids}
    if metadata is None or not gone:
        return
    known = {item.ref for item in requirements if isinstance(item, AssertRefSnapshotId)}
    known |= {update.name for update in found if isinstance(update, RemoveSnapshotRef | SetSnapshotRef)}
    for name, ref in metadata.refs.items():
        if name != MAIN and ref.snapshot_id in gone and name not in known:
            raise CommitFailed(f"Snapshot {ref.snapshot_id} is the target of {ref.type} {name}; remove that ref too, or keep the snapshot")


def check_requirements(metadata: TableMetadata | None, requirements: Iterable[Requirement]) -> None:
    """Raise CommitFailed, with Java's message, when a requirement does not hold for the table (None: there is no table).

    Raises: BadRequest — a requirement of views
    """
    for item in requirements:
        if isinstance(item, AssertViewUuid):
            raise BadRequest("Cannot validate AssertViewUUID against a table; send assert-table-uuid")
        problem = _find_problem(metadata, item)
        if problem is not None:
            raise CommitFailed(f"Requirement failed: {problem}")


def check_view_requirements(view: ViewMetadata, requirements: Iterable[Requirement]) -> None:
    """Raise CommitFailed when a requirement does not hold for the view, and BadRequest for a requirement of tables."""
    for item in requirements:
        if not isinstance(item, AssertViewUuid):
            raise BadRequest(f"Cannot validate {type(item).__name__} against a view; send assert-view-uuid")
        if item.uuid.lower() != view.view_uuid.lower():
            raise CommitFailed(f"Requirement failed: view UUID does not match: expected {view.view_uuid} != {item.uuid}")


def _find_problem(metadata: TableMetadata | None, item: TableRequirement) -> str | None:
    if metadata is None:
        return None if isinstance(item, AssertCreate) else "current table metadata is missing"
    match item:
        case AssertCreate():
            return "table already exists"
        case AssertTableUuid(uuid):
            same = uuid.lower() == metadata.table_uuid.lower()
            return None if same else f"UUID does not match: expected {metadata.table_uuid} != {uuid}"
        case AssertRefSnapshotId(name, snapshot_id):
            return _find_ref_problem(metadata, name, snapshot_id)
        case AssertLastAssignedFieldId(field_id):
            return _describe_change("last assigned field id", field_id, metadata.last_column_id)
        case AssertCurrentSchemaId(schema_id):
            return _describe_change("current schema", schema_id, metadata.current_schema_id)
        case AssertLastAssignedPartitionId(field_id):
            return _describe_change("last assigned partition id", field_id, metadata.last_partition_id)
        case AssertDefaultSpecId(spec_id):
            return _describe_change("default partition spec", spec_id, metadata.default_spec_id)
        case AssertDefaultSortOrderId(order_id):
            return _describe_change("default sort order", order_id, metadata.default_sort_order_id)


def _describe_change(what: str, expected: int, found: int) -> str | None:
    return None if expected == found else f"{what} changed: expected id {expected} != {found}"


def _find_ref_problem(metadata: TableMetadata, name: str, snapshot_id: int | None) -> str | None:
    ref = metadata.refs.get(name)
    if ref is None:
        return None if snapshot_id is None else f"branch or tag {name} is missing, expected {snapshot_id}"
    if snapshot_id is None:
        return f"{ref.type} {name} was created concurrently"
    if snapshot_id != ref.snapshot_id:
        return f"{ref.type} {name} has changed: expected id {snapshot_id} != {ref.snapshot_id}"
    return None


def _parse_requirement(value: object, path: str) -> Requirement:
    node = as_object(value, path)
    type = get_text(node, "type", path).lower()
    if type not in _TYPES:
        raise BadRequest(f"Cannot check {path}: type {type[:100]!r} is unknown; send one of {', '.join(_TYPES)}")
    return _TYPES[type](node, path)


_TYPES: Mapping[str, Callable[[Mapping[str, object], str], Requirement]] = {
    "assert-create": lambda node, path: AssertCreate(),
    "assert-table-uuid": lambda node, path: AssertTableUuid(get_text(node, "uuid", path)),
    "assert-ref-snapshot-id": lambda node, path: AssertRefSnapshotId(
        get_text(node, "ref", path),
        find_long(node, "snapshot-id", path),
    ),
    "assert-last-assigned-field-id": lambda node, path: AssertLastAssignedFieldId(get_int(node, "last-assigned-field-id", path)),
    "assert-current-schema-id": lambda node, path: AssertCurrentSchemaId(get_int(node, "current-schema-id", path)),
    "assert-last-assigned-partition-id": lambda node, path: AssertLastAssignedPartitionId(
        get_int(node, "last-assigned-partition-id", path)
    ),
    "assert-default-spec-id": lambda node, path: AssertDefaultSpecId(get_int(node, "default-spec-id", path)),
    "assert-default-sort-order-id": lambda node, path: AssertDefaultSortOrderId(get_int(node, "default-sort-order-id", path)),
    "assert-view-uuid": lambda node, path: AssertViewUuid(get_text(node, "uuid", path)),
}
