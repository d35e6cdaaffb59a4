"""Branch snapshots: writes to branches, and staged snapshots. Their manifests are copied, because clients may remove their own.

The copies lie under the table's location, and DuckLake has no rows for these snapshots. `commits.prepare` prepares branch snapshots before
the lake's lock, on a worker thread; its `may_have` reads Postgres. `commits.plan` writes copies of format version 1 again under the lock,
because these contain lake snapshot ids.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.incoming.client_manifests import ManifestReader, Manifests, OpenManifest, live_files
from duckicelake.catalog.incoming.file_changes import FileChange, SnapshotContext, compute_added, renumber_specs
from duckicelake.catalog.incoming.row_id_copies import with_file_copies
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import ADDED, DATA, DELETED, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import (
    ManifestFile,
    ManifestListHeader,
    WrittenManifest,
    build_manifest_file,
    encode_manifest_list,
    inherit_from_list,
)
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.table_draft import map_spec_ids, resolve_added_specs
from duckicelake.iceberg.requests.updates import AddSchema, AddSpec, SetCurrentSchema, SetDefaultSpec, TableUpdate, UpgradeFormatVersion
from duckicelake.iceberg.snapshots import Snapshot, format_snapshot
from duckicelake.lake.note_rows import NewKeptSnapshot
from duckicelake.lake.rows import TableNotes
from duckicelake.translate.client_schemas import with_removed
from duckicelake.translate.locations import format_manifest_name, manifest_list_uri, manifest_uri, to_canonical
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY

WITHOUT_INHERITANCE = 1
"""The format version without sequence numbers, in whose manifests each entry names the snapshot that it is of."""


@dataclass(frozen=True, slots=True)
class BranchSnapshot:
    """A branch snapshot with its manifests copied, as its client numbered them.

    `change` holds its own data files, and `paths` are those of all files that its parent has not. `reader` has read its manifests.
    """

    snapshot: Snapshot
    files: Sequence[ManifestFile]
    change: FileChange
    paths: Sequence[str]
    reader: ManifestReader


def prepare_branch_snapshot(
    reader: ManifestReader, snapshot: Snapshot, parent_list: str | None, context: SnapshotContext, may_have: Callable[[Sequence[str]], bool]
) -> BranchSnapshot:
    """Copy the manifests that a snapshot has and its parent has not, and those of other snapshots that the request adds.

    `may_have` returns True if the parent may have some of these files: only then are its manifests read.
    Raises: BadRequest: they cannot be taken, or name files that are nowhere in the table, or in the parent too
    """
    before = {} if parent_list is None else {file.manifest_path: file for file in reader.read_list(parent_list)}
    after = {file.manifest_path: file for file in reader.read_list(snapshot.manifest_list)}
    added = list_numbers(context.added)
    copier = _Copier(reader, added, context.specs)
    fresh = [file for path, file in after.items() if path not in before or file.added_snapshot_id in added]
    change, others = compute_added(reader, (before, after), snapshot.snapshot_id, context.schemas)
    for path in others:
        if not reader.allowed.is_own(path):
            raise BadRequest(
                f"Snapshot {snapshot.snapshot_id} lists {path!r}, which its parent has not; add files by snapshots of their own."
            )
    paths = sorted({*others, *(file.file_path for file in change.added)})
    _check_once(reader, paths, {path: file for path, file in before.items() if path in after} if may_have(paths) else {})
    copies = {file.manifest_path: copier.copy(file) for file in fresh}
    files = [copy for path, file in after.items() for copy in copies.get(path, [file])]
    own_specs = {theirs: ours.spec_id for theirs, ours in context.specs.items()}
    return BranchSnapshot(snapshot, files, renumber_specs(change, own_specs), paths, reader)


def _check_once(reader: ManifestReader, paths: Sequence[str], carried: Manifests) -> None:
    """Raise BadRequest for a file that comes and is in a manifest that stays, or comes by two spellings."""
    opened = (reader.read_manifest(file) for file in carried.values() if file.content == DATA)
    seen = {to_canonical(live.file.file_path) for live in live_files(opened)}
    for path in paths:
        if to_canonical(path) in seen:
            raise BadRequest(f"Data file {path!r} is in the snapshot's parent already, or comes twice; a file is in a snapshot once.")
        seen.add(to_canonical(path))


def list_deleted_targets(reader: ManifestReader, branch_snapshots: Iterable[BranchSnapshot], added: Collection[int]) -> set[str | None]:
    """Return the data files whose rows snapshots delete by manifests of those `added`; None stands for any data file."""
    own = (file for prepared in branch_snapshots for file in prepared.files if file.content != DATA and file.added_snapshot_id in added)
    return {live.file.referenced_data_file for live in live_files(map(reader.read_manifest, own))}


def with_data_copies(
    reader: ManifestReader, prepared: BranchSnapshot, copies: Mapping[str, DataFile], added: Mapping[int, int]
) -> BranchSnapshot:
    """Return a snapshot whose data files are copies of the client's, in new manifests; `copies` are by the paths of these."""
    copier = _Copier(reader, added, copies=copies)
    own = [file for file in prepared.files if file.added_snapshot_id in added and file.content == DATA]
    wanted = {
        file.manifest_path for file in own if any(entry.data_file.file_path in copies for entry in reader.read_manifest(file).entries)
    }
    files = [copy for file in prepared.files for copy in (copier.copy(file) if file.manifest_path in wanted else [file])]
    paths = [copies[path].file_path if path in copies else path for path in prepared.paths]
    return replace(prepared, files=files, change=with_file_copies(prepared.change, copies), paths=sorted(paths))


