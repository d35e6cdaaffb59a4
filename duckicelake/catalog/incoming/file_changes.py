"""The changes of a commit's snapshots to the table's files: their manifest lists are compared in order, and delete files written.

`commits.prepare`, `branch_snapshots` and `external_metadata` call this on a worker thread, before the lake's lock. It reads manifests and
delete files from the object store, and data files for equality deletes. Only `write_deletes` writes there, and reads Postgres, in
a read transaction that ends before. For delete files at other places than the table's, Postgres is asked for each folder if the table has
data there, in a read transaction of its own. `commits.apply` and `commits.plan` use `renumber_specs` and `take_files` under the lock;
these are pure.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import psycopg

from duckicelake.catalog.incoming.client_manifests import (
    DeleteKey,
    LiveFile,
    ManifestReader,
    Manifests,
    OpenManifest,
    live_files,
)
from duckicelake.catalog.incoming.delete_resolution import EqualityResolver, compare_deletes, read_sequenced
from duckicelake.catalog.row_files import decode_deletes
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.manifest import DATA, DELETED, POSITION_DELETES, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.requests.manifest_checks import ReadManifest
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.lake.connect import reading
from duckicelake.lake.note_rows import RefNotes
from duckicelake.lake.read import read_data_path
from duckicelake.lake.read_table import read_inlined_deletes
from duckicelake.lake.rows import InlinedDeleteRow, TableRow
from duckicelake.lake.writing.lookups import (
    find_delete_file,
    list_files_by_path,
    list_inlined_versions,
    list_multi_snapshot_paths,
    read_inlined_batch,
)
from duckicelake.lake.writing.rows import EndedInlinedRows, MergedDeletes
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import encode_dated_deletes, encode_position_deletes
from duckicelake.translate.locations import find_inlined_snapshot, list_paths, table_folder, to_uri
from duckicelake.translate.name_mapping import PROPERTY, parse_name_mapping
from duckicelake.translate.to_ducklake.deletes import check_positions, choose_rows, date_deletes, has_restored_rows, merge_positions
from duckicelake.translate.to_ducklake.files import AddedFile, check_file
from duckicelake.translate.visibility import DeletedRows, Longs

FIRST_LINEAGE_FORMAT = 3
DELETE_FORMATS, EQUALITY_FORMATS = frozenset({"PARQUET", "PUFFIN"}), frozenset({"PARQUET"})


@dataclass(frozen=True, slots=True)
class FileChange:
    """The file changes of one snapshot: added data files, paths of removed ones, and deleted rows of the remaining ones.

    `deletes` holds all deleted positions after it, by path, of every data file whose deletes it changes. `returned`:
    data files that enter main and that this snapshot did not write (main is set to another snapshot), or whose deleted rows come
    back. `is_trusted`: the files are those of a snapshot that is there, not what a client says. `fresh`: manifests that the client wrote.
    """

    added: Sequence[DataFile]
    spec_ids: Mapping[str, int]
    removed: Sequence[str]
    deletes: Mapping[str, Longs]
    returned: Sequence[DataFile] = ()
    is_trusted: bool = False
    fresh: Sequence[ReadManifest] = ()


NO_CHANGE = FileChange((), {}, (), {})

FoundDeletes = tuple[dict[str, Longs], set[str]]
"""All deleted positions of the data files whose deletes differ, by path, and the files of which deleted rows come back."""


def renumber_specs(change: FileChange, spec_ids: Mapping[int, int]) -> FileChange:
    """Return a change with the table's ids of partition specs, by those that its client gave to specs of the same request."""
    return replace(
        change,
        spec_ids={path: spec_ids.get(spec_id, spec_id) for path, spec_id in change.spec_ids.items()},
        fresh=[_renumber_manifest(manifest, spec_ids) for manifest in change.fresh],
    )


