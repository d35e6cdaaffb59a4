"""No file with a row that fits is left out, by bounds, by partitions or by what a manifest list says of them."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import DataFile as TheirFile
from pyiceberg.schema import Schema as TheirSchema

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import ManifestEntry
from duckicelake.iceberg.manifest_list import FieldSummary, summarise_partitions
from duckicelake.iceberg.partition import PartitionField, PartitionSpec, list_partition_types
from duckicelake.iceberg.scan_filters import BoundExpression, bind, build_schema_columns, format_bound, parse_expression, parse_literal
from duckicelake.iceberg.scan_pruning import build_manifest_test, build_metrics_test, build_residual
from duckicelake.iceberg.schema import format_schema
from duckicelake.iceberg.transforms import apply_transform
from duckicelake.iceberg.types import PrimitiveType
from tests.iceberg.scanning.rows import FIELD_ID, TRANSFORMS, Column, columns, describe, filters, matches
from tests.support.examples import examples

AS_PYICEBERG = ("boolean", "int", "long", "date", "time", "timestamp", "timestamptz", "string", "decimal(9, 2)")


def bind_to(column: Column, node: Any) -> BoundExpression:
    """The filter for the column."""
    return bind(parse_expression(node), build_schema_columns(column.schema, True))


def fits(column: Column, node: Any, value: Any) -> bool | None:
    """Tell whether a row fits."""
    return matches(node, column.type, parse_literal, value)


@settings(max_examples=examples(150))
@given(data=st.data(), column=columns(), counts=st.booleans())
def test_bounds_and_counts_leave_out_no_row(data: st.DataObject, column: Column, counts: bool) -> None:
    """Of every type, cut bounds and missing counts included."""
    node = data.draw(filters(column.type))
    if any(fits(column, node, value) is True for value in column.values):
        assert build_metrics_test(bind_to(column, node))(describe(column, counts=counts))


@settings(max_examples=examples(150))
@given(data=st.data(), column=columns())
def test_partitions_leave_out_no_row_and_promise_none(data: st.DataObject, column: Column) -> None:
    """Under each transform: nothing is left to ask where all rows fit, no row is lost, and the rest is asked of the rows."""
    node = data.draw(filters(column.type))
    name = data.draw(st.sampled_from(("identity", *TRANSFORMS.get(column.type.name, ()))))
    spec = PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", name),))
    bound = bind_to(column, node)
    find = build_residual(bound, spec)
    for value in column.values:
        partition = (apply_transform(name, column.type, value),)
        left = find(partition)
        found = fits(column, node, value)
        if found is True:
            assert left is not False
        if left is True:
            assert found is True
        elif left is not False:
            assert (fits(column, format_bound(left), value) is True) == (found is True)


@settings(max_examples=examples(150))
@given(data=st.data(), column=columns())
def test_manifest_lists_leave_out_no_row(data: st.DataObject, column: Column) -> None:
    """By the least and the greatest partition value, nulls and NaN."""
    node = data.draw(filters(column.type))
    name = data.draw(st.sampled_from(("identity", *TRANSFORMS.get(column.type.name, ()))))
    spec = PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", name),))
    types = list_partition_types(spec, column.schema)
    file = describe(column)
    entries = [ManifestEntry(1, 1, 1, 1, replace(file, partition=(apply_transform(name, column.type, value),))) for value in column.values]
    if any(fits(column, node, value) is True for value in column.values):
        assert build_manifest_test(bind_to(column, node), spec, types)(summarise_partitions(spec, types, entries))


@settings(max_examples=examples(120))
@given(data=st.data(), column=columns().filter(lambda column: column.type.name in AS_PYICEBERG))
def test_what_pyiceberg_leaves_out_is_left_out(data: st.DataObject, column: Column) -> None:
    """By the same bounds and counts."""
    node = data.draw(filters(column.type))
    ours = describe(column)
    theirs = TheirFile.from_args(
        record_count=ours.record_count,
        value_counts=dict(ours.value_counts or {}),
        null_value_counts=dict(ours.null_value_counts or {}),
        nan_value_counts={},
        lower_bounds=dict(ours.lower_bounds or {}),
        upper_bounds=dict(ours.upper_bounds or {}),
    )
    schema = TheirSchema.model_validate(format_schema(column.schema))
    if not _InclusiveMetricsEvaluator(schema, BooleanExpression.model_validate(node)).eval(theirs):
        assert not build_metrics_test(bind_to(column, node))(ours)


def test_nan_is_behind_all_numbers_for_some_readers() -> None:
    """Bounds say nothing of NaN, so a file that may have some is kept for a filter that has no upper end."""
    column = Column(PrimitiveType("double"), (1.0, math.nan))
    test = build_metrics_test(bind_to(column, {"type": "gt", "term": "c", "value": 5.0}))
    assert test(describe(column))
    assert not test(describe(Column(column.type, (1.0, 2.0))))


def test_floats_are_held_against_both_readings_of_a_number() -> None:
    """0.1 is another number among floats: some readers round it, and others do not."""
    column = Column(PrimitiveType("float"), (0.10000000149011612,))
    for kind in ("eq", "gt", "lt-eq"):
        assert build_metrics_test(bind_to(column, {"type": kind, "term": "c", "value": 0.1}))(describe(column))
    assert not build_metrics_test(bind_to(column, {"type": "eq", "term": "c", "value": 0.2}))(describe(column))


def test_null_has_no_prefix_for_some_readers() -> None:
    """So a file of null alone is asked for what begins otherwise, whatever it is partitioned by."""
    column = Column(PrimitiveType("string"), (None,))
    bound = bind_to(column, {"type": "not-starts-with", "term": "c", "value": "a"})
    for name in ("identity", "bucket[4]", "truncate[2]"):
        assert build_residual(bound, PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", name),)))((None,)) is bound


def test_what_is_told_in_another_order_or_of_no_type_decides_nothing() -> None:
    """Java puts uuids in the order of signed numbers, and nobody knows the values of a column that has gone."""
    uuids = Column(PrimitiveType("uuid"), ())
    spec = PartitionSpec(0, (PartitionField(FIELD_ID, 1000, "p", "identity"),))
    summary = FieldSummary(False, None, b"\xff" * 16, b"\x50" * 16)
    node = {"type": "eq", "term": "c", "value": "00000000-0000-0000-0000-000000000000"}
    assert build_manifest_test(bind_to(uuids, node), spec, [uuids.type])([summary])
    doubles = Column(PrimitiveType("double"), ())
    bound = bind_to(doubles, {"type": "not-null", "term": "c"})
    assert build_manifest_test(bound, spec, [PrimitiveType("unknown")])([FieldSummary(True, None, None, None)])
    damaged = FieldSummary(False, None, b"\x7f" * 3000, b"\x7f" * 3000)
    decimals = Column(PrimitiveType("decimal(9, 2)"), ())
    assert build_manifest_test(bind_to(decimals, {"type": "eq", "term": "c", "value": "1.00"}), spec, [decimals.type])([damaged])


def test_nothing_is_void() -> None:
    """What void makes is null, whatever a file holds."""
    column = Column(PrimitiveType("int"), (1, 2))
    term = {"type": "transform", "transform": "void", "term": "c"}
    assert build_metrics_test(bind_to(column, {"type": "is-null", "term": term}))(describe(column))


def test_a_filter_is_told_again_however_it_was_nested() -> None:
    """Or refused, where its author put long chains into long chains."""

    def nest(levels: int) -> Any:
        node: Any = {"type": "is-null", "term": "c"}
        for level in range(levels):
            for _ in range(32):
                node = {"type": ("and", "or")[level % 2], "left": node, "right": {"type": "is-null", "term": "c"}}
        return node

    column = Column(PrimitiveType("int"), ())
    json.dumps(format_bound(bind_to(column, nest(20))))
    with pytest.raises(BadRequest, match="nested deeper"):
        parse_expression(nest(199))
