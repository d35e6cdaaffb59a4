"""How updates change a table's snapshots, refs and statistics. Each function gives the next draft."""

from collections.abc import Iterable

from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.encoding.json_reader import LONG_MAX
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.requests.draft import TableDraft, change_metadata
from duckicelake.iceberg.requests.updates import (
    AddSnapshot,
    RemovePartitionStatistics,
    RemoveSnapshotRef,
    RemoveSnapshots,
    RemoveStatistics,
    SetPartitionStatistics,
    SetSnapshotRef,
    SetStatistics,
)
from duckicelake.iceberg.snapshots import MAIN, Snapshot
from duckicelake.values import replace

OPERATIONS = ("append", "replace", "overwrite", "delete")


def add_snapshot(draft: TableDraft, update: AddSnapshot) -> TableDraft:
    """The snapshot enters the history; no ref moves.

    Raises: BadRequest — malformed, or its id is taken · CommitFailed — its sequence number or row ids were given out meanwhile
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
    """The ref points there. Main takes the table's current snapshot with it, and the log notes when."""
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
    """A ref that is not there is no error."""
    return _keep_refs(draft, [name for name in draft.metadata.refs if name != update.name])


def remove_snapshots(draft: TableDraft, update: RemoveSnapshots) -> TableDraft:
    """The snapshots, the refs to them and their statistics go; ids that are not there are no error."""
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
    """One file per snapshot: the new one takes the old one's place."""
    others = [item for item in draft.metadata.statistics if item.snapshot_id != update.statistics.snapshot_id]
    return change_metadata(draft, statistics=(*others, update.statistics))


def remove_statistics(draft: TableDraft, update: RemoveStatistics) -> TableDraft:
    """A snapshot without statistics is no error."""
    return change_metadata(draft, statistics=tuple(item for item in draft.metadata.statistics if item.snapshot_id != update.snapshot_id))


def set_partition_statistics(draft: TableDraft, update: SetPartitionStatistics) -> TableDraft:
    """One file per snapshot: the new one takes the old one's place."""
    others = [item for item in draft.metadata.partition_statistics if item.snapshot_id != update.statistics.snapshot_id]
    return change_metadata(draft, partition_statistics=(*others, update.statistics))


def remove_partition_statistics(draft: TableDraft, update: RemovePartitionStatistics) -> TableDraft:
    """A snapshot without partition statistics is no error."""
    kept = tuple(item for item in draft.metadata.partition_statistics if item.snapshot_id != update.snapshot_id)
    return change_metadata(draft, partition_statistics=kept)


def build_snapshot_log(base: TableMetadata | None, draft: TableDraft) -> tuple[tuple[int, int], ...]:
    """The snapshot log of the finished request: only what was current after a request, without gaps, in order of time.

    Source: Iceberg spec «snapshot-log»; an entry of a removed snapshot takes those before it along
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
