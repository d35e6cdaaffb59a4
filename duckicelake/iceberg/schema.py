"""Schemas: the columns of a table under one id, their JSON and their checks.

No I/O: the server, jobs, and Spark executors (of `publish` and `verify`) use it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, find_int, list_ints
from duckicelake.iceberg.single_values import format_value, parse_value
from duckicelake.iceberg.types import (
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    child_fields,
    format_field,
    parse_fields,
    walk_fields,
)

LAST_COLUMN_ID_MAX = 2_147_483_446
"""Greater ids are reserved for the metadata columns of readers."""

NEWER_TYPES = {"unknown": 3, "variant": 3, "timestamp_ns": 3, "timestamptz_ns": 3, "geometry": 3, "geography": 3}


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of a table. Ids are unique over all levels; identifier fields are the row's key, if there is one."""

    schema_id: int
    fields: tuple[NestedField, ...]
    identifier_field_ids: tuple[int, ...] = ()


def format_schema(schema: Schema) -> dict[str, object]:
    """Return a schema as JSON."""
    node: dict[str, object] = {"type": "struct", "schema-id": schema.schema_id}
    if schema.identifier_field_ids:
        node["identifier-field-ids"] = list(schema.identifier_field_ids)
    return node | {"fields": [format_field(item) for item in schema.fields]}


def parse_schema(value: object) -> Schema:
    """Return the schema of a JSON value; without `schema-id` its id is 0.

    Raises: BadRequest — malformed, ids or names given twice, a default not of its type, an identifier field that cannot be one
    """
    node = as_object(value, "schema")
    if node.get("type", "struct") != "struct":
        raise BadRequest(f"Cannot read schema: its type is {node['type']!r}; send a struct")
    schema = Schema(
        schema_id=find_int(node, "schema-id", "schema") or 0,
        fields=_with_checked_defaults(parse_fields(node)),
        identifier_field_ids=list_ints(node, "identifier-field-ids", "schema"),
    )
    _check_unique(schema)
    _check_identifiers(schema)
    return schema


def get_highest_field_id(schema: Schema) -> int:
    """Return the greatest id in use at any level; 0 when there is no column."""
    return max((item.field_id for _, item in walk_fields(schema.fields)), default=0)


def list_leaf_fields(schema: Schema) -> Iterator[tuple[int, PrimitiveType]]:
    """Yield id and type of every primitive field at any level: the fields that have metrics in a manifest."""
    for _, item in walk_fields(schema.fields):
        if isinstance(item.type, PrimitiveType):
            yield item.field_id, item.type


def list_repeated_ids(schema: Schema) -> frozenset[int]:
    """Return the ids of the fields inside a list or map, of which a row has any number of values."""
    tops = (item for _, item in walk_fields(schema.fields) if isinstance(item.type, ListType | MapType))
    return frozenset(item.field_id for top in tops for _, item in walk_fields(child_fields(top.type)))


def find_field(schema: Schema, field_id: int) -> NestedField | None:
    """Return the field of that id at any level, including a list's element and a map's key and value."""
    return next((item for _, item in walk_fields(schema.fields) if item.field_id == field_id), None)


def is_same_schema(a: Schema, b: Schema) -> bool:
    """True if both schemas are equal except for their ids; the order of identifier fields is ignored."""
    return a.fields == b.fields and set(a.identifier_field_ids) == set(b.identifier_field_ids)


def check_format_version(schema: Schema, format_version: int) -> None:
    """Raise BadRequest when a column needs a newer format version than the table has.

    Source: Iceberg spec «Primitive Types» (added by version) and «Default values» (initial-default needs v3)
    """
    problems: list[str] = []
    for path, item in walk_fields(schema.fields):
        name = str(item.type).split("(")[0] if isinstance(item.type, PrimitiveType) else ""
        if NEWER_TYPES.get(name, 1) > format_version:
            problems.append(f"- Invalid type for {path}: {name} is not supported until v{NEWER_TYPES[name]}")
        if item.initial_default is not None and format_version < 3:
            problems.append(f"- Invalid initial default for {path}: non-null defaults are not supported until v3")
    if problems:
        raise BadRequest("\n".join([f"Invalid schema for v{format_version}:", *problems]))


def _with_checked_defaults(fields: tuple[NestedField, ...]) -> tuple[NestedField, ...]:
    """Return the fields with their defaults in the specification's spelling, because some readers accept no other."""
    return tuple(
        replace(
            item,
            type=_with_checked_fields(item.type),
            initial_default=_check_default(item, item.initial_default),
            write_default=_check_default(item, item.write_default),
        )
        for item in fields
    )


def _with_checked_fields(type: IcebergType) -> IcebergType:
    match type:
        case StructType(fields):
            return StructType(_with_checked_defaults(fields))
        case ListType(_, element_type):
            return replace(type, element_type=_with_checked_fields(element_type))
        case MapType(_, key_type, _, value_type):
            return replace(type, key_type=_with_checked_fields(key_type), value_type=_with_checked_fields(value_type))
        case PrimitiveType():
            return type


def _check_default(item: NestedField, default: object) -> object:
    if isinstance(item.type, PrimitiveType):
        return format_value(item.type, parse_value(item.type, default))
    wanted = list if isinstance(item.type, ListType) else dict
    if default is not None and not isinstance(default, wanted):
        raise BadRequest(f"Invalid default of field {item.name!r}: {default!r} is no value of its type; send one or leave it out")
    return cast("object", default)


def _check_unique(schema: Schema) -> None:
    ids: set[int] = set()
    paths: set[str] = set()
    for path, item in walk_fields(schema.fields):
        if item.field_id in ids:
            raise BadRequest(f"Invalid schema: field id {item.field_id} of {path} is used twice; give every field its own")
        if path in paths:
            raise BadRequest(f"Invalid schema: two fields are named {path}; rename one")
        ids.add(item.field_id)
        paths.add(path)


def can_identify(item: NestedField) -> bool:
    """True if a column can be an identifier field: primitive, required, and not floating-point."""
    return item.required and isinstance(item.type, PrimitiveType) and item.type.name not in ("float", "double")


def _check_identifiers(schema: Schema) -> None:
    for field_id in schema.identifier_field_ids:
        item = find_field(schema, field_id)
        if item is None or not isinstance(item.type, PrimitiveType):
            raise BadRequest(f"Invalid schema: identifier field id {field_id} is no primitive field of it; send one that is")
        if not can_identify(item):
            raise BadRequest(f"Invalid schema: {item.name} cannot be an identifier field; send a required, non-floating one")