def list_numbers(added: Sequence[Snapshot]) -> dict[int, int]:
    """Return the sequence numbers that a client gave to the snapshots of its request, by their ids."""
    return {snapshot.snapshot_id: snapshot.sequence_number for snapshot in added}


@dataclass(frozen=True, slots=True)
class _Copier:
    """Copies manifests of a request. `numbers` are the sequence numbers that its snapshots have from their client.

    `specs` are the table's by the ids that its client gave them, and `copies` the data files that take the place of others.
    """

    reader: ManifestReader
    numbers: Mapping[int, int]
    specs: Mapping[int, PartitionSpec] = field(default_factory=dict[int, PartitionSpec])
    copies: Mapping[str, DataFile] = field(default_factory=dict[str, DataFile])

    def copy(self, file: ManifestFile) -> list[ManifestFile]:
        """Copy a manifest, and apart from it what it has of earlier snapshots of the request: these are going to have other numbers."""
        own: list[ManifestEntry] = []
        earlier: dict[int | None, list[ManifestEntry]] = {}
        for entry in self.reader.read_manifest(file).entries:
            found = _with_copy(entry, self.copies)
            if entry.status == DELETED or entry.snapshot_id not in self.numbers or entry.snapshot_id == file.added_snapshot_id:
                own.append(_without_inherited(found, file, self.numbers))
            else:
                earlier.setdefault(entry.snapshot_id, []).append(found)
        if not earlier:
            return [self._put(file, own)]
        parts = [self._put_part(file, part) for entries in earlier.values() for part in _list_runs(entries)]
        return [*parts, self._describe(file, own, (file.added_snapshot_id, file.sequence_number))] if own else parts

    def _put_part(self, file: ManifestFile, entries: Sequence[ManifestEntry]) -> ManifestFile:
        """Write what a manifest has of one snapshot, as if that had written it; its files' row ids follow on one another."""
        author, first = entries[0].snapshot_id or 0, entries[0].data_file
        assert isinstance(first, DataFile)
        number = self.numbers[author]
        own = [ManifestEntry(ADDED, None, _find_older(one, number), None, replace(one.data_file, first_row_id=None)) for one in entries]
        return self._describe(replace(file, first_row_id=first.first_row_id), own, (author, number))

    def _describe(self, file: ManifestFile, entries: Sequence[ManifestEntry], author: tuple[int, int]) -> ManifestFile:
        """Write a part of a manifest for the snapshot of that id and number."""
        header = self.reader.read_manifest(file).header
        told = build_manifest_file(header, entries, WrittenManifest("", 0, *author))
        return self._put(replace(told, first_row_id=file.first_row_id), entries, header)

    def _put(self, listed: ManifestFile, entries: Sequence[ManifestEntry], header: ManifestHeader | None = None) -> ManifestFile:
        header = header or self.reader.read_manifest(listed).header
        if listed.added_snapshot_id in self.numbers and header.spec.spec_id in self.specs:
            header = replace(header, spec=self.specs[header.spec.spec_id])
        if header.format_version == WITHOUT_INHERITANCE:
            entries = [
                entry if entry.snapshot_id is not None else replace(entry, snapshot_id=listed.added_snapshot_id) for entry in entries
            ]
        return put_manifest(self.reader, listed, header, entries)


