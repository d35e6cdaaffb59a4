"""What a table's files hold that DuckLake's rows do not say: positions of deletes, lake snapshots of rewritten rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.memory import TableMemory
from duckicelake.errors import Unsupported
from duckicelake.iceberg.deletion_vector import decode_deletion_vector, positions_of
from duckicelake.lake.rows import DataFileRow, DeleteFileRow, TableState
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_embedded_snapshot_ids, read_positions
from duckicelake.translate.locations import file_uri
from duckicelake.translate.visibility import (
    DeletedRows,
    FileKey,
    InlinedFile,
    Longs,
    TrackedFile,
    Visibility,
    to_visibility,
    track_inlined,
    track_partial,
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of rows that a state tells of, real and derived, in order of appearance, and which rows are visible when."""

    files: Sequence[TrackedFile]
    inlined: Mapping[FileKey, InlinedFile]
    visibility: Mapping[FileKey, Visibility]


def gather(objects: Objects, folder: str, state: TableState, memory: TableMemory) -> Sources:
    """Return a state's sources; delete files and rewritten files under `folder` are read once and remembered.

    Raises: Unsupported: a file Iceberg cannot read, by path and remedy. NotFound: a file is missing
    """
    real = [TrackedFile(span.data_file_id, span.begin_snapshot, span.end_snapshot, span.record_count) for span in state.spans]
    read_deletes(objects, folder, state.delete_files, memory)
    deleted = [DeletedRows(row, *memory.deleted_rows[row.delete_file_id]) for row in state.delete_files]
    keys = {file.key for file in real}
    visibility = to_visibility(keys, deleted, state.inlined_deletes)
    for row in state.partial_files:
        if row.data_file_id in keys:
            ids = _read_row_snapshot_ids(objects, folder, row, memory)
            visibility[row.data_file_id] = track_partial(row.begin_snapshot, ids, visibility.get(row.data_file_id))
    inlined, inlined_visibility = track_inlined(state.inlined_tables)
    files = sorted([*real, *(item.file for item in inlined)], key=lambda file: (file.begin_snapshot, file.key))
    return Sources(files, {item.file.key: item for item in inlined}, visibility | inlined_visibility)


def read_deletes(objects: Objects, folder: str, rows: Sequence[DeleteFileRow], memory: TableMemory) -> None:
    """Read the delete files that are not remembered yet, side by side."""
    unread = [row for row in rows if row.delete_file_id not in memory.deleted_rows]
    uris = {row.delete_file_id: file_uri(folder, row.path, row.path_is_relative) for row in unread}
    contents = objects.read_many(uris.values())
    for row in unread:
        memory.deleted_rows[row.delete_file_id] = decode_deletes(row, contents[uris[row.delete_file_id]])


def decode_deletes(row: DeleteFileRow, content: bytes) -> tuple[Longs, Longs | None]:
    """Return the positions of a delete file, and the lake snapshot of each when the file embeds it."""
    match row.format or "parquet":
        case "parquet":
            return read_positions(content)
        case "puffin":
            return positions_of(decode_deletion_vector(content)), None
        case other:
            raise Unsupported(f"Delete file {row.path!r} has the format {other!r}, which DuckLake 1.0 does not know.")


def _read_row_snapshot_ids(objects: Objects, folder: str, row: DataFileRow, memory: TableMemory) -> Longs:
    ids = memory.row_snapshot_ids.get(row.data_file_id)
    if ids is None:
        uri = file_uri(folder, row.path, row.path_is_relative)
        ids = memory.row_snapshot_ids[row.data_file_id] = read_embedded_snapshot_ids(objects.open(uri, row.file_size_bytes))
    return ids
