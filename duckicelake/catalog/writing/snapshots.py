"""What the snapshots of a commit do to a table's files: their manifest lists, compared one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from duckicelake.catalog.writing.equality import EqualityResolver
from duckicelake.catalog.writing.manifests import DeleteKey, ManifestReader, Manifests, live_files
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DATA, POSITION_DELETES, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.manifests import ReadManifest
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.translate.shape.name_mapping import PROPERTY, parse_name_mapping
from duckicelake.translate.to_ducklake.deletes import check_grown, unite
from duckicelake.translate.to_ducklake.files import TakenFile, check_file
from duckicelake.translate.visibility import Longs

DELETE_FORMATS, EQUALITY_FORMATS = frozenset({"PARQUET", "PUFFIN"}), frozenset({"PARQUET"})


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one snapshot does: data files that come, paths of those that go, and the rows deleted of those that stay.

    `deletes` holds all deleted positions after it, by path, of every data file whose deletes it changes. `fresh` are the
    manifests that its author wrote for it.
    """

    added: Sequence[DataFile]
    spec_ids: Mapping[str, int]
    removed: Sequence[str]
    deletes: Mapping[str, Longs]
    fresh: Sequence[ReadManifest] = ()


def find_changes(
    reader: ManifestReader, base: TableMetadata | None, added: Sequence[Snapshot], schemas: Sequence[Schema]
) -> list[FileChange]:
    """Return what each of a request's snapshots does, compared with the one before it.

    `schemas` are those that the table has, oldest first, and those that the request adds.
    Raises: BadRequest: a manifest or its list is missing or malformed, or holds what DuckLake cannot
    """
    before = _read_main(reader, base)
    names = parse_name_mapping("" if base is None else base.properties.get(PROPERTY, ""))
    resolver = EqualityResolver(reader, schemas, names, before)
    changes: list[FileChange] = []
    for snapshot in added:
        if not snapshot.manifest_list:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} has no manifest list; write one.")
        after = {file.manifest_path: file for file in reader.read_list(snapshot.manifest_list)}
        fresh = [
            ReadManifest(file, manifest.header, manifest.entries)
            for path, file in after.items()
            if path not in before and file.added_snapshot_id == snapshot.snapshot_id
            for manifest in [reader.read_manifest(file)]
        ]
        changes.append(replace(_compare(reader, resolver, before, after), fresh=fresh))
        before = after
    return changes


def _read_main(reader: ManifestReader, base: TableMetadata | None) -> Manifests:
    current = None if base is None else base.current_snapshot_id
    found = [] if base is None else [snapshot for snapshot in base.snapshots if snapshot.snapshot_id == current]
    return {file.manifest_path: file for snapshot in found for file in reader.read_list(snapshot.manifest_list)}


def _compare(reader: ManifestReader, resolver: EqualityResolver, before: Manifests, after: Manifests) -> FileChange:
    fresh = [reader.read_manifest(after[path]) for path in after if path not in before]
    gone = [reader.read_manifest(before[path]) for path in before if path not in after]
    come, left = live_files(fresh), live_files(gone)
    known = {file.file_path for _, file in left if file.content == DATA}
    data = [(spec_id, file) for spec_id, file in come if file.content == DATA]
    spec_ids = {file.file_path: spec_id for spec_id, file in data}
    if len(spec_ids) < len(data):
        raise BadRequest("A snapshot lists one data file twice; list each once.")
    removed = sorted(known - spec_ids.keys())
    carried = [after[path] for path in after if path in before and after[path].content != DATA]
    resolver.resolve(come, before)
    old_deletes = _delete_files(left)
    deletes = _find_deletes(reader, _delete_files(come), old_deletes, carried)
    for file in old_deletes.values():
        for path, positions in reader.read_deletes(file).items():
            if path in deletes and path not in removed:
                check_grown(path, positions, deletes[path])
    return FileChange(
        added=[file for _, file in data if file.file_path not in known],
        spec_ids=spec_ids,
        removed=removed,
        deletes={path: positions for path, positions in deletes.items() if path not in removed},
    )


def _delete_files(files: Iterable[tuple[int, DataFile]]) -> dict[DeleteKey, DataFile]:
    found = {(file.file_path, file.content_offset): file for _, file in files if file.content != DATA}
    for file in found.values():
        if file.file_format not in (DELETE_FORMATS if file.content == POSITION_DELETES else EQUALITY_FORMATS):
            raise BadRequest(f"Delete file {file.file_path!r} has the format {file.file_format}; write Parquet, or Puffin in version 3.")
    return found


def _find_deletes(
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
    kept += [file for _, file in live_files(reader.read_manifest(manifest) for manifest in carried)]
    for file in kept:
        if file.referenced_data_file is None or file.referenced_data_file in touched:
            for path, positions in reader.read_deletes(file).items():
                if path in touched:
                    parts[path].append(positions)
    return {path: unite(found) for path, found in parts.items()}


def take_files(change: FileChange, new: TableMetadata) -> list[TakenFile]:
    """Return the files that a snapshot adds, each with its spec.

    Raises: BadRequest: a file is no Parquet, or its partition tuple is not of its spec
    """
    specs = {spec.spec_id: spec for spec in new.partition_specs}
    taken: list[TakenFile] = []
    for file in change.added:
        where, spec_id = f"Data file {file.file_path!r}", change.spec_ids[file.file_path]
        spec = specs.get(spec_id)
        if spec is None:
            raise BadRequest(f"{where} is written for partition spec {spec_id}, which the table has not.")
        if len(spec.fields) != len(file.partition):
            raise BadRequest(f"{where} has {len(file.partition)} partition values, and its spec {len(spec.fields)} fields.")
        taken.append(TakenFile(file, spec))
        check_file(taken[-1])
    return taken
