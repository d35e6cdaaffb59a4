"""Snapshots of Iceberg clients: their summaries, the ids their authors know them by, and the refs and logs that are published.

`catalog` calls this for loads, and for commits and registrations, some of it under the lake's lock. No I/O.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.snapshots import (
    MAIN,
    PartitionStatisticsFile,
    Snapshot,
    SnapshotRef,
    StatisticsFile,
    format_partition_statistics,
    format_statistics,
    parse_partition_statistics,
    parse_snapshot,
    parse_statistics,
)
from duckicelake.lake.note_rows import UNPUBLISHED, NewStatistics, RefNote, RefNotes, RegisteredNote, RemovedStatistics
from duckicelake.lake.rows import SnapshotNote, TableNotes
from duckicelake.lake.writing.rows import NewRow

ALIAS_PROPERTY = "ducklake.alias-of"
WAP_ID = "wap.id"
OPERATION = "operation"
COUNTS = ("added-", "removed-", "total-", "deleted-data-files", "deleted-records")


def with_client_summary(
    derived: Mapping[str, str], note: SnapshotNote | None, manifests: Mapping[str, str], *, is_combined: bool = False
) -> Mapping[str, str]:
    """Return a snapshot's summary: the client's properties and operation, counts from the rows, and DuckLake's snapshot id.

    A client does not know what its commit became: equality deletes were turned into positions, delete files may have been removed
    with their data file, and maintenance may have merged its files with others. Incremental readers trust the operation, so the
    client's operation is used only if the rows agree; its other properties are always kept, because writers read their progress there.
    `manifests` are counts of the published manifests; they replace the client's counts. `is_combined`: the snapshot also contains
    changes of snapshots that are gone.
    """
    if note is None:
        return derived
    client_summary: dict[str, str] = json.loads(note.summary)
    kept = {key: manifests.get(key, text) for key, text in client_summary.items() if not key.startswith(COUNTS)}
    if not _agrees(client_summary.get(OPERATION), derived[OPERATION], is_combined=is_combined):
        return {**kept, **derived}
    return kept | {key: text for key, text in derived.items() if key != OPERATION}


def _agrees(operation: str | None, derived: str, *, is_combined: bool) -> bool:
    """Return False if the client's operation claims less than the rows show.

    A client's rewrite replaces files as an overwrite does; only changes of other snapshots turn it into one.
    """
    match operation:
        case "append":
            return derived not in ("overwrite", "delete")
        case "delete":
            return derived not in ("overwrite", "append")
        case "replace":
            return not is_combined
        case None:
            return False
        case _:
            return True


def build_alias(snapshot: Snapshot, client_snapshot_id: int, manifest_list: str) -> Snapshot:
    """Return a snapshot under the id that its author gave it, with its own manifest list.

    It has no `wap.id`: a client that publishes a staged write expects a single snapshot with the id.
    """
    summary = {key: text for key, text in snapshot.summary.items() if key != WAP_ID} | {ALIAS_PROPERTY: str(snapshot.snapshot_id)}
    return replace(snapshot, snapshot_id=client_snapshot_id, manifest_list=manifest_list, summary=summary)


def without_aliases(metadata: TableMetadata) -> TableMetadata:
    """Return the metadata of a file, which an older server may have written, with every snapshot under DuckLake's id only."""
    kept = tuple(snapshot for snapshot in metadata.snapshots if ALIAS_PROPERTY not in snapshot.summary)
    return replace(metadata, snapshots=kept) if len(kept) < len(metadata.snapshots) else metadata


OPERATION_KEY, REPLACE = "operation", "replace"

Log = tuple[tuple[int, int], ...]


def format_log(log: Sequence[tuple[int, int]] | Sequence[tuple[int, str]]) -> str:
    """Return a log as its note's text."""
    return json.dumps(log, separators=(",", ":"), ensure_ascii=False)


def with_registered_parent(steps: Sequence[Snapshot], note: RegisteredNote | None) -> Sequence[Snapshot]:
    """Return main's snapshots; the first one becomes a child of the registered table's last snapshot if it has no parent.

    The snapshot that registered the table changed no row, so its operation is `replace`.
    """
    if note is None or note.snapshot_id is None or not steps or steps[0].parent_snapshot_id is not None:
        return steps
    first = steps[0]
    if first.snapshot_id == note.lake_snapshot_id and not note.is_shown:
        return steps
    first = replace(first, parent_snapshot_id=note.snapshot_id)
    if first.snapshot_id == note.lake_snapshot_id:
        first = replace(first, summary={**first.summary, OPERATION_KEY: REPLACE})
    return [first, *steps[1:]]


