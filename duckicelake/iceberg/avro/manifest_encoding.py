"""The Avro schemas of manifests and manifest lists for format versions 1 to 3, and encoders of the parts of their rows.

The encoders are functions that are built once per file and then called for each row; `manifest` and `manifest_list` combine them.
No I/O: it runs where those do, in the server, in drivers of jobs and in the Spark executors of `publish`.

Source: Iceberg spec «Manifests», «Manifest Lists»; appendix A «Avro» (field ids, maps as arrays, optional = union with null)
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from json import dumps
from typing import cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.avro.writer import NULL, PRESENT, EncodedLongs
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.transforms import to_unscaled
from duckicelake.iceberg.types import PrimitiveType, find_decimal, find_fixed_length

# For each field: id, name, type, and whether it is required (r), optional (o) or absent (-) in format versions 1, 2 and 3.
_ENTRY_FIELDS = (
    (0, "status", "int", "rrr"),
    (1, "snapshot_id", "long", "roo"),
    (3, "sequence_number", "long", "-oo"),
    (4, "file_sequence_number", "long", "-oo"),
    (2, "data_file", "data_file", "rrr"),
)
_DATA_FILE_FIELDS = (
    (134, "content", "int", "-rr"),
    (100, "file_path", "string", "rrr"),
    (101, "file_format", "string", "rrr"),
    (102, "partition", "partition", "rrr"),
    (103, "record_count", "long", "rrr"),
    (104, "file_size_in_bytes", "long", "rrr"),
    (105, "block_size_in_bytes", "long", "r--"),
    (108, "column_sizes", (117, 118, "long"), "ooo"),
    (109, "value_counts", (119, 120, "long"), "ooo"),
    (110, "null_value_counts", (121, 122, "long"), "ooo"),
    (137, "nan_value_counts", (138, 139, "long"), "ooo"),
    (125, "lower_bounds", (126, 127, "bytes"), "ooo"),
    (128, "upper_bounds", (129, 130, "bytes"), "ooo"),
    (131, "key_metadata", "bytes", "ooo"),
    (132, "split_offsets", (133, "long"), "ooo"),
    (135, "equality_ids", (136, "int"), "-oo"),
    (140, "sort_order_id", "int", "ooo"),
    (142, "first_row_id", "long", "--o"),
    (143, "referenced_data_file", "string", "-oo"),
    (144, "content_offset", "long", "--o"),
    (145, "content_size_in_bytes", "long", "--o"),
)
_MANIFEST_FILE_FIELDS = (
    (500, "manifest_path", "string", "rrr"),
    (501, "manifest_length", "long", "rrr"),
    (502, "partition_spec_id", "int", "rrr"),
    (517, "content", "int", "-rr"),
    (515, "sequence_number", "long", "-rr"),
    (516, "min_sequence_number", "long", "-rr"),
    (503, "added_snapshot_id", "long", "rrr"),
    (504, "added_files_count", "int", "orr"),
    (505, "existing_files_count", "int", "orr"),
    (506, "deleted_files_count", "int", "orr"),
    (512, "added_rows_count", "long", "orr"),
    (513, "existing_rows_count", "long", "orr"),
    (514, "deleted_rows_count", "long", "orr"),
    (507, "partitions", "field_summaries", "ooo"),
    (519, "key_metadata", "bytes", "ooo"),
    (520, "first_row_id", "long", "--o"),
)
_FIELD_SUMMARY_FIELDS = (
    (509, "contains_null", "boolean", "rrr"),
    (518, "contains_nan", "boolean", "ooo"),
    (510, "lower_bound", "bytes", "ooo"),
    (511, "upper_bound", "bytes", "ooo"),
)

_Fields = tuple[tuple[int, str, str | tuple[int, str] | tuple[int, int, str], str], ...]

_LOGICAL_TYPES: dict[str, dict[str, object]] = {
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
}
_PLAIN_TYPES = {name: name for name in ("boolean", "int", "long", "float", "double", "string")} | {"binary": "bytes", "unknown": "null"}


@lru_cache(maxsize=256)
def build_manifest_schema(format_version: int, spec: PartitionSpec, types: tuple[PrimitiveType, ...]) -> str:
    """Return the Avro schema of a manifest whose files are partitioned by `spec`, with values of `types`."""
    own = {"partition": build_partition_schema(spec, types)}
    own["data_file"] = _build_record("r2", _DATA_FILE_FIELDS, format_version, own)
    return _compact(_build_record("manifest_entry", _ENTRY_FIELDS, format_version, own))


@lru_cache
def build_manifest_list_schema(format_version: int) -> str:
    """Return the Avro schema of a manifest list."""
    summary = _build_record("r508", _FIELD_SUMMARY_FIELDS, format_version, {})
    own: dict[str, object] = {"field_summaries": {"type": "array", "items": summary, "element-id": 508}}
    return _compact(_build_record("manifest_file", _MANIFEST_FILE_FIELDS, format_version, own))


def build_partition_schema(spec: PartitionSpec, types: tuple[PrimitiveType, ...]) -> object:
    """Return the record of a partition tuple: every value is optional and has the id of its partition field.

    Avro names a fixed type once per file. A second fixed type of the same name gets the field id as a suffix, because PyIceberg does
    not resolve references to earlier names. Field names that become equal as Avro names get the same suffix.
    """
    fields: list[dict[str, object]] = []
    used: set[str] = set()
    for item, type in zip(spec.fields, types, strict=True):
        name = _unused_name(to_avro_name(item.name), item.field_id, used)
        avro_type = get_value_schema(type)
        if isinstance(avro_type, dict) and "name" in avro_type:
            avro_type = {**avro_type, "name": _unused_name(str(avro_type["name"]), item.field_id, used)}
        optional = avro_type if avro_type == "null" else ["null", avro_type]
        original = {} if name == item.name else {"iceberg-field-name": item.name}
        fields.append({"name": name, "type": optional, "default": None, "field-id": item.field_id, **original})
    return {"type": "record", "name": "r102", "fields": fields}


def _unused_name(name: str, field_id: int, used: set[str]) -> str:
    unused = f"{name}_{field_id}" if name in used else name
    used.add(unused)
    return unused


def get_value_schema(type: PrimitiveType) -> str | dict[str, object]:
    """Return the Avro type of a primitive type.

    Raises: BadRequest — the type cannot be part of a partition tuple
    """
    if type.name in _PLAIN_TYPES:
        return _PLAIN_TYPES[type.name]
    if type.name in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[type.name]
    if type.name == "uuid":
        return {"type": "fixed", "name": "uuid_fixed", "size": 16, "logicalType": "uuid"}
    if found := find_decimal(type):
        precision, scale = found
        fixed = {"type": "fixed", "name": f"decimal_{precision}_{scale}", "size": compute_decimal_size(precision)}
        return {**fixed, "logicalType": "decimal", "precision": precision, "scale": scale}
    length = find_fixed_length(type)
    if length is not None:
        return {"type": "fixed", "name": f"fixed_{length}", "size": length}
    raise BadRequest(f"Cannot partition by values of type {type}; choose another column or transform")


def compute_decimal_size(precision: int) -> int:
    """Return the number of bytes that hold every decimal of that precision in two's complement."""
    return (10**precision).bit_length() // 8 + 1


