"""Values in filters, in the words of every client."""

import math
from decimal import Decimal

import pytest

from duckicelake.errors import BadRequest
from duckicelake.iceberg.scan_filters import bind, build_schema_columns, parse_expression, parse_literal
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType

NINE = 9 * 3600 * 1_000_000
READ = [
    ("int", 2**40, 2**40),
    ("long", -5, -5),
    ("float", 1, 1.0),
    ("double", "-Infinity", -math.inf),
    ("boolean", False, False),
    ("date", "1970-01-11", 10),
    ("date", 10, 10),
    ("time", NINE, NINE),
    ("time", "09:00:00", NINE),
    ("timestamp", "1970-01-01T09:00:00", NINE),
    ("timestamp", NINE, NINE),
    ("timestamptz", "1970-01-01T09:00:00+00:00", NINE),
    ("timestamptz", "1970-01-01T09:00:00Z", NINE),
    ("timestamptz", "1970-01-01T09:00:00", NINE),
    ("timestamptz", "1970-01-01T11:30:00+02:30", NINE),
    ("timestamptz", "1970-01-01T00:00:00-09:00", NINE),
    ("timestamp_ns", NINE, NINE * 1000),
    ("timestamptz_ns", "1970-01-01T11:00:00.000000001+02:00", NINE * 1000 + 1),
    ("decimal(9, 2)", "1.5", Decimal("1.5")),
    ("decimal(9, 2)", 1.555, Decimal("1.555")),
    ("decimal(9, 2)", 7, Decimal(7)),
    ("string", "ü", "ü"),
    ("binary", "00fF", b"\x00\xff"),
    ("fixed[2]", "00FF", b"\x00\xff"),
    ("uuid", "00000000-0000-0000-0000-0000000000ff", b"\0" * 15 + b"\xff"),
]
REFUSED = [
    ("int", 1.0),
    ("int", "1"),
    ("long", True),
    ("int", 10**41),
    ("double", "NaN"),
    ("double", True),
    ("double", 10**400),
    ("boolean", 1),
    ("date", "1970-02-30"),
    ("date", 1.5),
    ("timestamp", "1970-01-01T09:00:00+00:00"),
    ("timestamptz", "yesterday"),
    ("timestamptz", "1970-01-01"),
    ("decimal(9, 2)", "NaN"),
    ("decimal(9, 2)", "1e999"),
    ("decimal(9, 2)", True),
    ("string", 5),
    ("string", "\ud800"),
    ("binary", "0"),
    ("fixed[2]", "00"),
    ("uuid", "00"),
]


@pytest.mark.parametrize(("type_", "node", "value"), READ, ids=[f"{index}-{row[0]}" for index, row in enumerate(READ)])
def test_a_literal_is_read(type_: str, node: object, value: object) -> None:
    """As JSON single values, and as Java and PyIceberg write them where they know no type."""
    assert parse_literal(PrimitiveType(type_), node) == value


@pytest.mark.parametrize(("type_", "node"), REFUSED, ids=[f"{index}-{row[0]}" for index, row in enumerate(REFUSED)])
def test_what_is_no_value_of_the_type_is_refused(type_: str, node: object) -> None:
    """With the column's type in the message."""
    with pytest.raises(BadRequest, match="column of type"):
        parse_literal(PrimitiveType(type_), node)


@pytest.mark.parametrize("node", [True, {"type": "true"}, {"type": "literal", "value": True}, {"type": "or", "left": False, "right": True}])
def test_a_filter_may_be_a_bare_boolean(node: object) -> None:
    """Iceberg 1.12 writes `true` for the expression that is always true, alone and within others."""
    schema = Schema(0, (NestedField(1, "i", PrimitiveType("int"), False),))
    assert bind(parse_expression(node), build_schema_columns(schema, True)) is True
    negated = {"type": "not", "child": node}
    assert bind(parse_expression(negated), build_schema_columns(schema, True)) is False
