"""A new table's metadata: ids given in Java's order, whatever ids the client used in its request."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.partition import FIRST_FIELD_ID, PartitionSpec, get_last_field_id
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.requests.compatibility import check_sort_order, check_spec
from duckicelake.iceberg.requests.properties import (
    DEFAULT_FORMAT_VERSION,
    NEW_TABLE_DEFAULTS,
    check_new_version,
    check_properties,
    drop_reserved,
    find_format_version,
)
from duckicelake.iceberg.requests.shapes import FIRST_ORDER_ID
from duckicelake.iceberg.schema import Schema, check_format_version, get_highest_field_id
from duckicelake.iceberg.sorting import UNSORTED, SortOrder
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType


@dataclass(frozen=True, slots=True)
class NewIdentity:
    """What the catalog, and not the client, says of a new table or view."""

    uuid: str
    location: str
    now_ms: int


def build_new_metadata(request: CreateTable, identity: NewIdentity) -> TableMetadata:
    """The metadata of the table that the request asks for: schema 0, spec 0, order 1 (0 when unsorted), no snapshot.

    Raises: BadRequest — columns, spec, order or properties that do not fit together or not the format version
    """
    asked = find_format_version(request.properties)
    format_version = DEFAULT_FORMAT_VERSION if asked is None else asked
    check_new_version(format_version)
    schema, new_ids = assign_fresh_ids(request.schema)
    check_format_version(schema, format_version)
    spec = _fresh_spec(request.spec, new_ids)
    check_spec(spec, schema)
    order = _fresh_order(request.order, new_ids)
    check_sort_order(order, schema)
    properties = {**NEW_TABLE_DEFAULTS, **drop_reserved(request.properties)}
    check_properties(properties, schema)
    return TableMetadata(
        format_version=format_version,
        table_uuid=identity.uuid,
        location=identity.location,
        last_sequence_number=0,
        last_updated_ms=identity.now_ms,
        last_column_id=get_highest_field_id(schema),
        schemas=(schema,),
        current_schema_id=0,
        partition_specs=(spec,),
        default_spec_id=0,
        last_partition_id=get_last_field_id((spec,)),
        sort_orders=(order,),
        default_sort_order_id=order.order_id,
        properties=properties,
    )


def assign_fresh_ids(schema: Schema) -> tuple[Schema, dict[int, int]]:
    """The schema under id 0 with its columns numbered from 1, and the new id of each old one.

    A struct's fields are numbered before what lies within them, as Java and PyIceberg do.
    """
    new_ids: dict[int, int] = {}
    fields = _fresh_fields(schema.fields, count(1), new_ids)
    return Schema(0, fields, tuple(new_ids[item] for item in schema.identifier_field_ids)), new_ids


def _fresh_fields(fields: tuple[NestedField, ...], ids: Iterator[int], new_ids: dict[int, int]) -> tuple[NestedField, ...]:
    for item in fields:
        new_ids[item.field_id] = next(ids)
    return tuple(replace(item, field_id=new_ids[item.field_id], type=_fresh_type(item.type, ids, new_ids)) for item in fields)


def _fresh_type(type: IcebergType, ids: Iterator[int], new_ids: dict[int, int]) -> IcebergType:
    match type:
        case PrimitiveType():
            return type
        case StructType(fields):
            return StructType(_fresh_fields(fields, ids, new_ids))
        case ListType(element_id, element_type):
            new_ids[element_id] = next(ids)
            return replace(type, element_id=new_ids[element_id], element_type=_fresh_type(element_type, ids, new_ids))
        case MapType(key_id, key_type, value_id, value_type):
            new_ids[key_id], new_ids[value_id] = next(ids), next(ids)
            fresh_key = _fresh_type(key_type, ids, new_ids)
            fresh_value = _fresh_type(value_type, ids, new_ids)
            return replace(type, key_id=new_ids[key_id], key_type=fresh_key, value_id=new_ids[value_id], value_type=fresh_value)


def _fresh_spec(spec: PartitionSpec, new_ids: dict[int, int]) -> PartitionSpec:
    fields = tuple(
        replace(item, source_id=_get_new_id(item.source_id, new_ids, f"partition field: {item.name}"), field_id=FIRST_FIELD_ID + i)
        for i, item in enumerate(spec.fields)
    )
    return PartitionSpec(0, fields)


def _fresh_order(order: SortOrder, new_ids: dict[int, int]) -> SortOrder:
    fields = tuple(replace(item, source_id=_get_new_id(item.source_id, new_ids, "sort field")) for item in order.fields)
    return SortOrder(FIRST_ORDER_ID, fields) if fields else UNSORTED


def _get_new_id(source_id: int, new_ids: dict[int, int], what: str) -> int:
    if source_id not in new_ids:
        raise BadRequest(f"Cannot find source column for {what}: the schema has no id {source_id}; send one of its ids")
    return new_ids[source_id]
