"""A client's commit in the lake's terms: snapshot ids mapped to ours, and refusals of what is not supported."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
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
from duckicelake.iceberg.snapshots import MAIN, Snapshot
from duckicelake.translate.client_snapshots import map_statistics


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
