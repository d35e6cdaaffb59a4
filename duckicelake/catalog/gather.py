"""What a table's files hold that DuckLake's rows do not say: positions of deletes, lake snapshots of rewritten rows."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

from duckicelake.catalog.derive import to_inlined_columns
from duckicelake.catalog.memory import TableMemory
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.deletion_vector import decode_deletion_vector, positions_of
from duckicelake.lake.changes import REWRITE_KINDS, kinds_of_table
from duckicelake.lake.refs.rows import UNTOLD
from duckicelake.lake.rows import DeleteFileRow, FileSpan, PartialFileRow, SchemaVersionRow, TableState
from duckicelake.store.inlined_types import InlinedColumn
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_positions
from duckicelake.store.rewritten import Embedded, can_restore, read_embedded
from duckicelake.translate.locations import file_uri
from duckicelake.translate.shape.layouts import find_layouts
from duckicelake.translate.types import columns_at
from duckicelake.translate.visibility import (
    DeletedRows,
    FileKey,
    InlinedFile,
    Longs,
    RestoredFile,
    RewrittenFile,
    TrackedFile,
    Visibility,
    find_version,
    to_visibility,
    track_files,
    track_inlined,
    track_partial,
    track_restored,
)

COPY = "If DuckDB still reads the table, copy it with CREATE TABLE … AS SELECT; `duckicelake check` says more."


@dataclass(frozen=True, slots=True)
class Sources:
    """The files of rows that a state tells of, real and derived, in order of appearance, and which rows are visible when."""

    files: Sequence[TrackedFile]
    derived: Mapping[FileKey, InlinedFile | RestoredFile]
    visibility: Mapping[FileKey, Visibility]


def gather(objects: Objects, folder: str, state: TableState, memory: TableMemory) -> Sources:
    """Return a state's sources; delete files and rewritten files under `folder` are read once and remembered.

    A file that flush or merge wrote appears at that lake snapshot; before it stand the files it was made from, restored.
    One too large to restore stands for them itself, the rows that were not there yet hidden.
    What no published snapshot shows any more is not read: whoever removed the snapshots may have removed it too.
    Raises: Unsupported: a file Iceberg cannot read, by path and remedy. NotFound: a file is missing
    """
    spans = {span.data_file_id: span for span in state.spans} if _has_more_than_files(state) else dict[int, FileSpan]()
    read_deletes(objects, folder, state.delete_files, memory)
    deleted = [DeletedRows(row, *memory.deleted_rows[row.delete_file_id]) for row in state.delete_files]
    visibility = to_visibility(spans.keys(), deleted, state.inlined_deletes)
    partial = [row for row in state.partial_files if row.data_file_id in spans and _is_shown(state, spans[row.data_file_id])]
    embedded = {row.data_file_id: _read_embedded(objects, folder, row, memory) for row in partial}
    layouts = find_layouts(state.schema_versions, state.columns, state.partitions)
    rewritten = find_rewritten(state, partial, embedded, layouts)
    restored, restored_visibility = track_restored(
        [file for file in rewritten.values() if file.written_at > state.since], layouts, visibility
    )
    for row in partial:
        if row.data_file_id not in rewritten:
            ids = embedded[row.data_file_id].snapshot_ids
            visibility[row.data_file_id] = track_partial(row.begin_snapshot, ids, visibility.get(row.data_file_id))
    inlined, inlined_visibility = track_inlined(state.inlined_tables)
    begins = {key: file.written_at for key, file in rewritten.items()}
    files = track_files(state.spans)
    if begins:
        files = [file._replace(begin_snapshot=begins[file.key]) if file.key in begins else file for file in files]
    derived = {item.file.key: item for item in chain(inlined, restored)}
    # all that there ever were come in this order
    if begins or derived or state.since >= 0:
        files = sorted([*files, *(item.file for item in derived.values())], key=attrgetter("begin_snapshot", "key"))
    return Sources(files, derived, visibility | inlined_visibility | restored_visibility)


def _has_more_than_files(state: TableState) -> bool:
    """Tell whether something besides data files decides which rows are seen."""
    return bool(state.delete_files or state.inlined_deletes or state.partial_files)


def _is_shown(state: TableState, span: FileSpan) -> bool:
    """Tell whether a published snapshot may have rows of a file; one that has changed since an earlier load was shown by that."""
    return span.end_snapshot is None or state.since >= 0 or len(_list_showing(state, span.begin_snapshot, span.end_snapshot)) > 0


def _list_showing(state: TableState, begin_snapshot: int, end_snapshot: int) -> list[int]:
    first, end = (bisect_left(state.snapshots, at, key=lambda row: row.snapshot_id) for at in (begin_snapshot, end_snapshot))
    return [row.snapshot_id for row in state.snapshots[first:end]]


def without_lost(objects: Objects, folder: str, state: TableState, memory: TableMemory) -> TableState:
    """Return a state without the snapshots of refs whose rows were in a rewritten file alone, when a client removed that file.

    The notes show them as they were published last. What else needs the file is not left out: `gather` says that it is missing.
    """
    refs = state.notes.refs
    told = {note.snapshot_id for note in refs.kept if note.json != UNTOLD} & {ref.snapshot_id for ref in refs.refs}
    if not told or state.since >= 0:
        return state
    spans = {span.data_file_id: span for span in state.spans}
    lost: set[int] = set()
    for row in state.partial_files:
        span = spans.get(row.data_file_id)
        if span is None or span.end_snapshot is None:
            continue
        showing = _list_showing(state, span.begin_snapshot, span.end_snapshot)
        if showing and told.issuperset(showing) and not _is_there(objects, folder, row, memory):
            lost.update(showing)
    return replace(state, snapshots=[row for row in state.snapshots if row.snapshot_id not in lost]) if lost else state


def _is_there(objects: Objects, folder: str, row: PartialFileRow, memory: TableMemory) -> bool:
    try:
        _read_embedded(objects, folder, row, memory)
    except NotFound:
        return False
    return True


BESIDE_KIND = "compacted_table"
"""What lake snapshots of branches say."""


def find_rewritten(
    state: TableState, partial: Sequence[PartialFileRow], embedded: Mapping[int, Embedded], layouts: Sequence[SchemaVersionRow]
) -> dict[FileKey, RewrittenFile]:
    """Return the rewritten files whose earlier files can be restored, at a price that is bounded for each rewriting."""
    bytes_at: Counter[int | None] = Counter()
    for row in state.partial_files:
        bytes_at[row.written_at] += row.file_size_bytes
    found: dict[FileKey, RewrittenFile] = {}
    for row in partial:
        what = embedded[row.data_file_id]
        if row.written_at is None or bytes_at[row.written_at] > state.restored_max_bytes:
            continue
        if not _is_rewriting(state, row) or not _is_restorable(state, row.written_at, what, layouts):
            continue
        row_ids = what.find_row_ids(row.row_id_start)
        if row_ids is not None:
            found[row.data_file_id] = RewrittenFile(row, row.written_at, what.snapshot_ids, row_ids)
    return found


def _is_rewriting(state: TableState, row: PartialFileRow) -> bool:
    """Tell whether that lake snapshot wrote the file; one of a branch says that it rewrites, and may be the next one left."""
    refs, kinds = state.notes.refs, kinds_of_table(row.changes_made, state.table.table_id)
    is_beside = any(note.is_beside and note.snapshot_id == row.written_at for note in refs.kept)
    is_removed = row.written_at in refs.hidden and kinds & REWRITE_KINDS == frozenset({BESIDE_KIND})
    return bool(kinds & REWRITE_KINDS) and not is_beside and not is_removed


def _is_restorable(state: TableState, written_at: int, embedded: Embedded, layouts: Sequence[SchemaVersionRow]) -> bool:
    oldest, newest = int(embedded.snapshot_ids.min()), int(embedded.snapshot_ids.max())
    if newest >= written_at or not layouts:
        return False
    first, last = find_version(layouts, oldest), find_version(layouts, newest)
    columns = _columns_of(state, first)
    # a client's partition spec makes a version too, and rows stay what they were
    between = [version for version in layouts if first.begin_snapshot < version.begin_snapshot <= last.begin_snapshot]
    return all(_columns_of(state, version) == columns for version in between) and can_restore(columns, embedded)


def _columns_of(state: TableState, version: SchemaVersionRow) -> Sequence[InlinedColumn]:
    return to_inlined_columns(columns_at(state.columns, (), version.begin_snapshot), None)


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
            with naming("Delete file", row.path):
                return read_positions(content)
        case "puffin":
            with naming("Delete file", row.path):
                return positions_of(decode_deletion_vector(content)), None
        case other:
            raise Unsupported(f"Delete file {row.path!r} has the format {other!r}, which DuckLake 1.0 does not know. {COPY}")


@contextmanager
def naming(kind: str, path: str) -> Generator[None]:
    """Put the file before what is wrong with it, and behind it what to do. Raises: Unsupported."""
    try:
        yield
    except (BadRequest, Unsupported) as error:
        raise Unsupported(f"{kind} {path!r} of the lake cannot be read: {error.message.rstrip('.')}. {COPY}") from error


def _read_embedded(objects: Objects, folder: str, row: PartialFileRow, memory: TableMemory) -> Embedded:
    found = memory.embedded.get(row.data_file_id)
    if found is None:
        uri = file_uri(folder, row.path, row.path_is_relative)
        with naming("Data file", row.path):
            found = memory.embedded[row.data_file_id] = read_embedded(objects.open(uri, row.file_size_bytes), row.partial_max)
    return found
