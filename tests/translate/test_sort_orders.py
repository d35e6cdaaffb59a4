"""DuckLake's sort orders as Iceberg's."""

import pytest

from duckicelake.iceberg.partition import UNSORTED
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import ListType, NestedField, PrimitiveType
from duckicelake.lake.rows import JsonNote, SortRow
from duckicelake.translate.sort_orders import find_column, to_sort_orders
from tests.translate.support.room import Room

INT = PrimitiveType("int")
SCHEMA = Schema(
    0,
    (
        NestedField(1, "i", INT, False),
        NestedField(2, 'Odd "name"', INT, False),
        NestedField(3, "l", ListType(4, INT, False), False),
    ),
)


def read_order(room: Room, clause: str) -> list[tuple[int, str, str, str]]:
    """The order of a table that DuckDB sorts so."""
    name = room.name()
    room.run(f'CREATE TABLE {name} (i INTEGER, "Odd ""name""" INTEGER, l INTEGER[])', f"ALTER TABLE {name} SET SORTED BY ({clause})")
    orders = to_sort_orders(room.read(name).sort_keys, SCHEMA, [])
    return [(field.source_id, field.transform, field.direction, field.null_order) for field in orders.default.fields]


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        pytest.param("i ASC", [(1, "identity", "asc", "nulls-last")], id="ascending"),
        pytest.param("i DESC NULLS FIRST", [(1, "identity", "desc", "nulls-first")], id="descending"),
        pytest.param("I ASC NULLS LAST", [(1, "identity", "asc", "nulls-last")], id="any case"),
        pytest.param(
            '"Odd ""name""" ASC, i DESC', [(2, "identity", "asc", "nulls-last"), (1, "identity", "desc", "nulls-last")], id="two keys"
        ),
        pytest.param("i + 1 ASC", [], id="an expression"),
        pytest.param("i ASC, i + 1 ASC", [], id="an expression among columns"),
        pytest.param("l ASC", [], id="a list"),
    ],
)
def test_orders_of_bare_columns(room: Room, clause: str, expected: list[tuple[int, str, str, str]]) -> None:
    """Anything else than columns of values is no order that Iceberg could keep."""
    assert read_order(room, clause) == expected


def test_an_order_keeps_its_id() -> None:
    """The noted JSON finds it again; the next one gets the next id; unsorted is always 0."""
    first = to_sort_orders([SortRow("i", "ASC", "NULLS_LAST")], SCHEMA, [])
    assert (first.default.order_id, first.orders[0], len(first.new_notes)) == (1, UNSORTED, 1)
    again = to_sort_orders([SortRow("i", "ASC", "NULLS_LAST")], SCHEMA, first.new_notes)
    assert (again.orders, again.new_notes) == (first.orders, ())
    other = to_sort_orders([SortRow("i", "DESC", "NULLS_LAST")], SCHEMA, [*first.new_notes, JsonNote(4, "[]")])
    assert (other.default.order_id, len(other.new_notes)) == (5, 1)
    assert to_sort_orders([], SCHEMA, first.new_notes).default == UNSORTED


@pytest.mark.parametrize("expression", ["", '""', "i i", "i;", "other", '"i', "i.j", "1", "(i)"])
def test_what_is_no_column_is_not_found(expression: str) -> None:
    """Nothing but a name counts."""
    assert find_column(expression, SCHEMA) is None
