"""Partition specs and sort orders: how transforms of columns partition a table's files and sort the rows in them; their JSON.

No I/O: the server, jobs, and Spark executors (of `publish` and `verify`) use it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_list, as_object, find_int, get_list, get_text, list_ints, refuse
from duckicelake.iceberg.schema import Schema, find_field
from duckicelake.iceberg.transforms import parse_transform, result_type
from duckicelake.iceberg.types import PrimitiveType

FIRST_FIELD_ID = 1000
UNASSIGNED = -1


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One field of the partition tuple: `transform` of the column `source_id`, under an id of its own."""

    source_id: int
    field_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """The fields of the partition tuple, in order. A spec without fields is unpartitioned."""

    spec_id: int
    fields: tuple[PartitionField, ...] = ()

    @property
    def is_unpartitioned(self) -> bool:
        """True if the spec has no fields, or only void ones, which version 1 tables keep for removed fields."""
        return all(item.transform == "void" for item in self.fields)


UNPARTITIONED = PartitionSpec(0)


def format_spec(spec: PartitionSpec) -> dict[str, object]:
    """Return a spec as JSON."""
    return {"spec-id": spec.spec_id, "fields": format_spec_fields(spec)}


def format_spec_fields(spec: PartitionSpec) -> list[dict[str, object]]:
    """Return only the fields of a spec as JSON, as in a manifest and in v1's `partition-spec`."""
    return [
        {"name": item.name, "transform": item.transform, "source-id": item.source_id, "field-id": item.field_id} for item in spec.fields
    ]


def parse_spec(value: object) -> PartitionSpec:
    """Return the spec of a JSON value. Without `spec-id` its id is 0, and fields without ids are UNASSIGNED.

    Raises: BadRequest — malformed, a field named or numbered twice, only some fields numbered
    """
    node = as_object(value, "partition spec")
    return PartitionSpec(
        spec_id=find_int(node, "spec-id", "partition spec") or 0,
        fields=parse_spec_fields(get_list(node, "fields", "partition spec")),
    )


def parse_spec_fields(value: object) -> tuple[PartitionField, ...]:
    """Return the fields of a JSON array; see `parse_spec`."""
    fields = tuple(_parse_field(as_object(item, "partition field")) for item in as_list(value, "partition fields"))
    unassigned = sum(item.field_id == UNASSIGNED for item in fields)
    if unassigned not in (0, len(fields)):
        raise BadRequest(f"Cannot read partition spec: {unassigned} of {len(fields)} fields have no field-id; number all or none")
    if len({item.name for item in fields}) < len(fields):
        raise BadRequest("Cannot read partition spec: two fields have the same name; rename one")
    if not unassigned and len({item.field_id for item in fields}) < len(fields):
        raise BadRequest("Cannot read partition spec: two fields have the same field-id; give each its own")
    return fields


def assign_field_ids(spec: PartitionSpec, last_partition_id: int) -> PartitionSpec:
    """Return the spec with UNASSIGNED fields numbered after `last_partition_id`, never below 1000."""
    if all(item.field_id != UNASSIGNED for item in spec.fields):
        return spec
    first = max(last_partition_id + 1, FIRST_FIELD_ID)
    return replace(spec, fields=tuple(replace(item, field_id=first + i) for i, item in enumerate(spec.fields)))


def get_last_field_id(specs: tuple[PartitionSpec, ...]) -> int:
    """Return the greatest partition field id in use; 999 when there is none."""
    return max((item.field_id for spec in specs for item in spec.fields), default=FIRST_FIELD_ID - 1)


def list_partition_types(spec: PartitionSpec, schema: Schema) -> tuple[PrimitiveType, ...]:
    """Return the type of each value of the partition tuple.

    Raises: BadRequest — the source column is not in the schema and the transform does not fix its result type
    """
    return tuple(_result_type(item, schema) for item in spec.fields)


