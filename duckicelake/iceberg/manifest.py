"""Manifests: the Avro files that list a snapshot's data files, or its delete files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json import dumps, loads
from typing import Any
from uuid import UUID

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.avro import NULL, decode_container, encode_container, encode_long
from duckicelake.iceberg.encoding.manifest_rows import RowParts
from duckicelake.iceberg.encoding.manifest_schema import manifest_schema
from duckicelake.iceberg.partition import (
    PartitionField,
    PartitionSpec,
    assign_field_ids,
    format_spec_fields,
    parse_spec_fields,
    partition_types,
)
from duckicelake.iceberg.schema import Schema, find_field, format_schema, parse_schema
from duckicelake.iceberg.transforms import decimal_value, result_type, scale_of
from duckicelake.iceberg.types import PrimitiveType, find_decimal

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


def decode_manifest(content: bytes) -> tuple[ManifestHeader, list[ManifestEntry]]:
    """The header and the entries of anybody's manifest. What is inherited stays None: see `manifest_list.inherit`.

    Raises: BadRequest — damaged, or not a manifest
    """
    metadata, rows = decode_container(content, "manifest")
    header = _parse_header(metadata)
    decode_partition = _partition_decoder(header)
    try:
        return header, [_decode_entry(row, decode_partition) for row in rows]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"Cannot read manifest: an entry is malformed ({error!r}); write it again") from error


def _parse_header(metadata: Mapping[str, str]) -> ManifestHeader:
    try:
        spec = PartitionSpec(int(metadata.get("partition-spec-id", "0")), parse_spec_fields(loads(metadata["partition-spec"])))
        return ManifestHeader(
            schema=parse_schema(loads(metadata["schema"])),
            spec=assign_field_ids(spec, 0),
            format_version=int(metadata.get("format-version", "1")),
            content=CONTENT_NAMES.index(metadata.get("content", "data")),
        )
    except (LookupError, ValueError, RecursionError) as error:
        raise BadRequest(f"Cannot read manifest: its header is malformed ({error!r}); write it again") from error


def _decode_entry(row: Mapping[str, Any], decode_partition: Callable[[Mapping[str, object]], tuple[object, ...]]) -> ManifestEntry:
    file: Mapping[str, Any] = row["f2"]
    return ManifestEntry(
        status=row["f0"],
        snapshot_id=row.get("f1"),
        sequence_number=row.get("f3"),
        file_sequence_number=row.get("f4"),
        data_file=DataFile(
            content=file.get("f134", DATA),
            file_path=file["f100"],
            file_format=file["f101"].upper(),
            partition=decode_partition(file["f102"]),
            record_count=file["f103"],
            file_size_in_bytes=file["f104"],
            column_sizes=_decode_map(file.get("f108"), "f117", "f118"),
            value_counts=_decode_map(file.get("f109"), "f119", "f120"),
            null_value_counts=_decode_map(file.get("f110"), "f121", "f122"),
            nan_value_counts=_decode_map(file.get("f137"), "f138", "f139"),
            lower_bounds=_decode_map(file.get("f125"), "f126", "f127"),
            upper_bounds=_decode_map(file.get("f128"), "f129", "f130"),
            split_offsets=_decode_array(file.get("f132")),
            equality_ids=_decode_array(file.get("f135")),
            sort_order_id=file.get("f140"),
            first_row_id=file.get("f142"),
            referenced_data_file=file.get("f143"),
            content_offset=file.get("f144"),
            content_size_in_bytes=file.get("f145"),
        ),
    )


def _decode_map(items: list[Mapping[str, Any]] | None, key: str, value: str) -> dict[int, Any] | None:
    return None if items is None else {item[key]: item[value] for item in items}


def _decode_array(items: list[int] | None) -> tuple[int, ...] | None:
    return None if items is None else tuple(items)


def _partition_decoder(header: ManifestHeader) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    types = [_find_type(header, item) for item in header.spec.fields]
    names = [f"f{item.field_id}" for item in header.spec.fields]

    def decode(values: Mapping[str, object]) -> tuple[object, ...]:
        return tuple([decode_partition_value(type, values.get(name)) for type, name in zip(types, names, strict=True)])

    return decode


def _find_type(header: ManifestHeader, item: PartitionField) -> PrimitiveType | None:
    source = find_field(header.schema, item.source_id)
    return result_type(item.transform, None if source is None else source.type)


def decode_partition_value(type: PrimitiveType | None, value: object) -> object:
    """The iceberg value of what Avro holds; as it lies there when the type is not known (its column was dropped)."""
    match value:
        case None:
            return None
        case bytes() if type is not None and find_decimal(type):
            return decimal_value(int.from_bytes(value, "big", signed=True), scale_of(type))
        case str() if type is not None and type.name == "uuid":
            return UUID(value).bytes
        case _:
            return value
