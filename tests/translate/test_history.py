"""What each published snapshot changed."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duckicelake.iceberg.manifest import DataFile
from duckicelake.lake.rows import Position, TableNote
from duckicelake.translate.manifests import ADDED, DELETED
from duckicelake.translate.summaries import FileTally, Totals, summarize
from duckicelake.translate.visibility import SnapshotStep, TrackedFile, build_history
from tests.translate.support.states import EPOCH, TABLE_ID, make_notes, make_state, snapshot, visibility


def tell(steps: tuple[SnapshotStep, ...]) -> list[tuple[int, list[int], list[int], dict[int, bool]]]:
    """Id, files added, files removed and deletes of each snapshot."""
    return [(step.snapshot_id, [f.key for f in step.added], [f.key for f in step.removed], step.deletes) for step in steps]


def test_an_event_at_an_expired_snapshot_counts_for_the_next_one_left() -> None:
    """What nobody can look at any more has happened by the time of the next snapshot."""
    files = [TrackedFile(1, 1, None, 9), TrackedFile(2, 2, 4, 9), TrackedFile(3, 3, 4, 9), TrackedFile(4, 5, None, 9)]
    deletes = {1: visibility({}, {0: 2, 1: 4}), 2: visibility({}, {5: 3})}
    history = build_history(make_state([snapshot(3), snapshot(5)]), files, deletes)
    assert tell((history.base,)) == [(2, [1, 2], [], {1: True})]
    assert tell(history.steps) == [(3, [3], [], {2: True}), (5, [4], [2, 3], {1: True})]


def test_a_file_that_nobody_can_see_is_in_no_snapshot() -> None:
    """It came and went between two snapshots that are left, or in one."""
    files = [TrackedFile(1, 2, 3, 9), TrackedFile(2, 4, 4, 9)]
    assert tell(build_history(make_state([snapshot(1), snapshot(4)]), files, {}).steps) == [(1, [], [], {}), (4, [], [], {})]


def test_the_last_change_stays_current_when_its_snapshot_has_expired() -> None:
    """The table's rows are still those of that lake snapshot; its time is the latest known before it."""
    state = make_state([snapshot(2)], oldest=snapshot(2))
    history = build_history(state, [TrackedFile(1, 2, None, 9), TrackedFile(2, 5, None, 9)], {})
    assert tell(history.steps) == [(2, [1], [], {}), (5, [2], [], {})]
    alone = build_history(make_state([], oldest=snapshot(8)), [TrackedFile(1, 5, None, 9)], {1: visibility({}, {0: 6})})
    assert tell((alone.base, *alone.steps)) == [(5, [1], [], {}), (6, [], [], {1: True})]
    assert alone.steps[0].timestamp_ms == int(EPOCH.timestamp()) * 1000 + 8000


def test_an_expired_rewriting_stays_current_once_it_was_published() -> None:
    """The rows tell nothing of it any more, the note does; a reading older than the note does not know it yet."""
    files = [TrackedFile(1, 2, None, 9)]
    noted = make_notes(TableNote(TABLE_ID, "s3://b/t", 2, 0, 1, 7, 0, "", 0, current_snapshot_id=6))
    after = build_history(make_state([], position=Position(8, 0), notes=noted), files, {})
    assert tell((after.base, *after.steps)) == [(5, [1], [], {}), (6, [], [], {})]
    assert [step.is_rewrite for step in after.steps] == [True]
    before = build_history(make_state([snapshot(2)], position=Position(5, 0), notes=noted), files, {})
    assert tell(before.steps) == [(2, [1], [], {})]


def test_a_table_without_rows_has_no_history() -> None:
    """Nothing happened, nothing is published."""
    assert build_history(make_state([]), [], {}).steps == ()


def test_a_delete_dated_back_counts_when_a_reading_goes_on() -> None:
    """A commit that DuckDB retried says an earlier lake snapshot of its deletes, but not earlier than what had been read before."""
    state = make_state([snapshot(9)], since=5)
    history = build_history(state, [TrackedFile(1, 2, None, 9)], {1: visibility({}, {0: 3, 1: 6})})
    assert tell(history.steps) == [(9, [], [], {1: True})]


def test_deletes_that_leave_nothing_hidden_are_told() -> None:
    """Rows that a rewritten file hides from older snapshots come into sight one after the other."""
    files = [TrackedFile(1, 1, None, 3)]
    history = build_history(make_state([snapshot(i) for i in (1, 2, 3)]), files, {1: visibility({1: 2, 2: 3}, {})})
    assert [step.deletes for step in history.steps] == [{1: True}, {1: True}, {1: False}]


