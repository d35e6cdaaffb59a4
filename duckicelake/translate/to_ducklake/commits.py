"""A client's commit in the lake's terms: snapshot ids mapped to ours, rows of refs and of the snapshots that they retain, refusals. No I/O.

`catalog.commits` calls it when it prepares a commit, and under the lake's lock when it checks and plans it, `catalog.registration` when it
registers a table.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec, list_partition_types
from duckicelake.iceberg.requests.requirements import AssertRefSnapshotId, Requirement
from duckicelake.iceberg.requests.updates import (
    AddSnapshot,
    RemovePartitionStatistics,
    RemoveSnapshotRef,
    RemoveStatistics,
    SetPartitionStatistics,
    SetSnapshotRef,
    SetStatistics,
    TableUpdate,
)
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import MAIN, Snapshot, SnapshotRef, format_snapshot
from duckicelake.iceberg.types import PrimitiveType, walk_fields
from duckicelake.lake.note_rows import (
    UNPUBLISHED,
    EndedKeptSnapshot,
    EndedRef,
    FormerColumn,
    NewChange,
    NewHiddenSnapshot,
    NewKeptSnapshot,
    NewRef,
    RefNotes,
)
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.client_schemas import format_tuple_value, parse_tuple_value
from duckicelake.translate.client_snapshots import map_statistics
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY
from duckicelake.translate.to_ducklake.columns import to_column_type

REFS, HIDE = "refs", "hide"


def change_refs(
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, off_main: Collection[int] = ()
) -> list[NewRow]:
    """Return the rows for refs that a commit creates, changes or removes, and for snapshots that it removes.

    `base` is None for a new table, `off_main` are the snapshots that the commit adds off main.
    """
    rows = [
        *change_main_retention(table_id, base, new),
        *_change_names(table_id, base, new),
        *_keep_named(table_id, base, new, noted, off_main),
        *_remove_snapshots(table_id, base, new, noted),
    ]
    if rows or off_main:
        rows.append(NewChange(table_id, HIDE if any(isinstance(row, NewHiddenSnapshot) for row in rows) else REFS))
    return rows


def change_main_retention(table_id: int, base: TableMetadata | None, new: TableMetadata) -> list[NewRow]:
    """Return the row for main's retention if that changes. Main stays at DuckLake's head, even if a client removes it."""
    before = None if base is None else base.refs.get(MAIN)
    after = new.refs.get(MAIN)
    old = (None, None, None) if before is None else _retention(before)
    if after is None:
        return [] if old == (None, None, None) else [EndedRef(table_id, MAIN)]
    return [] if _retention(after) == old else [NewRef(table_id, MAIN, None, after.type, *_retention(after))]


def _change_names(table_id: int, base: TableMetadata | None, new: TableMetadata) -> Iterator[NewRow]:
    before: Mapping[str, SnapshotRef] = {} if base is None else base.refs
    for name in sorted(before.keys() - new.refs.keys() - {MAIN}):
        yield EndedRef(table_id, name)
    for name, ref in new.refs.items():
        if name != MAIN and ref != before.get(name):
            yield NewRef(table_id, name, ref.snapshot_id, ref.type, *_retention(ref))


def _retention(ref: SnapshotRef) -> tuple[int | None, int | None, int | None]:
    return ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep


def _keep_named(
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, off_main: Iterable[int]
) -> Iterator[NewRow]:
    """Retain the snapshots that refs name now, and release those that no ref names any more."""
    named = {ref.snapshot_id for name, ref in new.refs.items() if name != MAIN}
    retained_ids = {note.snapshot_id for note in noted.kept}
    for snapshot_id in sorted(named - retained_ids - set(off_main)):
        snapshot = None if base is None else find_snapshot(base, snapshot_id)
        # A snapshot that the commit itself adds to main gets its JSON when it is published.
        yield (
            NewKeptSnapshot(table_id, snapshot_id, snapshot_id, UNPUBLISHED, None)
            if snapshot is None
            else build_kept_snapshot(table_id, snapshot)
        )
    moved = {move.snapshot_id for move in noted.moves} & {new.current_snapshot_id}
    for note in noted.kept:
        if not note.is_off_main and note.snapshot_id not in named | moved:
            yield EndedKeptSnapshot(table_id, note.snapshot_id)


def keep_main_target(table_id: int, target: Snapshot, noted: RefNotes) -> list[NewRow]:
    """Return the rows that retain the snapshot to which main is moved."""
    retained_ids = {note.snapshot_id for note in noted.kept}
    return [NewChange(table_id, REFS), *([] if target.snapshot_id in retained_ids else [build_kept_snapshot(table_id, target)])]


def build_kept_snapshot(table_id: int, snapshot: Snapshot) -> NewKeptSnapshot:
    """Return the row that retains a snapshot of main in its published form."""
    return NewKeptSnapshot(
        table_id, snapshot.snapshot_id, snapshot.snapshot_id, json.dumps(format_snapshot(snapshot), separators=(",", ":")), None
    )


def _remove_snapshots(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes) -> Iterator[NewRow]:
    """Hide main's snapshots that a client removes, and delete those off main."""
    before = () if base is None else base.snapshots
    if new.snapshots is before or new.snapshots[: len(before)] == before:
        return
    remaining_ids = {snapshot.snapshot_id for snapshot in new.snapshots}
    removed_ids: Sequence[int] = [snapshot.snapshot_id for snapshot in before if snapshot.snapshot_id not in remaining_ids]
    off_main = {note.snapshot_id for note in noted.kept if note.is_off_main}
    for snapshot_id in removed_ids:
        yield NewHiddenSnapshot(table_id, snapshot_id)
        if snapshot_id in off_main:
            yield EndedKeptSnapshot(table_id, snapshot_id)


