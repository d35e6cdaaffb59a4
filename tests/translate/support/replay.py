"""A table's rows at every published snapshot, put together from its state and its files alone."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq

from duckicelake.lake.rows import InlinedTable, TableState
from duckicelake.translate.locations import file_uri, table_folder
from duckicelake.translate.manifests import DATA, DELETES, new_manifest_sets, plan_manifests
from duckicelake.translate.visibility import (
    DeletedRows,
    Longs,
    TableHistory,
    TrackedFile,
    Visibility,
    build_history,
    to_visibility,
    track_inlined,
    track_partial,
)
from tests.translate.support.room import Room, read_file

SNAPSHOT_COLUMN = "_ducklake_internal_snapshot_id"

Rows = list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A table's files of rows, real and derived, and which of their rows are visible when."""

    files: list[TrackedFile]
    visibility: Mapping[int, Visibility]
    inlined: Mapping[int, InlinedTable]


def track(room: Room, state: TableState) -> Tracked:
    """What the rows and the contents of delete files and rewritten files say."""
    folder = table_folder(state.data_path, state.table)

    def read_columns(path: str, is_relative: bool) -> Mapping[str, Longs]:
        table = pq.read_table(file_uri(folder, path, is_relative).removeprefix("file://"))
        return {name: table[name].to_numpy() for name in table.column_names if name != "file_path"}

    deleted: list[DeletedRows] = []
    for row in state.delete_files:
        columns = read_columns(row.path, row.path_is_relative)
        deleted.append(DeletedRows(row, columns["pos"], columns.get(SNAPSHOT_COLUMN)))
    keys = [span.data_file_id for span in state.spans]
    seen = to_visibility(keys, deleted, state.inlined_deletes)
    for row in state.partial_files:
        if row.data_file_id in keys:
            ids = read_columns(row.path, row.path_is_relative)[SNAPSHOT_COLUMN].astype(np.int64)
            seen[row.data_file_id] = track_partial(row.begin_snapshot, ids, seen.get(row.data_file_id))
    inlined, inlined_seen = track_inlined(state.inlined_tables)
    real = [TrackedFile(s.data_file_id, s.begin_snapshot, s.end_snapshot, s.record_count) for s in state.spans]
    files = sorted([*real, *(item.file for item in inlined)], key=lambda file: (file.begin_snapshot, file.key))
    return Tracked(files, seen | inlined_seen, {item.file.key: item.table for item in inlined})


def replay(room: Room, state: TableState) -> tuple[TableHistory, dict[int, Rows]]:
    """The history of a table of (i INTEGER, s VARCHAR) and its rows at each of its snapshots, sorted."""
    tracked = track(room, state)
    history = build_history(state, tracked.files, tracked.visibility)
    contents: dict[int, Rows] = {}
    for row in room.files(state):
        table = read_file(state, row)
        contents[row.data_file_id] = list(zip(table["i"].to_pylist(), table["s"].to_pylist(), strict=True))
    for file in tracked.files:
        if file.key in tracked.inlined:
            batch = [row for row in tracked.inlined[file.key].rows if row[1] == file.begin_snapshot]
            contents[file.key] = [(row[3], row[4].decode() if isinstance(row[4], bytes) else row[4]) for row in batch]
    found: dict[int, Rows] = {}
    for plan in plan_manifests(history.steps, new_manifest_sets(history, lambda _: 0), lambda _: 0):
        deletes: dict[int, set[int]] = defaultdict(set)
        entries = [(manifest.content, entry) for manifest in plan.manifests for entry in manifest.live()]
        for content, entry in entries:
            if content == DELETES:
                deletes[entry.key] |= set(tracked.visibility[entry.key].deleted_at(entry.since).tolist())
        keys = [entry.key for content, entry in entries if content == DATA]
        rows = [row for key in keys for p, row in enumerate(contents[key]) if p not in deletes[key]]
        found[plan.step.snapshot_id] = sorted(rows, key=repr)
    return history, found
