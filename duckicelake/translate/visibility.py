"""The visibility of rows at lake snapshots, one rule for all ways in which DuckLake removes rows, and the changes of each lake snapshot.

The row at a position of a file is visible at lake snapshot n when `born <= n < died`. Positions that are not visible
while their file is live are the deleted positions of that snapshot. Delete files, inlined deletes, deleted inlined rows
and files rewritten from several snapshots are all converted to this form. `build_history` compares it between lake snapshots.

`catalog.row_files` builds it from rows and delete files of a load or commit; `catalog.snapshot_building` reads the history. No I/O.
`born` and `died` are lake snapshot ids; FOREVER means still visible.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, combinations, groupby, pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from duckicelake.errors import Unsupported
from duckicelake.lake.changes import INSERT_KINDS, REWRITE_KINDS, kinds_of_table
from duckicelake.lake.rows import (
    DeleteFileRow,
    FileSpan,
    InlinedDeleteRow,
    InlinedTable,
    PartialFileRow,
    RepeatedFileRow,
    SchemaVersionRow,
    TableState,
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


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class SnapshotStep:
    """The changes of one published snapshot to the files, compared with the published snapshot before it.

    `deletes` names the live files whose deleted positions changed; False: the file has none any more.
    `is_combined`: it includes changes of lake snapshots that are not published. `is_root`: a client replaced the table.
    """

    snapshot_id: int
    timestamp_ms: int
    is_rewrite: bool = False
    is_combined: bool = False
    is_root: bool = False
    added: list[TrackedFile] = field(default_factory=list[TrackedFile])
    removed: list[TrackedFile] = field(default_factory=list[TrackedFile])
    deletes: dict[FileKey, bool] = field(default_factory=dict[FileKey, bool])


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The published snapshots of a table, oldest first. `base` holds the files from before the first of them."""

    base: SnapshotStep
    steps: tuple[SnapshotStep, ...]


def build_history(
    state: TableState, files: Sequence[TrackedFile], visibility: Mapping[FileKey, Visibility], after_ms: int = 0
) -> TableHistory:
    """Return the changes of every published snapshot.

    A change at an expired lake snapshot counts for the next snapshot that is left. If the table's last change has expired, its id
    stays the current snapshot, with the latest known time before it; so does a published rewrite that the rows no longer show. No
    time is before `after_ms`.
    """
    steps = _list_published_steps(state, get_last_event(files, visibility.values()), after_ms)
    base = SnapshotStep(_get_base_id(state, steps), 0)
    every = (base, *steps)
    ids = [step.snapshot_id for step in every]
    # Files of one snapshot are adjacent in `files`.
    for (begin, end), alike in groupby(files, attrgetter("begin_snapshot", "end_snapshot")):
        first = bisect_left(ids, begin)
        last = len(every) if end is None else bisect_left(ids, end)
        if first >= last:
            continue
        group_files = list(alike)
        every[first].added += group_files
        every[first].is_combined |= begin < ids[first]
        if last < len(every):
            every[last].removed += group_files
            every[last].is_combined |= end is not None and end < ids[last]
        for file in group_files if visibility else ():
            if file.key in visibility:
                _add_deletes(file.key, visibility[file.key], every, range(first, last))
    _check_rewrites(every, files, visibility)
    if state.notes.refs.roots:
        # A root that expired counts for the next snapshot that is left.
        for before, step in pairwise(every):
            step.is_root = any(before.snapshot_id < root <= step.snapshot_id for root in state.notes.refs.roots)
    return TableHistory(base, tuple(steps))


def _get_base_id(state: TableState, steps: Sequence[SnapshotStep]) -> int:
    """Return the lake snapshot that the first step is compared with.

    That is the position of an earlier read: a retried commit of DuckDB dates its deletes back, up to just after it.
    """
    if state.since >= 0:
        return state.since
    return steps[0].snapshot_id - 1 if steps else 0


