"""Manifests: the values in the Avro files that list data files or delete files, and the encoder of such files. No I/O.

`catalog`, `translate` and the jobs of `pipeline` use it; the Spark executors of `publish` encode manifests with it, those of
`verify` only use its values.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from json import dumps
from typing import NamedTuple, TypeVar

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.manifest_encoding import RowParts, build_manifest_schema
from duckicelake.iceberg.avro.reader import read_bytes, read_long
from duckicelake.iceberg.avro.writer import NULL, build_container_encoder, encode_long
from duckicelake.iceberg.partition import (
    PartitionSpec,
    format_spec_fields,
    list_partition_types,
)
from duckicelake.iceberg.schema import Schema, format_schema
from duckicelake.iceberg.single_values import decode_value, encode_value
from duckicelake.iceberg.types import PrimitiveType

EXISTING, ADDED, DELETED = 0, 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
CONTENT_NAMES = ("data", "deletes")
BLOCK_SIZE_IN_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data or delete file. `file_format` is in capitals: AVRO, ORC, PARQUET, PUFFIN.

    Maps have column ids as keys and are written in their own order; None means that no column has such a metric.
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


class EncodedFile(NamedTuple):
    """A Parquet data file whose Avro from `record_count` on is encoded already, in `rest`, for one format version."""

    file_path: str
    partition: tuple[object, ...]
    record_count: int
    file_size_in_bytes: int
    first_row_id: int
    rest: bytes = b""

    @property
    def content(self) -> int:
        """Return the content type: data."""
        return DATA

    @property
    def file_format(self) -> str:
        """Return the file format, spelled as in `DataFile`."""
        return "PARQUET"


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A file and what its snapshot did with it: EXISTING, ADDED or DELETED. None values are inherited from the manifest list."""

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: DataFile


class EncodedEntry(NamedTuple):
    """A `ManifestEntry` of an encoded file."""

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: EncodedFile


AnyFile = DataFile | EncodedFile
AnyEntry = ManifestEntry | EncodedEntry


@dataclass(frozen=True, slots=True)
class ManifestHeader:
    """The properties that all files of a manifest share. `content` is 0 for data files, 1 for delete files."""

    schema: Schema
    spec: PartitionSpec
    format_version: int
    content: int


def encode_manifest(header: ManifestHeader, entries: Iterable[AnyEntry]) -> bytes:
    """Return a manifest of the entries, in their order. The same input gives the same bytes.

    Raises: BadRequest — delete files in version 1, or a partition value that is not of its type
    Source: Iceberg spec «Manifests»
    """
    return build_manifest_encoder(header)(entries)


def build_manifest_encoder(header: ManifestHeader) -> Callable[[Iterable[AnyEntry]], bytes]:
    """Return a function that encodes manifests with this header, as `encode_manifest` does."""
    if header.format_version == 1 and header.content:
        raise BadRequest("Cannot write a delete manifest for format version 1; upgrade the table to version 2")
    types = list_partition_types(header.spec, header.schema)
    encode = build_entry_encoder(header.format_version, types)
    encode_rows = build_container_encoder(_format_header(header), build_manifest_schema(header.format_version, header.spec, types))
    return lambda entries: encode_rows(map(encode, entries))


def build_entry_encoder(format_version: int, types: tuple[PrimitiveType, ...]) -> Callable[[AnyEntry], bytes]:
    """Return a function that encodes entries of a format version with partition values of `types`."""
    parts = RowParts()
    encode_file = _build_file_encoder(parts, format_version, types)
    longs, long = parts.longs, parts.optional_long

    def encode(entry: AnyEntry) -> bytes:
        numbers = long(entry.snapshot_id) + long(entry.sequence_number) + long(entry.file_sequence_number)
        return longs[entry.status] + numbers + encode_file(entry.data_file)

    def encode_v1(entry: AnyEntry) -> bytes:
        if entry.snapshot_id is None:
            raise BadRequest(f"Cannot write {entry.data_file.file_path} for format version 1 without a snapshot id; give one")
        return longs[entry.status] + longs[entry.snapshot_id] + encode_file(entry.data_file)

    return encode_v1 if format_version == 1 else encode


