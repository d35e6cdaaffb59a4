"""The types of Iceberg columns, and their JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import (
    as_object,
    find_text,
    get_flag,
    get_int,
    get_list,
    get_text,
    is_text,
)

PLAIN_NAMES = frozenset(
    "unknown boolean int long float double date time timestamp timestamptz timestamp_ns timestamptz_ns"
    " string uuid binary variant geometry geography".split()
)
DEPTH_MAX = 64

_DECIMAL = re.compile(r"decimal\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*\)", re.ASCII)
_FIXED = re.compile(r"fixed\[\s*(\d{1,9})\s*\]", re.ASCII)
DEFAULT_CRS = "OGC:CRS84"
_GEOMETRY = re.compile(r"geometry\s*\(\s*([^)]*?)\s*\)", re.IGNORECASE)
_GEOGRAPHY = re.compile(r"geography\s*\(\s*([^,)]*?)\s*(?:,\s*(\w+)\s*)?\)", re.IGNORECASE)
_ALGORITHMS = ("spherical", "vincenty", "thomas", "andoyer", "karney")


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without children, known by its canonical name: `int`, `decimal(9, 2)`, `fixed[16]`, also `variant`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class NestedField:
    """A column, or a field of a struct. Defaults are JSON single values: see `single_values`."""

    field_id: int
    name: str
    type: IcebergType
    required: bool
    doc: str | None = None
    initial_default: object = field(default=None, hash=False)
    write_default: object = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields, in order."""

    fields: tuple[NestedField, ...]


@dataclass(frozen=True, slots=True)
class ListType:
    """Elements of one type."""

    element_id: int
    element_type: IcebergType
    element_required: bool


@dataclass(frozen=True, slots=True)
class MapType:
    """Keys, never null, and values."""

    key_id: int
    key_type: IcebergType
    value_id: int
    value_type: IcebergType
    value_required: bool


IcebergType: TypeAlias = PrimitiveType | StructType | ListType | MapType


def decimal_type(precision: int, scale: int) -> PrimitiveType:
    """Return the decimal type under its canonical name."""
    return PrimitiveType(f"decimal({precision}, {scale})")


def fixed_type(length: int) -> PrimitiveType:
    """Return the fixed type under its canonical name."""
    return PrimitiveType(f"fixed[{length}]")


