"""The metadata file of an external table and everything that it names, read before any lock.

`registration` calls this on a worker thread. It reads the object store, and writes the table's deletes there as DuckLake's delete files.
"""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from duckicelake.catalog.incoming.client_manifests import ManifestReader
from duckicelake.catalog.incoming.column_names import read_file_columns
from duckicelake.catalog.incoming.delete_resolution import EqualityResolver, SequencedFile, list_sequenced, resolve_deletes
from duckicelake.catalog.incoming.file_changes import FileChange, PreparedDeletes, write_deletes
from duckicelake.catalog.location_rules import AllowedLocations
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.manifest import DATA, EQUALITY_DELETES
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema, parse_metadata
from duckicelake.iceberg.requests.manifest_checks import ReadManifest, check_manifest
from duckicelake.store.objects import Objects
from duckicelake.translate.client_snapshots import without_aliases
from duckicelake.translate.locations import to_uri
from duckicelake.translate.name_mapping import PROPERTY, parse_name_mapping
from duckicelake.translate.schemas import without_duplicate_names
from duckicelake.translate.to_ducklake.files import NamedFile, find_names, list_partition_folders, list_partition_only

MAX_METADATA_BYTES = 64 * 1024 * 1024
MAX_FILES = 100_000
MAX_UNNAMED_FILES = 10_000
GZIP = b"\x1f\x8b"
HADOOP_NAME = re.compile(r"v(\d{1,18})(?:\.gz)?\.metadata\.json(?:\.gz)?")


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """A table as its metadata file describes it: the files of its current snapshot, the rows deleted of them, older files.

    `names` are the columns of those files that carry no field ids, by path. `is_converted`: rows are deleted by equality, and
    the lake has them by position. `past` are the data files of other snapshots, as far as they were asked for.
    `last_version` is the highest version among the names of the metadata files at its location.
    """

    metadata: TableMetadata
    files: Sequence[SequencedFile]
    prepared: PreparedDeletes
    names: Mapping[str, NamedFile]
    is_converted: bool
    past: Sequence[str]
    last_version: int


def read_metadata_file(objects: Objects, uri: str) -> TableMetadata:
    """Return the metadata in a metadata file, which may be compressed with gzip.

    Raises: BadRequest: it is missing, too large, malformed or of an unknown version
    """
    try:
        size = objects.size(uri)
        if size > MAX_METADATA_BYTES:
            raise BadRequest(f"The metadata file {uri!r} has {size} bytes, more than the {MAX_METADATA_BYTES} that are read.")
        content = objects.read(uri)
    except NotFound as error:
        raise BadRequest(f"The metadata file {uri!r} is missing.") from error
    except Unsupported as error:
        raise BadRequest(error.message) from error
    if content.startswith(GZIP):
        content = _unpack(uri, content)
    try:
        metadata = parse_metadata(decode_json(content, f"the metadata file {uri!r}"))
    except BadRequest as error:
        raise BadRequest(f"Cannot register {uri!r}: {error.message}") from error
    location = to_uri(metadata.location.rstrip("/"))
    return replace(without_aliases(metadata), location=location)


def _unpack(uri: str, content: bytes) -> bytes:
    try:
        unpacker = zlib.decompressobj(wbits=31)
        found = unpacker.decompress(content, MAX_METADATA_BYTES + 1)
    except zlib.error as error:
        raise BadRequest(f"The metadata file {uri!r} is damaged: {error}.") from error
    if len(found) > MAX_METADATA_BYTES:
        raise BadRequest(f"The metadata file {uri!r} holds more than the {MAX_METADATA_BYTES} bytes that are read.")
    if not unpacker.eof:
        raise BadRequest(f"The metadata file {uri!r} is cut off.")
    return found


