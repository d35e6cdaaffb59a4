"""The files that hold a table's rows: DuckLake's data and delete files are read; inlined rows and rewritten files become Parquet files.

`snapshot_building` and `manifests` call this for loads, and for commits under the lake's lock; `incoming.file_changes` decodes delete files
with it, before the lock.
It reads the object store, fills the table's `FileCache` and queues uploads. It never uses Postgres.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter

from duckicelake.catalog.table_cache import FileCache, UploadQueue
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import AnyFile, DataFile
from duckicelake.iceberg.puffin import decode_dated_positions, encode_deletion_vectors
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.lake.changes import REWRITE_KINDS, kinds_of_table
from duckicelake.lake.note_rows import UNPUBLISHED
from duckicelake.lake.rows import ColumnRow, DeleteFileRow, FileSpan, InlinedTable, PartialFileRow, SchemaVersionRow, TableState
from duckicelake.store.derived_files import DerivedFile as StoredFile
from duckicelake.store.derived_files import (
    EmbeddedLineage,
    RowLocations,
    can_restore,
    convert_rows,
    encode_inlined,
    read_embedded,
    restore_rows,
    split_by_snapshot,
    take_rows,
)
from duckicelake.store.inlined_values import InlinedColumn, UnrepresentableValue
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import encode_position_deletes, read_positions
from duckicelake.translate.files import find_lower, find_upper, to_deletion_vector, to_position_deletes
from duckicelake.translate.locations import deletes_uri, file_uri, format_digest, inlined_uri, table_folder
from duckicelake.translate.schemas import V3, Schemas
from duckicelake.translate.types import ColumnTree, build_value_refusal, columns_at, find_primitive, list_hidden, list_layouts
from duckicelake.translate.unreadable_columns import hides_columns, list_left_out
from duckicelake.translate.visibility import (
    DeletedRows,
    FileKey,
    InlinedRowsFile,
    Longs,
    RestoredFile,
    RewrittenFile,
    TrackedFile,
    Visibility,
    get_schema_version,
    to_visibility,
    track_files,
    track_inlined,
    track_partial,
    track_restored,
)

COPY_ADVICE = "If DuckDB still reads the table, copy it with CREATE TABLE … AS SELECT; `duckicelake check` says more."


@dataclass(frozen=True, slots=True)
class RowFiles:
    """The data files of a state, real and derived, in order of appearance, and which rows are visible when."""

    files: Sequence[TrackedFile]
    derived: Mapping[FileKey, InlinedRowsFile | RestoredFile]
    visibility: Mapping[FileKey, Visibility]


def collect_row_files(objects: Objects, folder: str, state: TableState, cache: FileCache) -> RowFiles:
    """Return a state's sources; delete files and rewritten files under `folder` are read once and remembered.

    A file that flush or merge wrote appears at that lake snapshot; before it stand the files it was made from, restored.
    If they cannot be restored (`list_restorable`), the file itself is published for the earlier snapshots, its later rows as deleted.
    Files that no published snapshot shows are not read: they may have been removed with the snapshots.
    Raises: Unsupported: a file Iceberg cannot read, by path and remedy. NotFound: a file is missing
    """
    spans = {span.data_file_id: span for span in state.spans} if _has_more_than_files(state) else dict[int, FileSpan]()
    read_deletes(objects, folder, state.delete_files, cache)
    deleted = [DeletedRows(row, *cache.deleted_rows[row.delete_file_id]) for row in state.delete_files]
    visibility = to_visibility(spans.keys(), deleted, state.inlined_deletes)
    partial = [row for row in state.partial_files if row.data_file_id in spans and _is_visible_in_snapshots(state, spans[row.data_file_id])]
    embedded = {row.data_file_id: _read_embedded(objects, folder, row, cache) for row in partial}
    layouts = list_layouts(state.schema_versions, state.columns, state.partitions)
    rewritten = list_restorable(state, partial, embedded, layouts)
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
    return RowFiles(files, derived, visibility | inlined_visibility | restored_visibility)


def _has_more_than_files(state: TableState) -> bool:
    """Return True if more than data files decides which rows are visible."""
    return bool(state.delete_files or state.inlined_deletes or state.partial_files)


def _is_visible_in_snapshots(state: TableState, span: FileSpan) -> bool:
    """Return True if a published snapshot may have rows of a file; one that has changed since an earlier load was shown by that."""
    return span.end_snapshot is None or state.since >= 0 or len(_list_snapshots_between(state, span.begin_snapshot, span.end_snapshot)) > 0


def _list_snapshots_between(state: TableState, begin_snapshot: int, end_snapshot: int) -> list[int]:
    first, end = (bisect_left(state.snapshots, at, key=lambda row: row.snapshot_id) for at in (begin_snapshot, end_snapshot))
    return [row.snapshot_id for row in state.snapshots[first:end]]


def without_lost_snapshots(objects: Objects, folder: str, state: TableState, cache: FileCache) -> TableState:
    """Return a state without the snapshots of refs whose rows were in a rewritten file alone, when a client removed that file.

    The notes show them as they were published last. What else needs the file is not left out: `collect_row_files` says that it is missing.
    """
    refs = state.notes.refs
    published_ids = {note.snapshot_id for note in refs.kept if note.json != UNPUBLISHED} & {ref.snapshot_id for ref in refs.refs}
    if not published_ids or state.since >= 0:
        return state
    spans = {span.data_file_id: span for span in state.spans}
    lost: set[int] = set()
    for row in state.partial_files:
        span = spans.get(row.data_file_id)
        if span is None or span.end_snapshot is None:
            continue
        showing = _list_snapshots_between(state, span.begin_snapshot, span.end_snapshot)
        if showing and published_ids.issuperset(showing) and not _is_readable_rewrite(objects, folder, row, cache):
            lost.update(showing)
    return replace(state, snapshots=[row for row in state.snapshots if row.snapshot_id not in lost]) if lost else state


def _is_readable_rewrite(objects: Objects, folder: str, row: PartialFileRow, cache: FileCache) -> bool:
    try:
        _read_embedded(objects, folder, row, cache)
    except NotFound:
        return False
    return True


BRANCH_CHANGE_KIND = "compacted_table"
"""What lake snapshots of branches say."""


def list_restorable(
    state: TableState, partial: Sequence[PartialFileRow], embedded: Mapping[int, EmbeddedLineage], layouts: Sequence[SchemaVersionRow]
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
        row_ids = what.compute_row_ids(row.row_id_start)
        if row_ids is not None:
            found[row.data_file_id] = RewrittenFile(row, row.written_at, what.snapshot_ids, row_ids)
    return found


def _is_rewriting(state: TableState, row: PartialFileRow) -> bool:
    """Return True if that lake snapshot wrote the file; one of a branch says that it rewrites, and may be the next one left."""
    refs, kinds = state.notes.refs, kinds_of_table(row.changes_made, state.table.table_id)
    is_off_main = any(note.is_off_main and note.snapshot_id == row.written_at for note in refs.kept)
    is_removed = row.written_at in refs.hidden and kinds & REWRITE_KINDS == frozenset({BRANCH_CHANGE_KIND})
    return bool(kinds & REWRITE_KINDS) and not is_off_main and not is_removed


def _is_restorable(state: TableState, written_at: int, embedded: EmbeddedLineage, layouts: Sequence[SchemaVersionRow]) -> bool:
    oldest, newest = int(embedded.snapshot_ids.min()), int(embedded.snapshot_ids.max())
    if newest >= written_at or not layouts:
        return False
    first, last = get_schema_version(layouts, oldest), get_schema_version(layouts, newest)
    columns = _list_columns(state, first)
    # a client's partition spec makes a version too, and rows stay what they were
    between = [version for version in layouts if first.begin_snapshot < version.begin_snapshot <= last.begin_snapshot]
    return all(_list_columns(state, version) == columns for version in between) and can_restore(columns, embedded)


def _list_columns(state: TableState, version: SchemaVersionRow) -> Sequence[InlinedColumn]:
    return to_inlined_columns(columns_at(state.columns, (), version.begin_snapshot), None)


def read_deletes(objects: Objects, folder: str, rows: Sequence[DeleteFileRow], cache: FileCache) -> None:
    """Read the delete files that are not remembered yet, side by side."""
    unread = [row for row in rows if row.delete_file_id not in cache.deleted_rows]
    uris = {row.delete_file_id: file_uri(folder, row.path, row.path_is_relative) for row in unread}
    contents = objects.read_many(uris.values())
    for row in unread:
        cache.deleted_rows[row.delete_file_id] = decode_deletes(row, contents[uris[row.delete_file_id]])


def decode_deletes(row: DeleteFileRow, content: bytes) -> tuple[Longs, Longs | None]:
    """Return the positions of a delete file, and the lake snapshot of each when the file embeds it."""
    match row.format or "parquet":
        case "parquet":
            with naming_file("Delete file", row.path):
                return read_positions(content)
        case "puffin":
            with naming_file("Delete file", row.path):
                return decode_dated_positions(content)
        case other:
            raise Unsupported(f"Delete file {row.path!r} has the format {other!r}, which DuckLake does not know. {COPY_ADVICE}")


@contextmanager
def naming_file(kind: str, path: str) -> Generator[None]:
    """Put the file before what is wrong with it, and behind it what to do. Raises: Unsupported."""
    try:
        yield
    except (BadRequest, Unsupported) as error:
        raise Unsupported(f"{kind} {path!r} of the lake cannot be read: {error.message.rstrip('.')}. {COPY_ADVICE}") from error


def _read_embedded(objects: Objects, folder: str, row: PartialFileRow, cache: FileCache) -> EmbeddedLineage:
    found = cache.embedded.get(row.data_file_id)
    if found is None:
        uri = file_uri(folder, row.path, row.path_is_relative)
        with naming_file("Data file", row.path):
            found = cache.embedded[row.data_file_id] = read_embedded(objects.open(uri, row.file_size_bytes), row.partial_max)
    return found


NO_LENGTHS: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class FileDeriver:
    """Makes one table's derived files and hands them to the upload queue."""

    state: TableState
    location: str
    cache: FileCache
    uploads: UploadQueue
    schemas: Schemas

    @property
    def format_version(self) -> int:
        """The table's format version, which says what deletes are."""
        return self.schemas.format_version

    def derive_rows(self, files: Mapping[FileKey, InlinedRowsFile | RestoredFile]) -> None:
        """Make every file of rows that is not remembered, reading each source of them once."""
        fresh: list[InlinedRowsFile | RestoredFile] = []
        for key, file in files.items():
            known = self.cache.derived_rows.get(file.identity())
            if known is None:
                fresh.append(file)
            else:
                self.cache.derived_files[key] = known
        inlined = [file for file in fresh if isinstance(file, InlinedRowsFile)]
        for table in {id(file.table): file.table for file in inlined}.values():
            self._derive_inlined(table, [file for file in inlined if file.table is table])
        restored = [file for file in fresh if isinstance(file, RestoredFile)]
        sources = {file.file.key: (file.version, frozenset(file.data_file_ids.tolist())) for file in restored}
        for source in sorted(set(sources.values()), key=lambda item: (item[0].begin_snapshot, sorted(item[1]))):
            self._restore(*source, [file for file in restored if sources[file.file.key] == source])

    def _derive_inlined(self, table: InlinedTable, files: Sequence[InlinedRowsFile]) -> None:
        tree = columns_at(self.state.columns, (), table.begin_snapshot)
        columns = to_inlined_columns(tree, None, self._list_unshown(tree), self.schemas.lengths)
        by_begin = {file.file.begin_snapshot: file for file in files}
        rows = [(row[0], row[1], *row[3:]) for row in table.rows if row[1] in by_begin]
        try:
            converted = convert_rows(columns, rows)
        except UnrepresentableValue as found:
            present = columns_at(self.state.columns, (), self.state.position.lake_snapshot_id)
            raise build_value_refusal(self.state.table, present, found.field_id, found.reason) from None
        for begin, part in split_by_snapshot(converted):
            self._add_derived(by_begin[begin], encode_inlined(columns, part), tree)

    def _list_unshown(self, tree: ColumnTree) -> frozenset[int]:
        """Return the columns that no schema shows where the table has these columns."""
        never_shown = list_hidden(self.state.columns)
        return never_shown | list_left_out(tree, never_shown) if hides_columns(self.state.tags) else never_shown

    def _restore(self, version: SchemaVersionRow, data_file_ids: frozenset[int], files: Sequence[RestoredFile]) -> None:
        tree = columns_at(self.state.columns, (), version.begin_snapshot)
        columns = to_inlined_columns(tree, None, lengths=self.schemas.lengths)
        folder = table_folder(self.state.data_path, self.state.table)
        uris = {
            row.data_file_id: file_uri(folder, row.path, row.path_is_relative)
            for row in self.state.partial_files
            if row.data_file_id in data_file_ids
        }
        contents = self.uploads.objects.read_many(uris.values())
        rows = restore_rows(columns, {key: contents[uri] for key, uri in uris.items()})
        for file in files:
            part = take_rows(columns, rows, RowLocations(file.data_file_ids, file.positions, file.row_ids, file.file.begin_snapshot))
            self._add_derived(file, encode_inlined(columns, part), tree)

    def _add_derived(self, file: InlinedRowsFile | RestoredFile, made: StoredFile, tree: ColumnTree) -> None:
        uri = inlined_uri(self.location, file.file.begin_snapshot, format_digest(made.content))
        self.uploads.add(uri, made.content)
        found = to_inlined_data_file(uri, made, tree)
        self.cache.derived_files[file.file.key] = found
        if not self.uploads.is_holding:
            self.cache.derived_rows[file.identity()] = found

    def derive_deletes(self, target: AnyFile, positions: Longs) -> DataFile:
        """Return the delete file that marks these positions of a data file."""
        remembered = (target.file_path, f"v{self.format_version} {format_digest(positions.tobytes())} {target.partition}")
        found = self.cache.delete_files.get(remembered)
        if found is None:
            found = (self._derive_vector if self.format_version >= V3 else self._derive_positions)(target, positions)
            if not self.uploads.is_holding:
                # what is held may never be written, and is to be made again then
                self.cache.delete_files[remembered] = found
        return found

    def _derive_positions(self, target: AnyFile, positions: Longs) -> DataFile:
        content = encode_position_deletes(target.file_path, positions)
        uri = deletes_uri(self.location, format_digest(content), "parquet")
        self.uploads.add(uri, content)
        return to_position_deletes(uri, len(content), positions, target)

    def _derive_vector(self, target: AnyFile, positions: Longs) -> DataFile:
        puffin = encode_deletion_vectors([(target.file_path, positions)])
        uri = deletes_uri(self.location, format_digest(puffin.content), "puffin")
        self.uploads.add(uri, puffin.content)
        return to_deletion_vector(uri, puffin, len(positions), target)


