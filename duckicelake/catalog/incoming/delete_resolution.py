"""The deleted rows of a snapshot: position deletes, deletion vectors and equality deletes, applied by sequence number.

Equality deletes become positions, because DuckLake has no others; the data files that may match are read before the lock.
`file_changes` and `external_metadata` call this on a worker thread. It reads the object store through their `ManifestReader`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from duckicelake.catalog.incoming.client_manifests import DeleteKey, LiveFile, ManifestReader, Manifests, OpenManifest, live_files
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import DATA, DELETED, EQUALITY_DELETES, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.store.equality_deletes import DeleteKeys, KeyColumn, list_equal_rows, read_keys
from duckicelake.translate.name_mapping import NamePath
from duckicelake.translate.to_ducklake.deletes import (
    DeleteScope,
    EqualityColumn,
    KeyValues,
    get_equality_columns,
    has_restored_rows,
    has_same_positions,
    merge_positions,
)
from duckicelake.translate.visibility import Longs

MAX_KEYS = 1_000_000
MAX_READ_BYTES = 4 * 1024 * 1024 * 1024
MAX_PAIRS = 10_000_000
"""Of an equality-delete file and a data file that it may mean rows of: looking at so many takes most of a minute."""


@dataclass(slots=True)
class EqualityResolver:
    """Finds the rows that the equality deletes of one request mean.

    `published` are manifests that the table has had before the request; of data files that are not in them only those under
    the table's location are read, because the client names them. `names` gives field ids to columns of files that carry none.
    `rows` are those found so far, by delete file and data file that was read: of those that were not there may be very many.
    """

    reader: ManifestReader
    schemas: Sequence[Schema]
    names: Mapping[NamePath, int]
    published: Manifests
    read_bytes: int = 0
    pairs: int = 0
    paths: frozenset[str] | None = None
    rows: dict[DeleteKey, dict[str, Longs]] = field(default_factory=dict["DeleteKey", dict[str, Longs]])

    def resolve(self, come: Iterable[LiveFile], before: Manifests) -> None:
        """Resolve the new equality-delete files to positions in the data files of `before`, and store these in the reader.

        Raises: BadRequest: a file is missing or malformed, or finding the rows would cost more than is done in a request
        """
        deletes = [live for live in come if live.file.content == EQUALITY_DELETES]
        fresh = {(live.file.file_path, live.file.content_offset): live for live in deletes}
        unknown = {key: live for key, live in fresh.items() if key not in self.reader.deletes}
        candidates = self._list_data_files(before.values()) if unknown else []
        for key, live in unknown.items():
            if live.file.file_format == "PARQUET":
                self.reader.deletes[key] = self._resolve(live, candidates)

    def list_rows(self, delete: LiveFile, candidates: Sequence[LiveFile]) -> Mapping[str, Longs]:
        """Return the positions that an equality-delete file means in these data files. Raises what `resolve` raises."""
        return self._resolve(delete, candidates)

    def _list_data_files(self, manifests: Iterable[ManifestFile]) -> list[LiveFile]:
        opened = (self.reader.read_manifest(manifest) for manifest in manifests if manifest.content == DATA)
        return [live for live in live_files(opened) if live.file.content == DATA]

    def check(self, deletes: Iterable[LiveFile]) -> None:
        """Raise BadRequest for equality-delete files that are missing or malformed, or that cannot be resolved later."""
        for live in deletes:
            if live.file.content == EQUALITY_DELETES:
                self._read_keys(live.file)

    def _read_keys(self, delete: DataFile) -> tuple[Sequence[EqualityColumn], DeleteKeys]:
        path = delete.file_path
        if delete.record_count > MAX_KEYS:
            raise BadRequest(
                f"Equality-delete file {path!r} has {delete.record_count} rows, more than the {MAX_KEYS} that are taken; "
                "write smaller ones, or delete by position."
            )
        found = get_equality_columns(delete, self.schemas)
        columns = [KeyColumn(column.field_id, column.type.name, column.default) for column in found]
        try:
            return found, read_keys(self.reader.read_delete_file(path), columns, MAX_KEYS)
        except Unsupported as error:
            raise BadRequest(f"Cannot read equality-delete file {path!r}: {error.message}") from error

    def _resolve(self, live: LiveFile, candidates: Sequence[LiveFile]) -> Mapping[str, Longs]:
        delete = live.file
        key = delete.file_path, delete.content_offset
        is_new, known = key not in self.rows, self.rows.setdefault(key, {})
        scope = DeleteScope(live.spec_id, () if live.spec.is_unpartitioned else delete.partition)
        covered = [one.file for one in candidates if scope.covers(one.spec_id, one.file)]
        self._count_pairs(len(candidates))
        unknown = [file for file in covered if file.file_path not in known]
        if unknown or is_new:
            columns, keys = self._read_keys(delete)
            wanted = [KeyValues(column, *keys.list_values(place)) for place, column in enumerate(columns)]
            chosen = [file for file in unknown if all(one.may_be_in(file) for one in wanted)]
            self._count(delete.file_path, chosen)
            for file in chosen:
                known[file.file_path] = self._read_rows(file, keys)
                self.reader.count_positions(delete.file_path, len(known[file.file_path]))
        found = {file.file_path: known[file.file_path] for file in covered if file.file_path in known}
        return {path: positions for path, positions in found.items() if len(positions)}

    def _count(self, path: str, chosen: Sequence[DataFile]) -> None:
        self.read_bytes += sum(file.file_size_in_bytes for file in chosen)
        if self.read_bytes > MAX_READ_BYTES:
            raise BadRequest(
                f"To find the rows that {path!r} deletes, {len(chosen)} data files would have to be read: {self.read_bytes} bytes "
                f"with those read before, more than the {MAX_READ_BYTES} of a commit; delete by position, or in smaller commits."
            )

    def _count_pairs(self, count: int) -> None:
        self.pairs += count
        if self.pairs > MAX_PAIRS:
            raise BadRequest(
                f"More than {MAX_PAIRS} pairs of an equality-delete file and a data file would have to be compared; "
                "rewrite the data files first, or delete by position."
            )

    def _read_rows(self, file: DataFile, keys: DeleteKeys) -> Longs:
        uri = file.file_path
        if not self.reader.allowed.holds(uri) and uri not in self._published_paths():
            raise BadRequest(f"Data file {uri!r} lies where no file of the table may; write files in its location.")
        try:
            return list_equal_rows(self.reader.objects.open(uri, file.file_size_in_bytes), keys, self.names)
        except NotFound as error:
            raise BadRequest(f"Data file {uri!r} is missing: its rows cannot be compared; delete by position.") from error
        except Unsupported as error:
            raise BadRequest(f"Cannot compare the rows of {uri!r}: {error.message}") from error

    def _published_paths(self) -> frozenset[str]:
        if self.paths is None:
            self.paths = frozenset(live.file.file_path for live in self._list_data_files(self.published.values()))
        return self.paths


PARQUET, PUFFIN = "PARQUET", "PUFFIN"
FIRST_FRESH_NUMBER = 2**62
"""Above all sequence numbers that a table has: a request's snapshots are newer than the table's, with any number."""


@dataclass(frozen=True, slots=True)
class SequencedFile:
    """A live file of a snapshot with its data sequence number."""

    live: LiveFile
    number: int


@dataclass(frozen=True, slots=True)
class SequencedFiles:
    """All live files of a snapshot: data files by path, and delete files."""

    data: Mapping[str, SequencedFile]
    deletes: Mapping[DeleteKey, SequencedFile]


def list_sequenced(manifest: OpenManifest) -> Iterable[SequencedFile]:
    """Return the files that a manifest does not remove."""
    for entry in manifest.entries:
        if entry.status != DELETED:
            yield SequencedFile(LiveFile(manifest.header.spec, entry.data_file, entry.snapshot_id), entry.sequence_number or 0)


def read_sequenced(reader: ManifestReader, manifests: Manifests, added: Sequence[Snapshot] = ()) -> SequencedFiles:
    """Return the files of a snapshot; those that the request has `added` are newer than all others, in its order.

    Raises: BadRequest: a manifest is missing or malformed
    """
    places = {one.snapshot_id: (one.sequence_number, FIRST_FRESH_NUMBER + place) for place, one in enumerate(added)}
    # Version 1 has no sequence numbers, so only numbers above 0 identify a snapshot.
    numbers = {number: fresh for number, fresh in places.values() if number > 0}
    data: dict[str, SequencedFile] = {}
    deletes: dict[DeleteKey, SequencedFile] = {}
    for manifest in manifests.values():
        for found in list_sequenced(reader.read_manifest(manifest)):
            file = found.live.file
            number, fresh = places.get(found.live.snapshot_id or manifest.added_snapshot_id, (None, 0))
            if number is not None:
                # Its own, or that of an earlier snapshot of the request.
                fresh = fresh if found.number == number else numbers.get(found.number, found.number)
            numbered = SequencedFile(found.live, found.number if number is None else fresh)
            if file.content == DATA:
                data[file.file_path] = numbered
            else:
                deletes[file.file_path, file.content_offset] = numbered
    return SequencedFiles(data, deletes)


def compare_deletes(
    reader: ManifestReader, resolver: EqualityResolver, before: SequencedFiles, after: SequencedFiles
) -> tuple[dict[str, Longs], set[str]]:
    """Return all deleted positions of the data files whose deletes differ, by path, and the files of which deleted rows come back.

    Raises: BadRequest: what `resolve_deletes` raises
    """
    touched = {path for path, file in after.data.items() if path not in before.data or before.data[path].number != file.number}
    for own, other in ((before, after), (after, before)):
        for key, delete in own.deletes.items():
            if key not in other.deletes or other.deletes[key].number != delete.number:
                touched |= _list_positions(reader, resolver, own.data, delete).keys()
    old, new = (
        resolve_deletes(reader, resolver, {path: side.data[path] for path in touched if path in side.data}, [*side.deletes.values()])
        for side in (before, after)
    )
    none = merge_positions(())
    deletes = {
        path: new.get(path, none)
        for path in sorted(touched & after.data.keys())
        if not has_same_positions(old.get(path, none), new.get(path, none))
    }
    return deletes, {path for path, positions in deletes.items() if has_restored_rows(old.get(path, none), positions)}


def _list_positions(
    reader: ManifestReader, resolver: EqualityResolver, files: Mapping[str, SequencedFile], delete: SequencedFile
) -> Mapping[str, Longs]:
    """Return the positions that a delete file means in these files, where its number lets it count."""
    _check_format(delete)
    if delete.live.file.content == EQUALITY_DELETES:
        return resolver.list_rows(delete.live, [found.live for found in files.values() if found.number < delete.number])
    target = delete.live.file.referenced_data_file
    if target is not None and target not in files:
        return {}
    read = reader.read_deletes(delete.live.file)
    return {path: rows for path, rows in read.items() if path in files and files[path].number <= delete.number}


def resolve_deletes(
    reader: ManifestReader, resolver: EqualityResolver, files: Mapping[str, SequencedFile], deletes: Sequence[SequencedFile]
) -> dict[str, Longs]:
    """Return the deleted positions of data files, by path.

    A delete file counts for data files of its own sequence number and below, one by equality only for those below. A deletion
    vector stands for all positions deleted in its file.

    Raises: BadRequest: a delete file is missing, malformed or of a format that is not taken
    Source: Iceberg spec «Scan Planning»
    """
    vectors: dict[str, Longs] = {}
    positions: dict[str, list[Longs]] = {}
    equal: dict[str, list[Longs]] = {}
    for delete in deletes:
        file = delete.live.file
        found = _list_positions(reader, resolver, files, delete)
        for path, rows in found.items():
            if file.content == EQUALITY_DELETES:
                equal.setdefault(path, []).append(rows)
            elif file.file_format != PUFFIN:
                positions.setdefault(path, []).append(rows)
            elif path in vectors:
                raise BadRequest(f"Data file {path!r} has two deletion vectors; a file has one at most.")
            else:
                vectors[path] = rows
    by_position = {path: [vectors[path]] if path in vectors else positions.get(path, []) for path in vectors.keys() | positions.keys()}
    return {path: merge_positions((*by_position.get(path, ()), *equal.get(path, ()))) for path in sorted(by_position.keys() | equal.keys())}


def _check_format(delete: SequencedFile) -> None:
    file = delete.live.file
    if file.file_format != PARQUET and (file.file_format != PUFFIN or file.content == EQUALITY_DELETES):
        raise BadRequest(f"Delete file {file.file_path!r} has the format {file.file_format}, which is not taken; rewrite the deletes.")
