"""Checks of manifests that clients add: against their list entry, against the table, and for NULLs in required columns.

`catalog.commits.apply` calls them under the lake's lock, for manifests that were read before it. `catalog.external_metadata` calls
`check_manifest` before the lock, when a table is registered. No I/O. Row metrics are trusted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import (
    ADDED,
    DATA,
    DELETED,
    EQUALITY_DELETES,
    EXISTING,
    POSITION_DELETES,
    DataFile,
    ManifestEntry,
    ManifestHeader,
)
from duckicelake.iceberg.manifest_list import UNKNOWN_COUNT, ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import list_leaf_fields
from duckicelake.iceberg.types import NestedField, PrimitiveType, StructType

PUFFIN = "PUFFIN"


@dataclass(frozen=True, slots=True)
class ReadManifest:
    """A manifest: its entry in the manifest list, its header and its entries."""

    listed: ManifestFile
    header: ManifestHeader
    entries: Sequence[ManifestEntry]


def check_manifest(manifest: ReadManifest, metadata: TableMetadata) -> None:
    """Raise BadRequest, naming the manifest, when it contradicts its list entry, itself or the table.

    Columns are compared by id, so a manifest of another table with the same ids passes. Its paths do not pass: the catalog checks them
    against the table's location.
    """
    problem = (
        _find_header_problem(manifest.listed, manifest.header, metadata)
        or _find_count_problem(manifest.listed, manifest.entries)
        or _find_entry_problem(manifest, metadata.format_version)
    )
    if problem is not None:
        raise BadRequest(f"Cannot add manifest {manifest.listed.manifest_path}: {problem}")


def check_added_once(manifests: Iterable[ReadManifest]) -> None:
    """Raise BadRequest when the manifests of one snapshot add a file twice, because its rows would be duplicated."""
    seen: set[tuple[object, ...]] = set()
    for manifest in manifests:
        for entry in manifest.entries:
            key = _get_file_key(entry.data_file)
            if entry.status == ADDED and key in seen:
                raise BadRequest(
                    f"Cannot add manifest {manifest.listed.manifest_path}: {entry.data_file.file_path} is added twice; add it once"
                )
            if entry.status == ADDED:
                seen.add(key)


def _find_header_problem(listed: ManifestFile, header: ManifestHeader, metadata: TableMetadata) -> str | None:
    spec = next((item for item in metadata.partition_specs if item.spec_id == listed.partition_spec_id), None)
    if header.content != listed.content:
        return f"it holds content {header.content}, and its list says {listed.content}; write them alike"
    if header.content and metadata.format_version == 1:
        return "it holds delete files, which format version 1 does not have; upgrade the table to version 2"
    if header.format_version > metadata.format_version:
        return f"it is of format version {header.format_version}, and the table of {metadata.format_version}; upgrade the table first"
    if header.spec.spec_id != listed.partition_spec_id:
        return f"it is of partition spec {header.spec.spec_id}, and its list says {listed.partition_spec_id}; write them alike"
    if spec is None:
        return f"the table has no partition spec {listed.partition_spec_id}; add it first"
    if not _has_same_tuples(spec, header.spec):
        return f"its partition spec {spec.spec_id} is not the table's; load the table and write it again"
    return None


def _has_same_tuples(a: PartitionSpec, b: PartitionSpec) -> bool:
    """True if partition tuples of both specs have the same meaning. Names are ignored, because a column may have been renamed."""
    return [(f.source_id, f.transform) for f in a.fields] == [(f.source_id, f.transform) for f in b.fields]


def _find_count_problem(listed: ManifestFile, entries: Sequence[ManifestEntry]) -> str | None:
    files, rows = [0, 0, 0], [0, 0, 0]
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
    found = [*(files[status] for status in (ADDED, EXISTING, DELETED)), *(rows[status] for status in (ADDED, EXISTING, DELETED))]
    expected_counts = [listed.added_files_count, listed.existing_files_count, listed.deleted_files_count]
    expected_counts += [listed.added_rows_count, listed.existing_rows_count, listed.deleted_rows_count]
    if any(expected not in (UNKNOWN_COUNT, count) for expected, count in zip(expected_counts, found, strict=True)):
        return f"it has {found} added, existing and deleted files and rows, and its list says {expected_counts}; write them alike"
    return None


def _find_entry_problem(manifest: ReadManifest, format_version: int) -> str | None:
    snapshot_id, deletes = manifest.listed.added_snapshot_id, manifest.header.content != DATA
    for entry in manifest.entries:
        file = entry.data_file
        if (file.content != DATA) != deletes:
            return f"{file.file_path} is of content {file.content}, and the manifest of {manifest.header.content}; write two manifests"
        if entry.status == ADDED and entry.snapshot_id not in (None, snapshot_id):
            return f"{file.file_path} was added by snapshot {entry.snapshot_id}, and the manifest by {snapshot_id}; mark it existing"
        problem = _find_delete_problem(file, format_version) if deletes else None
        if problem is not None:
            return f"{file.file_path} {problem}"
    return None


def _find_delete_problem(file: DataFile, format_version: int) -> str | None:
    if file.content == EQUALITY_DELETES and not file.equality_ids:
        return "deletes by equality of no column; send its equality_ids"
    if file.content == POSITION_DELETES and file.equality_ids:
        return "deletes by position and by equality; write two files"
    if file.file_format != PUFFIN:
        return None
    if format_version < 3:
        return "is a deletion vector, which the table has only from format version 3; write a Parquet file"
    if file.content != POSITION_DELETES or not file.referenced_data_file or file.content_offset is None or not file.content_size_in_bytes:
        return "is a deletion vector without data file, offset or size; send all three"
    return None


def _get_file_key(file: DataFile) -> tuple[object, ...]:
    """Return a key that identifies a file. Deletion vectors of many data files share one Puffin file; any other file is its path."""
    return (file.file_path, file.content_offset, file.referenced_data_file) if file.file_format == PUFFIN else (file.file_path,)


METRICS = "write.metadata.metrics."
MAX_INFERRED = f"{METRICS}max-inferred-column-defaults"
MAX_INFERRED_DEFAULT = 100


@dataclass(frozen=True, slots=True)
class RequiredColumns:
    """The required columns of a table by full name, and its specs. `is_counted`: writers record a metric of every column."""

    required: Sequence[tuple[str, NestedField]]
    specs: Mapping[int, PartitionSpec]
    is_counted: bool


def build_required_columns(metadata: TableMetadata) -> RequiredColumns:
    """Return the required columns of the current schema.

    Java (1.11) records neither counts nor sizes of columns whose metrics are off, which is the default after the first 100 columns.
    """
    schema, properties = get_current_schema(metadata), metadata.properties
    modes = [value for key, value in properties.items() if key.startswith(METRICS)]
    is_off = MAX_INFERRED in properties or any(mode.lower() == "none" for mode in modes)
    required = list(_list_required(schema.fields, ""))
    is_counted = bool(required) and not is_off and len(list(list_leaf_fields(schema))) <= MAX_INFERRED_DEFAULT
    return RequiredColumns(required, {spec.spec_id: spec for spec in metadata.partition_specs}, is_counted)


def check_required_columns(file: DataFile, spec_id: int, rules: RequiredColumns) -> None:
    """Raise BadRequest for a data file whose counts say that a required column contains a NULL, or is not in the file.

    A file without counts passes. Readers fill a missing column from an identity partition value.
    Source: Iceberg spec «Column Projection»
    """
    if not rules.required or not file.record_count:
        return
    spec = rules.specs.get(spec_id)
    identity = {item.source_id for item in spec.fields if item.transform == "identity"} if spec is not None else set[int]()
    for path, item in rules.required:
        nulls = (file.null_value_counts or {}).get(item.field_id, 0)
        if nulls > 0:
            raise BadRequest(
                f"Data file {file.file_path!r} has {nulls} NULLs in column {path!r}, which is required; "
                "write values there, or make the column optional first."
            )
        if rules.is_counted and _is_missing(file, item) and item.field_id not in identity:
            raise BadRequest(
                f"Data file {file.file_path!r} lacks column {path!r}, which is required and has no initial default; "
                "write the column, or make it optional first."
            )


def _list_required(fields: Iterable[NestedField], parent: str) -> Iterator[tuple[str, NestedField]]:
    """Yield the required leaves inside required structs only. A NULL in another leaf may mean that its parent is null."""
    for item in fields:
        path = f"{parent}.{item.name}" if parent else item.name
        if item.required and isinstance(item.type, StructType):
            yield from _list_required(item.type.fields, path)
        elif item.required and isinstance(item.type, PrimitiveType):
            yield path, item


def _is_missing(file: DataFile, item: NestedField) -> bool:
    """True if the file has metrics of other columns and none of this one, which has no initial default."""
    with_metrics = {*(file.column_sizes or ()), *(file.value_counts or ()), *(file.null_value_counts or ())}
    return bool(file.value_counts) and item.field_id not in with_metrics and item.initial_default is None
