"""Branches and tags as Iceberg clients told them, beside `main`, which is DuckLake's head."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.iceberg.snapshots import MAIN, Snapshot, SnapshotRef, parse_snapshot
from duckicelake.lake.note_rows import UNPUBLISHED, RefNote, RefNotes
from duckicelake.translate.shape.told_registered import to_whole_log, with_past
from duckicelake.values import replace


@dataclass(frozen=True, slots=True)
class Line:
    """A table's snapshots as clients see them, with main's, its log, and all refs."""

    snapshots: tuple[Snapshot, ...]
    current_snapshot_id: int | None
    log: tuple[tuple[int, int], ...]
    refs: Mapping[str, SnapshotRef]


def to_line(steps: Sequence[Snapshot], notes: RefNotes, earlier_log: Sequence[tuple[int, int]] = ()) -> Line:
    """Return what clients see of main's snapshots, oldest first, and of what is noted beside them.

    A snapshot that put main where another one had been is not shown: the other one is. A kept snapshot is shown for as long
    as something names it, those made beside main until they are removed. `earlier_log` is that of the first of the steps.
    """
    if not (notes.moves or notes.refs or notes.kept or notes.registered):
        log = tuple(earlier_log) + tuple((step.timestamp_ms, step.snapshot_id) for step in steps[len(earlier_log) :])
        current = steps[-1].snapshot_id if steps else None
        shown = steps if isinstance(steps, tuple) else tuple(steps)
        return Line(shown, current, log, {} if current is None else {MAIN: SnapshotRef(current, "branch")})
    moves = {note.lake_snapshot_id: note.snapshot_id for note in notes.moves}
    steps = with_past(steps, notes.registered)
    current = moves.get(steps[-1].snapshot_id, steps[-1].snapshot_id) if steps else None
    shown = _list_shown(steps, moves)
    named = {note.snapshot_id for note in notes.refs} | {current}
    known = {snapshot.snapshot_id for snapshot in shown}
    kept = [note for note in notes.kept if note.snapshot_id not in known and (note.is_off_main or note.snapshot_id in named)]
    # a snapshot that expired before it was ever published is lost, and its refs with it
    kept = [note for note in kept if note.json != UNPUBLISHED]
    if kept:
        known |= {note.snapshot_id for note in kept}
        told = [_with_known_parent(parse_snapshot(json.loads(note.json)), known) for note in kept]
        shown = sorted((*shown, *told), key=_find_place)
    log = to_whole_log(_to_log(steps, moves, known), notes.registered, known)
    if notes.registered is not None:
        shown = [_with_known_parent(snapshot, known) for snapshot in shown]
    return Line(tuple(shown), current, log, _to_refs(notes.refs, current, known))


def _find_place(snapshot: Snapshot) -> tuple[int, int, int]:
    """Snapshots of other catalogs have ids in no order."""
    return snapshot.sequence_number, snapshot.timestamp_ms, snapshot.snapshot_id


def _list_shown(steps: Sequence[Snapshot], moves: Mapping[int, int]) -> Sequence[Snapshot]:
    if not moves:
        return steps
    shown: list[Snapshot] = []
    for snapshot in steps:
        parent = snapshot.parent_snapshot_id
        if snapshot.snapshot_id not in moves:
            shown.append(snapshot if parent is None or parent not in moves else replace(snapshot, parent_snapshot_id=moves[parent]))
    return shown


def _with_known_parent(snapshot: Snapshot, known: set[int]) -> Snapshot:
    return snapshot if snapshot.parent_snapshot_id in known else replace(snapshot, parent_snapshot_id=None)


def _to_log(steps: Sequence[Snapshot], moves: Mapping[int, int], known: set[int]) -> tuple[tuple[int, int], ...]:
    """Return when main was where; what came before a snapshot that is not there any more is not told."""
    log = [(snapshot.timestamp_ms, moves.get(snapshot.snapshot_id, snapshot.snapshot_id)) for snapshot in steps]
    lost = [place for place, (_, snapshot_id) in enumerate(log) if snapshot_id not in known] if moves else []
    return tuple(log[lost[-1] + 1 :] if lost else log)


def _to_refs(notes: Sequence[RefNote], current: int | None, known: set[int]) -> Mapping[str, SnapshotRef]:
    refs = {} if current is None else {MAIN: SnapshotRef(current, "branch")}
    for note in notes:
        target = current if note.name == MAIN else note.snapshot_id
        if target is not None and target in known:
            refs[note.name] = SnapshotRef(target, note.type, note.max_ref_age_ms, note.max_snapshot_age_ms, note.min_snapshots_to_keep)
    return refs