FIRST_LINEAGE_FORMAT = 3
ROW_IDS_A_STAY = 2**32
UNKNOWN_TYPE = "varchar"


def list_former_columns(table_id: int, metadata: TableMetadata) -> list[NewRow]:
    """Return the columns of older schemas that the current one lacks, so that DuckDB never reuses their ids."""
    live = {item.field_id for _, item in walk_fields(get_current_schema(metadata).fields)}
    former: dict[int, FormerColumn] = {}
    for schema in metadata.schemas:
        for _, item in walk_fields(schema.fields):
            if item.field_id not in live:
                former[item.field_id] = FormerColumn(table_id, item.field_id, item.name, _to_known_type(item.type))
    last = metadata.last_column_id
    if last not in live and last not in former and last > 0:
        former[last] = FormerColumn(table_id, last, f"lost_{last}", UNKNOWN_TYPE)
    return [former[field_id] for field_id in sorted(former)]


def _to_known_type(type_: object) -> str:
    if not isinstance(type_, PrimitiveType):
        return UNKNOWN_TYPE
    try:
        return to_column_type(type_, "")
    except BadRequest:
        return UNKNOWN_TYPE


def check_partition(where: str, spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> None:
    """Raise BadRequest if the values of a partition tuple do not have the types of its spec."""
    for type_, value in zip(list_partition_types(spec, schema), values, strict=True):
        try:
            parsed = None if value is None else parse_tuple_value(type_, format_tuple_value(type_, value))
            # NaN does not equal itself.
            is_equal = parsed == value or (parsed != parsed and value != value)
        except (ValueError, TypeError, AttributeError, ArithmeticError, BadRequest):
            is_equal = False
        if not is_equal:
            raise BadRequest(f"{where} has the partition value {str(value)[:100]!r}, which is no {type_}; rewrite it.")


def keep_earlier_snapshots(table_id: int, metadata: TableMetadata, lake_snapshot_id: int) -> list[NewRow]:
    """Return the rows for a table's snapshots, branches and tags as they were; their manifest lists stay at their paths."""
    snapshots = [
        NewKeptSnapshot(table_id, item.snapshot_id, lake_snapshot_id, json.dumps(format_snapshot(item), separators=(",", ":")), b"")
        for item in metadata.snapshots
    ]
    refs = [
        NewRef(table_id, name, ref.snapshot_id, ref.type, ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep)
        for name, ref in metadata.refs.items()
        if name != MAIN
    ]
    return [*snapshots, *refs]


def compute_first_row_id(metadata: TableMetadata) -> int:
    """Return the first row id for files without row ids.

    Files of a table that was exported from a lake may carry row ids, so each registration starts above all ids that an earlier one
    can have assigned.
    """
    if metadata.format_version >= FIRST_LINEAGE_FORMAT:
        return metadata.next_row_id
    snapshot_id = metadata.properties.get(SNAPSHOT_ID_PROPERTY, "")
    return (int(snapshot_id) + 1) * ROW_IDS_A_STAY if snapshot_id.isdecimal() and int(snapshot_id) < ROW_IDS_A_STAY // 4 else 0


def compute_lake_snapshot_id(metadata: TableMetadata, head: int, most: int) -> int:
    """Return the lake snapshot for the registration of a table: above its sequence numbers, and above its snapshot ids in reach.

    Raises: BadRequest: that is more than `most` above the lake's head
    """
    reach = head + most
    ids: Sequence[int] = [item.snapshot_id for item in metadata.snapshots if item.snapshot_id <= reach]
    lake_snapshot_id = max(head + 1, metadata.last_sequence_number, *(snapshot_id + 1 for snapshot_id in ids))
    if lake_snapshot_id > reach:
        raise BadRequest(
            f"The table's last sequence number {metadata.last_sequence_number} is too far above the lake's {head}; rewrite it."
        )
    return lake_snapshot_id


def list_client_ids(requirements: Sequence[Requirement], updates: Sequence[TableUpdate]) -> set[int]:
    """Return all snapshot ids that a request names."""
    ids: set[int] = set()
    for requirement in requirements:
        if isinstance(requirement, AssertRefSnapshotId) and requirement.snapshot_id is not None:
            ids.add(requirement.snapshot_id)
    for update in updates:
        match update:
            case AddSnapshot(snapshot):
                ids |= {snapshot.snapshot_id, snapshot.parent_snapshot_id or snapshot.snapshot_id}
            case SetSnapshotRef(_, ref):
                ids.add(ref.snapshot_id)
            case SetStatistics(file):
                ids |= {file.snapshot_id, *(blob.snapshot_id for blob in file.blob_metadata)}
            case SetPartitionStatistics(file):
                ids.add(file.snapshot_id)
            case RemoveStatistics(snapshot_id) | RemovePartitionStatistics(snapshot_id):
                ids.add(snapshot_id)
            case _:
                pass
    return ids


def list_added(updates: Sequence[TableUpdate]) -> list[Snapshot]:
    """Return the snapshots that a request adds, in order."""
    return [update.snapshot for update in updates if isinstance(update, AddSnapshot)]


def find_main_target(updates: Sequence[TableUpdate]) -> int | None:
    """Return the snapshot that a request finally moves main to, unless the request adds it."""
    targets = [update.ref.snapshot_id for update in updates if isinstance(update, SetSnapshotRef) and update.name == MAIN]
    added = {snapshot.snapshot_id for snapshot in list_added(updates)}
    return targets[-1] if targets and targets[-1] not in added else None


def removes_main(updates: Sequence[TableUpdate]) -> bool:
    """Return True if a request removes main and adds no snapshot, as Java's replace of a table without a query does."""
    main_updates = [update for update in updates if isinstance(update, SetSnapshotRef | RemoveSnapshotRef) and update.name == MAIN]
    return not list_added(updates) and bool(main_updates) and isinstance(main_updates[-1], RemoveSnapshotRef)


def list_off_main(updates: Sequence[TableUpdate]) -> set[int]:
    """Return the snapshots that a request adds off main: those that it never makes main's head or an ancestor of it."""
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in list_added(updates)}
    off_main = set(parents)
    for update in updates:
        if isinstance(update, SetSnapshotRef) and update.name == MAIN:
            snapshot_id: int | None = update.ref.snapshot_id
            while snapshot_id in off_main:
                off_main.discard(snapshot_id)
                snapshot_id = parents[snapshot_id]
    return off_main