def to_avro_name(name: str) -> str:
    """Return the name of a partition field as an Avro name: other characters than letters, digits and _ become `_x` and their code.

    Letters beyond ASCII are replaced too: Java would keep them, but DuckDB's Avro reader refuses such names.
    """
    units = [int.from_bytes(pair, "big") for pair in _utf16_units(name)]
    return "".join(_to_avro_unit(unit, first=i == 0) for i, unit in enumerate(units))


def _utf16_units(name: str) -> list[bytes]:
    encoded = name.encode("utf-16-be", "surrogatepass")
    return [encoded[i : i + 2] for i in range(0, len(encoded), 2)]


def _to_avro_unit(unit: int, first: bool) -> str:
    character = chr(unit)
    if unit < 128 and (character.isalpha() or character == "_" or (character.isdigit() and not first)):
        return character
    return f"_{character}" if "0" <= character <= "9" else f"_x{unit:X}"


def _build_record(name: str, fields: _Fields, format_version: int, own: dict[str, object]) -> dict[str, object]:
    encoded: list[dict[str, object]] = []
    for field_id, field_name, type, presence in fields:
        avro_type = own[type] if isinstance(type, str) and type in own else _build_type(type)
        match presence[format_version - 1]:
            case "r":
                encoded.append({"name": field_name, "type": avro_type, "field-id": field_id})
            case "o":
                encoded.append({"name": field_name, "type": ["null", avro_type], "default": None, "field-id": field_id})
            case _:
                pass
    return {"type": "record", "name": name, "fields": encoded}


