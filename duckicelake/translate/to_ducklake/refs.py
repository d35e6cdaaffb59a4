"""Branches and tags of a commit as notes, with the snapshots that they keep."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.snapshots import MAIN, Snapshot, SnapshotRef, format_snapshot
from duckicelake.lake.note_rows import (
    UNPUBLISHED,
    EndedKeptSnapshot,
    EndedRef,
    NewChange,
    NewHiddenSnapshot,
    NewKeptSnapshot,
    NewRef,
    RefNotes,
)
from duckicelake.lake.writing.rows import NewRow

REFS, HIDE = "refs", "hide"


def change_refs(
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, beside: Collection[int] = ()
) -> list[NewRow]:
    """Return the notes of refs that a commit makes, changes or removes, and of snapshots that it removes.

    `base` is None for a new table, `beside` are the snapshots that the commit adds beside main.
    """
    rows = [
        *name_main(table_id, base, new),
        *_change_names(table_id, base, new),
        *_keep_named(table_id, base, new, noted, beside),
        *_remove_snapshots(table_id, base, new, noted),
    ]
    if rows or beside:
        rows.append(NewChange(table_id, HIDE if any(isinstance(row, NewHiddenSnapshot) for row in rows) else REFS))
    return rows


def name_main(table_id: int, base: TableMetadata | None, new: TableMetadata) -> list[NewRow]:
    """Return the note of what main retains, when that changes; it is where DuckLake's head is, also when a client takes it away."""
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


def _keep_named(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, beside: Iterable[int]) -> Iterator[NewRow]:
    """Keep what refs name from now on, and give up what they no longer do."""
    named = {ref.snapshot_id for name, ref in new.refs.items() if name != MAIN}
    known = {note.snapshot_id for note in noted.kept}
    for snapshot_id in sorted(named - known - set(beside)):
        snapshot = None if base is None else find_snapshot(base, snapshot_id)
        # what the commit itself gives to main is told when it is published
        yield NewKeptSnapshot(table_id, snapshot_id, snapshot_id, UNPUBLISHED, None) if snapshot is None else keep(table_id, snapshot)
    moved = {move.snapshot_id for move in noted.moves} & {new.current_snapshot_id}
    for note in noted.kept:
        if not note.is_off_main and note.snapshot_id not in named | moved:
            yield EndedKeptSnapshot(table_id, note.snapshot_id)


def keep_main(table_id: int, target: Snapshot, noted: RefNotes) -> list[NewRow]:
    """Return what keeps the snapshot that main goes to, for as long as it is there."""
    known = {note.snapshot_id for note in noted.kept}
    return [NewChange(table_id, REFS), *([] if target.snapshot_id in known else [keep(table_id, target)])]


def keep(table_id: int, snapshot: Snapshot) -> NewKeptSnapshot:
    """Return the note that keeps a snapshot of main as it is published now."""
    return NewKeptSnapshot(
        table_id, snapshot.snapshot_id, snapshot.snapshot_id, json.dumps(format_snapshot(snapshot), separators=(",", ":")), None
    )


def _remove_snapshots(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes) -> Iterator[NewRow]:
    """Hide main's snapshots that a client removes; those beside main go for good."""
    before = () if base is None else base.snapshots
    if new.snapshots is before or new.snapshots[: len(before)] == before:
        return
    left = {snapshot.snapshot_id for snapshot in new.snapshots}
    gone: Sequence[int] = [snapshot.snapshot_id for snapshot in before if snapshot.snapshot_id not in left]
    beside = {note.snapshot_id for note in noted.kept if note.is_off_main}
    for snapshot_id in gone:
        yield NewHiddenSnapshot(table_id, snapshot_id)
        if snapshot_id in beside:
            yield EndedKeptSnapshot(table_id, snapshot_id)