def put_manifest(reader: ManifestReader, listed: ManifestFile, header: ManifestHeader, entries: Sequence[ManifestEntry]) -> ManifestFile:
    """Write a manifest in the table's location, and return what lists say of it."""
    content = encode_manifest(header, entries)
    uri = manifest_uri(reader.allowed.locations[-1], format_manifest_name(content))
    reader.objects.put_new(uri, content)
    made = replace(listed, manifest_path=uri, manifest_length=len(content), partition_spec_id=header.spec.spec_id)
    if header.format_version == WITHOUT_INHERITANCE:
        # under the lake's lock it is not read again
        reader.manifests[uri] = OpenManifest(header, inherit_from_list(entries, made))
    return made


def _list_runs(entries: Sequence[ManifestEntry]) -> list[list[ManifestEntry]]:
    """Return a snapshot's entries so that in each list rows come one after another in its numbering; one list if it numbers none."""
    runs: list[list[ManifestEntry]] = []
    for entry in sorted(entries, key=lambda entry: entry.data_file.first_row_id or 0):
        before, first = runs[-1][-1].data_file if runs else None, entry.data_file.first_row_id
        if before is not None and (first is None or first == (before.first_row_id or 0) + before.record_count):
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _with_copy(entry: ManifestEntry, copies: Mapping[str, DataFile]) -> ManifestEntry:
    copy = copies.get(entry.data_file.file_path)
    return entry if copy is None else replace(entry, data_file=replace(copy, first_row_id=entry.data_file.first_row_id))


def _without_inherited(entry: ManifestEntry, file: ManifestFile, added: Mapping[int, int]) -> ManifestEntry:
    """Return an entry that inherits the values of its own snapshot from the list: the ids of those `added` are going to be others.

    Rewritten rows may have the number that they had, so that equality deletes which came meanwhile count for them.
    Raises: BadRequest: an added file has the number of an earlier one of those `added`, which is going to be another too
    """
    if entry.snapshot_id not in added or file.added_snapshot_id != entry.snapshot_id:
        return entry
    if entry.status != ADDED:
        return replace(entry, snapshot_id=None)
    data_file: DataFile = entry.data_file
    older = _find_older(entry, file.sequence_number)
    if older in added.values():
        raise BadRequest(
            f"Data file {data_file.file_path!r} has the sequence number {older} of another snapshot that the request adds to a branch; "
            "commit one after the other."
        )
    inherits = file.first_row_id is not None
    return ManifestEntry(ADDED, None, older, None, replace(data_file, first_row_id=None) if inherits else data_file)


def _find_older(entry: ManifestEntry, number: int) -> int | None:
    """Return an added entry's own number, if that is older than its snapshot's."""
    return entry.sequence_number if entry.sequence_number is not None and entry.sequence_number < number else None


@dataclass(frozen=True, slots=True)
class LakeNumbers:
    """The ids and numbers that the lake assigns to a snapshot. `base_snapshot_id` is the snapshot of main that it grew from."""

    snapshot_id: int
    parent_snapshot_id: int | None
    base_snapshot_id: int
    sequence_number: int
    first_row_id: int | None


AssignedNumbers = Mapping[int, tuple[Snapshot, LakeNumbers]]
"""The snapshots of a request, by the ids that their client gave them, and what the lake calls them."""


