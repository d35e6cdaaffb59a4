"""What clients see of main's snapshots and of those beside it, from notes alone."""

import json
from dataclasses import replace

import pytest

from duckicelake.iceberg.snapshots import Snapshot, SnapshotRef, format_snapshot
from duckicelake.lake.note_rows import KeptSnapshotNote, MoveNote, RefNote, RefNotes
from duckicelake.translate.client_snapshots import to_visible_snapshots


def snapshot(snapshot_id: int, parent: int | None = None) -> Snapshot:
    """A snapshot that only its numbers tell from others."""
    return Snapshot(snapshot_id, parent, snapshot_id, 1000 + snapshot_id, f"l{snapshot_id}", {"operation": "append"}, 0)


def kept(found: Snapshot, *, is_off_main: bool = False) -> KeptSnapshotNote:
    """The note that keeps a snapshot."""
    return KeptSnapshotNote(found.snapshot_id, found.snapshot_id, json.dumps(format_snapshot(found)), is_off_main)


def ref(name: str, snapshot_id: int | None, kind: str = "tag") -> RefNote:
    """The note of a ref that retains nothing."""
    return RefNote(name, snapshot_id, kind, None, None, None)


STEPS = [snapshot(3), snapshot(5, 3), snapshot(8, 5)]


def test_without_notes_main_is_all_there_is() -> None:
    """The newest snapshot is main's; a table without any has no refs."""
    line = to_visible_snapshots(STEPS, RefNotes())
    assert line.snapshots == tuple(STEPS)
    assert (line.current_snapshot_id, line.refs) == (8, {"main": SnapshotRef(8, "branch")})
    assert line.log == ((1003, 3), (1005, 5), (1008, 8))
    assert to_visible_snapshots([], RefNotes()).refs == {}


def test_a_moved_main_shows_where_it_was_put() -> None:
    """The lake snapshot that has the rows is not shown; the next one follows on the one that was asked for."""
    moves = RefNotes(moves=[MoveNote(8, 3)])
    line = to_visible_snapshots(STEPS, moves)
    assert [item.snapshot_id for item in line.snapshots] == [3, 5]
    assert (line.current_snapshot_id, line.log) == (3, ((1003, 3), (1005, 5), (1008, 3)))
    line = to_visible_snapshots([*STEPS, snapshot(9, 8)], moves)
    assert [(item.snapshot_id, item.parent_snapshot_id) for item in line.snapshots] == [(3, None), (5, 3), (9, 3)]
    assert line.current_snapshot_id == 9


def test_a_kept_snapshot_is_shown_while_something_names_it() -> None:
    """As it was published once its lake snapshot is gone; as it is published now before that. Its parent may be gone too."""
    old = snapshot(2, 1)
    line = to_visible_snapshots(STEPS, RefNotes(refs=[ref("v1", 2)], kept=[kept(old)]))
    assert line.snapshots == (replace(old, parent_snapshot_id=None), *STEPS)
    assert line.refs["v1"] == SnapshotRef(2, "tag")
    assert to_visible_snapshots(STEPS, RefNotes(kept=[kept(old)])).snapshots == tuple(STEPS)
    republished = replace(STEPS[0], manifest_list="new")
    assert to_visible_snapshots([republished, *STEPS[1:]], RefNotes(refs=[ref("v1", 3)], kept=[kept(STEPS[0])])).snapshots[0] == republished


def test_snapshots_beside_main_are_shown_in_their_order() -> None:
    """Named or not; main's log knows nothing of them until it goes there."""
    beside = snapshot(6, 5)
    notes = RefNotes(refs=[ref("dev", 6, "branch")], kept=[kept(beside, is_off_main=True)])
    line = to_visible_snapshots(STEPS, notes)
    assert line.snapshots == (*STEPS[:2], beside, STEPS[2])
    assert line.log == ((1003, 3), (1005, 5), (1008, 8))
    assert to_visible_snapshots(STEPS, replace(notes, refs=[])).snapshots == line.snapshots
    assert to_visible_snapshots(STEPS, replace(notes, moves=[MoveNote(8, 6)])).log[-1] == (1008, 6)


def test_the_log_does_not_reach_behind_what_is_gone() -> None:
    """Main was on a snapshot that nobody has any more."""
    line = to_visible_snapshots(STEPS, RefNotes(moves=[MoveNote(5, 2)]))
    assert line.log == ((1008, 8),)


@pytest.mark.parametrize(("name", "snapshot_id"), [pytest.param("main", None, id="main"), pytest.param("dev", 3, id="branch")])
def test_what_a_ref_retains_is_shown(name: str, snapshot_id: int | None) -> None:
    """A ref on a snapshot that is gone is not shown."""
    note = RefNote(name, snapshot_id, "branch", 1, 2, 3)
    assert to_visible_snapshots(STEPS, RefNotes(refs=[note])).refs[name] == SnapshotRef(snapshot_id or 8, "branch", 1, 2, 3)
    assert "gone" not in to_visible_snapshots(STEPS, RefNotes(refs=[ref("gone", 1)])).refs