def find_decimal(type: PrimitiveType) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None for any other."""
    match = _DECIMAL.fullmatch(type.name)
    return None if match is None else (int(match[1]), int(match[2]))


def find_fixed_length(type: PrimitiveType) -> int | None:
    """Return the length in bytes of a fixed type; None for any other."""
    match = _FIXED.fullmatch(type.name)
    return None if match is None else int(match[1])


def child_fields(type: IcebergType) -> tuple[NestedField, ...]:
    """Return the children of a type, each with its id: struct fields, `element`, or `key` and `value`."""
    match type:
        case StructType(fields):
            return fields
        case ListType(element_id, element_type, element_required):
            return (NestedField(element_id, "element", element_type, element_required),)
        case MapType(key_id, key_type, value_id, value_type, value_required):
            return (NestedField(key_id, "key", key_type, True), NestedField(value_id, "value", value_type, value_required))
        case PrimitiveType():
            return ()


def walk_fields(fields: tuple[NestedField, ...], parent: str = "") -> Iterator[tuple[str, NestedField]]:
    """Yield every field with its dotted path, a parent before its children."""
    for item in fields:
        path = f"{parent}.{item.name}" if parent else item.name
        yield path, item
        yield from walk_fields(child_fields(item.type), path)


def format_type(type: IcebergType) -> object:
    """Return a type as JSON: a string for a primitive, an object otherwise.

    Source: Iceberg spec, appendix C «Schemas»
    """
    match type:
        case PrimitiveType(name):
            return name
        case StructType(fields):
            return {"type": "struct", "fields": [format_field(item) for item in fields]}
        case ListType(element_id, element_type, element_required):
            return {
                "type": "list",
                "element-id": element_id,
                "element": format_type(element_type),
                "element-required": element_required,
            }
        case MapType(key_id, key_type, value_id, value_type, value_required):
            return {
                "type": "map",
                "key-id": key_id,
                "key": format_type(key_type),
                "value-id": value_id,
                "value": format_type(value_type),
                "value-required": value_required,
            }


def format_field(item: NestedField) -> dict[str, object]:
    """Return a column or struct field as JSON without its unset members."""
    node: dict[str, object] = {
        "id": item.field_id,
        "name": item.name,
        "required": item.required,
        "type": format_type(item.type),
    }
    optional = {"doc": item.doc, "initial-default": item.initial_default, "write-default": item.write_default}
    return node | {key: value for key, value in optional.items() if value is not None}


def parse_type(value: object, depth: int = 0) -> IcebergType:
    """Return the type of a JSON value, primitives under their canonical names.

    Raises: BadRequest — an unknown type, a missing key, nesting deeper than DEPTH_MAX
    """
    if depth > DEPTH_MAX:
        raise BadRequest(f"Cannot read type: nested deeper than {DEPTH_MAX} levels; flatten the schema")
    if isinstance(value, str):
        return parse_primitive(value)
    node = as_object(value, "type")
    match node.get("type"):
        case "struct":
            return StructType(parse_fields(node, depth))
        case "list":
            element = parse_type(node.get("element"), depth + 1)
            return ListType(get_int(node, "element-id", "list"), element, get_flag(node, "element-required", "list"))
        case "map":
            return _parse_map(node, depth)
        case other:
            raise BadRequest(f"Cannot read type: {other!r} is unknown; send struct, list, map or a primitive type's name")


def parse_fields(node: Mapping[str, object], depth: int = 0) -> tuple[NestedField, ...]:
    """Return the fields of a struct or schema."""
    items = get_list(node, "fields", "struct")
    return tuple(_parse_field(as_object(item, "struct field"), depth) for item in items)


def parse_primitive(name: str) -> PrimitiveType:
    """Return the primitive type of that name, with any spacing and (without parameters) any capitals.

    Raises: BadRequest — no such type, or parameters out of range
    """
    lower = name.lower()
    if lower in PLAIN_NAMES:
        return PrimitiveType(lower)
    if match := _DECIMAL.fullmatch(lower):
        return _check_decimal(int(match[1]), int(match[2]))
    if match := _FIXED.fullmatch(lower):
        return fixed_type(int(match[1]))
    if match := _GEOMETRY.fullmatch(name):
        return PrimitiveType("geometry" if match[1].upper() in ("", DEFAULT_CRS) else f"geometry({match[1]})")
    if match := _GEOGRAPHY.fullmatch(name):
        return _parse_geography(match[1], match[2])
    raise BadRequest(f"Cannot read type: {name!r} is unknown; send one of the Iceberg specification's primitive types")


def _check_decimal(precision: int, scale: int) -> PrimitiveType:
    if not 1 <= precision <= 38 or scale > precision:
        raise BadRequest(f"Cannot read type decimal({precision}, {scale}): send a precision of 1 to 38 and a scale not above it")
    return decimal_type(precision, scale)


def _parse_geography(crs: str, algorithm: str | None) -> PrimitiveType:
    if algorithm is not None and algorithm.lower() not in _ALGORITHMS:
        raise BadRequest(f"Cannot read type geography: algorithm {algorithm!r} is unknown; send one of {', '.join(_ALGORITHMS)}")
    if algorithm is not None:
        return PrimitiveType(f"geography({crs or DEFAULT_CRS}, {algorithm.lower()})")
    return PrimitiveType(f"geography({crs})" if crs else "geography")


def _parse_field(node: Mapping[str, object], depth: int) -> NestedField:
    name = get_text(node, "name", "field")
    if not name:
        raise BadRequest("Cannot read field: its name is empty; name it")
    what = f"field {name!r}"
    for key in ("initial-default", "write-default"):
        if isinstance(node.get(key), str) and not is_text(node[key]):
            raise BadRequest(f"Cannot read {what}: {key!r} is no valid Unicode; send a JSON single value")
    return NestedField(
        field_id=get_int(node, "id", what),
        name=name,
        type=parse_type(node.get("type"), depth + 1),
        required=get_flag(node, "required", what),
        doc=find_text(node, "doc", what),
        initial_default=node.get("initial-default"),
        write_default=node.get("write-default"),
    )


def _parse_map(node: Mapping[str, object], depth: int) -> MapType:
    return MapType(
        key_id=get_int(node, "key-id", "map"),
        key_type=parse_type(node.get("key"), depth + 1),
        value_id=get_int(node, "value-id", "map"),
        value_type=parse_type(node.get("value"), depth + 1),
        value_required=get_flag(node, "value-required", "map"),
    )
