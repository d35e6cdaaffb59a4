"""Sort orders: the order of rows within a file, and its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_object, find_int, get_list, get_text
from duckicelake.iceberg.partition import parse_source_id
from duckicelake.iceberg.transforms import parse_transform

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
    fields = tuple(_parse_field(as_object(item, "sort field")) for item in get_list(node, "fields", "sort order"))
    order_id = find_int(node, "order-id", "sort order")
    if order_id is None:
        order_id = 1 if fields else 0
    if order_id == 0 and fields:
        raise BadRequest("Invalid sort order: id 0 is reserved for the unsorted order; send an id from 1")
    return SortOrder(order_id, fields)


def _parse_field(node: Mapping[str, object]) -> SortField:
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