def prepare_external_table(warehouse: Warehouse, metadata: TableMetadata, *, with_past: bool) -> ExternalTable:
    """Read the files that a table's metadata names, and write its deletes as DuckLake's delete files.

    Raises: BadRequest: something is missing, malformed, elsewhere or of a kind that DuckLake cannot hold
    """
    allowed = AllowedLocations((metadata.location,), warehouse.roots)
    reader = ManifestReader(warehouse.objects, allowed)
    _check_names(metadata)
    files, deletes = _read_files(reader, metadata, _read_lists(reader, metadata))
    resolver = EqualityResolver(reader, metadata.schemas, parse_name_mapping(metadata.properties.get(PROPERTY, "")), {})
    deleted = resolve_deletes(reader, resolver, files, deletes)
    names = _read_names(warehouse.objects, metadata, files)
    past = sorted(_list_past(reader, metadata) - files.keys()) if with_past else []
    change = FileChange([file.live.file for file in files.values()], {}, (), deleted)
    [prepared] = write_deletes(warehouse, allowed.locations, None, [change], [])
    is_converted = any(delete.live.file.content == EQUALITY_DELETES for delete in deletes)
    versions = (HADOOP_NAME.fullmatch(uri.rpartition("/")[2]) for uri, _ in warehouse.objects.list_under(f"{metadata.location}/metadata"))
    last = max((int(match[1]) for match in versions if match), default=0)
    return ExternalTable(metadata, list(files.values()), prepared, names, is_converted, past, last)


def _read_lists(reader: ManifestReader, metadata: TableMetadata) -> Sequence[ManifestFile]:
    """Read the manifest list of every snapshot, and return the manifests of the current one."""
    current: Sequence[ManifestFile] = ()
    for snapshot in metadata.snapshots:
        if not snapshot.manifest_list:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} has no manifest list, as only old tables have it; expire it first.")
        if snapshot.key_id is not None:
            raise BadRequest(f"Snapshot {snapshot.snapshot_id} is encrypted; copy the table's rows into a plain one.")
        found = reader.read_list(snapshot.manifest_list)
        if snapshot.snapshot_id == metadata.current_snapshot_id:
            current = found
        reader.lists.clear()
    return current


def _check_names(metadata: TableMetadata) -> None:
    try:
        without_duplicate_names(get_current_schema(metadata).fields, is_in_files=True)
    except Unsupported as error:
        raise BadRequest(error.message) from error


def _read_files(
    reader: ManifestReader, metadata: TableMetadata, manifests: Iterable[ManifestFile]
) -> tuple[dict[str, SequencedFile], list[SequencedFile]]:
    """Return the live data files by path, and the delete files."""
    files: dict[str, SequencedFile] = {}
    deletes: list[SequencedFile] = []
    for manifest in manifests:
        opened = reader.read_manifest(manifest)
        reader.manifests.clear()
        check_manifest(ReadManifest(manifest, opened.header, opened.entries), metadata)
        for found in list_sequenced(opened):
            path = found.live.file.file_path
            if found.live.file.content != DATA:
                deletes.append(found)
            elif path in files:
                raise BadRequest(f"The current snapshot lists the data file {path!r} twice.")
            else:
                files[path] = found
        if len(files) + len(deletes) > MAX_FILES:
            raise BadRequest(f"The current snapshot has more than the {MAX_FILES} files that are registered at once.")
    return files, deletes


def _list_past(reader: ManifestReader, metadata: TableMetadata) -> set[str]:
    """Return the data files of all snapshots."""
    existing: set[str] = set()
    paths: set[str] = set()
    for snapshot in metadata.snapshots:
        for manifest in reader.read_list(snapshot.manifest_list):
            if manifest.content == DATA and manifest.manifest_path not in existing:
                existing.add(manifest.manifest_path)
                paths |= {found.live.file.file_path for found in list_sequenced(reader.read_manifest(manifest))}
                reader.manifests.clear()
        reader.lists.clear()
        if len(paths) > MAX_FILES:
            raise BadRequest(f"The table's snapshots have more than the {MAX_FILES} files that are registered at once.")
    return paths


def _read_names(objects: Objects, metadata: TableMetadata, files: Mapping[str, SequencedFile]) -> dict[str, NamedFile]:
    """Return how the columns of files without field ids are found; only tables that name a mapping have such files."""
    if not metadata.properties.get(PROPERTY) or find_snapshot(metadata, metadata.current_snapshot_id) is None:
        return {}
    if len(files) > MAX_UNNAMED_FILES:
        raise BadRequest(f"A table with {PROPERTY!r} has {len(files)} files, more than the {MAX_UNNAMED_FILES} that are looked into.")
    names: dict[str, NamedFile] = {}
    known = parse_name_mapping(metadata.properties[PROPERTY])
    for path, found in files.items():
        columns = read_file_columns(objects, found.live.file)
        named = find_names(path, columns, metadata, known)
        unread = list_partition_only(path, columns, metadata, found.live.spec_id, named)
        if named is not None:
            names[path] = replace(named, folders=list_partition_folders(found.live.file, unread, known)) if unread else named
    return names
