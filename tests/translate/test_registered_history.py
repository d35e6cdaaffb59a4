"""What a registered table's past looks like beside what the lake made of it, from notes alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.note_rows import MoveNote, RefNotes, RegisteredNote
from duckicelake.translate.client_snapshots import format_log, to_visible_snapshots, to_whole_log
from tests.translate.test_client_refs import kept, snapshot

FOREIGN = (9_001, 9_000)


def note(*log: tuple[int, int], is_shown: bool = False) -> RegisteredNote:
    """A table that came at lake snapshot 20, where the second of FOREIGN was current."""
    return RegisteredNote(20, FOREIGN[1], is_shown, format_log(log), "[]")


def old(snapshot_id: int, parent: int | None, number: int) -> Snapshot:
    """A snapshot from before."""
    return Snapshot(snapshot_id, parent, number, number, f"l{snapshot_id}", {"operation": "append"}, 0)


PAST = [kept(old(FOREIGN[0], None, 1), is_off_main=True), kept(old(FOREIGN[1], FOREIGN[0], 2), is_off_main=True)]
LOG = [(1, FOREIGN[0]), (2, FOREIGN[1])]


def test_a_table_shows_what_was_current_when_it_came() -> None:
    """Its own snapshots in the order of their numbers, whatever their ids are; the lake's is not shown."""
    notes = RefNotes(kept=PAST, moves=[MoveNote(20, FOREIGN[1])], registered=note(*LOG))
    line = to_visible_snapshots([snapshot(20)], notes)
    assert [item.snapshot_id for item in line.snapshots] == list(FOREIGN)
    assert (line.current_snapshot_id, line.log) == (FOREIGN[1], tuple(LOG))
    line = to_visible_snapshots([snapshot(20), snapshot(21, 20)], notes)
    assert [(item.snapshot_id, item.parent_snapshot_id) for item in line.snapshots][1:] == [(FOREIGN[1], FOREIGN[0]), (21, FOREIGN[1])]
    assert line.log == (*LOG, (1021, 21))


def test_rows_deleted_anew_make_a_snapshot_of_their_own() -> None:
    """It changes no row, and follows on what was current."""
    line = to_visible_snapshots([snapshot(20)], RefNotes(kept=PAST, registered=note(*LOG, is_shown=True)))
    newest = line.snapshots[-1]
    assert (newest.snapshot_id, newest.parent_snapshot_id, newest.summary) == (20, FOREIGN[1], {"operation": "replace"})
    assert line.log == (*LOG, (1020, 20))


def test_the_past_is_the_parent_of_what_is_left() -> None:
    """Also when the lake has forgotten when the table came; unless a client removed what was current then."""
    assert to_visible_snapshots([snapshot(25)], RefNotes(kept=PAST, registered=note(*LOG))).snapshots[-1].parent_snapshot_id == FOREIGN[1]
    assert to_visible_snapshots([snapshot(25)], RefNotes(kept=PAST[:1], registered=note(*LOG))).snapshots[-1].parent_snapshot_id is None
    assert to_visible_snapshots([snapshot(25)], RefNotes(kept=PAST[:1], registered=note(*LOG))).log == ((1025, 25),)


@given(st.lists(st.tuples(st.integers(0, 3_000), st.sampled_from(FOREIGN))))
@pytest.mark.parametrize("later", [(), ((1020, FOREIGN[1]),), ((1020, FOREIGN[1]), (1021, 21))])
def test_a_log_never_goes_back(later: tuple[tuple[int, int], ...], log: list[tuple[int, int]]) -> None:
    """Whatever clock the other catalog had; it ends where main is."""
    whole = to_whole_log(later, note(*log), {*FOREIGN, 20, 21})
    assert [at_ms for at_ms, _ in whole] == sorted(at_ms for at_ms, _ in whole)
    assert [snapshot_id for _, snapshot_id in whole][-1:] == [snapshot_id for _, snapshot_id in (*log, *later)][-1:]
