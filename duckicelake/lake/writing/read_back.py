"""The state of a table after a commit of simple rows, built on its cached state: read back in the transaction, or predicted.

`catalog` calls this in the commit's transaction, under the lake's lock. It only reads, and `predict_state` not even that.
Law: if nothing else has concerned the table since the cached state was read, the result equals a complete read of the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import psycopg

from duckicelake.lake.changes import DATA_KINDS, format_changes, kinds_of_table
from duckicelake.lake.damaged_rows import check_table
from duckicelake.lake.notes import SELECT_TABLE_NOTE
from duckicelake.lake.null_proofs import has_no_nulls, with_value_checks
from duckicelake.lake.read import SELECT_TAGS, fetch_queries
from duckicelake.lake.read_files import SELECT_ALIASES, SELECT_CHANGED_AT, SELECT_SNAPSHOT_NOTES, SELECT_SPANS
from duckicelake.lake.read_table import (
    RECENT_QUERIES,
    SELECT_AFFECTED_FILES,
    SELECT_HEAD,
    SELECT_NEXT_ROW_ID,
    SELECT_SNAPSHOTS,
    LastRead,
    format_table_tokens,
    select_main_snapshots,
)
from duckicelake.lake.rows import (
    ColumnStatsRow,
    DataFileRow,
    FileNote,
    FileSpan,
    HeadRow,
    Position,
    SnapshotNote,
    SnapshotRow,
    TableNote,
    TableState,
    TagRow,
)
from duckicelake.lake.writing.rows import (
    AddedRows,
    EndedTag,
    LakeStep,
    NewColumnStats,
    NewDataFile,
    NewFileNote,
    NewSnapshotNote,
    NewTag,
    RemovedTableBounds,
)
from duckicelake.lake.writing.transaction import Commit

SIMPLE_ROWS = frozenset({NewTag, EndedTag, NewDataFile, NewColumnStats, AddedRows, RemovedTableBounds, NewSnapshotNote, NewFileNote})
"""Rows that change only a table's properties, its newest files, and the notes about them."""

BACK_QUERIES = (SELECT_HEAD, SELECT_NEXT_ROW_ID, SELECT_TAGS, SELECT_TABLE_NOTE, SELECT_SPANS, *RECENT_QUERIES)


def is_simple(steps: Sequence[LakeStep]) -> bool:
    """Return True if the steps write simple rows only."""
    return all([SIMPLE_ROWS.issuperset(map(type, step.rows)) for step in steps])


def read_back(conn: psycopg.Connection, cached: TableState, since: LastRead) -> TableState | None:
    """Return a table after a commit of simple rows; None if another server numbered it meanwhile or its deletes changed."""
    table_id, after = cached.table.table_id, since.lake_snapshot_id
    tokens = format_table_tokens(table_id)
    span: dict[str, object] = {"since": after, "next_file_id": since.next_file_id, "data_file_ids": []}
    results = fetch_queries(conn, BACK_QUERIES, table_id=table_id, object_id=table_id, **span, **tokens)
    [head], notes = results.rows(HeadRow, SELECT_HEAD), results.rows(TableNote, SELECT_TABLE_NOTE)
    if notes != [cached.notes.table] or results.rows_by_query[SELECT_AFFECTED_FILES]:
        return None
    spans = results.rows(FileSpan, SELECT_SPANS)
    check_table(cached.table, spans, (), ())
    snapshots = results.rows(SnapshotRow, SELECT_SNAPSHOTS, snapshot_time=datetime.fromisoformat)
    changed_at = results.value(SELECT_CHANGED_AT)
    state = replace(
        cached,
        position=Position(head.snapshot_id, head.change_id),
        next_file_id=head.next_file_id,
        next_row_id=results.value(SELECT_NEXT_ROW_ID) or 0,
        since=after,
        tags=results.rows(TagRow, SELECT_TAGS),
        snapshots=select_main_snapshots(snapshots, cached.notes.refs),
        spans=spans,
        snapshot_notes=results.rows(SnapshotNote, SELECT_SNAPSHOT_NOTES),
        aliases=results.rows(SnapshotNote, SELECT_ALIASES),
        changed_at=None if changed_at is None else datetime.fromisoformat(changed_at),
    )
    return with_value_checks(conn, state, since.next_file_id)


