"""What a commit did to a table, read in its own transaction on top of what was known of the table before.

Law: where nothing has concerned the table since it was read, and the commit writes plain rows only, this is what reading the
whole table would return.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

import psycopg

from duckicelake.lake.damage import check_table
from duckicelake.lake.notes import SELECT_TABLE_NOTE
from duckicelake.lake.read import SELECT_TAGS, fetch_together
from duckicelake.lake.read_table import (
    LATE_QUERIES,
    SELECT_AFFECTED_FILES,
    SELECT_HEAD,
    SELECT_NEXT_ROW_ID,
    SELECT_SNAPSHOTS,
    SELECT_SPANS,
    Since,
    format_table_tokens,
    on_main,
)
from duckicelake.lake.read_values import with_values
from duckicelake.lake.rows import FileSpan, HeadRow, Position, SnapshotNote, SnapshotRow, TableNote, TableState, TagRow
from duckicelake.lake.writing.client_notes import SELECT_ALIASES, SELECT_CHANGED_AT, SELECT_SNAPSHOT_NOTES
from duckicelake.lake.writing.rows import (
    AddedRows,
    EndedTag,
    ForgottenBounds,
    LakeStep,
    NewColumnStats,
    NewDataFile,
    NewFileNote,
    NewSnapshotNote,
    NewTag,
)

PLAIN_ROWS = frozenset({NewTag, EndedTag, NewDataFile, NewColumnStats, AddedRows, ForgottenBounds, NewSnapshotNote, NewFileNote})
"""Rows that change nothing of a table but its properties, its newest files, and what was said of them."""

BACK_QUERIES = (SELECT_HEAD, SELECT_NEXT_ROW_ID, SELECT_TAGS, SELECT_TABLE_NOTE, SELECT_SPANS, *LATE_QUERIES)


def is_plain(steps: Sequence[LakeStep]) -> bool:
    """Tell whether steps write plain rows only."""
    return all(type(row) in PLAIN_ROWS for step in steps for row in step.rows)


def read_back(conn: psycopg.Connection, known: TableState, since: Since) -> TableState | None:
    """Return a table after a commit of plain rows; None when somebody else numbered it or its deletes changed."""
    table_id, after = known.table.table_id, since.lake_snapshot_id
    tokens = format_table_tokens(table_id)
    span: dict[str, object] = {"since": after, "next_file_id": since.next_file_id, "data_file_ids": []}
    found = fetch_together(conn, BACK_QUERIES, table_id=table_id, object_id=table_id, **span, **tokens)
    [head], notes = found.rows(HeadRow, SELECT_HEAD), found.rows(TableNote, SELECT_TABLE_NOTE)
    if notes != [known.notes.table] or found.found[SELECT_AFFECTED_FILES]:
        return None
    spans = found.rows(FileSpan, SELECT_SPANS)
    check_table(known.table, spans, (), ())
    snapshots = found.rows(SnapshotRow, SELECT_SNAPSHOTS, snapshot_time=datetime.fromisoformat)
    changed_at = found.value(SELECT_CHANGED_AT)
    state = replace(
        known,
        position=Position(head.snapshot_id, head.change_id),
        next_file_id=head.next_file_id,
        next_row_id=found.value(SELECT_NEXT_ROW_ID) or 0,
        since=after,
        tags=found.rows(TagRow, SELECT_TAGS),
        snapshots=on_main(snapshots, known.notes.refs),
        spans=spans,
        snapshot_notes=found.rows(SnapshotNote, SELECT_SNAPSHOT_NOTES),
        aliases=found.rows(SnapshotNote, SELECT_ALIASES),
        changed_at=None if changed_at is None else datetime.fromisoformat(changed_at),
    )
    return with_values(conn, state, since.next_file_id)
