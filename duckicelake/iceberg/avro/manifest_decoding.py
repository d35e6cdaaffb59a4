"""Decoders of manifests and manifest lists of any writer.

A file is read by field id, so names and additional fields do not matter; absent fields get the defaults of the specification.
The schema of a file is checked once (a cache of the process keeps it), so every value has its type; then each entry is checked by itself.
`requests.manifest_checks` checks whether a manifest fits its table.
No I/O. `catalog` calls this for commits, registrations, scans and checks of objects; jobs of `pipeline` call it in their
drivers, `verify` also in Spark executors.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from json import loads
from typing import Any, cast
from uuid import UUID

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.reader import DECODE_ERRORS, AvroFile, AvroLimits, AvroReader, ReadBudget, ReaderPool, open_avro, read_rows
from duckicelake.iceberg.json_reader import INT_MAX
from duckicelake.iceberg.manifest import CONTENT_NAMES, DATA, DELETED, DataFile, ManifestEntry, ManifestHeader
from duckicelake.iceberg.manifest_list import UNKNOWN_COUNT, FieldSummary, ManifestFile
from duckicelake.iceberg.metadata import FORMAT_VERSIONS
from duckicelake.iceberg.partition import PartitionField, PartitionSpec, assign_field_ids, parse_spec_fields
from duckicelake.iceberg.schema import Schema, find_field, parse_schema
from duckicelake.iceberg.single_values import encode_value
from duckicelake.iceberg.transforms import get_scale, result_type, to_decimal
from duckicelake.iceberg.types import PrimitiveType, find_decimal

DEFAULT_LIMITS = AvroLimits()
CACHED_SCHEMA_LENGTH_MAX = 16 * 1024
"""Schemas with more characters than this are not cached."""

_NUMBER, _TEXT, _BYTES, _FLAG = ("int", "long"), ("string",), ("bytes", "fixed"), ("boolean",)
_Kinds = tuple[str, ...]
_ENTRY: Mapping[int, tuple[str, _Kinds]] = {
    0: ("status", _NUMBER),
    1: ("snapshot_id", _NUMBER),
    3: ("sequence_number", _NUMBER),
    4: ("file_sequence_number", _NUMBER),
    2: ("data_file", ("record",)),
}
_FILE: Mapping[int, tuple[str, _Kinds]] = {
    134: ("content", _NUMBER),
    100: ("file_path", _TEXT),
    101: ("file_format", _TEXT),
    102: ("partition", ("record",)),
    103: ("record_count", _NUMBER),
    104: ("file_size_in_bytes", _NUMBER),
    132: ("split_offsets", ("array", *_NUMBER)),
    135: ("equality_ids", ("array", *_NUMBER)),
    140: ("sort_order_id", _NUMBER),
    142: ("first_row_id", _NUMBER),
    143: ("referenced_data_file", _TEXT),
    144: ("content_offset", _NUMBER),
    145: ("content_size_in_bytes", _NUMBER),
    **{field_id: ("counts by column", ("pairs", *_NUMBER)) for field_id in (108, 109, 110, 137)},
    **{field_id: ("bounds by column", ("pairs", *_BYTES)) for field_id in (125, 128)},
}
_MANIFEST_FILE: Mapping[int, tuple[str, _Kinds]] = {
    500: ("manifest_path", _TEXT),
    507: ("partitions", ("array", "record")),
    **{field_id: ("a number", _NUMBER) for field_id in (501, 502, 503, 504, 505, 506, 512, 513, 514, 515, 516, 517, 520)},
}
_SUMMARY: Mapping[int, tuple[str, _Kinds]] = {
    509: ("contains_null", _FLAG),
    518: ("contains_nan", _FLAG),
    510: ("lower_bound", _BYTES),
    511: ("upper_bound", _BYTES),
}
_KEY_METADATA = 131
_LIST_KEY_METADATA = 519


def decode_manifest(
    content: bytes,
    listed: ManifestFile | str = "manifest",
    limits: AvroLimits = DEFAULT_LIMITS,
    shared: ReadBudget | None = None,
    readers: ReaderPool | None = None,
) -> tuple[ManifestHeader, list[ManifestEntry]]:
    """Return the header and the entries of a manifest of any writer. Inherited values stay None: see `manifest_list.inherit_from_list`.

    `listed` is the manifest list's entry for this manifest, or only a name for messages. Some writers (ClickHouse) leave content and
    spec id out of the header; then those of `listed` apply, which Iceberg's own readers use too. `shared` is the budget that this
    manifest and others share, and `readers` the compiled readers that are reused.
    Raises: BadRequest — damaged, too large, not a manifest, or with an invalid entry; the message begins with the name
    """
    with _mapped_errors(listed if isinstance(listed, str) else listed.manifest_path):
        file = open_avro(content, limits, shared, readers)
        header = _parse_header(file.metadata, None if isinstance(listed, str) else listed)
        decode = _build_entry_decoder(file, header)
        entries = [decode(cast("dict[int, Any]", row)) for row in read_rows(file)]
        file.close()
        return header, entries


def decode_manifest_list(
    content: bytes, name: str = "manifest list", limits: AvroLimits = DEFAULT_LIMITS, readers: ReaderPool | None = None
) -> list[ManifestFile]:
    """Return the entries of a manifest list of any writer.

    Raises: BadRequest — damaged, too large or not a manifest list; the message begins with the name
    """
    with _mapped_errors(name):
        file = open_avro(content, limits, None, readers)
        _check_fields(file.row, _MANIFEST_FILE, (500, 501, 502, 503))
        if 507 in file.row.fields:
            _check_fields(file.row.fields[507].items[0], _SUMMARY, (509,))
        listed = [_decode_manifest_file(cast("dict[int, Any]", row)) for row in read_rows(file)]
        file.close()
        return listed


@contextmanager
def _mapped_errors(name: str) -> Generator[None, None, None]:
    try:
        yield
    except BadRequest as error:
        raise BadRequest(f"Cannot read {name}: {error.message}") from error
    except DECODE_ERRORS as error:
        raise BadRequest(
            f"Cannot read {name}: it is no valid Avro file ({type(error).__name__}: {str(error)[:200]}); write it again"
        ) from error


def _parse_header(metadata: Mapping[str, str], listed: ManifestFile | None) -> ManifestHeader:
    default_spec_id, default_content = (0, 0) if listed is None else (listed.partition_spec_id, listed.content)
    try:
        fields = parse_spec_fields(loads(metadata["partition-spec"]))
        spec = PartitionSpec(int(metadata.get("partition-spec-id", default_spec_id)), fields)
        text = metadata["schema"]
        header = ManifestHeader(
            schema=_parse_cached(text) if len(text) <= CACHED_SCHEMA_LENGTH_MAX else parse_schema(loads(text)),
            spec=assign_field_ids(spec, 0),
            format_version=int(metadata.get("format-version", "1")),
            content=CONTENT_NAMES.index(metadata["content"]) if "content" in metadata else default_content,
        )
    except (LookupError, ValueError, RecursionError) as error:
        raise BadRequest(f"its header is malformed ({error!r}); write it again") from error
    if header.format_version not in FORMAT_VERSIONS or not 0 <= header.spec.spec_id <= INT_MAX:
        raise BadRequest(f"format version {header.format_version} or spec id {header.spec.spec_id} is out of range; write it again")
    return header


@lru_cache(maxsize=256)
def _parse_cached(text: str) -> Schema:
    """Return the schema of a header. Writers send the same schema with every manifest of a table, so it is cached."""
    return parse_schema(loads(text))


def _check_fields(record: AvroReader, known: Mapping[int, tuple[str, _Kinds]], required: tuple[int, ...]) -> None:
    """Raise BadRequest when a field is missing or has another type than the specification says."""
    if record.kind != "record":
        raise BadRequest(f"its schema has a {record.kind} where a record belongs; write it again")
    for field_id, (name, kinds) in known.items():
        found = record.fields.get(field_id)
        if found is None and field_id in required:
            raise BadRequest(f"its schema has no field {field_id} ({name}); write it again")
        if found is not None and not _has_kind(found, kinds):
            raise BadRequest(f"field {field_id} ({name}) of its schema is a {found.kind}; write it again")


def _has_kind(reader: AvroReader, kinds: _Kinds) -> bool:
    """True if the reader has one of the kinds. For `array` and `pairs` the other kinds are those of the items."""
    match kinds:
        case ("array", *items):
            return reader.kind == "array" and reader.items[0].kind in items
        case ("pairs", *values):
            return reader.kind == "pairs" and reader.items[0].kind in _NUMBER and reader.items[1].kind in values
        case _:
            return reader.kind in kinds


def _build_entry_decoder(file: AvroFile, header: ManifestHeader) -> Callable[[Mapping[int, Any]], ManifestEntry]:
    _check_fields(file.row, _ENTRY, (0, 2))
    record = file.row.fields[2]
    _check_fields(record, _FILE, (100, 101, 102, 103, 104))
    decode_tuple = build_tuple_decoder(header.spec, header.schema, record.fields[102])

    def decode(row: Mapping[int, Any]) -> ManifestEntry:
        values: Mapping[int, Any] | None = row[2]
        if values is None or values[102] is None:
            raise BadRequest("an entry has no file or no partition tuple; write it again")
        found = values.get
        file = DataFile(
            content=found(134) or DATA,
            file_path=values[100],
            file_format=(values[101] or "").upper(),
            partition=decode_tuple(values[102]),
            record_count=values[103],
            file_size_in_bytes=values[104],
            column_sizes=found(108),
            value_counts=found(109),
            null_value_counts=found(110),
            nan_value_counts=found(137),
            lower_bounds=found(125),
            upper_bounds=found(128),
            split_offsets=_as_tuple(found(132)),
            equality_ids=_as_tuple(found(135)),
            sort_order_id=found(140),
            first_row_id=found(142),
            referenced_data_file=found(143),
            content_offset=found(144),
            content_size_in_bytes=found(145),
        )
        entry = ManifestEntry(row[0], row.get(1), row.get(3), row.get(4), file)
        _check_entry(entry, found(_KEY_METADATA))
        return entry

    return decode


def _as_tuple(items: list[int | None] | None) -> tuple[int, ...] | None:
    return None if items is None else tuple([item for item in items if item is not None])


def _check_entry(entry: ManifestEntry, key: object) -> None:
    file = entry.data_file
    counts: list[int | None] = [file.record_count, file.file_size_in_bytes]
    others = (file.first_row_id, file.content_offset, file.content_size_in_bytes, entry.sequence_number, entry.file_sequence_number)
    numbers = [-1 if item is None else item for item in counts] + [item or 0 for item in others] + [file.sort_order_id or 0]
    if entry.status not in (0, 1, DELETED) or file.content not in (0, 1, 2):
        raise BadRequest(f"{file.file_path} has status {entry.status} and content {file.content}; write each from 0 to 2")
    if not file.file_path or not file.file_format:
        raise BadRequest("an entry has no path or no file format; write it again")
    if min(numbers) < 0 or numbers[-1] > INT_MAX:
        raise BadRequest(f"{file.file_path} has a count, size or number that is missing or out of range; write it again")
    if key is not None:
        raise BadRequest(f"{file.file_path} is encrypted; write plain files")


def _decode_manifest_file(row: Mapping[int, Any]) -> ManifestFile:
    counts = [UNKNOWN_COUNT if row.get(field_id) is None else row[field_id] for field_id in (504, 505, 506, 512, 513, 514)]
    numbers = [row[field_id] for field_id in (501, 502, 503)]
    # DuckDB's iceberg extension writes -1 for an unknown lowest sequence number.
    lowest = 0 if row.get(516) in (None, -1) else row[516]
    # It also writes arbitrary numbers for an absent first row id. Manifests of delete files never have one.
    first_row_id = None if row.get(517) == 1 or row.get(520) == -(2**63) else row.get(520)
    numbers += [row.get(515) or 0, lowest, first_row_id or 0]
    if not row[500] or None in numbers or min(numbers) < 0 or min(counts) < UNKNOWN_COUNT or row[502] > INT_MAX:
        raise BadRequest(f"its entry {str(row[500])[:1000]!r} has a number that is missing or out of range; write it again")
    if (row.get(517) or 0) not in (0, 1) or row.get(_LIST_KEY_METADATA) is not None:
        raise BadRequest(f"manifest {row[500]} is encrypted, or neither of data nor of deletes; write plain manifests")
    return ManifestFile(
        manifest_path=row[500],
        manifest_length=row[501],
        partition_spec_id=row[502],
        content=row.get(517) or 0,
        sequence_number=row.get(515) or 0,
        min_sequence_number=lowest,
        added_snapshot_id=row[503],
        added_files_count=counts[0],
        existing_files_count=counts[1],
        deleted_files_count=counts[2],
        added_rows_count=counts[3],
        existing_rows_count=counts[4],
        deleted_rows_count=counts[5],
        partitions=tuple(_decode_summaries(row.get(507) or [])),
        first_row_id=first_row_id,
    )


def _decode_summaries(items: list[Mapping[int, Any]]) -> Iterator[FieldSummary]:
    for item in items:
        yield FieldSummary(bool(item[509]), item.get(518), item.get(510), item.get(511))


Decode = Callable[[object], object]


def build_tuple_decoder(spec: PartitionSpec, schema: Schema, record: AvroReader) -> Callable[[Mapping[int, object]], tuple[object, ...]]:
    """Return a function that builds the partition tuple of a spec from the record of an entry, by field id.

    Raises: BadRequest — the record lacks a field; when called: a value that is not of its field's type
    """
    missing = [item.name for item in spec.fields if item.field_id not in record.fields]
    if missing:
        raise BadRequest(f"its partition tuples have no {', '.join(missing)}; write it again")
    decoders = [(item.field_id, _build_value_decoder(item, schema)) for item in spec.fields]
    return lambda values: tuple([decode(values[field_id]) for field_id, decode in decoders])


def _build_value_decoder(item: PartitionField, schema: Schema) -> Decode:
    source = find_field(schema, item.source_id)
    type = result_type(item.transform, None if source is None else source.type)

    def decode(value: object) -> object:
        if value is None or type is None:
            return value
        try:
            found = decode_partition_value(type, value)
            encode_value(type, found)
        except (BadRequest, ValueError, ArithmeticError, TypeError, AttributeError) as error:
            raise BadRequest(f"partition value {str(value)[:100]!r} of {item.name} is no {type}; write it again") from error
        return found

    return decode


def decode_partition_value(type: PrimitiveType, value: object) -> object:
    """Return the iceberg value of a value that Avro decoded."""
    match value:
        case bytes() if find_decimal(type):
            return to_decimal(int.from_bytes(value, "big", signed=True), get_scale(type))
        case str() if type.name == "uuid":
            return UUID(value).bytes
        case _:
            return value
