"""Columns of a Delta table: as Iceberg has them, and as its Parquet files call them; pure.

Source: Delta protocol, «Schema Serialization Format» and «Column Mapping»
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.partition import FIRST_FIELD_ID, PartitionField, PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, decimal_type

MODE, BY_ID = "delta.columnMapping.mode", "id"
_PHYSICAL, _ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
_SPARK_ID = "parquet.field.id"
"""How Spark is told which field of a file a column is."""
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)", re.ASCII)
_PLAIN = {
    **{name: name for name in ("string", "long", "float", "double", "boolean", "binary", "date")},
    **{name: "int" for name in ("integer", "short", "byte")},
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}
UNMAPPED = (None, "none")
_MODES = (*UNMAPPED, "name", BY_ID)

Node = Mapping[str, Any]


def parse_columns(schema: Node) -> Schema:
    """The columns under ids of no meaning. Raises: Unsupported: one is of a type that a copy cannot have."""
    return Schema(0, _parse_fields(schema["fields"], count(1), ""))


def make_spec(schema: Schema, partitions: Sequence[str]) -> PartitionSpec:
    """Partitions by the values of these columns. Raises: Unsupported: the log has values of one that cannot be told from it"""
    columns = {item.name: item for item in schema.fields}
    for name in partitions:
        if columns[name].type == PrimitiveType("binary"):
            raise Unsupported(
                f"it is partitioned by {name}, which is binary, and writers do not agree on such values: write it anew without"
            )
    ids = count(FIRST_FIELD_ID)
    return PartitionSpec(0, tuple(PartitionField(columns[name].field_id, next(ids), name, "identity") for name in partitions))


def check_mapping(configuration: Mapping[str, str]) -> None:
    """Raises: Unsupported: columns are found in files by a rule that nobody here knows"""
    if configuration.get(MODE) not in _MODES:
        raise Unsupported(f"its columns are mapped by {configuration[MODE]!r}, which is neither name nor id")


def format_physical(schema: Node, mode: str | None) -> dict[str, Any]:
    """The same columns as Spark's JSON has them, under the names, or also the ids, that the files have."""

    def rename(item: Node) -> tuple[str, dict[str, Any]]:
        return get_physical_name(item, mode), {_SPARK_ID: item["metadata"][_ID]} if mode == BY_ID else {}

    return _format_type(schema, rename)


def get_physical_name(item: Node, mode: str | None) -> str:
    """A column's name in files: what is left of a mapping says nothing where columns are not mapped."""
    return str(item["name"] if mode in UNMAPPED else item["metadata"].get(_PHYSICAL, item["name"]))


def format_logical(schema: Node) -> dict[str, Any]:
    """The same columns as Spark's JSON has them, under their own names, and nothing else."""
    return _format_type(schema, lambda item: (item["name"], {}))


def _parse_fields(items: Sequence[Node], ids: Iterator[int], parent: str) -> tuple[NestedField, ...]:
    return tuple(_parse_field(item, ids, f"{parent}{item['name']}") for item in items)


def _parse_field(item: Node, ids: Iterator[int], path: str) -> NestedField:
    field_id = next(ids)
    return NestedField(field_id, item["name"], _parse_type(item["type"], ids, path), not item["nullable"], item["metadata"].get("comment"))


def _parse_type(form: Any, ids: Iterator[int], path: str) -> IcebergType:
    match form:
        case {"type": "struct", "fields": fields}:
            return StructType(_parse_fields(fields, ids, f"{path}."))
        case {"type": "array", "elementType": element, "containsNull": has_null}:
            return ListType(next(ids), _parse_type(element, ids, f"{path}.element"), not has_null)
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": has_null}:
            key_id, value_id = next(ids), next(ids)
            return MapType(key_id, _parse_type(key, ids, f"{path}.key"), value_id, _parse_type(value, ids, f"{path}.value"), not has_null)
        case str():
            return _parse_plain(form, path)
        case _:
            raise BadRequest(f"column {path} has no type that can be read")


def _parse_plain(form: str, path: str) -> PrimitiveType:
    decimal = _DECIMAL.fullmatch(form)
    if decimal is not None and int(decimal[2]) >= 0:
        return decimal_type(int(decimal[1]), int(decimal[2]))
    if form not in _PLAIN:
        raise Unsupported(f"column {path} is {form}, which a copy cannot have: write it as another type, or leave it out, and try again")
    return PrimitiveType(_PLAIN[form])


def _format_type(form: Any, rename: Callable[[Node], tuple[str, dict[str, Any]]]) -> Any:
    match form:
        case {"type": "struct", "fields": fields}:
            named = [(item, *rename(item)) for item in fields]
            inner = [
                {"name": name, "type": _format_type(item["type"], rename), "nullable": True, "metadata": metadata}
                for item, name, metadata in named
            ]
            return {"type": "struct", "fields": inner}
        case {"type": "array", "elementType": element}:
            return {"type": "array", "elementType": _format_type(element, rename), "containsNull": True}
        case {"type": "map", "keyType": key, "valueType": value}:
            types = {"keyType": _format_type(key, rename), "valueType": _format_type(value, rename)}
            return {"type": "map", **types, "valueContainsNull": True}
        case _:
            return form