@dataclass(frozen=True, slots=True)
class PredictedState:
    """The state of a table after a step, and the rows of the step's data files."""

    state: TableState
    files: Mapping[int, DataFileRow]
    stats: Mapping[int, Sequence[ColumnStatsRow]]
    notes: Mapping[int, FileNote]


def predict_state(commit: Commit, cached: TableState, step: LakeStep, since: LastRead) -> PredictedState | None:
    """Return a table's state after a step of simple rows without reading it; None if Postgres must be asked."""
    locked_check, table_id, snapshot_id = commit.locked_check, cached.table.table_id, commit.head.snapshot_id + 1
    if locked_check is None or locked_check.next_time is None or cached.name_mappings or cached.notes.refs.kept:
        return None
    tags, stats = _predict_tags(cached, step), _list_stats(step)
    files = [row for row in step.rows if isinstance(row, NewDataFile)]
    spans = [FileSpan(row.data_file_id, snapshot_id, None, row.record_count) for row in files]
    if tags is None or _needs_value_checks(cached, files, stats) or not has_no_nulls(cached, spans, stats):
        return None
    notes = [_to_snapshot_note(row, snapshot_id) for row in step.rows if isinstance(row, NewSnapshotNote)]
    snapshot = SnapshotRow(snapshot_id, locked_check.next_time, format_changes(step.changes))
    is_data_change = bool(kinds_of_table(snapshot.changes_made, table_id) & DATA_KINDS)
    check_table(cached.table, spans, (), ())
    state = replace(
        cached,
        position=Position(snapshot_id, locked_check.change_id),
        next_file_id=step.next_file_id,
        next_row_id=cached.next_row_id + sum(row.record_count for row in step.rows if isinstance(row, AddedRows)),
        since=since.lake_snapshot_id,
        tags=tags,
        snapshots=select_main_snapshots([snapshot] if is_data_change else [], cached.notes.refs),
        spans=spans,
        snapshot_notes=notes,
        aliases=notes,
        changed_at=snapshot.snapshot_time,
    )
    return PredictedState(state, {row.data_file_id: _to_data_file(row, snapshot_id) for row in files}, stats, _list_notes(step))


def _needs_value_checks(cached: TableState, files: Sequence[NewDataFile], stats: Mapping[int, Sequence[ColumnStatsRow]]) -> bool:
    """Return True if the files may change the value checks of the table: see `lake.null_proofs`."""
    defaulted = {row.column_id for row in cached.columns if row.initial_default is not None and row.end_snapshot is None}
    has_all = all(defaulted <= {row.column_id for row in stats.get(file.data_file_id, ())} for file in files) if defaulted else True
    return not has_all or "uint32" in {row.column_type.lower() for row in cached.columns}


def _predict_tags(cached: TableState, step: LakeStep) -> list[TagRow] | None:
    """Return the live tags after a step; None if two would have the same key."""
    ended = {row.key for row in step.rows if isinstance(row, EndedTag)}
    unchanged = [tag for tag in cached.tags if tag.key not in ended]
    new = [TagRow(row.key, row.value) for row in step.rows if isinstance(row, NewTag)]
    tags = sorted([*unchanged, *new], key=lambda tag: tag.key)
    return tags if len({tag.key for tag in tags}) == len(tags) else None


def _to_snapshot_note(row: NewSnapshotNote, snapshot_id: int) -> SnapshotNote:
    return SnapshotNote(snapshot_id, row.client_snapshot_id, row.schema_id, row.summary)


def _to_data_file(row: NewDataFile, snapshot_id: int) -> DataFileRow:
    columns = (row.path, False, row.record_count, row.file_size_bytes, row.row_id_start)
    return DataFileRow(row.data_file_id, snapshot_id, *columns, None, None, None, None, None)


def _list_stats(step: LakeStep) -> dict[int, list[ColumnStatsRow]]:
    stats: dict[int, list[ColumnStatsRow]] = {}
    for row in step.rows:
        if isinstance(row, NewColumnStats):
            counts = (row.column_size_bytes, row.value_count, row.null_count)
            stats_row = ColumnStatsRow(row.data_file_id, row.column_id, *counts, row.min_value, row.max_value, row.contains_nan)
            stats.setdefault(row.data_file_id, []).append(stats_row)
    return stats


def _list_notes(step: LakeStep) -> dict[int, FileNote]:
    return {
        row.data_file_id: FileNote(row.data_file_id, row.spec_id, row.partition, row.sort_order_id, row.split_offsets)
        for row in step.rows
        if isinstance(row, NewFileNote)
    }