def _renumber_manifest(manifest: ReadManifest, spec_ids: Mapping[int, int]) -> ReadManifest:
    listed, header = manifest.listed, manifest.header
    listed_id, own_id = listed.partition_spec_id, header.spec.spec_id
    return ReadManifest(
        replace(listed, partition_spec_id=spec_ids.get(listed_id, listed_id)),
        replace(header, spec=replace(header.spec, spec_id=spec_ids.get(own_id, own_id))),
        manifest.entries,
    )


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """The base of a request, and the snapshots that it adds.

    `schemas` are those that the table has, oldest first, and those that the request adds. `client_written` are the snapshots of the
    table whose manifests its clients wrote: what they delete counts by its sequence numbers, and may delete by equality.
    `specs` are the table's by their client's ids, of those that the request adds and the table gives other ids.
    """

    base: TableMetadata | None
    added: Sequence[Snapshot]
    schemas: Sequence[Schema]
    client_written: Container[int | None] = ()
    specs: Mapping[int, PartitionSpec] = field(default_factory=dict[int, PartitionSpec])

    def build_resolver(self, reader: ManifestReader, published: Manifests) -> EqualityResolver:
        """Return what finds the rows of the request's equality deletes."""
        names = parse_name_mapping("" if self.base is None else self.base.properties.get(PROPERTY, ""))
        return EqualityResolver(reader, self.schemas, names, published)


def list_client_written(notes: RefNotes) -> frozenset[int | None]:
    """Return the snapshots whose manifests clients wrote: branch snapshots, and the past of a registered table."""
    return frozenset(note.snapshot_id for note in notes.kept if note.is_off_main)


def compute_changes(reader: ManifestReader, context: SnapshotContext, branch_snapshots: Container[int] = ()) -> list[FileChange]:
    """Return what each of a request's snapshots does, compared with the one before it; branch snapshots change nothing.

    Raises: BadRequest: a manifest or its list is missing or malformed, or holds what DuckLake cannot.
    CommitFailed: a snapshot removes a data file that is not there
    """
    base, before = context.base, _read_main(reader, context.base)
    before_id = None if base is None else base.current_snapshot_id
    resolver = context.build_resolver(reader, before)
    is_numbered = _has_deletes(before) and before_id in context.client_written
    changes: list[FileChange] = []
    for snapshot in context.added:
        if snapshot.snapshot_id in branch_snapshots:
            changes.append(NO_CHANGE)
            continue
        if not snapshot.manifest_list:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} has no manifest list; write one.")
        after = {file.manifest_path: file for file in reader.read_list(snapshot.manifest_list)}
        is_numbered = is_numbered or _brings_deletes(reader, before, after, context.added)
        if is_numbered:
            resolver.published = {**resolver.published, **_read_parent(reader, base, snapshot)}
            numbered = read_sequenced(reader, before, context.added), read_sequenced(reader, after, context.added)
            found = compare_deletes(reader, resolver, *numbered)
        else:
            resolver.resolve(live_files(reader.read_manifest(after[path]) for path in after if path not in before), before)
            found = _compare_deletes(reader, before, after)
        # main may be moved first, and then the snapshot takes files out that are not in main yet
        is_next = snapshot.parent_snapshot_id == before_id
        change = _compute_change(reader, (before, after), found, snapshot.snapshot_id, is_next=is_next)
        changes.append(replace(change, fresh=_list_fresh(reader, before, after, snapshot.snapshot_id)))
        before, before_id = after, snapshot.snapshot_id
    return changes


def compute_move(reader: ManifestReader, context: SnapshotContext, target: Snapshot) -> FileChange:
    """Return what it takes to give main the files of another snapshot.

    Raises: BadRequest: the rows that it deletes by equality cannot be found
    """
    base, before = context.base, _read_main(reader, context.base)
    after = {file.manifest_path: file for file in reader.read_list(target.manifest_list)}
    is_foreign = target.snapshot_id in context.client_written or (base is not None and base.current_snapshot_id in context.client_written)
    if is_foreign and (_has_deletes(before) or _has_deletes(after)):
        resolver = context.build_resolver(reader, {**before, **after})
        found = compare_deletes(reader, resolver, read_sequenced(reader, before), read_sequenced(reader, after))
    else:
        found = _compare_deletes(reader, before, after)
    return _compute_change(reader, (before, after), found, None)


