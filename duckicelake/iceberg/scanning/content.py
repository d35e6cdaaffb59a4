"""Files as JSON, for the tasks of a scan.

Source: Iceberg REST specification, «ContentFile»; ContentFileParser of Iceberg 1.11
"""

from collections.abc import Mapping, Sequence
from json import JSONEncoder

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.encoding.json_values import format_value
from duckicelake.iceberg.manifest import DATA, DataFile
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scanning.deletes import ScanFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.transforms import result_type
from duckicelake.iceberg.types import PrimitiveType, walk_fields

CONTENT_NAMES = ("data", "position-deletes", "equality-deletes")
JSON = JSONEncoder(ensure_ascii=False, separators=(",", ":"))
PartitionTypes = tuple[PrimitiveType | None, ...]


def list_readable_types(spec: PartitionSpec, schema: Schema) -> PartitionTypes:
    """The types under which clients read a spec's values; None for a column that the schema has not, whose values they cannot read."""
    types = {item.field_id: item.type for _, item in walk_fields(schema.fields)}
    return tuple(None if item.source_id not in types else result_type(item.transform, types[item.source_id]) for item in spec.fields)


def encode_file(item: ScanFile, types: PartitionTypes) -> bytes:
    """A file as JSON, without what is told of its columns; kept with it.

    Raises: Unsupported — a partition value that JSON cannot say
    """
    encoded_json = item.encoded_json
    if encoded_json is not None and encoded_json[0] == types:
        return encoded_json[1]
    encoded = JSON.encode(_format_file(item, types)).encode()
    item.encoded_json = (types, encoded)
    return encoded


def add_stats(encoded: bytes, file: DataFile, field_ids: Sequence[int]) -> bytes:
    """A file's JSON with counts and bounds of some columns.

    Bounds are hexadecimal: what manifests hold, as Java reads and writes them
    """
    encoded_json = {
        "column-sizes": _pick(file.column_sizes, field_ids),
        "value-counts": _pick(file.value_counts, field_ids),
        "null-value-counts": _pick(file.null_value_counts, field_ids),
        "nan-value-counts": _pick(file.nan_value_counts, field_ids),
        "lower-bounds": _pick_bounds(file.lower_bounds, field_ids),
        "upper-bounds": _pick_bounds(file.upper_bounds, field_ids),
    }
    more = {key: found for key, found in encoded_json.items() if found is not None}
    return encoded[:-1] + b"," + JSON.encode(more).encode()[1:] if more else encoded


def _format_file(item: ScanFile, types: PartitionTypes) -> dict[str, object]:
    file = item.file
    node: dict[str, object] = {
        "spec-id": item.spec_id,
        "content": CONTENT_NAMES[file.content],
        "file-path": file.file_path,
        "file-format": file.file_format.lower(),
        "partition": format_partition(file, types),
        "file-size-in-bytes": file.file_size_in_bytes,
        "record-count": file.record_count,
    }
    optional: dict[str, object] = {
        "split-offsets": file.split_offsets,
        "equality-ids": file.equality_ids,
        "sort-order-id": file.sort_order_id,
        "first-row-id": file.first_row_id if file.content == DATA else None,
        "referenced-data-file": file.referenced_data_file,
        "content-offset": file.content_offset,
        "content-size-in-bytes": file.content_size_in_bytes,
    }
    return node | {key: value for key, value in optional.items() if value is not None}


def format_partition(file: DataFile, types: PartitionTypes) -> list[object]:
    """A file's partition tuple as JSON single values; null for what clients have no type for any more."""
    try:
        return [None if type is None else format_value(type, value) for type, value in zip(types, file.partition, strict=True)]
    except (BadRequest, ValueError) as error:
        raise Unsupported(f"{file.file_path} has a partition value that a plan cannot tell; let the client plan scans itself.") from error


def _pick(counts: Mapping[int, int] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, counts[field_id]) for field_id in field_ids if field_id in counts] if counts else []
    return {"keys": [key for key, _ in found], "values": [value for _, value in found]} if found else None


def _pick_bounds(bounds: Mapping[int, bytes] | None, field_ids: Sequence[int]) -> dict[str, object] | None:
    found = [(field_id, bounds[field_id]) for field_id in field_ids if field_id in bounds] if bounds else []
    return {"keys": [key for key, _ in found], "values": [value.hex().upper() for _, value in found]} if found else None
