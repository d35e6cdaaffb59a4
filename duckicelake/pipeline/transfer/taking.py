"""Files that stay where they are as the rows of a prepared table: one manifest names them, and no row is written."""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from duckicelake.errors import CommitFailed
from duckicelake.iceberg.manifest import ADDED, DATA, DataFile, ManifestEntry, ManifestHeader, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from duckicelake.iceberg.metadata import TableMetadata, encode_metadata, get_current_schema, get_default_spec
from duckicelake.iceberg.partition import format_spec_fields
from duckicelake.iceberg.schema import Schema, format_schema, is_same_schema
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.pipeline.transfer.catalogs import LoadedTable
from duckicelake.pipeline.transfer.copies.found import PUBLISHING
from duckicelake.pipeline.transfer.files import DATA_PATH, METADATA_PATH, Store
from duckicelake.translate.locations import copy_folders, find_copy
from duckicelake.translate.name_mapping import PROPERTY, NameMapping

_ID_BITS = 62
_FIRST = 1
"""The sequence number of a table's first snapshot."""


def take_files(store: Store, prepared: LoadedTable, source: TableMetadata, files: Sequence[DataFile], identity: str) -> TableMetadata:
    """The prepared table with these files, which were described for the source's columns; only its last metadata file is to be written.

    `identity` says of what catalog it is to be. Nothing is written but below the table's own location.
    Raises: CommitFailed: the catalog has made other columns of the source's
    """
    _check_like(source, prepared.metadata)
    new, staged = prepared.metadata, prepared.metadata_location
    data, metadata = copy_folders(new.location, find_copy(new.location, staged) or "")
    objects = store.open(new.location, prepared.keys)
    paths = {METADATA_PATH: metadata, DATA_PATH: data}
    objects.write(staged, encode_metadata(replace(new, properties={**new.properties, **paths})))
    snapshot_id, now = secrets.randbits(_ID_BITS), datetime.now(UTC)
    header = ManifestHeader(get_current_schema(new), get_default_spec(new), new.format_version, DATA)
    entries = [ManifestEntry(ADDED, snapshot_id, None, None, file) for file in files]
    content = encode_manifest(header, entries)
    manifest = build_manifest_file(header, entries, WrittenManifest(f"{metadata}/files-m0.avro", len(content), snapshot_id, _FIRST))
    objects.write(manifest.manifest_path, content)
    listed, named = f"{metadata}/snap-{snapshot_id}.avro", [manifest] if files else []
    objects.write(listed, encode_manifest_list(ManifestListHeader(snapshot_id, None, _FIRST, new.format_version), named))
    at_ms = int(now.timestamp() * 1000)
    snapshot = Snapshot(snapshot_id, None, _FIRST, at_ms, listed, _summarise(files), get_current_schema(new).schema_id)
    objects.write(f"{metadata}/{PUBLISHING}", identity.encode())
    properties = {**new.properties, PROPERTY: format_names(get_current_schema(new))}
    return replace(new, properties=properties, snapshots=(snapshot,), current_snapshot_id=snapshot_id, metadata_log=())


def format_names(schema: Schema) -> str:
    """The property by which readers find columns in files without field ids: by their names."""
    names = {(item.name,): item.field_id for item in schema.fields}
    return NameMapping({}, names, {}, frozenset(names.values())).format() or "[]"


def _check_like(source: TableMetadata, new: TableMetadata) -> None:
    ours, theirs = get_current_schema(source), get_current_schema(new)
    specs = [format_spec_fields(get_default_spec(one)) for one in (source, new)]
    if not is_same_schema(replace(theirs, identifier_field_ids=ours.identifier_field_ids), ours) or specs[0] != specs[1]:
        made = f"{format_schema(theirs)}, {specs[1]}"
        raise CommitFailed(f"the catalog would make other columns of it: {made}. --mode copy writes its rows anew")


def _summarise(files: Sequence[DataFile]) -> Mapping[str, str]:
    counts = Counter({"records": 0, "files-size": 0, "data-files": 0})
    for file in files:
        counts.update({"records": file.record_count, "files-size": file.file_size_in_bytes, "data-files": 1})
    added = {f"added-{name}": str(count) for name, count in counts.items()}
    totals = {f"total-{name}": str(count) for name, count in counts.items()}
    none = {f"total-{name}": "0" for name in ("delete-files", "position-deletes", "equality-deletes")}
    return {"operation": "append", **added, **totals, **none}
