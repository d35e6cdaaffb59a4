"""Which rows of a snapshot are deleted: by positions, vectors and equality, each where the sequence numbers let it count."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.writing.ready.equality import EqualityResolver
from duckicelake.catalog.writing.ready.manifests import DeleteKey, LiveFile, ManifestReader, Manifests, OpenManifest
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DATA, DELETED, EQUALITY_DELETES
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.translate.to_ducklake.deletes import has_returned, is_same, unite
from duckicelake.translate.visibility import Longs

PARQUET, PUFFIN = "PARQUET", "PUFFIN"
FIRST_FRESH_NUMBER = 2**62
"""Above all sequence numbers that a table has: what a request adds is newer than what is there, whatever its client called it."""


@dataclass(frozen=True, slots=True)
class NumberedFile:
    """A live file of a snapshot with its data sequence number."""

    live: LiveFile
    number: int


@dataclass(frozen=True, slots=True)
class NumberedFiles:
    """All live files of a snapshot: data files by path, and delete files."""

    data: Mapping[str, NumberedFile]
    deletes: Mapping[DeleteKey, NumberedFile]


def list_numbered(manifest: OpenManifest) -> Iterable[NumberedFile]:
    """Return the files that a manifest does not remove."""
    for entry in manifest.entries:
        if entry.status != DELETED:
            yield NumberedFile(LiveFile(manifest.header.spec, entry.data_file, entry.snapshot_id), entry.sequence_number or 0)


def read_numbered(reader: ManifestReader, manifests: Manifests, added: Sequence[Snapshot] = ()) -> NumberedFiles:
    """Return the files of a snapshot; those that the request has `added` are newer than all others, in its order.

    Raises: BadRequest: a manifest is missing or malformed
    """
    places = {one.snapshot_id: (one.sequence_number, FIRST_FRESH_NUMBER + place) for place, one in enumerate(added)}
    # Version 1 has no numbers, so only those above 0 tell which snapshot is meant.
    numbers = {number: fresh for number, fresh in places.values() if number > 0}
    data: dict[str, NumberedFile] = {}
    deletes: dict[DeleteKey, NumberedFile] = {}
    for manifest in manifests.values():
        for found in list_numbered(reader.read_manifest(manifest)):
            file = found.live.file
            number, fresh = places.get(found.live.snapshot_id or manifest.added_snapshot_id, (None, 0))
            if number is not None:
                # Its own, or that of an earlier snapshot of the request.
                fresh = fresh if found.number == number else numbers.get(found.number, found.number)
            numbered = NumberedFile(found.live, found.number if number is None else fresh)
            if file.content == DATA:
                data[file.file_path] = numbered
            else:
                deletes[file.file_path, file.content_offset] = numbered
    return NumberedFiles(data, deletes)


def compare_deletes(
    reader: ManifestReader, resolver: EqualityResolver, before: NumberedFiles, after: NumberedFiles
) -> tuple[dict[str, Longs], set[str]]:
    """Return all deleted positions of the data files whose deletes differ, by path, and the files of which deleted rows come back.

    Raises: BadRequest: what `find_deleted` raises
    """
    touched = {path for path, file in after.data.items() if path not in before.data or before.data[path].number != file.number}
    for own, other in ((before, after), (after, before)):
        for key, delete in own.deletes.items():
            if key not in other.deletes or other.deletes[key].number != delete.number:
                touched |= _find_positions(reader, resolver, own.data, delete).keys()
    old, new = (
        find_deleted(reader, resolver, {path: side.data[path] for path in touched if path in side.data}, [*side.deletes.values()])
        for side in (before, after)
    )
    none = unite(())
    deletes = {
        path: new.get(path, none) for path in sorted(touched & after.data.keys()) if not is_same(old.get(path, none), new.get(path, none))
    }
    return deletes, {path for path, positions in deletes.items() if has_returned(old.get(path, none), positions)}


def _find_positions(
    reader: ManifestReader, resolver: EqualityResolver, files: Mapping[str, NumberedFile], delete: NumberedFile
) -> Mapping[str, Longs]:
    """Return the positions that a delete file means in these files, where its number lets it count."""
    _check_format(delete)
    if delete.live.file.content == EQUALITY_DELETES:
        return resolver.find_rows(delete.live, [found.live for found in files.values() if found.number < delete.number])
    target = delete.live.file.referenced_data_file
    if target is not None and target not in files:
        return {}
    read = reader.read_deletes(delete.live.file)
    return {path: rows for path, rows in read.items() if path in files and files[path].number <= delete.number}


def find_deleted(
    reader: ManifestReader, resolver: EqualityResolver, files: Mapping[str, NumberedFile], deletes: Sequence[NumberedFile]
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
        found = _find_positions(reader, resolver, files, delete)
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
    return {path: unite((*by_position.get(path, ()), *equal.get(path, ()))) for path in sorted(by_position.keys() | equal.keys())}


def _check_format(delete: NumberedFile) -> None:
    file = delete.live.file
    if file.file_format != PARQUET and (file.file_format != PUFFIN or file.content == EQUALITY_DELETES):
        raise BadRequest(f"Delete file {file.file_path!r} has the format {file.file_format}, which is not taken; rewrite the deletes.")
