"""Filters held against partitions: those of one file, and those that a manifest's summary tells of."""

from collections.abc import Callable, Sequence
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.bounds import decode_value
from duckicelake.iceberg.expressions.comparing import RANGED, may_hold
from duckicelake.iceberg.expressions.projection import Asked, Projected, project
from duckicelake.iceberg.expressions.tree import AllOf, AnyOf, Bound, BoundPredicate, all_of, any_of
from duckicelake.iceberg.manifest_list import FieldSummary
from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.types import PrimitiveType

Residual = Callable[[Sequence[Any]], Bound]
ManifestTest = Callable[[Sequence[FieldSummary]], bool]
FLOATING = ("float", "double")


def residual_of(bound: Bound, spec: PartitionSpec) -> Residual:
    """What gives, for a partition tuple, the part of a filter that is still to be asked of the rows: False when none fits."""
    match bound:
        case bool():
            return lambda values: bound
        case AllOf(parts):
            all_found = [residual_of(part, spec) for part in parts]
            return lambda values: all_of([find(values) for find in all_found])
        case AnyOf(parts):
            any_found = [residual_of(part, spec) for part in parts]
            return lambda values: any_of([find(values) for find in any_found])
        case BoundPredicate():
            return _predicate_residual(bound, spec)


def _predicate_residual(predicate: BoundPredicate, spec: PartitionSpec) -> Residual:
    projected = _list_projected(predicate, spec)

    def find(values: Sequence[Any]) -> Bound:
        for place, item in projected:
            found = item.decide(values[place])
            if found is not None:
                return found
        return predicate

    return find


def _list_projected(predicate: BoundPredicate, spec: PartitionSpec) -> list[tuple[int, Projected]]:
    found = [(place, project(predicate, item)) for place, item in enumerate(spec.fields)]
    return [(place, item) for place, item in found if item is not None]


def manifest_test(bound: Bound, spec: PartitionSpec, types: Sequence[PrimitiveType]) -> ManifestTest:
    """What tells whether a manifest of a spec may hold a file with rows that fit, by what its list says of its partitions."""
    test = _make_test(bound, spec, types)
    return lambda summaries: len(summaries) != len(spec.fields) or test(summaries)


def _make_test(bound: Bound, spec: PartitionSpec, types: Sequence[PrimitiveType]) -> ManifestTest:
    match bound:
        case bool():
            return lambda summaries: bound
        case AllOf(parts):
            all_tests = [_make_test(part, spec, types) for part in parts]
            return lambda summaries: all(test(summaries) for test in all_tests)
        case AnyOf(parts):
            any_tests = [_make_test(part, spec, types) for part in parts]
            return lambda summaries: any(test(summaries) for test in any_tests)
        case BoundPredicate():
            projected = _list_projected(bound, spec)
            return lambda summaries: all(_may_match(item, types[place], summaries[place]) for place, item in projected)


def _may_match(projected: Projected, type: PrimitiveType, summary: FieldSummary) -> bool:
    if projected.needed is None or type.name == "unknown":
        return True
    lower, upper = decode_bound(type, summary.lower_bound), decode_bound(type, summary.upper_bound)
    if type.name == "uuid" and lower != upper:
        # Java puts them in the order of signed numbers
        lower = upper = None
    if projected.sure_to is not None and (upper is None or upper > projected.sure_to):
        return True
    return _may_hold_of(projected.needed, type, summary, lower, upper)


def _may_hold_of(needed: Asked, type: PrimitiveType, summary: FieldSummary, lower: Any, upper: Any) -> bool:
    operation, values = needed
    has_nan = type.name in FLOATING and summary.contains_nan is not False
    if operation == "is-null":
        return summary.contains_null
    is_empty = summary.lower_bound is None and summary.upper_bound is None and not has_nan
    if operation == "not-null" or operation in RANGED:
        if is_empty and summary.contains_null:
            return False
        return has_nan or operation == "not-null" or may_hold(operation, values, lower, upper)
    if operation == "is-nan":
        return has_nan
    return summary.contains_null or has_nan or may_hold(operation, values, lower, upper)


def decode_bound(type: PrimitiveType, content: bytes | None) -> Any:
    """The value of a bound; None when there is none, or it is no number, or damaged."""
    if content is None:
        return None
    try:
        value = decode_value(type, content)
    except (BadRequest, ValueError):
        return None
    return value if value == value else None