def _check_rewrites(every: Sequence[SnapshotStep], files: Iterable[TrackedFile], visibility: Mapping[FileKey, Visibility]) -> None:
    """Clear `is_rewrite` of steps that add or delete rows, or include changes of expired snapshots."""
    if not any(step.is_rewrite for step in every):
        return
    ends = {file.end_snapshot for file in files if file.end_snapshot is not None}
    events = {file.begin_snapshot for file in files} | ends
    for changed in visibility.values():
        events |= set(changed.changes().tolist())
    ordered = sorted(events)
    for before, step in pairwise(every):
        step.is_rewrite &= bisect_right(ordered, before.snapshot_id) == bisect_left(ordered, step.snapshot_id)
        if step.is_rewrite:
            step.is_rewrite = _count_new_rows(before.snapshot_id, step, visibility) == 0


def _count_new_rows(before: int, step: SnapshotStep, visibility: Mapping[FileKey, Visibility]) -> int:
    """Return how many more rows a step has than the snapshot before it, from its changes alone."""

    def count_deleted(key: FileKey, lake_snapshot_id: int) -> int:
        return len(visibility[key].deleted_at(lake_snapshot_id)) if key in visibility else 0

    added = sum(file.record_count - count_deleted(file.key, step.snapshot_id) for file in step.added)
    removed = sum(file.record_count - count_deleted(file.key, before) for file in step.removed)
    remaining = step.deletes.keys() - {file.key for file in step.added}
    deleted = sum(count_deleted(key, step.snapshot_id) - count_deleted(key, before) for key in remaining)
    return added - removed - deleted


def _add_deletes(key: FileKey, visibility: Visibility, every: Sequence[SnapshotStep], span: range) -> None:
    changes = visibility.changes()
    before = np.empty(0, dtype=np.int64)
    for index in _list_due_steps(changes, every, span):
        deleted = visibility.deleted_at(every[index].snapshot_id)
        if not np.array_equal(deleted, before):
            every[index].deletes[key] = len(deleted) > 0
            every[index].is_combined |= _has_between(changes, every[index - 1].snapshot_id, every[index].snapshot_id)
        before = deleted


def _has_between(changes: Longs, after: int, before: int) -> bool:
    """Return True if one of these ascending lake snapshots lies strictly between the two."""
    return int(np.searchsorted(changes, after, side="right")) < int(np.searchsorted(changes, before))


def _list_due_steps(changes: Longs, every: Sequence[SnapshotStep], span: range) -> list[int]:
    ids = np.array([every[index].snapshot_id for index in span], dtype=np.int64)
    due = np.searchsorted(ids, changes) + span.start
    return sorted({span.start} | {int(index) for index in due if index < span.stop})


def _list_published_steps(state: TableState, last: int, latest_ms: int) -> list[SnapshotStep]:
    steps: list[SnapshotStep] = []
    for row in state.snapshots:
        # Iceberg requires ascending times in the log, but Postgres stamps a commit with the time at which its transaction began.
        latest_ms = max(latest_ms, to_ms(row.snapshot_time))
        kinds = kinds_of_table(row.changes_made, state.table.table_id)
        steps.append(SnapshotStep(row.snapshot_id, latest_ms, bool(kinds & REWRITE_KINDS) and not kinds & INSERT_KINDS))
    noted = state.notes.table.current_snapshot_id if state.notes.table else -1
    if noted > state.position.lake_snapshot_id:
        # Another server has seen a newer state than this read.
        noted = -1
    if max(last, noted) > (steps[-1].snapshot_id if steps else max(state.since, 0)):
        steps.append(SnapshotStep(max(last, noted), max(latest_ms, to_ms(state.oldest.snapshot_time)), noted > last))
    return steps


def to_ms(time: datetime) -> int:
    """Return milliseconds since 1970, rounded down; a float of seconds is not precise enough."""
    return (time - EPOCH) // timedelta(milliseconds=1)


def get_last_event(files: Iterable[TrackedFile], visibility: Iterable[Visibility]) -> int:
    """Return the newest lake snapshot at which a row of the table appeared or disappeared, or 0."""
    spans = set(map(attrgetter("begin_snapshot", "end_snapshot"), files))
    of_files = max((max(begin, end or 0) for begin, end in spans), default=0)
    return max(of_files, *(int(i) for changed in visibility for i in changed.changes()[-1:]), 0)
