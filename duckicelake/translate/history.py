"""The changes that each lake snapshot made to a table's files, computed from the rows alone."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np

from duckicelake.lake.changes import INSERT_KINDS, REWRITE_KINDS, kinds_of_table
from duckicelake.lake.rows import TableState
from duckicelake.translate.visibility import FileKey, Longs, TrackedFile, Visibility

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
