"""Filters held against what a manifest says of a file's columns: counts and bounds.

Source: Iceberg spec «Scan Planning»; InclusiveMetricsEvaluator of Iceberg 1.11
"""

from collections.abc import Callable, Mapping
from typing import Any

from duckicelake.iceberg.expressions.comparing import RANGED, UPWARDS, may_hold
from duckicelake.iceberg.expressions.partitions import FLOATING, decode_bound
from duckicelake.iceberg.expressions.tree import IS_NAN, IS_NULL, NOT_NAN, NOT_NULL, AllOf, AnyOf, Bound, BoundPredicate
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.types import PrimitiveType

Test = Callable[[DataFile], bool]
NOTHING: Mapping[int, Any] = {}


def metrics_test(bound: Bound) -> Test:
    """What tells whether a file may have rows that fit a filter."""
    match bound:
        case bool():
            return lambda file: bound
        case AllOf(parts):
            all_tests = [metrics_test(part) for part in parts]
            return lambda file: all(test(file) for test in all_tests)
        case AnyOf(parts):
            any_tests = [metrics_test(part) for part in parts]
            return lambda file: any(test(file) for test in any_tests)
        case BoundPredicate():
            return _predicate_test(bound)


def _predicate_test(predicate: BoundPredicate) -> Test:
    type, operation = predicate.type, predicate.operation
    if predicate.is_repeated or not isinstance(type, PrimitiveType):
        # a row has any number of these values, or they are no values
        return lambda file: True
    if predicate.transform == "void":
        return lambda file: True
    if operation in (IS_NULL, NOT_NULL, IS_NAN, NOT_NAN):
        return _unary_test(predicate)
    if predicate.transform not in (None, "identity"):
        return lambda file: operation not in RANGED or not _is_null_only(predicate.field_id, file)
    return _value_test(predicate, type)


def _unary_test(predicate: BoundPredicate) -> Test:
    field_id = predicate.field_id
    match predicate.operation:
        case "is-null":
            return lambda file: (file.null_value_counts or NOTHING).get(field_id) != 0
        case "not-null":
            return lambda file: not _is_null_only(field_id, file)
        case "is-nan":
            return lambda file: (file.nan_value_counts or NOTHING).get(field_id) != 0 and not _is_null_only(field_id, file)
        case _:
            return lambda file: not _is_nan_only(field_id, file)


def _value_test(predicate: BoundPredicate, type: PrimitiveType) -> Test:
    field_id, operation, values = predicate.field_id, predicate.operation, predicate.values
    is_floating = type.name in FLOATING

    def test(file: DataFile) -> bool:
        lower = decode_bound(type, (file.lower_bounds or NOTHING).get(field_id))
        upper = decode_bound(type, (file.upper_bounds or NOTHING).get(field_id))
        if operation not in RANGED:
            nulls = (file.null_value_counts or NOTHING).get(field_id)
            nans = (file.nan_value_counts or NOTHING).get(field_id) if is_floating else 0
            return nulls != 0 or nans != 0 or _may_hold_either(predicate, lower, upper)
        if _is_null_only(field_id, file):
            return False
        if is_floating and operation in UPWARDS and (file.nan_value_counts or NOTHING).get(field_id) != 0:
            return True
        return may_hold(operation, values, lower, upper) or (predicate.others is not None and _may_hold_either(predicate, lower, upper))

    return test


def _may_hold_either(predicate: BoundPredicate, lower: Any, upper: Any) -> bool:
    operation, others = predicate.operation, predicate.others
    return may_hold(operation, predicate.values, lower, upper) or (others is not None and may_hold(operation, others, lower, upper))


def _is_null_only(field_id: int, file: DataFile) -> bool:
    values, nulls = (file.value_counts or NOTHING).get(field_id), (file.null_value_counts or NOTHING).get(field_id)
    return values is not None and values == nulls and values >= file.record_count


def _is_nan_only(field_id: int, file: DataFile) -> bool:
    values, nans = (file.value_counts or NOTHING).get(field_id), (file.nan_value_counts or NOTHING).get(field_id)
    return values is not None and values == nans and values >= file.record_count
