"""DuckLake's sort order as Iceberg's, when every key is a bare column of values; anything else means unsorted."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.sorting import UNSORTED, SortField, SortOrder, format_sort_order
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.lake.rows import JsonNote, SortRow

QUOTED = re.compile(r'"((?:[^"]|"")+)"')
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class SortOrders:
    """The orders of a table; `default` is the one new files are asked to have."""

    orders: tuple[SortOrder, ...]
    default: SortOrder
    new_notes: tuple[JsonNote, ...]


def to_sort_orders(rows: Sequence[SortRow], schema: Schema, notes: Sequence[JsonNote]) -> SortOrders:
    """Return the present order of a table under the id it was noted with, or the next one."""
    fields = tuple(_find_field(row, schema) for row in rows)
    known = tuple(field for field in fields if field is not None)
    if not known or len(known) < len(fields):
        return SortOrders((UNSORTED,), UNSORTED, ())
    text = json.dumps(format_sort_order(SortOrder(0, known))["fields"], separators=(",", ":"))
    noted = {note.json: note.id for note in notes}
    order = SortOrder(noted.get(text, max(noted.values(), default=0) + 1), known)
    new_notes = () if text in noted else (JsonNote(order.order_id, text),)
    return SortOrders((UNSORTED, order), order, new_notes)


def _find_field(row: SortRow, schema: Schema) -> SortField | None:
    column = find_column(row.expression, schema)
    if column is None or not isinstance(column.type, PrimitiveType) or column.type.name == "geometry":
        return None
    direction = "desc" if row.sort_direction.upper() == "DESC" else "asc"
    null_order = "nulls-first" if row.null_order.upper() == "NULLS_FIRST" else "nulls-last"
    return SortField(column.field_id, "identity", direction, null_order)


def find_column(expression: str, schema: Schema) -> NestedField | None:
    """Return the column that an SQL expression is, when it is nothing but its name; DuckDB folds case."""
    quoted = QUOTED.fullmatch(expression)
    if quoted is None and PLAIN.fullmatch(expression) is None:
        return None
    name = quoted[1].replace('""', '"') if quoted else expression
    return next((field for field in schema.fields if field.name.lower() == name.lower()), None)