def _has_deletes(manifests: Manifests) -> bool:
    return any(file.content != DATA for file in manifests.values())


def _brings_deletes(reader: ManifestReader, before: Manifests, after: Manifests, added: Sequence[Snapshot]) -> bool:
    """Return True if a snapshot has deletes of other snapshots that its predecessor lacks: those of a branch that main was set to."""
    ids = {None, *(snapshot.snapshot_id for snapshot in added)}
    come = [live for live in _live_deletes(reader, after, before) if live.snapshot_id not in ids]
    known = {_to_key(live.file) for live in _live_deletes(reader, before, after)} if come else set[DeleteKey]()
    return any(_to_key(live.file) not in known for live in come)


def _live_deletes(reader: ManifestReader, manifests: Manifests, others: Manifests) -> list[LiveFile]:
    return live_files(reader.read_manifest(file) for path, file in manifests.items() if path not in others and file.content != DATA)


def _read_parent(reader: ManifestReader, base: TableMetadata | None, snapshot: Snapshot) -> Manifests:
    """Return the manifests of a snapshot's parent, if the table has that."""
    parent = None if base is None else find_snapshot(base, snapshot.parent_snapshot_id)
    return {} if parent is None else {file.manifest_path: file for file in reader.read_list(parent.manifest_list)}


def compute_emptying(reader: ManifestReader, base: TableMetadata) -> FileChange:
    """Return what it takes to leave main without rows."""
    before = _read_main(reader, base)
    live = live_files(reader.read_manifest(file) for file in before.values() if file.content == DATA)
    return FileChange((), {}, sorted({file.file.file_path for file in live}), {}, is_trusted=True)


def _list_fresh(reader: ManifestReader, before: Manifests, after: Manifests, snapshot_id: int) -> list[ReadManifest]:
    return [
        ReadManifest(file, manifest.header, manifest.entries)
        for path, file in after.items()
        if path not in before and file.added_snapshot_id == snapshot_id
        for manifest in [reader.read_manifest(file)]
    ]


def _read_main(reader: ManifestReader, base: TableMetadata | None) -> Manifests:
    current = None if base is None else find_snapshot(base, base.current_snapshot_id)
    files = {} if current is None else {file.manifest_path: file for file in reader.read_list(current.manifest_list)}
    reader.published.update(files)
    return files


def compute_added(
    reader: ManifestReader, lists: tuple[Manifests, Manifests], snapshot_id: int, schemas: Sequence[Schema]
) -> tuple[FileChange, list[str]]:
    """Return the data files that a snapshot adds to its parent's, and the paths of others that it has and its parent has not.

    `lists` are its parent's manifests, and its own.
    Raises: BadRequest: a delete file has a format that is not taken or lies elsewhere, or an equality-delete file cannot be read
    """
    before, after = lists
    come = live_files(reader.read_manifest(after[path]) for path in after if path not in before)
    left = live_files(reader.read_manifest(before[path]) for path in before if path not in after)
    for file in _delete_files(come).values():
        if not reader.allowed.is_own(file.file_path):
            raise BadRequest(
                f"Delete file {file.file_path!r} of a snapshot beside main does not lie in the table's location; write it there."
            )
    EqualityResolver(reader, schemas, {}, {}).check(come)
    known = {live.file.file_path for live in left}
    fresh = [live for live in come if live.file.content == DATA and live.file.file_path not in known]
    own = [live for live in fresh if live.snapshot_id in (None, snapshot_id)]
    spec_ids = {live.file.file_path: live.spec_id for live in own}
    change = FileChange([live.file for live in own], spec_ids, (), {}, fresh=_list_fresh(reader, before, after, snapshot_id))
    return change, [live.file.file_path for live in fresh if live.snapshot_id not in (None, snapshot_id)]