def to_kept_snapshot(
    table_id: int, location: str, prepared: BranchSnapshot, assigned: AssignedNumbers, common: Mapping[str, int]
) -> NewKeptSnapshot:
    """Return the note of a branch snapshot, which `assigned` contains. `common` holds format version, schema id and time."""
    snapshot, numbers = assigned[prepared.snapshot.snapshot_id]
    listed = [_renumber(file, assigned) for file in prepared.files]
    version, first_row_id = common["format-version"], numbers.first_row_id
    header = ManifestListHeader(numbers.snapshot_id, numbers.parent_snapshot_id, numbers.sequence_number, version, first_row_id)
    content = encode_manifest_list(header, listed)
    made = replace(
        snapshot,
        snapshot_id=numbers.snapshot_id,
        parent_snapshot_id=numbers.parent_snapshot_id,
        sequence_number=numbers.sequence_number,
        timestamp_ms=common["timestamp-ms"],
        manifest_list=manifest_list_uri(location, numbers.snapshot_id, format_manifest_name(content)),
        summary={**snapshot.summary, SNAPSHOT_ID_PROPERTY: str(numbers.snapshot_id)},
        schema_id=common["schema-id"] if snapshot.schema_id is None else snapshot.schema_id,
        first_row_id=first_row_id,
        added_rows=None if first_row_id is None else snapshot.added_rows,
    )
    text = json.dumps(format_snapshot(made), separators=(",", ":"), ensure_ascii=False)
    return NewKeptSnapshot(table_id, numbers.snapshot_id, numbers.base_snapshot_id, text, content)


def write_lake_ids(prepared: BranchSnapshot, assigned: AssignedNumbers) -> BranchSnapshot:
    """Return a snapshot whose manifests of format version 1 are written once more, with the lake's ids of the snapshots in `assigned`.

    Entries of version 1 inherit no snapshot id from the list, and the lake's ids are known only under its lock.
    """
    return replace(prepared, files=[_write_lake_ids(prepared.reader, file, assigned) for file in prepared.files])


def _write_lake_ids(reader: ManifestReader, file: ManifestFile, assigned: AssignedNumbers) -> ManifestFile:
    opened = reader.manifests.get(file.manifest_path) if file.added_snapshot_id in assigned else None
    if opened is None or opened.header.format_version != WITHOUT_INHERITANCE:
        return file
    ids: dict[int | None, int] = {theirs: numbers.snapshot_id for theirs, (_, numbers) in assigned.items()}
    entries = [replace(entry, snapshot_id=ids.get(entry.snapshot_id, entry.snapshot_id)) for entry in opened.entries]
    return put_manifest(reader, file, opened.header, entries)


def _renumber(file: ManifestFile, assigned: AssignedNumbers) -> ManifestFile:
    if file.added_snapshot_id not in assigned:
        return file
    snapshot, numbers = assigned[file.added_snapshot_id]
    is_new = file.min_sequence_number >= file.sequence_number
    first_row_id = file.first_row_id
    if first_row_id is not None and numbers.first_row_id is not None:
        first_row_id += numbers.first_row_id - (snapshot.first_row_id or 0)
    return replace(
        file,
        added_snapshot_id=numbers.snapshot_id,
        sequence_number=numbers.sequence_number,
        min_sequence_number=numbers.sequence_number if is_new else file.min_sequence_number,
        first_row_id=first_row_id,
    )


SHAPE_UPDATES = AddSchema | SetCurrentSchema | AddSpec | SetDefaultSpec | UpgradeFormatVersion


def compute_new_specs(metadata: TableMetadata, notes: TableNotes, updates: Sequence[TableUpdate]) -> Mapping[int, PartitionSpec]:
    """Return the specs that the table is going to have of a request, by their client's ids, where it gives others.

    Under the lock the table is still as it was read, or all is done again.
    Raises: BadRequest: a spec contradicts the table
    """
    shown = {spec.spec_id for spec in metadata.partition_specs}
    if not any(isinstance(update, AddSpec) and update.spec.spec_id not in shown for update in updates):
        return {}
    told = resolve_added_specs([update for update in updates if isinstance(update, SHAPE_UPDATES)], shown)
    new = apply_updates(with_removed(metadata, notes), told, 0)
    specs = {spec.spec_id: spec for spec in new.partition_specs}
    return {theirs: specs[ours] for theirs, ours in map_spec_ids(told, shown, new).items()}
