"""Filters held against partitions: those of one file, and those that a manifest's summary tells of."""

from collections.abc import Callable, Sequence
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.bounds import decode_value
from duckicelake.iceberg.expressions.comparing import NEVER_NULL, may_match_range
from duckicelake.iceberg.expressions.projection import FieldCondition, ProjectedPredicate, project
from duckicelake.iceberg.expressions.tree import AllOf, AnyOf, BoundExpression, BoundPredicate, all_of, any_of
from duckicelake.iceberg.manifest_list import FieldSummary
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.types import PrimitiveType

Residual = Callable[[Sequence[Any]], BoundExpression]
ManifestTest = Callable[[Sequence[FieldSummary]], bool]
FLOATING = ("float", "double")


def build_residual(bound: BoundExpression, spec: PartitionSpec) -> Residual:
    """What gives, for a partition tuple, the part of a filter that is still to be asked of the rows: False when none fits."""
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
    """What tells whether a manifest of a spec may hold a file with rows that fit, by what its list says of its partitions."""
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
        # Java puts them in the order of signed numbers
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
    """The value of a bound; None when there is none, or it is no number, or damaged."""
    if content is None:
        return None
    try:
        value = decode_value(type, content)
    except (BadRequest, ValueError):
        return None
    return value if value == value else None