def test_only_changed_positions_are_told() -> None:
    """A row that is born and dies unseen changes nothing."""
    seen = {1: visibility({0: 2}, {0: 3})}
    history = build_history(make_state([snapshot(i) for i in (1, 3, 4)]), [TrackedFile(1, 1, None, 3)], seen)
    assert [step.deletes for step in history.steps] == [{1: True}, {}, {}]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param(f"inline_flush:{TABLE_ID}", True, id="flush"),
        pytest.param(f"merge_adjacent:{TABLE_ID}", True, id="merge"),
        pytest.param(f"rewrite_delete:{TABLE_ID}", True, id="rewrite"),
        pytest.param(f"inline_flush:{TABLE_ID},deleted_from_table:{TABLE_ID}", True, id="flush of inlined deletes"),
        pytest.param(f"inserted_into_table:{TABLE_ID}", False, id="insert"),
        pytest.param(f"inserted_into_table:{TABLE_ID},inline_flush:{TABLE_ID}", False, id="insert and flush in one transaction"),
        pytest.param(f"merge_adjacent:{TABLE_ID}1,deleted_from_table:{TABLE_ID}", False, id="another table's merge"),
        pytest.param(None, False, id="nothing said"),
    ],
)
def test_rewrites_are_told_by_their_kind(kinds: str | None, expected: bool) -> None:
    """Flush, merge and rewrite leave every row as it was."""
    history = build_history(make_state([snapshot(1), snapshot(2, kinds)]), [TrackedFile(1, 1, None, 1)], {})
    assert [step.is_rewrite for step in history.steps] == [False, expected]


def test_a_rewrite_that_deletes_rows_too_is_none() -> None:
    """A transaction may flush and delete; tokens alone do not tell it from a flush of inlined deletes."""
    kinds = f"inline_flush:{TABLE_ID},deleted_from_table:{TABLE_ID}"
    state = make_state([snapshot(1), snapshot(3, kinds)])
    inlined, flushed, other = TrackedFile(-1, 1, 3, 4), TrackedFile(1, 3, None, 4), TrackedFile(2, 1, None, 9)
    dead = visibility({}, {0: 1})
    assert build_history(state, [inlined, flushed, other], {1: dead, -1: dead}).steps[-1].is_rewrite
    assert not build_history(state, [inlined, flushed, other], {2: visibility({}, {0: 3})}).steps[-1].is_rewrite
    assert not build_history(state, [inlined, flushed, TrackedFile(2, 1, 3, 9)], {}).steps[-1].is_rewrite


def test_a_rewrite_that_stands_for_expired_changes_too_is_none() -> None:
    """Compared with the snapshot before it rows were added, and readers of increments skip a `replace`."""
    files = [TrackedFile(1, 1, None, 1), TrackedFile(2, 2, 4, 1), TrackedFile(3, 4, None, 1)]
    rewrite = f"rewrite_delete:{TABLE_ID}"
    assert [s.is_rewrite for s in build_history(make_state([snapshot(1), snapshot(4, rewrite)]), files, {}).steps] == [False, False]
    assert [s.is_rewrite for s in build_history(make_state([snapshot(1), snapshot(2), snapshot(4, rewrite)]), files, {}).steps][-1]
    partial = {1: visibility({0: 2}, {})}
    flush = f"inline_flush:{TABLE_ID}"
    assert [s.is_rewrite for s in build_history(make_state([snapshot(1), snapshot(4, flush)]), files[:1], partial).steps] == [False, False]
    assert [s.is_rewrite for s in build_history(make_state([snapshot(2), snapshot(4, flush)]), files[:1], partial).steps] == [False, True]