def _build_file_encoder(parts: RowParts, format_version: int, types: tuple[PrimitiveType, ...]) -> Callable[[AnyFile], bytes]:
    partition_encoders = tuple(parts.value_encoder(type) for type in types)
    longs, text = parts.longs, parts.text

    def encode(file: AnyFile) -> bytes:
        if len(file.partition) != len(partition_encoders):
            raise BadRequest(f"Cannot write {file.file_path}: it has {len(file.partition)} partition values, not {len(types)}")
        content = b"" if format_version == 1 else longs[file.content]
        partition = b"".join([encode(value) for encode, value in zip(partition_encoders, file.partition, strict=True)])
        rest = file.rest if isinstance(file, EncodedFile) else _encode_after_partition(parts, file, format_version)
        return b"".join((content, text(file.file_path), text(file.file_format), partition, rest))

    return encode


def encode_files(files: Iterable[EncodedFile], metrics: Iterable[bytes], format_version: int) -> list[EncodedFile]:
    """Return the files with their `rest`, for manifests of that version.

    Shape: `metrics` has for each file its encoded fields from `column_sizes` to `split_offsets`
    """
    parts = RowParts()
    counts, long = _build_counts_encoder(parts, format_version), parts.optional_long
    if format_version < 3:
        end = {1: NULL, 2: NULL * 3}[format_version]
        return [EncodedFile(*file[:-1], b"".join((counts(file), part, end))) for file, part in zip(files, metrics, strict=True)]
    return [
        EncodedFile(*file[:-1], b"".join((counts(file), part, NULL * 2, long(file.first_row_id), NULL * 3)))
        for file, part in zip(files, metrics, strict=True)
    ]


def _build_counts_encoder(parts: RowParts, format_version: int) -> Callable[[AnyFile], bytes]:
    longs = parts.longs
    block_size = encode_long(BLOCK_SIZE_IN_BYTES) if format_version == 1 else b""
    return lambda file: longs[file.record_count] + longs[file.file_size_in_bytes] + block_size


def _encode_after_partition(parts: RowParts, file: DataFile, format_version: int) -> bytes:
    """Return the encoded fields after the partition tuple."""
    long = parts.optional_long
    row = [_build_counts_encoder(parts, format_version)(file), encode_metrics(parts, file)]
    if format_version == 1:
        return b"".join((*row, long(file.sort_order_id)))
    row += (parts.optional_longs(file.equality_ids), long(file.sort_order_id))
    if format_version >= 3:
        row.append(long(file.first_row_id))
    row.append(parts.optional_text(file.referenced_data_file))
    if format_version >= 3:
        row += (long(file.content_offset), long(file.content_size_in_bytes))
    return b"".join(row)


def encode_metrics(parts: RowParts, file: DataFile) -> bytes:
    """Return the encoded fields of a file from `column_sizes` to `split_offsets`."""
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


LONG_MAPS = 4
"""The maps of a file before its bounds: sizes and three counts."""


def widen_bounds(file: AnyFile, format_version: int, types: Mapping[int, PrimitiveType]) -> AnyFile:
    """Return a file whose bounds of these columns, written before the columns became `long` or `double`, have 8 bytes.

    The specification allows the 4 bytes of the earlier type, but not every reader does. `types` are the present types by column id.
    """
    if isinstance(file, DataFile):
        return replace(file, lower_bounds=_widen(file.lower_bounds, types), upper_bounds=_widen(file.upper_bounds, types))
    at = 0
    for _ in range(3 if format_version == 1 else 2):
        _, at = read_long(file.rest, at)
    for _ in range(LONG_MAPS):
        _, at = _decode_map(file.rest, at, read_long)
    lower, after_lower = _decode_map(file.rest, at, read_bytes)
    upper, end = _decode_map(file.rest, after_lower, read_bytes)
    bounds = (RowParts().bytes_map(_widen(side, types)) for side in (lower, upper))
    return file._replace(rest=b"".join((file.rest[:at], *bounds, file.rest[end:])))


def _widen(bounds: Mapping[int, bytes] | None, types: Mapping[int, PrimitiveType]) -> Mapping[int, bytes] | None:
    if bounds is None:
        return None
    short = {key: content for key, content in bounds.items() if key in types and len(content) == 4}
    return {**bounds, **{key: encode_value(types[key], decode_value(types[key], content)) for key, content in short.items()}}


Item = TypeVar("Item")


def _decode_map(content: bytes, at: int, read: Callable[[bytes, int], tuple[Item, int]]) -> tuple[dict[int, Item] | None, int]:
    """Return an optional map by column id that `RowParts` or `avro.writer` encoded, and the position after it."""
    is_present, at = read_long(content, at)
    if not is_present:
        return None, at
    items: dict[int, Item] = {}
    count, at = read_long(content, at)
    for _ in range(count):
        key, at = read_long(content, at)
        items[key], at = read(content, at)
    return items, at + 1 if count else at


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
