"""What predicates ask of partition values: of all values of a small world, with every operation and every literal of it."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.scan_filters import bind, build_schema_columns, parse_expression, parse_literal
from duckicelake.iceberg.scan_pruning import build_residual
from duckicelake.iceberg.transforms import apply_transform, to_decimal
from duckicelake.iceberg.types import PrimitiveType
from tests.iceberg.scanning.rows import FIELD_ID, PLAIN, Column, matches, to_node

TEXTS = ["".join(letters) for length in range(4) for letters in product("ab", repeat=length)]
HOUR = 3_600_000_000
WORLDS: list[tuple[str, str, Sequence[Any]]] = [
    ("int", "identity", range(-3, 4)),
    ("int", "truncate[3]", range(-9, 9)),
    ("int", "bucket[3]", range(-5, 6)),
    ("int", "truncate[5]", [*range(-(2**31), -(2**31) + 7), 0, *range(2**31 - 7, 2**31)]),
    ("decimal(9, 2)", "truncate[3]", [to_decimal(value, 2) for value in range(-7, 8)]),
    ("string", "identity", TEXTS),
    ("string", "truncate[2]", TEXTS),
    ("binary", "truncate[1]", [text.encode() for text in TEXTS if len(text) < 3]),
    ("date", "month", [*range(-64, -28, 5), *range(-3, 3), *range(25, 70, 7)]),
    ("timestamp", "day", [*range(-30 * HOUR, 50 * HOUR, 7 * HOUR), -1, 0, 1, 24 * HOUR - 1, 24 * HOUR]),
]


@pytest.mark.parametrize(("name", "transform", "world"), WORLDS, ids=[f"{row[0]}-{row[1]}-{index}" for index, row in enumerate(WORLDS)])
def test_partitions_are_left_out_just_where_no_value_fits(name: str, transform: str, world: Sequence[Any]) -> None:
    """No partition with a row that fits is left out; of none is promised that all rows fit; and predicates say something."""
    type = PrimitiveType(name)
    schema = Column(type, ()).schema
    spec = PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", transform),))
    kinds = (*PLAIN, *(("starts-with", "not-starts-with") if name == "string" else ()))
    decided = 0
    for kind, literal in product(kinds, world):
        told = to_node(type, literal)
        more = {"values": [told]} if kind in ("in", "not-in") else {} if kind.endswith("null") else {"value": told}
        node = {"type": kind, "term": "c", **more}
        find = build_residual(bind(parse_expression(node), build_schema_columns(schema, True)), spec)
        for value in (*world, None):
            left = find((apply_transform(transform, type, value),))
            fits = matches(node, type, parse_literal, value)
            assert not (left is False and fits is True), (node, value)
            assert not (left is True and fits is not True), (node, value)
            decided += isinstance(left, bool)
    assert decided > len(kinds) * len(world) * len(world) // 6


def test_times_before_1970_may_have_been_rounded_up() -> None:
    """Older writers put the last day before 1970 under 0: files of either are kept for a time of that day."""
    column = Column(PrimitiveType("timestamp"), ())
    spec = PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", "day"),))
    for kind, kept in (("eq", [False, True, True, False]), ("lt-eq", [True, True, True, False]), ("gt-eq", [False, True, True, True])):
        node = {"type": kind, "term": "c", "value": "1969-12-31T12:00:00"}
        find = build_residual(bind(parse_expression(node), build_schema_columns(column.schema, True)), spec)
        assert [find((day,)) is not False for day in (-2, -1, 0, 1)] == kept
