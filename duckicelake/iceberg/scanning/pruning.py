"""Tests that prune manifests and files of a scan: by partition summaries, partition tuples, and column metrics.

Each `build_` function compiles a bound filter once; the result is called for every manifest or file. In doubt a file is kept.

Source: Iceberg spec «Scan Planning»; ManifestEvaluator and InclusiveMetricsEvaluator of Iceberg 1.11
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import FieldSummary
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.scanning.expressions import (
    IS_NAN,
    IS_NULL,
    NOT_NAN,
    NOT_NULL,
    AllOf,
    AnyOf,
    BoundExpression,
    BoundPredicate,
    all_of,
    any_of,
)
from duckicelake.iceberg.scanning.projection import MAY_MATCH_NAN, NEVER_NULL, FieldCondition, ProjectedPredicate, may_match_range, project
from duckicelake.iceberg.single_values import decode_value
from duckicelake.iceberg.types import PrimitiveType

Residual = Callable[[Sequence[Any]], BoundExpression]
ManifestTest = Callable[[Sequence[FieldSummary]], bool]
FLOATING = ("float", "double")


def build_residual(bound: BoundExpression, spec: PartitionSpec) -> Residual:
    """Return a function from a partition tuple to the residual: the part of the filter left for the rows; False when no row can match."""
    match bound:
        case bool():
            return lambda values: bound
        case AllOf(parts):
            all_found = [build_residual(part, spec) for part in parts]
            return lambda values: all_of([find(values) for find in all_found])
        case AnyOf(parts):
            any_found = [build_residual(part, spec) for part in parts]
            return lambda values: any_of([find(values) for find in any_found])
        case BoundPredicate():
            return _build_predicate_residual(bound, spec)


def _build_predicate_residual(predicate: BoundPredicate, spec: PartitionSpec) -> Residual:
    projected = _list_projected(predicate, spec)

    def find(values: Sequence[Any]) -> BoundExpression:
        for place, item in projected:
            found = item.decide(values[place])
            if found is not None:
                return found
        return predicate

    return find


def _list_projected(predicate: BoundPredicate, spec: PartitionSpec) -> list[tuple[int, ProjectedPredicate]]:
    found = [(place, project(predicate, item)) for place, item in enumerate(spec.fields)]
    return [(place, item) for place, item in found if item is not None]


def build_manifest_test(bound: BoundExpression, spec: PartitionSpec, types: Sequence[PrimitiveType]) -> ManifestTest:
    """Return a function that is True if a manifest of the spec may contain matching files, by its partition summaries."""
    test = _build_summary_test(bound, spec, types)
    return lambda summaries: len(summaries) != len(spec.fields) or test(summaries)


def _build_summary_test(bound: BoundExpression, spec: PartitionSpec, types: Sequence[PrimitiveType]) -> ManifestTest:
    match bound:
        case bool():
            return lambda summaries: bound
        case AllOf(parts):
            all_tests = [_build_summary_test(part, spec, types) for part in parts]
            return lambda summaries: all(test(summaries) for test in all_tests)
        case AnyOf(parts):
            any_tests = [_build_summary_test(part, spec, types) for part in parts]
            return lambda summaries: any(test(summaries) for test in any_tests)
        case BoundPredicate():
            projected = _list_projected(bound, spec)
            return lambda summaries: all(_may_match_projected(item, types[place], summaries[place]) for place, item in projected)


def _may_match_projected(projected: ProjectedPredicate, type: PrimitiveType, summary: FieldSummary) -> bool:
    if projected.inclusive is None or type.name == "unknown":
        return True
    lower, upper = decode_bound(type, summary.lower_bound), decode_bound(type, summary.upper_bound)
    if type.name == "uuid" and lower != upper:
        # Java orders UUIDs as signed numbers.
        lower = upper = None
    if projected.reliable_to is not None and (upper is None or upper > projected.reliable_to):
        return True
    return _may_match_summary(projected.inclusive, type, summary, lower, upper)


def _may_match_summary(inclusive: FieldCondition, type: PrimitiveType, summary: FieldSummary, lower: Any, upper: Any) -> bool:
    operation, values = inclusive
    has_nan = type.name in FLOATING and summary.contains_nan is not False
    if operation == "is-null":
        return summary.contains_null
    is_empty = summary.lower_bound is None and summary.upper_bound is None and not has_nan
    if operation == "not-null" or operation in NEVER_NULL:
        if is_empty and summary.contains_null:
            return False
        return has_nan or operation == "not-null" or may_match_range(operation, values, lower, upper)
    if operation == "is-nan":
        return has_nan
    return summary.contains_null or has_nan or may_match_range(operation, values, lower, upper)


def decode_bound(type: PrimitiveType, content: bytes | None) -> Any:
    """Return the value of a bound; None for an absent, NaN or damaged bound."""
    if content is None:
        return None
    try:
        value = decode_value(type, content)
    except (BadRequest, ValueError):
        return None
    return value if value == value else None


FileTest = Callable[[DataFile], bool]
NO_METRICS: Mapping[int, Any] = {}


def build_metrics_test(bound: BoundExpression) -> FileTest:
    """Return a function that is True if a file may contain matching rows."""
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
        # A row has any number of these values, or the column is a struct, list or map.
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