def _compute_change(
    reader: ManifestReader, lists: tuple[Manifests, Manifests], found: FoundDeletes, snapshot_id: int | None, *, is_next: bool = False
) -> FileChange:
    """Return what leads from the first of two lists to the second; `found` is what differs in their deletes."""
    (before, after), (deletes, back) = lists, found
    fresh = [reader.read_manifest(after[path]) for path in after if path not in before]
    gone = [reader.read_manifest(before[path]) for path in before if path not in after]
    come, left = live_files(fresh), live_files(gone)
    known = {live.file.file_path for live in left if live.file.content == DATA}
    listed = Counter(live.file.file_path for live in come if live.file.content == DATA)
    twice = next((path for path, count in listed.items() if count > 1), None)
    if twice is not None:
        raise BadRequest(f"A snapshot lists the data file {twice!r} twice; list each once.")
    data = {live.file.file_path: live for live in come if live.file.content == DATA}
    if snapshot_id is not None and is_next:
        _check_removed(fresh, known, snapshot_id)
    removed = known - data.keys()
    back = back - removed
    fresh_paths = data.keys() - known
    if back - data.keys():
        unchanged = (reader.read_manifest(after[path]) for path in after if path in before and after[path].content == DATA)
        carried_on = {live.file.file_path: live for live in live_files(unchanged) if live.file.file_path in back}
        data |= carried_on
        known |= carried_on.keys()
    back &= known
    own = {path for path in fresh_paths if data[path].snapshot_id in (None, snapshot_id) and snapshot_id is not None}
    returned = back | (fresh_paths - own)
    return FileChange(
        added=[data[path].file for path in data if path in own],
        spec_ids={path: live.spec_id for path, live in data.items()},
        removed=sorted(removed | back),
        deletes={path: positions for path, positions in deletes.items() if path not in removed},
        returned=[data[path].file for path in data if path in returned],
        is_trusted=snapshot_id is None,
    )


def _compare_deletes(reader: ManifestReader, before: Manifests, after: Manifests) -> FoundDeletes:
    """Return what `compare_deletes` does where every delete applies to all files it names; the cost depends on the differences only."""
    come, left = (_delete_files(_live_deletes(reader, *pair)) for pair in ((after, before), (before, after)))
    carried = [after[path] for path in after if path in before and after[path].content != DATA]
    deletes = _compute_deletes(reader, come, left, carried)
    back = {
        path
        for file in left.values()
        for path, positions in reader.read_deletes(file).items()
        if path in deletes and has_restored_rows(positions, deletes[path])
    }
    return deletes, back


def _check_removed(fresh: Iterable[OpenManifest], known: Container[str], snapshot_id: int) -> None:
    """Raise CommitFailed for a data file that a snapshot removes and its predecessor lacks: a concurrent commit removed it."""
    for manifest in fresh:
        for entry in manifest.entries:
            is_told = entry.status == DELETED and entry.data_file.content == DATA and entry.snapshot_id in (None, snapshot_id)
            if is_told and entry.data_file.file_path not in known:
                raise CommitFailed(f"Missing required files to delete: {entry.data_file.file_path}")


def _to_key(file: DataFile) -> DeleteKey:
    return file.file_path, file.content_offset


def _delete_files(files: Iterable[LiveFile]) -> dict[DeleteKey, DataFile]:
    found = {_to_key(live.file): live.file for live in files if live.file.content != DATA}
    for file in found.values():
        if file.file_format not in (DELETE_FORMATS if file.content == POSITION_DELETES else EQUALITY_FORMATS):
            raise BadRequest(f"Delete file {file.file_path!r} has the format {file.file_format}; write Parquet, or Puffin in version 3.")
    return found


def _compute_deletes(
    reader: ManifestReader, come: Mapping[DeleteKey, DataFile], left: Mapping[DeleteKey, DataFile], carried: Sequence[ManifestFile]
) -> dict[str, Longs]:
    """Return all deleted positions of the data files whose deletes come or go; the cost is in what the snapshot touches."""
    fresh = [reader.read_deletes(file) for key, file in come.items() if key not in left]
    touched = {path for found in fresh for path in found}
    touched |= {path for key, file in left.items() if key not in come for path in reader.read_deletes(file)}
    if not touched:
        return {}
    parts = {path: [found[path] for found in fresh if path in found] for path in touched}
    kept = [file for key, file in come.items() if key in left]
    kept += [live.file for live in live_files(reader.read_manifest(manifest) for manifest in carried)]
    for file in kept:
        if file.referenced_data_file is None or file.referenced_data_file in touched:
            for path, positions in reader.read_deletes(file).items():
                if path in touched:
                    parts[path].append(positions)
    return {path: merge_positions(found) for path, found in parts.items()}