def to_inlined_columns(
    tree: ColumnTree, parent: int | None, hidden: frozenset[int] = frozenset(), lengths: Mapping[int, int] = NO_LENGTHS
) -> tuple[InlinedColumn, ...]:
    """Return the columns below a parent (None: the table's own) as the store wants them; `lengths` are those of `fixed` ones by id."""
    return tuple(
        InlinedColumn(
            field_id=row.column_id,
            name=row.column_name,
            ducklake_type=row.column_type,
            children=to_inlined_columns(tree, row.column_id, hidden, lengths),
            is_shown=row.column_id not in hidden,
            length=lengths.get(row.column_id) if row.column_type.lower() == "blob" else None,
        )
        for row in tree.children.get(parent, ())
    )


def to_inlined_data_file(uri: str, made: StoredFile, tree: ColumnTree) -> DataFile:
    """Return a file of inlined rows for a manifest."""
    types = dict(_leaf_types(tree))
    known = {field_id: leaf for field_id, leaf in made.stats.items() if field_id in types}
    bounded = {field_id: leaf for field_id, leaf in known.items() if not leaf.nan_count}
    lower = {field_id: find_lower(types[field_id], leaf.lower) for field_id, leaf in bounded.items()}
    upper = {field_id: find_upper(types[field_id], leaf.upper) for field_id, leaf in bounded.items()}
    return DataFile(
        content=0,
        file_path=uri,
        file_format="PARQUET",
        partition=(),
        record_count=made.record_count,
        file_size_in_bytes=len(made.content),
        first_row_id=0,
        column_sizes={},
        value_counts={field_id: leaf.value_count for field_id, leaf in known.items()} or None,
        null_value_counts={field_id: leaf.null_count for field_id, leaf in known.items()} or None,
        nan_value_counts={field_id: leaf.nan_count for field_id, leaf in known.items() if leaf.nan_count is not None} or None,
        lower_bounds={i: low for i, low in lower.items() if low is not None and upper[i] is not None} or None,
        upper_bounds={i: high for i, high in upper.items() if high is not None and lower[i] is not None} or None,
    )


def _leaf_types(tree: ColumnTree) -> Iterable[tuple[int, PrimitiveType]]:
    rows: list[ColumnRow] = [row for siblings in tree.children.values() for row in siblings]
    for row in rows:
        found = find_primitive(row.column_type.lower())
        if found is not None:
            yield row.column_id, found