@example([1_074_376_126_919], 0, 0)
@given(
    st.lists(st.integers(0, 2_000_000_000_000), min_size=1, max_size=20),
    st.integers(0, 1_800_000_000_000),
    st.sampled_from([0, 1, 999]),
)
def test_times_are_exact_and_never_go_back(times_ms: list[int], after_ms: int, micros: int) -> None:
    """Milliseconds, rounded down; a commit that began before its predecessor has the time of that one."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rows = [snapshot(i, time=epoch + timedelta(milliseconds=ms, microseconds=micros)) for i, ms in enumerate(times_ms, 1)]
    found = [step.timestamp_ms for step in build_history(make_state(rows), [], {}, after_ms).steps]
    assert found == [max(after_ms, *times_ms[: i + 1]) for i in range(len(times_ms))]


def data_file(count: int, size: int = 100) -> DataFile:
    """A data file of so many rows."""
    return DataFile(0, f"s3://b/{count}.parquet", "PARQUET", (), count, size)


def delete_file(count: int, file_format: str = "PARQUET") -> DataFile:
    """A delete file of so many positions."""
    return DataFile(1, f"s3://b/{count}.deletes", file_format, (), count, 10)


def tally(*changes: tuple[int, DataFile]) -> FileTally:
    """The count of some files added or deleted."""
    counted = FileTally()
    for status, file in changes:
        counted.count(status, file)
    return counted


@pytest.mark.parametrize(
    ("added", "removed", "is_rewrite", "expected"),
    [
        pytest.param([data_file(3)], [], False, "append", id="insert"),
        pytest.param([delete_file(1)], [], False, "delete", id="delete rows"),
        pytest.param([delete_file(2)], [delete_file(1)], False, "delete", id="delete more rows"),
        pytest.param([], [data_file(3)], False, "delete", id="delete a file"),
        pytest.param([], [data_file(3), delete_file(1)], False, "delete", id="truncate"),
        pytest.param([data_file(1), delete_file(1)], [], False, "overwrite", id="update"),
        pytest.param([data_file(1)], [data_file(1)], False, "overwrite", id="replace rows"),
        pytest.param([], [delete_file(1)], False, "overwrite", id="hidden rows appear"),
        pytest.param([delete_file(1)], [delete_file(3)], False, "overwrite", id="some hidden rows appear"),
        pytest.param([data_file(6)], [data_file(3), data_file(4), delete_file(1)], True, "replace", id="rewrite"),
        pytest.param([], [], False, "replace", id="nothing"),
    ],
)
def test_operations(added: list[DataFile], removed: list[DataFile], is_rewrite: bool, expected: str) -> None:
    """Iceberg's word for what a snapshot did."""
    changes = tally(*((ADDED, file) for file in added), *((DELETED, file) for file in removed))
    summary, _ = summarize(
        SnapshotStep(7, 0, is_rewrite), changes, Totals(records=9, data_files=9, delete_files=9, position_deletes=9, files_size=9)
    )
    assert (summary["operation"], summary["ducklake.snapshot-id"]) == (expected, "7")


def test_a_summary_counts_what_changed_and_what_is_there() -> None:
    """Strings; zero changes are left out, zero totals are not; deletion vectors are told apart."""
    before = Totals(records=10, data_files=2, delete_files=1, position_deletes=4, files_size=210)
    changes = tally((ADDED, data_file(5)), (ADDED, delete_file(2, "PUFFIN")), (DELETED, delete_file(4)))
    summary, after = summarize(SnapshotStep(7, 0), changes, before)
    assert summary == {
        "operation": "overwrite",
        "ducklake.snapshot-id": "7",
        "added-data-files": "1",
        "added-records": "5",
        "added-delete-files": "1",
        "added-dvs": "1",
        "added-position-deletes": "2",
        "added-files-size": "110",
        "removed-delete-files": "1",
        "removed-position-delete-files": "1",
        "removed-position-deletes": "4",
        "removed-files-size": "10",
        "total-records": "15",
        "total-data-files": "3",
        "total-delete-files": "1",
        "total-position-deletes": "2",
        "total-equality-deletes": "0",
        "total-files-size": "310",
    }
    assert (after.records, after.data_files, after.files_size) == (15, 3, 310)


@given(st.lists(st.tuples(st.sampled_from([ADDED, DELETED]), st.integers(0, 9), st.sampled_from([0, 1])), max_size=9))
def test_totals_are_the_sum_of_all_changes(events: list[tuple[int, int, int]]) -> None:
    """What is added and taken away again leaves the totals as they were."""
    changes = [(status, data_file(count) if content == 0 else delete_file(count)) for status, count, content in events]
    back = [(DELETED if status == ADDED else ADDED, file) for status, file in changes]
    _, there = summarize(SnapshotStep(1, 0), tally(*changes), Totals())
    _, again = summarize(SnapshotStep(2, 0), tally(*back), there)
    assert (again.records, again.data_files, again.delete_files, again.position_deletes, again.files_size) == (0, 0, 0, 0, 0)