def is_replay(updates: Sequence[TableUpdate], known: Mapping[int, int]) -> bool:
    """Return True if a request has landed before: all snapshots that it adds are known."""
    added = list_added(updates)
    return bool(added) and all(snapshot.snapshot_id in known for snapshot in added)


def map_requirements(requirements: Sequence[Requirement], to_ours: Callable[[int], int]) -> list[Requirement]:
    """Return the requirements with our snapshot ids."""
    return [
        replace(requirement, snapshot_id=to_ours(requirement.snapshot_id))
        if isinstance(requirement, AssertRefSnapshotId) and requirement.snapshot_id is not None
        else requirement
        for requirement in requirements
    ]


def map_updates(updates: Sequence[TableUpdate], to_ours: Callable[[int], int]) -> list[TableUpdate]:
    """Return the updates with our snapshot ids; `to_ours` does not map the ids that the request itself adds."""
    return [_map_update(update, to_ours) for update in updates]


def _map_update(update: TableUpdate, to_ours: Callable[[int], int]) -> TableUpdate:
    match update:
        case AddSnapshot(snapshot):
            parent = snapshot.parent_snapshot_id
            mapped = replace(snapshot, parent_snapshot_id=None if parent is None else to_ours(parent))
            return AddSnapshot(replace(mapped, snapshot_id=to_ours(snapshot.snapshot_id)))
        case SetSnapshotRef(_, ref):
            return replace(update, ref=replace(ref, snapshot_id=to_ours(ref.snapshot_id)))
        case SetStatistics(file):
            return SetStatistics(map_statistics(file, to_ours))
        case SetPartitionStatistics(file):
            return SetPartitionStatistics(replace(file, snapshot_id=to_ours(file.snapshot_id)))
        case RemoveStatistics(snapshot_id) | RemovePartitionStatistics(snapshot_id):
            return replace(update, snapshot_id=to_ours(snapshot_id))
        case _:
            # Removing the other id of a snapshot changes nothing.
            return update