def to_whole_log(log: Log, note: RegisteredNote | None, known: set[int]) -> Log:
    """Return main's log including the one from before the registration; times ascend, and a missing snapshot cuts off earlier entries."""
    if note is None:
        return log
    earlier: list[tuple[int, int]] = [(at_ms, snapshot_id) for at_ms, snapshot_id in json.loads(note.snapshot_log)]
    missing = [index for index, (_, snapshot_id) in enumerate(earlier) if snapshot_id not in known]
    earlier = earlier[missing[-1] + 1 :] if missing else earlier
    later = log[1:] if earlier and log and log[0][1] == earlier[-1][1] else log
    whole = [*earlier, *later]
    times = accumulate((at_ms for at_ms, _ in whole), max)
    return tuple((at_ms, snapshot_id) for at_ms, (_, snapshot_id) in zip(times, whole, strict=True))


def with_registered_log(metadata: TableMetadata, note: RegisteredNote | None) -> TableMetadata:
    """Return the metadata with the metadata log that a registered table had elsewhere."""
    if note is None:
        return metadata
    return replace(metadata, metadata_log=tuple((at_ms, path) for at_ms, path in json.loads(note.metadata_log)))


@dataclass(frozen=True, slots=True)
class VisibleSnapshots:
    """The published snapshots of a table, with main's current one, main's log, and all refs."""

    snapshots: tuple[Snapshot, ...]
    current_snapshot_id: int | None
    log: tuple[tuple[int, int], ...]
    refs: Mapping[str, SnapshotRef]


def to_visible_snapshots(steps: Sequence[Snapshot], notes: RefNotes, earlier_log: Sequence[tuple[int, int]] = ()) -> VisibleSnapshots:
    """Return the published snapshots: main's, oldest first, and retained ones from the notes.

    A snapshot that moved main to another snapshot is not published; that other one is. A retained snapshot is published while a
    ref names it, and one off main until it is removed. `earlier_log` is the log of the first steps.
    """
    if not (notes.moves or notes.refs or notes.kept or notes.registered):
        log = tuple(earlier_log) + tuple((step.timestamp_ms, step.snapshot_id) for step in steps[len(earlier_log) :])
        current = steps[-1].snapshot_id if steps else None
        visible = steps if isinstance(steps, tuple) else tuple(steps)
        return VisibleSnapshots(visible, current, log, {} if current is None else {MAIN: SnapshotRef(current, "branch")})
    moves = {note.lake_snapshot_id: note.snapshot_id for note in notes.moves}
    steps = with_registered_parent(steps, notes.registered)
    current = moves.get(steps[-1].snapshot_id, steps[-1].snapshot_id) if steps else None
    visible = _list_published(steps, moves)
    named = {note.snapshot_id for note in notes.refs} | {current}
    known = {snapshot.snapshot_id for snapshot in visible}
    kept = [note for note in notes.kept if note.snapshot_id not in known and (note.is_off_main or note.snapshot_id in named)]
    # A snapshot that expired before it was published is lost with its refs.
    kept = [note for note in kept if note.json != UNPUBLISHED]
    if kept:
        known |= {note.snapshot_id for note in kept}
        retained = [_with_known_parent(parse_snapshot(json.loads(note.json)), known) for note in kept]
        visible = sorted((*visible, *retained), key=_get_sort_key)
    log = to_whole_log(_to_log(steps, moves, known), notes.registered, known)
    if notes.registered is not None:
        visible = [_with_known_parent(snapshot, known) for snapshot in visible]
    return VisibleSnapshots(tuple(visible), current, log, _to_refs(notes.refs, current, known))


def _get_sort_key(snapshot: Snapshot) -> tuple[int, int, int]:
    """Return the order of published snapshots; ids of other catalogs' snapshots are in no order."""
    return snapshot.sequence_number, snapshot.timestamp_ms, snapshot.snapshot_id