def take_files(change: FileChange, new: TableMetadata, adopted: Sequence[DataFile] = ()) -> list[AddedFile]:
    """Return the files that a snapshot adds, each with its spec; `adopted` are those that DuckLake does not know any more.

    Raises: BadRequest: a file is no Parquet, or its partition tuple is not of its spec
    """
    specs = {spec.spec_id: spec for spec in new.partition_specs}
    taken: list[AddedFile] = []
    row_ids = {file.file_path: file.first_row_id for file in adopted if new.format_version >= FIRST_LINEAGE_FORMAT}
    for file in (*change.added, *adopted):
        where, spec_id = f"Data file {file.file_path!r}", change.spec_ids[file.file_path]
        spec = specs.get(spec_id)
        if spec is None:
            raise BadRequest(f"{where} is written for partition spec {spec_id}, which the table has not.")
        if len(spec.fields) != len(file.partition):
            raise BadRequest(f"{where} has {len(file.partition)} partition values, and its spec {len(spec.fields)} fields.")
        taken.append(AddedFile(file, spec, row_ids.get(file.file_path)))
        if not change.is_trusted:
            check_file(taken[-1])
        elif PROPERTY in new.properties and not file.file_path.startswith(f"{new.location}/"):
            raise BadRequest(f"{where} cannot come back: DuckLake has forgotten how its columns are named. Copy its rows.")
    return taken


@dataclass(frozen=True, slots=True)
class PreparedDelete:
    """All deleted rows of one data file, in a delete file. `data_file_ids` is empty for a file that the same commit adds.

    `folded` is what takes the place of the inlined deletes that there were.
    """

    data_file_path: str
    data_file_ids: Sequence[int]
    uri: str
    count: int
    size_bytes: int
    folded: MergedDeletes | None = None


@dataclass(frozen=True, slots=True)
class PreparedDeletes:
    """The row-level deletes of one snapshot: rows of data files, and inlined rows that derived files represent."""

    files: Sequence[PreparedDelete]
    inlined: Sequence[EndedInlinedRows]


NO_DELETES = PreparedDeletes((), ())


def write_deletes(
    warehouse: Warehouse, locations: Sequence[str], table: TableRow | None, changes: Sequence[FileChange], written: list[str]
) -> list[PreparedDeletes]:
    """Write the delete files of one commit below the last of the table's locations, and return what each change deletes.

    `table` None: the table is not in the lake yet. `written` gets the URIs of all files before the first of them is written.
    Raises: BadRequest: positions outside of a file, or rows that would come back
    """
    with reading(warehouse.lake) as conn:
        planner = _DeletePlanner(conn, warehouse.objects, locations, table)
        prepared = planner.prepare(changes)
    written += planner.contents
    warehouse.objects.put_many_new(planner.contents.items())
    return prepared