def check_parents(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> None:
    """Refuse snapshots whose parent is not the head of their branch: they would undo the commits in between.

    A new branch starts anywhere, and a branch may be moved to another one that descends from its head. Main has no snapshot after
    its removal, so the next one has no parent. `updates` have our ids, and the client's sequence numbers.
    Raises: CommitFailed: in the words of Java's `TableMetadata`, which checks only the numbers
    """
    if base is None:
        return
    heads = {name: ref.snapshot_id for name, ref in base.refs.items() if ref.type == "branch"}
    added: dict[int, Snapshot] = {}
    for update in updates:
        match update:
            case AddSnapshot(snapshot):
                added[snapshot.snapshot_id] = snapshot
            case RemoveSnapshotRef(name):
                heads.pop(name, None)
            case SetSnapshotRef(name, ref) if ref.type == "branch":
                if ref.snapshot_id in added and (name == MAIN or name in heads):
                    _check_grown(base, added, (name, ref.snapshot_id), heads)
                heads[name] = ref.snapshot_id
            case _:
                pass


def _check_grown(base: TableMetadata, added: Mapping[int, Snapshot], target: tuple[str, int], heads: Mapping[str, int]) -> None:
    name, snapshot_id = target
    head = heads.get(name)
    passed: set[int] = set()
    oldest, parent = added[snapshot_id], added[snapshot_id].parent_snapshot_id
    while parent is not None and parent != head and parent in added and parent not in passed:
        passed.add(parent)
        oldest, parent = added[parent], added[parent].parent_snapshot_id
    follows = name != MAIN and not {parent, snapshot_id}.isdisjoint(heads.values()) and _descends(base, parent, head)
    if head in (parent, snapshot_id) or follows:
        return
    if base.format_version > 1 and parent is not None and oldest.sequence_number <= base.last_sequence_number:
        raise CommitFailed(
            "Validation failed, please retry: Cannot add snapshot with sequence number"
            f" {oldest.sequence_number} older than last sequence number {base.last_sequence_number}"
        )
    raise CommitFailed(f"Cannot add snapshot to {name}: its parent is {parent}, and {name} is at {head}; load the table and retry.")


def _descends(base: TableMetadata, snapshot_id: int | None, ancestor: int | None) -> bool:
    parents = {snapshot.snapshot_id: snapshot.parent_snapshot_id for snapshot in base.snapshots}
    passed: set[int] = set()
    while snapshot_id is not None and snapshot_id not in passed:
        if snapshot_id == ancestor:
            return True
        passed.add(snapshot_id)
        snapshot_id = parents.get(snapshot_id)
    return False


def number_snapshots(updates: Sequence[TableUpdate], last_sequence_number: int, next_row_id: int) -> list[TableUpdate]:
    """Return the updates with the sequence numbers and row ids that follow the table's own: a server assigns them."""
    numbered: list[TableUpdate] = []
    for update in updates:
        if isinstance(update, AddSnapshot):
            last_sequence_number += 1
            snapshot = replace(update.snapshot, sequence_number=last_sequence_number)
            if snapshot.first_row_id is not None:
                snapshot = replace(snapshot, first_row_id=next_row_id)
                next_row_id += snapshot.added_rows or 0
            update = AddSnapshot(snapshot)
        numbered.append(update)
    return numbered


def check_supported(base: TableMetadata | None, new: TableMetadata, added: Sequence[int], move: int | None, *, emptied: bool) -> None:
    """Refuse a commit that DuckLake, or this catalog so far, cannot represent.

    `emptied`: main is removed, and the snapshot that it was on stays.
    Raises: BadRequest: names the reason
    """
    before = None if base is None else base.current_snapshot_id
    wanted = added[-1] if added else before if move is None else move
    if emptied and before is not None and find_snapshot(new, before) is not None:
        wanted = None
    if new.current_snapshot_id != wanted:
        raise BadRequest(
            f"A commit must leave {MAIN!r} on the last snapshot that it adds to it, or on an existing one if it adds none; "
            f"a commit that removes {MAIN!r} may neither add a snapshot nor remove the one that {MAIN!r} was on."
        )
