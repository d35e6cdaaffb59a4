"""Manifest lists: the entries for manifests, their Avro encoder, and the values that manifest entries inherit from them. No I/O.

`catalog` uses this for publishing, commits and scan planning. Jobs of `pipeline` (ingest, transfer) encode manifest lists with it in their
drivers, and the Spark executors of `publish` describe their manifests with it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_encoding import RowParts, build_manifest_list_schema
from duckicelake.iceberg.avro.writer import NULL, PRESENT, encode_container
from duckicelake.iceberg.manifest import ADDED, DELETED, EXISTING, AnyEntry, DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.partition import PartitionSpec, list_partition_types
from duckicelake.iceberg.single_values import encode_value, lower_bound, upper_bound
from duckicelake.iceberg.types import PrimitiveType

UNKNOWN_COUNT = -1
CACHED_MANIFEST_FILES_MAX = 4096


@dataclass(frozen=True, slots=True)
class FieldSummary:
    """The summary of one partition field over the files of a manifest. Bounds are None when every value is null or NaN."""

    contains_null: bool
    contains_nan: bool | None
    lower_bound: bytes | None
    upper_bound: bytes | None


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """The entry of a manifest in a manifest list. Counts are UNKNOWN_COUNT where an old v1 list does not have them."""

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: int
    sequence_number: int
    min_sequence_number: int
    added_snapshot_id: int
    added_files_count: int
    existing_files_count: int
    deleted_files_count: int
    added_rows_count: int
    existing_rows_count: int
    deleted_rows_count: int
    partitions: tuple[FieldSummary, ...]
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestListHeader:
    """The snapshot of a manifest list. `first_row_id` is required in version 3 and absent before."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    format_version: int
    first_row_id: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """The location and size of a written manifest, and the snapshot that wrote it."""

    path: str
    length: int
    snapshot_id: int
    sequence_number: int


def encode_manifest_list(header: ManifestListHeader, files: Iterable[ManifestFile]) -> bytes:
    """Return a manifest list of the manifests, in their order. The same input gives the same bytes.

    Raises: BadRequest — a delete manifest in version 1, or an unknown count in a later one
    Source: Iceberg spec «Manifest Lists»
    """
    return build_manifest_list_encoder(header.format_version)(header, files)


def build_manifest_list_encoder(format_version: int) -> Callable[[ManifestListHeader, Iterable[ManifestFile]], bytes]:
    """Return a function that encodes lists of that version. It caches the entries of manifests that many lists name."""
    schema = build_manifest_list_schema(format_version)
    encode = EncodedManifestFiles(_build_v1_encoder() if format_version == 1 else _build_encoder(format_version >= 3)).__getitem__
    return lambda header, files: encode_container(_format_header(header), schema, map(encode, files))


