"""Manifests: the Avro files that list a snapshot's data files, or its delete files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json import dumps

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.avro import NULL, encode_container, encode_long
from duckicelake.iceberg.encoding.manifest_rows import RowParts
from duckicelake.iceberg.encoding.manifest_schema import manifest_schema
from duckicelake.iceberg.partition import (
    PartitionSpec,
    format_spec_fields,
    partition_types,
)
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.types import PrimitiveType

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
CONTENT_NAMES = ("data", "deletes")
BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data or delete file. `file_format` is in capitals: AVRO, ORC, PARQUET, PUFFIN.

    Maps are keyed by column id and written in their own order; a map that is None says nothing about any column.
    """

    content: int
    file_path: str
    file_format: str
    partition: tuple[object, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """What a snapshot did with a file: EXISTING, ADDED or DELETED. None is inherited from the manifest list."""

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: DataFile


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    """What all files of a manifest share. `content` is 0 for data files, 1 for delete files."""

    schema: Schema
    spec: PartitionSpec
    format_version: int
    content: int


def encode_manifest(header: ManifestHeader, entries: Iterable[ManifestEntry]) -> bytes:
    """A manifest of those entries, in their order. The same input gives the same bytes.

    Raises: BadRequest — delete files in version 1, or a partition value that is not of its type
    Source: Iceberg spec «Manifests»
    """
    if header.format_version == 1 and header.content:
        raise BadRequest("Cannot write a delete manifest for format version 1; upgrade the table to version 2")
    types = partition_types(header.spec, header.schema)
    schema = manifest_schema(header.format_version, header.spec, types)
    encode = entry_encoder(header.format_version, types)
    return encode_container(_format_header(header), schema, map(encode, entries))


def entry_encoder(format_version: int, types: tuple[PrimitiveType, ...]) -> Callable[[ManifestEntry], bytes]:
    """What encodes the entries of a manifest of that version and those partition values."""
    parts = RowParts()
    partition_encoders = tuple(parts.value_encoder(type) for type in types)

    def encode_partition(file: DataFile) -> bytes:
        if len(file.partition) != len(partition_encoders):
            raise BadRequest(f"Cannot write {file.file_path}: it has {len(file.partition)} partition values, not {len(types)}")
        return b"".join([encode(value) for encode, value in zip(partition_encoders, file.partition, strict=True)])

    return _v1_encoder(parts, encode_partition) if format_version == 1 else _encoder(parts, encode_partition, format_version >= 3)


def _encoder(parts: RowParts, encode_partition: Callable[[DataFile], bytes], lineage: bool) -> Callable[[ManifestEntry], bytes]:
    longs, long, text = parts.longs, parts.optional_long, parts.text

    def encode(entry: ManifestEntry) -> bytes:
        file = entry.data_file
        row = [
            longs[entry.status],
            long(entry.snapshot_id),
            long(entry.sequence_number),
            long(entry.file_sequence_number),
            longs[file.content],
            text(file.file_path),
            text(file.file_format),
            encode_partition(file),
            longs[file.record_count],
            longs[file.file_size_in_bytes],
            _encode_metrics(parts, file),
            parts.optional_longs(file.equality_ids),
            long(file.sort_order_id),
        ]
        if lineage:
            row.append(long(file.first_row_id))
        row.append(parts.optional_text(file.referenced_data_file))
        if lineage:
            row += (long(file.content_offset), long(file.content_size_in_bytes))
        return b"".join(row)

    return encode


def _v1_encoder(parts: RowParts, encode_partition: Callable[[DataFile], bytes]) -> Callable[[ManifestEntry], bytes]:
    longs, text = parts.longs, parts.text
    block_size = encode_long(BLOCK_SIZE_IN_BYTES)

    def encode(entry: ManifestEntry) -> bytes:
        file = entry.data_file
        if entry.snapshot_id is None:
            raise BadRequest(f"Cannot write {file.file_path} for format version 1 without a snapshot id; give one")
        row = [
            longs[entry.status],
            longs[entry.snapshot_id],
            text(file.file_path),
            text(file.file_format),
            encode_partition(file),
            longs[file.record_count],
            longs[file.file_size_in_bytes],
            block_size,
            _encode_metrics(parts, file),
            parts.optional_long(file.sort_order_id),
        ]
        return b"".join(row)

    return encode


def _encode_metrics(parts: RowParts, file: DataFile) -> bytes:
    row = [
        parts.long_map(file.column_sizes),
        parts.long_map(file.value_counts),
        parts.long_map(file.null_value_counts),
        parts.long_map(file.nan_value_counts),
        parts.bytes_map(file.lower_bounds),
        parts.bytes_map(file.upper_bounds),
        NULL,  # key_metadata: encrypted files are not written
        parts.optional_longs(file.split_offsets),
    ]
    return b"".join(row)


def _format_header(header: ManifestHeader) -> dict[str, str]:
    return {
        "schema": _compact(format_schema(header.schema)),
        "schema-id": str(header.schema.schema_id),
        "partition-spec": _compact(format_spec_fields(header.spec)),
        "partition-spec-id": str(header.spec.spec_id),
        "format-version": str(header.format_version),
        "content": CONTENT_NAMES[header.content],
    }


def _compact(node: object) -> str:
    return dumps(node, ensure_ascii=False, separators=(",", ":"))
