"""Which rows of a file are visible when, against reading row by row."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.lake.rows import DeleteFileRow, InlinedDeleteRow, InlinedTable, PartialFileRow, SchemaVersionRow
from duckicelake.translate.visibility import (
    DeletedRows,
    Longs,
    RewrittenFile,
    Visibility,
    to_visibility,
    track_inlined,
    track_partial,
    track_restored,
)
from tests.translate.support.states import is_live, visibility

HORIZON = 12
REWRITTEN = 20
VERSIONS = [SchemaVersionRow(1, 3), SchemaVersionRow(7, 8)]


def longs(*numbers: int) -> Longs:
    """Numbers as an array."""
    return np.array(numbers, dtype=np.int64)


def delete_row(data_file_id: int, begin: int, count: int) -> DeleteFileRow:
    """A delete file of a data file."""
    return DeleteFileRow(100 + begin, data_file_id, begin, None, "x", True, "parquet", count, 10)


def told(found: Visibility) -> dict[int, tuple[int, int]]:
    """Positions with their first and last lake snapshot."""
    return {int(p): (int(b), int(d)) for p, b, d in zip(found.positions, found.born, found.died, strict=True)}


def test_a_delete_file_counts_from_its_own_snapshot() -> None:
    """Without embedded lake snapshots all positions die together."""
    found = to_visibility([1], [DeletedRows(delete_row(1, 5, 2), longs(3, 8), None)], [])
    assert told(found[1]) == {3: (0, 5), 8: (0, 5)}


def test_a_cumulative_delete_file_embeds_when_each_row_died() -> None:
    """Never before the file itself: a retried commit embeds the lake snapshot it had hoped for."""
    found = to_visibility([1], [DeletedRows(delete_row(1, 5, 3), longs(3, 8, 9), longs(5, 7, 4))], [])
    assert told(found[1]) == {3: (0, 5), 8: (0, 7), 9: (0, 5)}


def test_the_first_of_several_deletes_of_a_row_counts() -> None:
    """Delete files that take turns, and inlined deletes, are one set of positions, ascending."""
    deleted = [DeletedRows(delete_row(1, 9, 2), longs(2, 6), None), DeletedRows(delete_row(1, 4, 1), longs(6), None)]
    found = to_visibility([1], deleted, [InlinedDeleteRow(1, 2, 11), InlinedDeleteRow(1, 0, 3)])
    assert told(found[1]) == {0: (0, 3), 2: (0, 9), 6: (0, 4)}
    assert found[1].positions.tolist() == [0, 2, 6]


def test_deletes_of_files_that_are_gone_are_nobodys() -> None:
    """Compaction leaves rows behind that name no file any more."""
    assert to_visibility([1], [DeletedRows(delete_row(2, 5, 1), longs(0), None)], [InlinedDeleteRow(3, 0, 3)]) == {}


deaths = st.dictionaries(st.integers(0, 9), st.integers(1, HORIZON), max_size=10)


@given(deaths, st.dictionaries(st.integers(0, 9), st.integers(1, HORIZON), max_size=10))
def test_deleted_positions_are_those_not_alive(died: dict[int, int], born: dict[int, int]) -> None:
    """At every lake snapshot; and they change only where `changes` says so."""
    found = visibility(born, died)
    before: list[int] = found.deleted_at(0).tolist()
    for now in range(1, HORIZON + 2):
        expected = [p for p in sorted(died.keys() | born.keys()) if not born.get(p, 0) <= now < died.get(p, HORIZON + 9)]
        deleted = found.deleted_at(now).tolist()
        assert deleted == expected
        assert deleted == before or now in found.changes()
        before = deleted


@given(st.lists(st.integers(1, HORIZON), min_size=1, max_size=10), deaths, st.booleans())
def test_a_rewritten_file_shows_each_row_from_its_own_snapshot_on(ids: list[int], died: dict[int, int], has_deletes: bool) -> None:
    """Rows newer than the lake snapshot are hidden, whatever else was deleted."""
    died = {p: when for p, when in died.items() if p < len(ids)} if has_deletes else {}
    begin = min(ids)
    found = track_partial(begin, longs(*ids), visibility({}, died) if died else None)
    for now in range(begin, HORIZON + 2):
        alive = [p for p, born in enumerate(ids) if born <= now < died.get(p, HORIZON + 9)]
        assert sorted(set(range(len(ids))) - set(found.deleted_at(now).tolist())) == alive


inlined_rows = st.lists(st.tuples(st.integers(1, HORIZON), st.none() | st.integers(0, 5)), max_size=12)


@given(st.lists(inlined_rows, min_size=1, max_size=3))
def test_inlined_rows_are_seen_while_they_live(versions: list[list[tuple[int, int | None]]]) -> None:
    """One derived file per inlining lake snapshot and schema version; rows keep their order, and each is seen in its time."""
    tables: list[InlinedTable] = []
    for number, rows in enumerate(versions):
        numbered = [(i, begin, None if age is None else begin + age, f"{number}.{i}") for i, (begin, age) in enumerate(rows)]
        tables.append(InlinedTable(number, 1, numbered))
    files, seen = track_inlined(tables)
    assert len({item.file.key for item in files}) == len(files)
    assert all(item.file.key < 0 for item in files)
    batches: dict[int, list[object]] = defaultdict(list)
    for item in files:
        batches[item.file.key] = [row[3] for row in item.table.rows if row[1] == item.file.begin_snapshot]
        assert item.file.record_count == len(batches[item.file.key])
    for now in range(1, HORIZON + 7):
        expected = sorted(str(row[3]) for table in tables for row in table.rows if row_is_live(row, now))
        shown: list[str] = []
        for item in files:
            if is_live(item.file, now):
                deleted = set(seen[item.file.key].deleted_at(now).tolist()) if item.file.key in seen else set[int]()
                shown += [str(text) for p, text in enumerate(batches[item.file.key]) if p not in deleted]
        assert sorted(shown) == expected


stored_rows = st.lists(st.tuples(st.integers(0, 2), st.integers(1, HORIZON), st.none() | st.integers(0, 5)), min_size=1, max_size=12)


@given(stored_rows)
def test_restored_rows_are_seen_while_they_live_and_until_the_rewriting(rows: list[tuple[int, int, int | None]]) -> None:
    """However they are spread over rewritten files: each in its time, in order of row id, and none from the rewriting on."""
    files: list[RewrittenFile] = []
    deletes: dict[int, Visibility] = {}
    for number in range(3):
        mine = [(row_id, begin, age) for row_id, (where, begin, age) in enumerate(rows) if where == number][::-1]
        if mine:
            row = PartialFileRow(number, min(begin for _, begin, _ in mine), "f", True, len(mine), 10, None, REWRITTEN, None)
            files.append(RewrittenFile(row, REWRITTEN, longs(*(begin for _, begin, _ in mine)), longs(*(row_id for row_id, _, _ in mine))))
            deletes[number] = visibility({}, {p: begin + age for p, (_, begin, age) in enumerate(mine) if age is not None})
    restored, seen = track_restored(files, VERSIONS, deletes)
    where = {(file.row.data_file_id, p): row_id for file in files for p, row_id in enumerate(file.row_ids.tolist())}
    for item in restored:
        assert item.row_ids.tolist() == sorted(item.row_ids.tolist())
        assert [where[place] for place in zip(item.data_file_ids.tolist(), item.positions.tolist(), strict=True)] == item.row_ids.tolist()
        assert item.version == (VERSIONS[0] if item.file.begin_snapshot < VERSIONS[1].begin_snapshot else VERSIONS[1])
    for now in range(1, REWRITTEN + 2):
        alive = [i for i, (_, begin, age) in enumerate(rows) if begin <= now < (REWRITTEN if age is None else begin + age)]
        shown: list[int] = []
        for item in (item for item in restored if is_live(item.file, now)):
            deleted = set(seen[item.file.key].deleted_at(now).tolist()) if item.file.key in seen else set[int]()
            shown += [row_id for p, row_id in enumerate(item.row_ids.tolist()) if p not in deleted]
        assert sorted(shown) == (alive if now < REWRITTEN else [])


def test_rows_rewritten_twice_are_other_files() -> None:
    """A merge takes some rows of an insert and leaves the others where the flush put them: neither is taken for the other."""
    rows = [PartialFileRow(number, 2, "f", True, 1, 10, None, None, None) for number in (1, 2)]
    early, late = (RewrittenFile(row, at, longs(2), longs(row.data_file_id)) for row, at in zip(rows, (5, 9), strict=True))
    [first, second], _ = track_restored([early, late], VERSIONS, {})
    assert first.file.key != second.file.key
    assert first.identity() != second.identity()
    assert (first.file.end_snapshot, second.file.end_snapshot) == (5, 9)
    [inlined], _ = track_inlined([InlinedTable(VERSIONS[0].schema_version, 1, [(1, 2, None, "a")])])
    assert inlined.identity() == first.identity()
    assert inlined.file.key != first.file.key


def row_is_live(row: tuple[object, ...], now: int) -> bool:
    """Whether an inlined row is seen."""
    _, begin, end, _ = row
    assert isinstance(begin, int)
    return begin <= now and (not isinstance(end, int) or now < end)


@pytest.mark.parametrize("flushed", [False, True])
def test_a_file_derived_from_inlined_rows_keeps_its_key(flushed: bool) -> None:
    """What has been derived once is found again, whatever became of the rows of other lake snapshots."""
    older = InlinedTable(3, 1, [] if flushed else [(0, 2, None, "a")])
    newer = InlinedTable(4, 1, [(1, 2, None, "b"), (2, 3, None, "c")])
    keys = {item.file.begin_snapshot: item.file.key for item in track_inlined([older, newer])[0] if item.table is newer}
    again = {item.file.begin_snapshot: item.file.key for item in track_inlined([newer])[0]}
    assert keys == again