class EncodedManifestFiles(dict[ManifestFile, bytes]):
    """A bounded cache of encoded list entries, because consecutive lists name almost the same manifests."""

    def __init__(self, encode: Callable[[ManifestFile], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, file: ManifestFile) -> bytes:
        if len(self) >= CACHED_MANIFEST_FILES_MAX:
            self.clear()
        encoded = self[file] = self._encode(file)
        return encoded


def build_manifest_file(header: ManifestHeader, entries: Sequence[AnyEntry], written: WrittenManifest) -> ManifestFile:
    """Return the list entry of a manifest that was just written: counts, sequence numbers and partition summaries."""
    files, rows = [0, 0, 0], [0, 0, 0]
    least = None
    for entry in entries:
        files[entry.status] += 1
        rows[entry.status] += entry.data_file.record_count
        if entry.status != DELETED:
            number = written.sequence_number if entry.sequence_number is None else entry.sequence_number
            least = number if least is None or number < least else least
    return ManifestFile(
        manifest_path=written.path,
        manifest_length=written.length,
        partition_spec_id=header.spec.spec_id,
        content=header.content,
        sequence_number=written.sequence_number,
        min_sequence_number=written.sequence_number if least is None else least,
        added_snapshot_id=written.snapshot_id,
        added_files_count=files[ADDED],
        existing_files_count=files[EXISTING],
        deleted_files_count=files[DELETED],
        added_rows_count=rows[ADDED],
        existing_rows_count=rows[EXISTING],
        deleted_rows_count=rows[DELETED],
        partitions=summarise_partitions(header.spec, list_partition_types(header.spec, header.schema), entries),
    )


def summarise_partitions(spec: PartitionSpec, types: tuple[PrimitiveType, ...], entries: Iterable[AnyEntry]) -> tuple[FieldSummary, ...]:
    """Return the summary of each field of the spec over the partition tuples of the entries."""
    if not spec.fields:
        return ()
    tuples = {entry.data_file.partition for entry in entries}
    return tuple(_summarise(types[i], [values[i] for values in tuples]) for i in range(len(spec.fields)))


def inherit_from_list(entries: Iterable[ManifestEntry], manifest: ManifestFile) -> list[ManifestEntry]:
    """Return the entries with the values that they inherit: snapshot id, sequence numbers of added files, first row ids.

    Source: Iceberg spec «Sequence Number Inheritance», «First Row ID Inheritance»
    """
    next_row_id = manifest.first_row_id
    inherited: list[ManifestEntry] = []
    for entry in entries:
        file = entry.data_file
        if next_row_id is not None and file.first_row_id is None and entry.status != DELETED:
            file = replace(file, first_row_id=next_row_id)
            next_row_id += file.record_count
        inherited.append(_inherit_sequence_numbers(entry, file, manifest))
    return inherited


def _inherit_sequence_numbers(entry: ManifestEntry, file: DataFile, manifest: ManifestFile) -> ManifestEntry:
    takes = entry.status == ADDED or manifest.sequence_number == 0
    number, file_number = entry.sequence_number, entry.file_sequence_number
    return ManifestEntry(
        status=entry.status,
        snapshot_id=manifest.added_snapshot_id if entry.snapshot_id is None else entry.snapshot_id,
        sequence_number=manifest.sequence_number if number is None and takes else number,
        file_sequence_number=manifest.sequence_number if file_number is None and takes else file_number,
        data_file=file,
    )


def _summarise(type: PrimitiveType, values: list[Any]) -> FieldSummary:
    floating = type.name in ("float", "double")
    ordered = [value for value in values if value is not None and value == value]
    least, greatest = min(ordered, default=None), max(ordered, default=None)
    return FieldSummary(
        contains_null=None in values,
        contains_nan=any(value != value for value in values) if floating else False,
        lower_bound=None if least is None else lower_bound(type, least) if floating else encode_value(type, least),
        upper_bound=None if greatest is None else upper_bound(type, greatest) if floating else encode_value(type, greatest),
    )


def _format_header(header: ManifestListHeader) -> dict[str, str]:
    parent = header.parent_snapshot_id
    pairs = {"snapshot-id": str(header.snapshot_id), "parent-snapshot-id": "null" if parent is None else str(parent)}
    if header.format_version > 1:
        pairs["sequence-number"] = str(header.sequence_number)
    if header.format_version >= 3:
        pairs["first-row-id"] = str(header.first_row_id or 0)
    return pairs | {"format-version": str(header.format_version)}


def _build_encoder(lineage: bool) -> Callable[[ManifestFile], bytes]:
    parts = RowParts()
    longs = parts.longs

    def encode(file: ManifestFile) -> bytes:
        if min(_counts(file)) < 0:
            raise BadRequest(f"Cannot list {file.manifest_path}: a count is unknown; read the manifest and count")
        row = [
            parts.text(file.manifest_path),
            longs[file.manifest_length],
            longs[file.partition_spec_id],
            longs[file.content],
            longs[file.sequence_number],
            longs[file.min_sequence_number],
            longs[file.added_snapshot_id],
            *[longs[count] for count in _counts(file)],
            _encode_summaries(parts, file.partitions),
            NULL,  # key_metadata: encrypted manifests are not written
        ]
        if lineage:
            row.append(parts.optional_long(file.first_row_id))
        return b"".join(row)

    return encode


def _build_v1_encoder() -> Callable[[ManifestFile], bytes]:
    parts = RowParts()
    longs = parts.longs

    def encode(file: ManifestFile) -> bytes:
        if file.content:
            raise BadRequest(f"Cannot list delete manifest {file.manifest_path} for format version 1; upgrade the table to version 2")
        row = [
            parts.text(file.manifest_path),
            longs[file.manifest_length],
            longs[file.partition_spec_id],
            longs[file.added_snapshot_id],
            *[parts.optional_long(None if count == UNKNOWN_COUNT else count) for count in _counts(file)],
            _encode_summaries(parts, file.partitions),
            NULL,
        ]
        return b"".join(row)

    return encode


def _counts(file: ManifestFile) -> tuple[int, ...]:
    return (
        file.added_files_count,
        file.existing_files_count,
        file.deleted_files_count,
        file.added_rows_count,
        file.existing_rows_count,
        file.deleted_rows_count,
    )


def _encode_summaries(parts: RowParts, summaries: tuple[FieldSummary, ...]) -> bytes:
    return PRESENT + parts.array([_encode_summary(parts, item) for item in summaries])


def _encode_summary(parts: RowParts, item: FieldSummary) -> bytes:
    nan = NULL if item.contains_nan is None else PRESENT + bytes((item.contains_nan,))
    bounds = parts.optional_bytes(item.lower_bound) + parts.optional_bytes(item.upper_bound)
    return bytes((item.contains_null,)) + nan + bounds
