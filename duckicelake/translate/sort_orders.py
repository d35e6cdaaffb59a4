"""DuckLake's sort order as Iceberg's, if every key is the name of a primitive column; otherwise the table counts as unsorted. No I/O.

`catalog.publish` calls this for loads and commits; `to_ducklake.tables` renames columns in sort keys, under the lake's lock. Parsing a
key sets the level of the logger `sqlglot` for the whole process.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlglot import ErrorLevel, exp, parse_one
from sqlglot.errors import SqlglotError

from duckicelake.errors import BadRequest
from duckicelake.iceberg.partition import UNSORTED, SortField, SortOrder, format_sort_order, parse_sort_order
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType, walk_fields
from duckicelake.lake.rows import JsonNote, SortRow, TableNotes
from duckicelake.translate.namespaces import fold_name

QUOTED = re.compile(r'"((?:[^"]|"")+)"')
PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")


@dataclass(frozen=True, slots=True)
class SortOrders:
    """The sort orders of a table; `default` is the one for new files."""

    orders: tuple[SortOrder, ...]
    default: SortOrder
    new_notes: tuple[JsonNote, ...]


def to_sort_orders(rows: Sequence[SortRow], schema: Schema, notes: Sequence[JsonNote]) -> SortOrders:
    """Return the current order of a table under the id of its note, or under the next id."""
    fields = tuple(_find_field(row, schema) for row in rows)
    sort_fields = tuple(field for field in fields if field is not None)
    if not sort_fields or len(sort_fields) < len(fields):
        return SortOrders((UNSORTED,), UNSORTED, ())
    text = format_order_note(SortOrder(0, sort_fields))
    noted = {note.json: note.id for note in notes}
    order = SortOrder(noted.get(text, max(noted.values(), default=0) + 1), sort_fields)
    new_notes = () if text in noted else (JsonNote(order.order_id, text),)
    return SortOrders((UNSORTED, order), order, new_notes)


def with_client_orders(derived: SortOrders, is_sorted_by_duckdb: bool, schema: Schema, notes: TableNotes) -> SortOrders:
    """Return a table's orders with those of clients; the client's default applies while DuckLake has no order."""
    if not notes.shapes:
        return derived
    orders = {order.order_id: order for order in (*map(parse_order_note, notes.sort_orders), *derived.orders)}
    field_ids = {field.field_id for _, field in walk_fields(schema.fields)}
    complete = [order for order in orders.values() if all(field.source_id in field_ids for field in order.fields)]
    client_default = next((order for order in complete if order.order_id == notes.shapes[-1].order_id), UNSORTED)
    ordered = tuple(sorted(complete, key=lambda order: order.order_id))
    return SortOrders(ordered, derived.default if is_sorted_by_duckdb else client_default, derived.new_notes)


def format_order_note(order: SortOrder) -> str:
    """Return the text of an order's note: its fields, without its id."""
    return json.dumps(format_sort_order(order)["fields"], separators=(",", ":"))


@lru_cache(maxsize=512)
def parse_order_note(note: JsonNote) -> SortOrder:
    """Return the order of a note, under the note's id."""
    return parse_sort_order({"order-id": note.id, "fields": json.loads(note.json)})


def _find_field(row: SortRow, schema: Schema) -> SortField | None:
    column = find_column(row.expression, schema)
    if column is None or not isinstance(column.type, PrimitiveType) or column.type.name == "geometry":
        return None
    direction = "desc" if row.sort_direction.upper() == "DESC" else "asc"
    null_order = "nulls-first" if row.null_order.upper() == "NULLS_FIRST" else "nulls-last"
    return SortField(column.field_id, "identity", direction, null_order)


def find_column(expression: str, schema: Schema) -> NestedField | None:
    """Return the column that an SQL expression names, or None if it is more than a name; DuckDB folds case."""
    quoted = QUOTED.fullmatch(expression)
    if quoted is None and PLAIN.fullmatch(expression) is None:
        return None
    name = quoted[1].replace('""', '"') if quoted else expression
    return next((field for field in schema.fields if field.name.lower() == name.lower()), None)


def list_names(expression: str) -> set[str]:
    """Return the columns that a key of DuckLake's names, as DuckDB compares names.

    Raises: BadRequest: the key cannot be parsed
    """
    return {fold_name(column.name) for column in _find_columns(expression)}


def rename_columns(expression: str, renamed: Mapping[str, str]) -> str:
    """Return a key of DuckLake's with renamed columns, by their old names as DuckDB compares them; the rest is unchanged.

    Raises: BadRequest: the key cannot be parsed
    """
    for column in sorted(_find_columns(expression), key=lambda found: -found.this.meta["start"]):
        name = renamed.get(fold_name(column.name))
        if name is not None:
            quoted = '"' + name.replace('"', '""') + '"'
            expression = expression[: column.this.meta["start"]] + quoted + expression[column.this.meta["end"] + 1 :]
    return expression


def _find_columns(expression: str) -> list[exp.Column]:
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        tree = parse_one(expression, read="duckdb", error_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError, ValueError):
        tree = None
    columns = [] if tree is None else list(tree.find_all(exp.Column))
    if (
        tree is None
        or tree.find(exp.Lambda, exp.Star, exp.Query)
        or any("start" not in column.this.meta or column.table for column in columns)
    ):
        raise BadRequest(
            f"DuckDB sorts the table by {expression!r}, in which columns cannot be renamed or looked for with certainty; "
            "let DuckDB change the columns, or give the table another order first (ALTER TABLE ... RESET SORTED BY)."
        )
    return columns