def _build_type(type: str | tuple[int, str] | tuple[int, int, str]) -> object:
    match type:
        case str():
            return type
        case (element_id, element):
            return {"type": "array", "items": element, "element-id": element_id}
        case (key_id, value_id, value):
            fields = [{"name": "key", "type": "int", "field-id": key_id}, {"name": "value", "type": value, "field-id": value_id}]
            record = {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": fields}
            return {"type": "array", "items": record, "logicalType": "map"}


def _compact(node: object) -> str:
    return dumps(node, ensure_ascii=False, separators=(",", ":"))


Encode = Callable[[object], bytes]


class RowParts:
    """Encoders of the parts of a row, which share one cache of encoded numbers."""

    __slots__ = ("longs",)

    def __init__(self) -> None:
        self.longs = EncodedLongs()

    def text(self, value: str) -> bytes:
        """Return a string as Avro."""
        content = value.encode()
        return self.longs[len(content)] + content

    def optional_long(self, value: int | None) -> bytes:
        """Return a number or null as Avro."""
        return NULL if value is None else PRESENT + self.longs[value]

    def optional_text(self, value: str | None) -> bytes:
        """Return a string or null as Avro."""
        return NULL if value is None else PRESENT + self.text(value)

    def optional_bytes(self, value: bytes | None) -> bytes:
        """Return bytes or null as Avro."""
        return NULL if value is None else PRESENT + self.longs[len(value)] + value

    def optional_longs(self, values: Iterable[int] | None) -> bytes:
        """Return an array of numbers or null as Avro."""
        return NULL if values is None else PRESENT + self.array([self.longs[value] for value in values])

    def long_map(self, values: Mapping[int, int] | None) -> bytes:
        """Return numbers by column id, or null, as Avro."""
        if values is None:
            return NULL
        longs = self.longs
        return PRESENT + self.array([longs[key] + longs[value] for key, value in values.items()])

    def bytes_map(self, values: Mapping[int, bytes] | None) -> bytes:
        """Return bytes by column id, or null, as Avro."""
        if values is None:
            return NULL
        longs = self.longs
        return PRESENT + self.array([longs[key] + longs[len(value)] + value for key, value in values.items()])

    def array(self, items: list[bytes]) -> bytes:
        """Return an array of encoded items in one block."""
        return self.longs[len(items)] + b"".join(items) + NULL if items else NULL

    def value_encoder(self, type: PrimitiveType) -> Encode:
        """Return a function that encodes an iceberg value of the type, or null.

        Raises: BadRequest, when called — the value is not one of the type
        """
        encode = self._plain_encoder(type)
        if encode is None:
            return lambda _: b""

        def encode_optional(value: object) -> bytes:
            if value is None:
                return NULL
            try:
                return PRESENT + encode(value)
            except (AttributeError, TypeError, ValueError, OverflowError, struct.error) as error:
                raise BadRequest(f"Cannot write partition value {value!r} as {type}; give a value of that type") from error

        return encode_optional

    def _plain_encoder(self, type: PrimitiveType) -> Encode | None:
        avro_type = get_value_schema(type)
        kind = avro_type if isinstance(avro_type, str) else avro_type["type"]
        found = find_decimal(type)
        if found is not None:
            return _build_decimal_encoder(*found)
        match kind:
            case "null":
                return None
            case "boolean":
                return lambda value: b"\x01" if value else b"\x00"
            case "int" | "long":
                return lambda value: self.longs[cast("int", value)]
            case "float" | "double":
                pack = struct.Struct("<f" if kind == "float" else "<d").pack
                return lambda value: pack(cast("float", value))
            case "string":
                return lambda value: self.text(cast("str", value))
            case "bytes":
                return lambda value: self.longs[len(cast("bytes", value))] + cast("bytes", value)
            case _:
                return _build_fixed_encoder(16 if type.name == "uuid" else find_fixed_length(type) or 0)


def _build_decimal_encoder(precision: int, scale: int) -> Encode:
    size = compute_decimal_size(precision)
    return lambda value: to_unscaled(cast("Decimal", value), scale).to_bytes(size, "big", signed=True)


def _build_fixed_encoder(length: int) -> Encode:
    def encode(value: object) -> bytes:
        if not isinstance(value, bytes) or len(value) != length:
            raise ValueError(f"not {length} bytes")
        return value

    return encode