@dataclass(frozen=True, slots=True)
class _DeletePlanner:
    """The delete files of one commit, by URI in `contents`, made in a read transaction and written after it.

    `folded` are the data files whose inlined deletes one of the commit's snapshots has folded.
    """

    conn: psycopg.Connection
    objects: Objects
    locations: Sequence[str]
    table: TableRow | None
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes])
    folded: set[int] = field(default_factory=set[int])

    def prepare(self, changes: Sequence[FileChange]) -> list[PreparedDeletes]:
        counts: dict[str, int] = {}
        prepared: list[PreparedDeletes] = []
        for change in changes:
            counts |= {file.file_path: file.record_count for file in (*change.added, *change.returned)}
            prepared.append(self._prepare({**self._list_dated(change), **change.deletes}, counts))
        return prepared

    def _list_dated(self, change: FileChange) -> Mapping[str, Longs]:
        """Return no deleted rows for each file that comes back and whose rows carry lake snapshots of their own.

        DuckLake merges no file that has a delete file; merged, its rows would be there at those lake snapshots again.
        """
        if not change.returned or self.table is None:
            return {}
        folder = table_folder(read_data_path(self.conn), self.table)
        uris = {path: file.file_path for file in change.returned for path in list_paths(folder, file.file_path)}
        dated = {uris[path] for path in list_multi_snapshot_paths(self.conn, self.table.table_id, uris)}
        dated |= {file.file_path for file in change.returned if find_inlined_snapshot(self.locations, file.file_path) is not None}
        return {uri: merge_positions(()) for uri in sorted(dated)}

    def _prepare(self, deletes: Mapping[str, Longs], counts: Mapping[str, int]) -> PreparedDeletes:
        files: list[PreparedDelete] = []
        inlined: list[EndedInlinedRows] = []
        for path, positions in deletes.items():
            begin = self._find_inlined(path)
            if path in counts:
                check_positions(path, positions, counts[path])
                files.append(self._add(path, (), positions))
            elif begin is not None and self.table is not None:
                inlined += self._end_rows(self.table.table_id, path, begin, positions)
            elif self.table is not None:
                files += self._mark_rows(self.table, path, positions)
        return PreparedDeletes(files, inlined)

    def _find_inlined(self, path: str) -> int | None:
        """Return the lake snapshot of the inlined rows that a derived file stands for, unless DuckLake has the file itself."""
        begin = find_inlined_snapshot(self.locations, path)
        if begin is None or self.table is None or list_files_by_path(self.conn, self.table.table_id, [path]):
            return None
        return begin

    def _end_rows(self, table_id: int, path: str, begin: int, positions: Longs) -> Iterable[EndedInlinedRows]:
        for version in list_inlined_versions(self.conn, table_id):
            rows = read_inlined_batch(self.conn, table_id, version, begin)
            if rows:
                yield EndedInlinedRows(table_id, version, begin, choose_rows(path, positions, rows))

    def _mark_rows(self, table: TableRow, path: str, positions: Longs) -> Iterable[PreparedDelete]:
        folder = table_folder(read_data_path(self.conn), table)
        for found in list_files_by_path(self.conn, table.table_id, list_paths(folder, path)):
            check_positions(path, positions, found.record_count)
            prepared = self._add(path, (found.data_file_id,), positions)
            inlined = read_inlined_deletes(self.conn, table.table_id, [found.data_file_id])
            # the request's first snapshot that deletes rows of the file has folded them for the others
            is_first = found.data_file_id not in self.folded
            self.folded.add(found.data_file_id)
            yield replace(prepared, folded=self._fold(table, folder, path, inlined)) if inlined and is_first else prepared

    def _fold(self, table: TableRow, folder: str, path: str, inlined: Sequence[InlinedDeleteRow]) -> MergedDeletes:
        """Make one delete file for what DuckLake knows in two places.

        Its flush would give the inlined ones a file that begins before ours and never ends: two for one data file.
        """
        row = find_delete_file(self.conn, table.table_id, inlined[0].file_id)
        old = old_path = None
        if row is not None:
            old_path = folder + row.path if row.path_is_relative else row.path
            old = DeletedRows(row, *decode_deletes(row, self.objects.read(to_uri(old_path))))
        dated = date_deletes(old, inlined)
        content = encode_dated_deletes(path, dated.positions, dated.snapshot_ids)
        uri = self._name(content)
        first, last = int(dated.snapshot_ids.min()), int(dated.snapshot_ids.max())
        return MergedDeletes(0, table.table_id, inlined[0].file_id, first, last, uri, len(dated.positions), len(content), old_path)

    def _add(self, path: str, data_file_ids: Sequence[int], positions: Longs) -> PreparedDelete:
        content = encode_position_deletes(path, positions)
        return PreparedDelete(path, data_file_ids, self._name(content), len(positions), len(content))

    def _name(self, content: bytes) -> str:
        # never shared between rows: DuckLake removes the file of a row whose lake snapshots have expired
        uri = f"{self.locations[-1]}/data/ducklake-{uuid4()}-delete.parquet"
        self.contents[uri] = content
        return uri
