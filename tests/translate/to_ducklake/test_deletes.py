"""Deleted positions before DuckLake keeps them."""

from typing import Any

import numpy as np
import pytest

from duckicelake.errors import BadRequest
from duckicelake.lake.rows import DeleteFileRow, InlinedDeleteRow
from duckicelake.translate.to_ducklake.deletes import check_positions, choose_rows, date_deletes, has_restored_rows, merge_positions
from duckicelake.translate.visibility import DeletedRows, Longs


def longs(*numbers: int) -> Longs:
    """Positions."""
    return np.array(numbers, dtype=np.int64)


def old(begin: int, positions: Longs, snapshot_ids: Longs | None = None) -> DeletedRows:
    """A delete file's content."""
    return DeletedRows(DeleteFileRow(1, 2, begin, None, "p", False, "parquet", len(positions), 1), positions, snapshot_ids)


def test_sets_are_united() -> None:
    """Ascending, each position once."""
    assert merge_positions([longs(5, 1), longs(1, 3)]).tolist() == [1, 3, 5]
    assert merge_positions([]).tolist() == []


@pytest.mark.parametrize("positions", [longs(0, 10), longs(-1, 3)])
def test_positions_lie_in_their_file(positions: Longs) -> None:
    """Of ten rows the last is 9."""
    with pytest.raises(BadRequest, match="rows"):
        check_positions("f", positions, 10)
    check_positions("f", longs(0, 9), 10)


def test_rows_that_come_back_are_seen() -> None:
    """DuckLake can only say it with a file again."""
    assert not has_restored_rows(longs(1), longs(1, 2))
    assert has_restored_rows(longs(1, 2), longs(2, 3))


@pytest.mark.parametrize(
    ("found", "inlined", "expected"),
    [
        pytest.param(None, {7: 6}, {7: 6}, id="inlined alone"),
        pytest.param(old(5, longs(1, 2)), {7: 6}, {1: 5, 2: 5, 7: 6}, id="beside a file"),
        pytest.param(old(5, longs(1, 2), longs(5, 8)), {7: 6}, {1: 5, 2: 8, 7: 6}, id="beside a file with dates"),
        pytest.param(old(5, longs(1), longs(3)), {1: 4}, {1: 4}, id="never before its file"),
    ],
)
def test_deletes_keep_their_dates(found: DeletedRows | None, inlined: dict[int, int], expected: dict[int, int]) -> None:
    """Each position counts from the lake snapshot that deleted it first."""
    dated = date_deletes(found, [InlinedDeleteRow(2, position, begin) for position, begin in inlined.items()])
    pairs: list[Any] = list(zip(dated.positions.tolist(), dated.snapshot_ids.tolist(), strict=True))
    assert pairs == sorted(expected.items())


def test_inlined_rows_are_chosen_by_position() -> None:
    """Dead ones stay dead; a position outside the batch, or one that would wake a dead row, is refused."""
    rows: list[tuple[int, int | None]] = [(40, None), (41, 5), (42, None)]
    assert choose_rows("f", longs(1, 2), rows) == [42]
    for positions in (longs(1, 3), longs(0)):
        with pytest.raises(BadRequest):
            choose_rows("f", positions, rows)
