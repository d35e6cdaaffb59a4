"""The visibility of rows at lake snapshots: one rule for all ways in which DuckLake removes rows.

The row at a position of a file is visible at lake snapshot n when `born <= n < died`. Positions that are not visible
while their file is live are the deleted positions of that snapshot. Delete files, inlined deletes, deleted inlined rows
and files rewritten from several snapshots are all converted to this form.

`catalog.row_files` builds it from rows and delete files of a load; `snapshot_building` and `translate.history` compare it between lake
snapshots. No I/O. `born` and `died` are lake snapshot ids; FOREVER means still visible.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duckicelake.errors import Unsupported
from duckicelake.lake.rows import (
    DeleteFileRow,
    FileSpan,
    InlinedDeleteRow,
    InlinedTable,
    PartialFileRow,
    RepeatedFileRow,
    SchemaVersionRow,
)
from duckicelake.values import tuple_maker

FOREVER = int(np.iinfo(np.int64).max)
NEVER_REWRITTEN = 0

Longs = NDArray[np.int64]

FileKey = int
"""A `data_file_id`, or a negative number for a derived file of rows."""

Identity = tuple[int, int, bytes]
"""Lake snapshot, schema version and row ids of some rows, which identify them in the table."""


class TrackedFile(NamedTuple):
    """A file of rows and the span of lake snapshots in which it is live."""

    key: FileKey
    begin_snapshot: int
    end_snapshot: int | None
    record_count: int


def track_files(spans: Iterable[FileSpan]) -> list[TrackedFile]:
    """Return data files by their rows, in the same order."""
    return list(map(tuple_maker(TrackedFile), spans))


@dataclass(frozen=True, slots=True)
class Visibility:
    """The positions of one file that are not always visible: ascending, with their lake snapshots."""

    positions: Longs
    born: Longs
    died: Longs

    def deleted_at(self, lake_snapshot_id: int) -> Longs:
        """Return the deleted positions of a lake snapshot, ascending."""
        return self.positions[(self.died <= lake_snapshot_id) | (self.born > lake_snapshot_id)]

    def until(self, lake_snapshot_id: int) -> tuple[bytes, bytes, bytes]:
        """Return the visibility as it was known at a lake snapshot, for comparisons."""
        born = np.where(self.born <= lake_snapshot_id, self.born, 0)
        died = np.where(self.died <= lake_snapshot_id, self.died, FOREVER)
        is_known = (born > 0) | (died < FOREVER)
        return self.positions[is_known].tobytes(), born[is_known].tobytes(), died[is_known].tobytes()

    def changes(self) -> Longs:
        """Return the lake snapshots at which the deleted positions may change, ascending."""
        ids = np.unique(np.concatenate([self.born, self.died]))
        return ids[(ids > 0) & (ids < FOREVER)]


@dataclass(frozen=True, slots=True)
class DeletedRows:
    """The content of one DuckLake delete file: positions, each with its lake snapshot if the file embeds it."""

    row: DeleteFileRow
    positions: Longs
    snapshot_ids: Longs | None


def to_visibility(
    keys: Iterable[FileKey], deleted: Iterable[DeletedRows], inlined: Iterable[InlinedDeleteRow]
) -> dict[FileKey, Visibility]:
    """Return the visibility of those of these data files that have deletes.

    A position of a cumulative delete file counts from its embedded snapshot on, but never before the file itself.
    """
    wanted = set(keys)
    parts: dict[FileKey, list[tuple[Longs, Longs]]] = defaultdict(list)
    for rows in deleted:
        since = np.full(len(rows.positions), rows.row.begin_snapshot, dtype=np.int64)
        if rows.snapshot_ids is not None:
            since = np.maximum(since, rows.snapshot_ids)
        parts[rows.row.data_file_id].append((rows.positions, since))
    for row in inlined:
        parts[row.file_id].append((np.array([row.row_id]), np.array([row.begin_snapshot])))
    return {key: _merge(key_parts) for key, key_parts in parts.items() if key in wanted}


def _merge(parts: Sequence[tuple[Longs, Longs]]) -> Visibility:
    positions = np.concatenate([part[0] for part in parts]).astype(np.int64)
    since = np.concatenate([part[1] for part in parts]).astype(np.int64)
    order = np.lexsort((since, positions))
    unique, first = np.unique(positions[order], return_index=True)
    return Visibility(unique, np.zeros(len(unique), dtype=np.int64), since[order][first])


@dataclass(frozen=True, slots=True)
class InlinedRowsFile:
    """The rows inlined at one lake snapshot in one inlined table, ordered by row id: the content of one derived file."""

    file: TrackedFile
    table: InlinedTable
    row_ids: Longs

    def identity(self) -> Identity:
        """Return the identity of the rows, which determines their values."""
        return self.file.begin_snapshot, self.table.schema_version, self.row_ids.tobytes()


def format_key(begin_snapshot: int, schema_version: int, written_at: int) -> FileKey:
    """Return the key of a derived file, which no other rows of the table ever have."""
    return -((((begin_snapshot << 48) + schema_version) << 48) + written_at + 1)


def track_inlined(tables: Iterable[InlinedTable]) -> tuple[list[InlinedRowsFile], dict[FileKey, Visibility]]:
    """Return a derived file per inlining lake snapshot, which ends when its last row is deleted, and the earlier deletes."""
    files: list[InlinedRowsFile] = []
    visibility: dict[FileKey, Visibility] = {}
    for table in tables:
        for begin, indexes in _group_by_begin(table).items():
            key = format_key(begin, table.schema_version, NEVER_REWRITTEN)
            ends = [table.rows[index][2] for index in indexes]
            died = np.array([end if isinstance(end, int) else FOREVER for end in ends], dtype=np.int64)
            last = int(died.max())
            file = TrackedFile(key, begin, None if last == FOREVER else last, len(indexes))
            files.append(InlinedRowsFile(file, table, _longs(table.rows[index][0] for index in indexes)))
            deleted = np.flatnonzero(died < FOREVER).astype(np.int64)
            if len(deleted):
                visibility[key] = Visibility(deleted, np.zeros(len(deleted), dtype=np.int64), died[deleted])
    return files, visibility


def _longs(numbers: Iterable[object]) -> Longs:
    return np.array(list(numbers), dtype=np.int64)


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
    changing = np.flatnonzero((born > 0) | (died < FOREVER)).astype(np.int64)
    return Visibility(changing, born[changing], died[changing])


@dataclass(frozen=True, slots=True)
class RewrittenFile:
    """A file that flush or merge wrote at a lake snapshot; `snapshot_ids` and `row_ids` are embedded, one per position."""

    row: PartialFileRow
    written_at: int
    snapshot_ids: Longs
    row_ids: Longs


@dataclass(frozen=True, slots=True)
class RestoredFile:
    """The rows of one lake snapshot as they were before flush or merge, ordered by row id: the content of one derived file.

    Units: `data_file_ids` and `positions` give the current place of each row; `version` is the schema version it was written with
    """

    file: TrackedFile
    version: SchemaVersionRow
    row_ids: Longs
    data_file_ids: Longs
    positions: Longs

    def identity(self) -> Identity:
        """Return the identity of the rows: a version of a row never changes, even if DuckLake moves it to another file."""
        return self.file.begin_snapshot, self.version.schema_version, self.row_ids.tobytes()


def get_schema_version(versions: Sequence[SchemaVersionRow], lake_snapshot_id: int) -> SchemaVersionRow:
    """Return the schema version with which a lake snapshot writes rows, or the first one if none is that old."""
    index = bisect_right(versions, lake_snapshot_id, key=lambda row: row.begin_snapshot)
    return versions[max(0, index - 1)]


def track_restored(
    files: Sequence[RewrittenFile], versions: Sequence[SchemaVersionRow], deletes: Mapping[FileKey, Visibility]
) -> tuple[list[RestoredFile], dict[FileKey, Visibility]]:
    """Return the files that rewritten ones replaced, each ending with its last row or at the rewrite, and the earlier deletes."""
    restored: list[RestoredFile] = []
    visibility: dict[FileKey, Visibility] = {}
    for written_at in sorted({file.written_at for file in files}):
        group = [file for file in files if file.written_at == written_at]
        died = np.concatenate([_compute_deaths(file, deletes.get(file.row.data_file_id)) for file in group])
        for restored_file, part in _split_by_begin(group, versions):
            ends = died[part]
            deleted = np.flatnonzero(ends < FOREVER).astype(np.int64)
            end = int(ends.max()) if len(deleted) == len(ends) else written_at
            restored.append(replace(restored_file, file=restored_file.file._replace(end_snapshot=end)))
            if len(deleted):
                visibility[restored_file.file.key] = Visibility(deleted, np.zeros(len(deleted), dtype=np.int64), ends[deleted])
    return restored, visibility


def _compute_deaths(file: RewrittenFile, deletes: Visibility | None) -> Longs:
    died = np.full(len(file.row_ids), FOREVER, dtype=np.int64)
    if deletes is not None:
        died[deletes.positions] = deletes.died
    died[died >= file.written_at] = FOREVER
    return died


def _split_by_begin(group: Sequence[RewrittenFile], versions: Sequence[SchemaVersionRow]) -> Iterator[tuple[RestoredFile, Longs]]:
    begins = np.concatenate([file.snapshot_ids for file in group])
    row_ids = np.concatenate([file.row_ids for file in group])
    data_file_ids = np.concatenate([np.full(len(file.row_ids), file.row.data_file_id, dtype=np.int64) for file in group])
    positions = np.concatenate([np.arange(len(file.row_ids), dtype=np.int64) for file in group])
    order = np.lexsort((row_ids, begins))
    for part in np.split(order, np.flatnonzero(np.diff(begins[order])) + 1):
        begin = int(begins[part[0]])
        version = get_schema_version(versions, begin)
        key = format_key(begin, version.schema_version, group[0].written_at)
        yield RestoredFile(TrackedFile(key, begin, None, len(part)), version, row_ids[part], data_file_ids[part], positions[part]), part


def check_repeated(files: Sequence[RepeatedFileRow], deleted_from: Container[FileKey]) -> None:
    """Refuse a file that is live twice at the same time if rows of it are deleted, because Iceberg deletes rows by path."""
    pairs = chain.from_iterable(combinations(group, 2) for _, group in groupby(files, key=lambda row: row.path))
    for first, second in pairs:
        overlap = second.begin_snapshot < (first.end_snapshot or FOREVER)
        if overlap and (first.data_file_id in deleted_from or second.data_file_id in deleted_from):
            raise Unsupported(
                f"The file {first.path!r} is in the table twice and has deleted rows, which Iceberg readers would miss in both. "
                "Copy the table with CREATE TABLE … AS SELECT."
            )
