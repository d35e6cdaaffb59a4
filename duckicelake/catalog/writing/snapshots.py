"""What the snapshots of a commit do to a table's files: their manifest lists, compared one after the other."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.writing.manifests import ManifestReader, OpenManifest
from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DATA, DELETED, DataFile
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.translate.to_ducklake.files import TakenFile, check_file


@dataclass(frozen=True, slots=True)
class FileChange:
    """What one snapshot does: data files that come, and paths of those that go."""

    added: Sequence[DataFile]
    spec_ids: Mapping[str, int]
    removed: Sequence[str]


def find_changes(reader: ManifestReader, base: TableMetadata | None, added: Sequence[Snapshot]) -> list[FileChange]:
    """Return what each of a request's snapshots does, compared with the one before it.

    Raises: BadRequest: a manifest or its list is missing or malformed, or holds what DuckLake cannot
    """
    before = _read_main(reader, base)
    changes: list[FileChange] = []
    for snapshot in added:
        if not snapshot.manifest_list:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} has no manifest list; write one.")
        after = {file.manifest_path: file for file in reader.read_list(snapshot.manifest_list)}
        changes.append(_compare(reader, before, after))
        before = after
    return changes


def _read_main(reader: ManifestReader, base: TableMetadata | None) -> Mapping[str, ManifestFile]:
    current = None if base is None else base.current_snapshot_id
    found = [] if base is None else [snapshot for snapshot in base.snapshots if snapshot.snapshot_id == current]
    return {file.manifest_path: file for snapshot in found for file in reader.read_list(snapshot.manifest_list)}


def _compare(reader: ManifestReader, before: Mapping[str, ManifestFile], after: Mapping[str, ManifestFile]) -> FileChange:
    fresh = [reader.read_manifest(after[path]) for path in after if path not in before]
    gone = [reader.read_manifest(before[path]) for path in before if path not in after]
    come, left = _live_files(fresh), _live_files(gone)
    spec_ids = {file.file_path: spec_id for spec_id, file in come if file.content == DATA}
    _check_deletes([file for _, file in come], [file for _, file in left])
    known = {file.file_path for _, file in left}
    return FileChange(
        added=[file for _, file in come if file.content == DATA and file.file_path not in known],
        spec_ids=spec_ids,
        removed=sorted({path for path in known if path not in spec_ids and path not in _delete_paths(left)}),
    )


def _live_files(manifests: Iterable[OpenManifest]) -> list[tuple[int, DataFile]]:
    return [
        (manifest.header.spec.spec_id, entry.data_file) for manifest in manifests for entry in manifest.entries if entry.status != DELETED
    ]


def _delete_paths(files: Iterable[tuple[int, DataFile]]) -> set[str]:
    return {file.file_path for _, file in files if file.content != DATA}


def _check_deletes(come: Sequence[DataFile], left: Sequence[DataFile]) -> None:
    fresh = {file.file_path for file in come if file.content != DATA} - {file.file_path for file in left}
    if fresh:
        raise BadRequest(f"Delete files are not taken yet: {sorted(fresh)[0]!r}; rewrite the data files instead (copy-on-write).")


def take_files(change: FileChange, new: TableMetadata) -> list[TakenFile]:
    """Return the files that a snapshot adds, each with its spec.

    Raises: BadRequest: a file lies elsewhere, is no Parquet, or its partition tuple is not of its spec
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
        if not file.file_path.startswith(f"{new.location}/"):
            raise BadRequest(f"{where} does not lie in the table's location {new.location!r}; write files there.")
        taken.append(TakenFile(file, spec))
        check_file(taken[-1])
    return taken