def is_same_spec(a: PartitionSpec, b: PartitionSpec) -> bool:
    """True if both specs partition in the same way under the same names; ids are ignored."""
    return [(f.source_id, f.name, f.transform) for f in a.fields] == [(f.source_id, f.name, f.transform) for f in b.fields]


def _result_type(item: PartitionField, schema: Schema) -> PrimitiveType:
    source = find_field(schema, item.source_id)
    found = result_type(item.transform, None if source is None else source.type)
    if found is None:
        raise BadRequest(
            f"Invalid partition field {item.name!r}: {item.transform} cannot be applied to column id {item.source_id}"
            f" ({'not in the schema' if source is None else source.name}); choose another column or transform"
        )
    return found


def _parse_field(node: Mapping[str, object]) -> PartitionField:
    field_id = find_int(node, "field-id", "partition field")
    name = get_text(node, "name", "partition field")
    if not name:
        raise BadRequest("Cannot read partition field: its name is empty; name it")
    return PartitionField(
        source_id=parse_source_id(node, f"partition field {name!r}"),
        field_id=UNASSIGNED if field_id is None else field_id,
        name=name,
        transform=str(parse_transform(get_text(node, "transform", "partition field"))),
    )


def parse_source_id(node: Mapping[str, object], what: str) -> int:
    """Return the source column of a partition or sort field: `source-id`, or v3's `source-ids` when it names one column."""
    source_id = find_int(node, "source-id", what)
    if source_id is not None:
        return source_id
    source_ids = list_ints(node, "source-ids", what)
    return source_ids[0] if len(source_ids) == 1 else refuse(what, "source-id", "the id of one column")


DIRECTIONS = ("asc", "desc")
NULL_ORDERS = ("nulls-first", "nulls-last")


@dataclass(frozen=True, slots=True)
class SortField:
    """One key of the order: `transform` of a column, `asc` or `desc`, `nulls-first` or `nulls-last`."""

    source_id: int
    transform: str
    direction: str
    null_order: str


@dataclass(frozen=True, slots=True)
class SortOrder:
    """Sort keys under one id. Only the unsorted order has id 0."""

    order_id: int
    fields: tuple[SortField, ...] = ()


UNSORTED = SortOrder(0)


def format_sort_order(order: SortOrder) -> dict[str, object]:
    """Return a sort order as JSON."""
    return {
        "order-id": order.order_id,
        "fields": [
            {
                "transform": item.transform,
                "source-id": item.source_id,
                "direction": item.direction,
                "null-order": item.null_order,
            }
            for item in order.fields
        ],
    }


def parse_sort_order(value: object) -> SortOrder:
    """Return the sort order of a JSON value; without `order-id` it is 1, or 0 when it has no field.

    Raises: BadRequest — malformed, or id 0 with fields
    """
    node = as_object(value, "sort order")
    fields = tuple(_parse_sort_field(as_object(item, "sort field")) for item in get_list(node, "fields", "sort order"))
    order_id = find_int(node, "order-id", "sort order")
    if order_id is None:
        order_id = 1 if fields else 0
    if order_id == 0 and fields:
        raise BadRequest("Invalid sort order: id 0 is reserved for the unsorted order; send an id from 1")
    return SortOrder(order_id, fields)


def _parse_sort_field(node: Mapping[str, object]) -> SortField:
    direction = get_text(node, "direction", "sort field").lower()
    null_order = get_text(node, "null-order", "sort field").lower()
    if direction not in DIRECTIONS:
        raise BadRequest(f"Cannot read sort field: direction {direction!r} is unknown; send asc or desc")
    if null_order not in NULL_ORDERS:
        raise BadRequest(f"Cannot read sort field: null-order {null_order!r} is unknown; send nulls-first or nulls-last")
    return SortField(
        source_id=parse_source_id(node, "sort field"),
        transform=str(parse_transform(get_text(node, "transform", "sort field"))),
        direction=direction,
        null_order=null_order,
    )
