"""Which rows of a file are visible at which lake snapshot: one rule for every way DuckLake removes rows.

The row at some position of a file is visible at lake snapshot n when `born <= n < died`. Positions that are not visible
while their file is live are the deleted positions of that snapshot. Delete files, inlined deletes, inlined rows deleted
later and files rewritten from several snapshots all come down to this.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from duckicelake.lake.rows import DeleteFileRow, InlinedDeleteRow, InlinedTable

FOREVER = int(np.iinfo(np.int64).max)
KEYS_PER_SNAPSHOT = 2**32

Longs = NDArray[np.int64]

FileKey = int
"""A `data_file_id`, or a negative number for a file derived from inlined rows."""


@dataclass(frozen=True, slots=True)
class TrackedFile:
    """One file of rows and the span of lake snapshots in which it is read."""

    key: FileKey
    begin_snapshot: int
    end_snapshot: int | None
    record_count: int


@dataclass(frozen=True, slots=True)
class Visibility:
    """The positions of one file that are not always visible: ascending, with their lake snapshots."""

    positions: Longs
    born: Longs
    died: Longs

    def deleted_at(self, lake_snapshot_id: int) -> Longs:
        """Return the deleted positions of a lake snapshot, ascending."""
        return self.positions[(self.died <= lake_snapshot_id) | (self.born > lake_snapshot_id)]

    def changes(self) -> Longs:
        """Return the lake snapshots at which the deleted positions may change, ascending."""
        ids = np.unique(np.concatenate([self.born, self.died]))
        return ids[(ids > 0) & (ids < FOREVER)]


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The content of one DuckLake delete file: positions, each with its lake snapshot when the file embeds it."""

    row: DeleteFileRow
    positions: Longs
    snapshot_ids: Longs | None


def to_visibility(
    keys: Iterable[FileKey], deleted: Iterable[DeletedRows], inlined: Iterable[InlinedDeleteRow]
) -> dict[FileKey, Visibility]:
    """Return the visibility of every one of these data files that has deletes.

    A position of a cumulative delete file counts from its embedded snapshot on, never before the file itself.
    """
    known = set(keys)
    parts: dict[FileKey, list[tuple[Longs, Longs]]] = defaultdict(list)
    for rows in deleted:
        since = np.full(len(rows.positions), rows.row.begin_snapshot, dtype=np.int64)
        if rows.snapshot_ids is not None:
            since = np.maximum(since, rows.snapshot_ids)
        parts[rows.row.data_file_id].append((rows.positions, since))
    for row in inlined:
        parts[row.file_id].append((np.array([row.row_id]), np.array([row.begin_snapshot])))
    return {key: _merge(found) for key, found in parts.items() if key in known}


def _merge(parts: Sequence[tuple[Longs, Longs]]) -> Visibility:
    positions = np.concatenate([part[0] for part in parts]).astype(np.int64)
    since = np.concatenate([part[1] for part in parts]).astype(np.int64)
    order = np.lexsort((since, positions))
    unique, first = np.unique(positions[order], return_index=True)
    return Visibility(unique, np.zeros(len(unique), dtype=np.int64), since[order][first])


@dataclass(frozen=True, slots=True)
class InlinedFile:
    """The rows inlined at one lake snapshot in one inlined table: what one derived file holds, in order of row id."""

    file: TrackedFile
    table: InlinedTable


def track_inlined(tables: Iterable[InlinedTable]) -> tuple[list[InlinedFile], dict[FileKey, Visibility]]:
    """Return a derived file per inlining lake snapshot, ending when its last row dies, and the deletes before that."""
    files: list[InlinedFile] = []
    visibility: dict[FileKey, Visibility] = {}
    for table in tables:
        for begin, indexes in _group_by_begin(table).items():
            key = -(begin * KEYS_PER_SNAPSHOT + table.schema_version)
            ends = [table.rows[index][2] for index in indexes]
            died = np.array([end if isinstance(end, int) else FOREVER for end in ends], dtype=np.int64)
            last = int(died.max())
            file = TrackedFile(key, begin, None if last == FOREVER else last, len(indexes))
            files.append(InlinedFile(file, table))
            mortal = np.flatnonzero(died < FOREVER).astype(np.int64)
            if len(mortal):
                visibility[key] = Visibility(mortal, np.zeros(len(mortal), dtype=np.int64), died[mortal])
    return files, visibility


def _group_by_begin(table: InlinedTable) -> Mapping[int, list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for index, row in enumerate(table.rows):
        assert isinstance(row[1], int)
        groups[row[1]].append(index)
    return groups


def track_partial(begin_snapshot: int, row_snapshot_ids: Longs, deletes: Visibility | None) -> Visibility:
    """Return the visibility of a file that flush or merge wrote from rows of several lake snapshots.

    Units: `row_snapshot_ids` are the lake snapshots embedded in the file, one per position
    """
    died = np.full(len(row_snapshot_ids), FOREVER, dtype=np.int64)
    if deletes is not None:
        died[deletes.positions] = deletes.died
    born = np.where(row_snapshot_ids > begin_snapshot, row_snapshot_ids, 0)
    mortal = np.flatnonzero((born > 0) | (died < FOREVER)).astype(np.int64)
    return Visibility(mortal, born[mortal], died[mortal])
