"""Which files stand for the past of a table whose files were merged."""

from duckicelake.lake.read_files import MergedSpan, undo_merges
from duckicelake.lake.rows import FileSpan

FIRST = [MergedSpan(1, 1, 4, 10, 5, 6), MergedSpan(2, 3, 4, 20, 5, 6)]
"""Files 1 and 2 became file 5 at lake snapshot 4."""
SECOND = [MergedSpan(5, 1, 8, 30, 9, 11), MergedSpan(7, 6, 8, 5, 9, 11)]
"""Files 5 and 7 became file 9 at lake snapshot 8; file 10 is another table's."""


def test_a_merge_is_undone_while_all_its_files_are_known() -> None:
    """The files before it end with it, and those it wrote begin with it."""
    found = undo_merges([FileSpan(5, 1, None, 30), FileSpan(7, 6, None, 5)], FIRST)
    assert list(found.spans) == [FileSpan(1, 1, 4, 10), FileSpan(2, 3, 4, 20), FileSpan(5, 4, None, 30), FileSpan(7, 6, None, 5)]
    assert (found.replaced, found.written) == ({1, 2}, {5})


def test_merges_of_merged_files_are_undone_one_after_the_other() -> None:
    """The newest first: it brings back the files that earlier ones wrote."""
    found = undo_merges([FileSpan(9, 1, 12, 35)], [*SECOND, *FIRST])
    assert [span.data_file_id for span in found.spans] == [1, 2, 5, 7, 9]
    assert [(span.begin_snapshot, span.end_snapshot) for span in found.spans] == [(1, 4), (3, 4), (4, 8), (6, 8), (8, 12)]
    assert (found.replaced, found.written) == ({1, 2, 5, 7}, {5, 9})


def test_a_merge_of_which_a_file_was_deleted_stands_for_the_past() -> None:
    """And for the files of the merges before it: no row is there twice."""
    spans = [FileSpan(9, 1, None, 35)]
    assert undo_merges(spans, [SECOND[1], *FIRST]) == (spans, frozenset(), frozenset())
    assert undo_merges(spans, [*SECOND, FIRST[0]]).replaced == {5, 7}
    assert undo_merges(spans, ()) == (spans, frozenset(), frozenset())


def test_a_merge_whose_file_is_gone_is_no_part_of_the_past() -> None:
    """Every snapshot that showed it has expired."""
    assert undo_merges([FileSpan(20, 9, None, 3)], FIRST).replaced == frozenset()
