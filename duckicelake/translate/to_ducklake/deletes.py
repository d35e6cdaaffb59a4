"""Deleted positions: the sets that a commit puts together before DuckLake keeps them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from duckicelake.errors import BadRequest
from duckicelake.lake.rows import InlinedDeleteRow
from duckicelake.translate.visibility import DeletedRows, Longs


def unite(parts: Iterable[Longs]) -> Longs:
    """Return all positions of these sets, ascending, each once."""
    found = list(parts)
    return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)


def check_positions(path: str, positions: Longs, record_count: int) -> None:
    """Raise BadRequest when a position lies outside a file."""
    if len(positions) and (positions[0] < 0 or positions[-1] >= record_count):
        raise BadRequest(f"A delete file names row {positions[-1]} of {path!r}, which has {record_count} rows.")


def has_returned(before: Longs, after: Longs) -> bool:
    """Tell whether a row that was deleted before is not any more."""
    return len(np.setdiff1d(before, after)) > 0


def is_same(before: Longs, after: Longs) -> bool:
    """Tell whether two sets have the same positions."""
    return np.array_equal(before, after)


@dataclass(frozen=True, slots=True)
class DatedDeletes:
    """Deleted positions, ascending, and the lake snapshot at which each was deleted."""

    positions: Longs
    snapshot_ids: Longs


def date_deletes(old: DeletedRows | None, inlined: Sequence[InlinedDeleteRow]) -> DatedDeletes:
    """Return what a delete file and inlined deletes say together of one data file; the earliest date of a position counts."""
    dated: dict[int, int] = {row.row_id: row.begin_snapshot for row in inlined}
    if old is not None:
        ids = np.full(len(old.positions), old.row.begin_snapshot) if old.snapshot_ids is None else old.snapshot_ids
        for position, snapshot_id in zip(old.positions.tolist(), np.maximum(ids, old.row.begin_snapshot).tolist(), strict=True):
            dated[position] = min(snapshot_id, dated.get(position, snapshot_id))
    positions = np.array(sorted(dated), dtype=np.int64)
    return DatedDeletes(positions, np.array([dated[position] for position in positions.tolist()], dtype=np.int64))


def choose_rows(path: str, positions: Longs, rows: Sequence[tuple[int, int | None]]) -> list[int]:
    """Return the ids of the live rows at these positions of an inlined batch: (row id, lake snapshot it ended at) by position.

    Raises: BadRequest: a position is none of the batch, or a dead row would come back
    """
    check_positions(path, positions, len(rows))
    marked = set(positions.tolist())
    if any(ended is not None and place not in marked for place, (_, ended) in enumerate(rows)):
        raise BadRequest(f"The commit brings deleted rows of {path!r} back, which is not taken yet; refresh and delete again.")
    return [row_id for place, (row_id, ended) in enumerate(rows) if ended is None and place in marked]
