"""Filters held against what a manifest says of a file's columns: counts and bounds.

Source: Iceberg spec «Scan Planning»; InclusiveMetricsEvaluator of Iceberg 1.11
"""

from collections.abc import Callable, Mapping
from typing import Any

from duckicelake.iceberg.expressions.comparing import MAY_MATCH_NAN, NEVER_NULL, may_match_range
from duckicelake.iceberg.expressions.partitions import FLOATING, decode_bound
from duckicelake.iceberg.expressions.tree import IS_NAN, IS_NULL, NOT_NAN, NOT_NULL, AllOf, AnyOf, BoundExpression, BoundPredicate
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.types import PrimitiveType

FileTest = Callable[[DataFile], bool]
NO_METRICS: Mapping[int, Any] = {}


def build_metrics_test(bound: BoundExpression) -> FileTest:
    """What tells whether a file may have rows that fit a filter."""
    match bound:
        case bool():
            return lambda file: bound
        case AllOf(parts):
            all_tests = [build_metrics_test(part) for part in parts]
            return lambda file: all(test(file) for test in all_tests)
        case AnyOf(parts):
            any_tests = [build_metrics_test(part) for part in parts]
            return lambda file: any(test(file) for test in any_tests)
        case BoundPredicate():
            return _build_predicate_test(bound)


def _build_predicate_test(predicate: BoundPredicate) -> FileTest:
    type, operation = predicate.type, predicate.operation
    if predicate.is_repeated or not isinstance(type, PrimitiveType):
        # a row has any number of these values, or they are no values
        return lambda file: True
    if predicate.transform == "void":
        return lambda file: True
    if operation in (IS_NULL, NOT_NULL, IS_NAN, NOT_NAN):
        return _build_unary_test(predicate)
    if predicate.transform not in (None, "identity"):
        return lambda file: operation not in NEVER_NULL or not _is_null_only(predicate.field_id, file)
    return _build_value_test(predicate, type)


def _build_unary_test(predicate: BoundPredicate) -> FileTest:
    field_id = predicate.field_id
    match predicate.operation:
        case "is-null":
            return lambda file: (file.null_value_counts or NO_METRICS).get(field_id) != 0
        case "not-null":
            return lambda file: not _is_null_only(field_id, file)
        case "is-nan":
            return lambda file: (file.nan_value_counts or NO_METRICS).get(field_id) != 0 and not _is_null_only(field_id, file)
        case _:
            return lambda file: not _is_nan_only(field_id, file)


def _build_value_test(predicate: BoundPredicate, type: PrimitiveType) -> FileTest:
    field_id, operation, values = predicate.field_id, predicate.operation, predicate.values
    is_floating = type.name in FLOATING

    def test(file: DataFile) -> bool:
        lower = decode_bound(type, (file.lower_bounds or NO_METRICS).get(field_id))
        upper = decode_bound(type, (file.upper_bounds or NO_METRICS).get(field_id))
        if operation not in NEVER_NULL:
            nulls = (file.null_value_counts or NO_METRICS).get(field_id)
            nans = (file.nan_value_counts or NO_METRICS).get(field_id) if is_floating else 0
            return nulls != 0 or nans != 0 or _may_match_either(predicate, lower, upper)
        if _is_null_only(field_id, file):
            return False
        if is_floating and operation in MAY_MATCH_NAN and (file.nan_value_counts or NO_METRICS).get(field_id) != 0:
            return True
        return may_match_range(operation, values, lower, upper) or (
            predicate.rounded_values is not None and _may_match_either(predicate, lower, upper)
        )

    return test


def _may_match_either(predicate: BoundPredicate, lower: Any, upper: Any) -> bool:
    operation, rounded_values = predicate.operation, predicate.rounded_values
    return may_match_range(operation, predicate.values, lower, upper) or (
        rounded_values is not None and may_match_range(operation, rounded_values, lower, upper)
    )


def _is_null_only(field_id: int, file: DataFile) -> bool:
    values, nulls = (file.value_counts or NO_METRICS).get(field_id), (file.null_value_counts or NO_METRICS).get(field_id)
    return values is not None and values == nulls and values >= file.record_count


def _is_nan_only(field_id: int, file: DataFile) -> bool:
    values, nans = (file.value_counts or NO_METRICS).get(field_id), (file.nan_value_counts or NO_METRICS).get(field_id)
    return values is not None and values == nans and values >= file.record_count