def _list_published(steps: Sequence[Snapshot], moves: Mapping[int, int]) -> Sequence[Snapshot]:
    if not moves:
        return steps
    visible: list[Snapshot] = []
    for snapshot in steps:
        parent = snapshot.parent_snapshot_id
        if snapshot.snapshot_id not in moves:
            visible.append(snapshot if parent is None or parent not in moves else replace(snapshot, parent_snapshot_id=moves[parent]))
    return visible


def _with_known_parent(snapshot: Snapshot, known: set[int]) -> Snapshot:
    return snapshot if snapshot.parent_snapshot_id in known else replace(snapshot, parent_snapshot_id=None)


def _to_log(steps: Sequence[Snapshot], moves: Mapping[int, int], known: set[int]) -> tuple[tuple[int, int], ...]:
    """Return main's log; a snapshot that no longer exists cuts off earlier entries."""
    log = [(snapshot.timestamp_ms, moves.get(snapshot.snapshot_id, snapshot.snapshot_id)) for snapshot in steps]
    missing = [index for index, (_, snapshot_id) in enumerate(log) if snapshot_id not in known] if moves else []
    return tuple(log[missing[-1] + 1 :] if missing else log)


def _to_refs(notes: Sequence[RefNote], current: int | None, known: set[int]) -> Mapping[str, SnapshotRef]:
    refs = {} if current is None else {MAIN: SnapshotRef(current, "branch")}
    for note in notes:
        target = current if note.name == MAIN else note.snapshot_id
        if target is not None and target in known:
            refs[note.name] = SnapshotRef(target, note.type, note.max_ref_age_ms, note.max_snapshot_age_ms, note.min_snapshots_to_keep)
    return refs


TABLE, PARTITION = "table", "partition"

AnyStatistics = StatisticsFile | PartitionStatisticsFile


def with_statistics(metadata: TableMetadata, notes: TableNotes) -> TableMetadata:
    """Return the metadata with the statistics files of its published snapshots."""
    if not notes.statistics:
        return metadata
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    of_table = (parse_statistics(json.loads(text)) for kind, text in notes.statistics if kind == TABLE)
    of_partitions = (parse_partition_statistics(json.loads(text)) for kind, text in notes.statistics if kind == PARTITION)
    return replace(
        metadata,
        statistics=tuple(file for file in of_table if file.snapshot_id in known),
        partition_statistics=tuple(file for file in of_partitions if file.snapshot_id in known),
    )


def map_statistics(file: StatisticsFile, to_ours: Callable[[int], int]) -> StatisticsFile:
    """Return a statistics file with our snapshot ids, also in its blobs."""
    blobs = tuple(replace(blob, snapshot_id=to_ours(blob.snapshot_id)) for blob in file.blob_metadata)
    return replace(file, snapshot_id=to_ours(file.snapshot_id), blob_metadata=blobs)


def change_statistics(table_id: int, base: TableMetadata | None, new: TableMetadata, holds: Callable[[str], bool]) -> list[NewRow]:
    """Return the changes of the statistics notes; `holds` returns True if a file may lie at that path.

    Raises: BadRequest: a file belongs to no snapshot of the table, or lies elsewhere
    """
    rows: list[NewRow] = []
    known = {snapshot.snapshot_id for snapshot in new.snapshots} if new.statistics or new.partition_statistics else set[int]()
    for kind, before, after in (
        (TABLE, _by_snapshot(base.statistics if base else ()), _by_snapshot(new.statistics)),
        (PARTITION, _by_snapshot(base.partition_statistics if base else ()), _by_snapshot(new.partition_statistics)),
    ):
        for snapshot_id, file in after.items():
            if file == before.get(snapshot_id):
                continue
            if snapshot_id not in known:
                raise BadRequest(f"Cannot set statistics for unknown snapshot: {snapshot_id}")
            if not holds(file.statistics_path):
                raise BadRequest(f"Statistics file {file.statistics_path!r} does not lie in the table's location; write it there.")
            rows.append(NewStatistics(table_id, kind, snapshot_id, _format_statistics_file(file)))
        rows += (RemovedStatistics(table_id, kind, snapshot_id) for snapshot_id in before.keys() - after.keys())
    return rows


def _by_snapshot(files: Sequence[AnyStatistics]) -> Mapping[int, AnyStatistics]:
    return {file.snapshot_id: file for file in files}


def _format_statistics_file(file: AnyStatistics) -> str:
    node = format_statistics(file) if isinstance(file, StatisticsFile) else format_partition_statistics(file)
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False)
