"""Tests that prune manifests and files of a scan: by partition summaries, partition tuples, and column metrics. No I/O.

Each `build_` function compiles a bound filter once; the result is called for every manifest or file. In doubt a file is kept.
`catalog.scanning.scans` calls this on worker threads.

The *inclusive* projection is a condition that the partition value of every file with a matching row meets; the *strict* projection is one
that implies that every row of the file matches. Readers differ in the order and equality of NaN, so nothing is concluded from NaN.

Source: Iceberg spec «Scan Planning»; ManifestEvaluator and InclusiveMetricsEvaluator of Iceberg 1.11
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.manifest_list import FieldSummary
from duckicelake.iceberg.partition import PartitionField, PartitionSpec
from duckicelake.iceberg.scan_filters import (
    EQ,
    GT,
    GT_EQ,
    IN,
    IS_NAN,
    IS_NULL,
    LT,
    LT_EQ,
    NOT_EQ,
    NOT_IN,
    NOT_NAN,
    NOT_NULL,
    NOT_STARTS_WITH,
    STARTS_WITH,
    UNARY,
    AllOf,
    AnyOf,
    BoundExpression,
    BoundPredicate,
    all_of,
    any_of,
)
from duckicelake.iceberg.single_values import WHOLE_SIZES, decode_value
from duckicelake.iceberg.transforms import (
    Bucket,
    Identity,
    TimeUnit,
    Transform,
    Truncate,
    get_scale,
    parse_transform,
    to_decimal,
    to_unscaled,
)
from duckicelake.iceberg.types import PrimitiveType, find_decimal

Values = tuple[Any, ...]


def evaluate(operation: str, values: Values, value: Any) -> bool | None:
    """Return True or False for a value, which may be null; None where readers differ.

    Null matches no comparison; readers differ about its negations, such as not-eq.
    """
    if value is None:
        return _evaluate_null(operation)
    if value != value:
        return _evaluate_nan(operation)
    match operation:
        case "is-null" | "is-nan":
            return False
        case "not-null" | "not-nan":
            return True
        case "in":
            return _is_among(value, values)
        case "not-in":
            return not _is_among(value, values)
        case _:
            return _compare(operation, value, values[0])


def _is_among(value: Any, values: Values) -> bool:
    at = bisect_left(values, value)
    return at < len(values) and values[at] == value


def _evaluate_null(operation: str) -> bool | None:
    if operation in (IS_NULL, NOT_NULL):
        return operation == IS_NULL
    return None if operation in (NOT_EQ, NOT_IN, NOT_STARTS_WITH, NOT_NAN) else False


def _evaluate_nan(operation: str) -> bool | None:
    if operation in (IS_NAN, NOT_NAN):
        return operation == IS_NAN
    if operation in (IS_NULL, NOT_NULL):
        return operation == NOT_NULL
    return False if operation in (EQ, IN) else None


def _compare(operation: str, value: Any, literal: Any) -> bool:
    match operation:
        case "lt":
            return value < literal
        case "lt-eq":
            return value <= literal
        case "gt":
            return value > literal
        case "gt-eq":
            return value >= literal
        case "eq":
            return value == literal
        case "not-eq":
            return value != literal
        case "starts-with":
            return value.startswith(literal)
        case _:
            return not value.startswith(literal)


def may_match_range(operation: str, values: Values, lower: Any, upper: Any) -> bool:
    """True if the predicate may hold for a value from `lower` to `upper`. A bound of None is open. Null and NaN are not in the range."""
    match operation:
        case "lt":
            return lower is None or lower < values[0]
        case "lt-eq":
            return lower is None or lower <= values[0]
        case "gt":
            return upper is None or upper > values[0]
        case "gt-eq":
            return upper is None or upper >= values[0]
        case "eq":
            return (lower is None or lower <= values[0]) and (upper is None or upper >= values[0])
        case "in":
            at = 0 if lower is None else bisect_left(values, lower)
            return at < len(values) and (upper is None or values[at] <= upper)
        case "starts-with":
            prefix = values[0]
            return (lower is None or lower[: len(prefix)] <= prefix) and (upper is None or upper[: len(prefix)] >= prefix)
        case "not-starts-with":
            return lower is None or upper is None or not (lower.startswith(values[0]) and upper.startswith(values[0]))
        case "not-eq":
            return lower is None or upper is None or not lower == upper == values[0]
        case _:
            return True


NEVER_NULL = frozenset({LT, LT_EQ, GT, GT_EQ, EQ, IN, STARTS_WITH})
"""Operations that never match null."""
MAY_MATCH_NAN = frozenset({GT, GT_EQ})
"""Operations that match NaN for readers that order it after all numbers."""


FieldCondition = tuple[str, Values]


@dataclass(frozen=True, slots=True)
class ProjectedPredicate:
    """The inclusive and the strict projection of a predicate on one partition value. None: there is no such condition.

    Nothing is concluded from values before `reliable_from`, because older writers rounded times before 1970 up, nor from values after
    `reliable_to`, because truncated numbers wrap around.
    """

    inclusive: FieldCondition | None
    strict: FieldCondition | None
    reliable_from: int | None = None
    reliable_to: int | None = None

    def decide(self, value: Any) -> bool | None:
        """Return True if all rows of a file with this partition value match, False if none does, None if some may."""
        if self.reliable_to is not None and value is not None and value > self.reliable_to:
            return None
        if self.inclusive is not None and evaluate(*self.inclusive, value) is False:
            return False
        if self.reliable_from is not None and (value is None or value < self.reliable_from):
            return None
        return True if self.strict is not None and evaluate(*self.strict, value) is True else None


def project(predicate: BoundPredicate, item: PartitionField) -> ProjectedPredicate | None:
    """Return the projection of a predicate on a partition field, or None."""
    if item.source_id != predicate.field_id or not isinstance(predicate.type, PrimitiveType) or predicate.is_repeated:
        return None
    transform = parse_transform(item.transform)
    wanted = predicate.transform if predicate.transform not in (None, "identity") else None
    if str(transform) == "void" or (wanted is not None and wanted != str(transform)):
        return None
    if wanted is not None or isinstance(transform, Identity):
        return _project_unrounded(predicate, lambda values: _exact(predicate.operation, values))
    if predicate.operation in UNARY:
        # A transform returns null for null only, and never NaN.
        condition = (predicate.operation, ())
        return ProjectedPredicate(condition, condition) if predicate.operation in ("is-null", "not-null") else None
    type = predicate.type
    return _project_unrounded(predicate, lambda values: _project_values(transform, type, predicate.operation, values))


def _project_unrounded(predicate: BoundPredicate, make: Callable[[Values], ProjectedPredicate | None]) -> ProjectedPredicate | None:
    """Return the projection of the exact values, unless readers may compare them as floats."""
    found = make(predicate.values)
    if predicate.rounded_values is None or found is None:
        return found
    # Only identity remains: bucket, truncate and time transforms do not accept floats.
    return None


def _exact(operation: str, values: Values) -> ProjectedPredicate:
    return ProjectedPredicate((operation, values), (operation, values))


def _project_values(transform: Transform, type: PrimitiveType, operation: str, values: Values) -> ProjectedPredicate | None:
    if not all(_is_within(type, value) for value in values):
        return None
    match transform:
        case Bucket():
            return _project_hashed(operation, [transform.apply(type, value) for value in values])
        case Truncate() if type.name in ("string", "binary"):
            return _project_text(transform, operation, values)
        case Truncate():
            return _project_truncated(transform, type, operation, values)
        case TimeUnit():
            return _project_time(transform, type, operation, values)
        case _:
            return None


def _is_within(type: PrimitiveType, value: object) -> bool:
    """True if a column of the type could hold the value."""
    if isinstance(value, int) and type.name in WHOLE_SIZES:
        return -(1 << WHOLE_SIZES[type.name] * 8 - 1) < value < (1 << WHOLE_SIZES[type.name] * 8 - 1) - 1
    if isinstance(value, Decimal):
        precision, scale = find_decimal(type) or (0, 0)
        return to_decimal(to_unscaled(value, scale), scale) == value and value.copy_abs() < 10 ** (precision - scale)
    return not isinstance(value, float)


def _project_hashed(operation: str, hashed: list[object]) -> ProjectedPredicate | None:
    found = tuple(sorted(set(hashed), key=repr))
    match operation:
        case "eq":
            return ProjectedPredicate((EQ, found), None)
        case "in":
            return ProjectedPredicate((IN, _ascending(found)), None)
        case "not-eq":
            return ProjectedPredicate(None, (NOT_EQ, found))
        case "not-in":
            return ProjectedPredicate(None, (NOT_IN, _ascending(found)))
        case "not-starts-with":
            return None
        case _:
            return ProjectedPredicate(("not-null", ()), None)


def _ascending(values: Values) -> Values:
    return tuple(sorted(set(values)))


def _project_ordered(apply: Callable[[Any], Any], step: Callable[[Any, int], Any], operation: str, values: Values) -> ProjectedPredicate:
    """Return the projection on a transform that keeps the order of values."""
    value = values[0]
    match operation:
        case "lt":
            return ProjectedPredicate((LT_EQ, (apply(step(value, -1)),)), (LT, (apply(value),)))
        case "lt-eq":
            return ProjectedPredicate((LT_EQ, (apply(value),)), (LT, (apply(step(value, 1)),)))
        case "gt":
            return ProjectedPredicate((GT_EQ, (apply(step(value, 1)),)), (GT, (apply(value),)))
        case "gt-eq":
            return ProjectedPredicate((GT_EQ, (apply(value),)), (GT, (apply(step(value, -1)),)))
        case "eq":
            return ProjectedPredicate((EQ, (apply(value),)), None)
        case "in":
            return ProjectedPredicate((IN, _ascending(tuple(apply(item) for item in values))), None)
        case "not-eq":
            return ProjectedPredicate(None, (NOT_EQ, (apply(value),)))
        case _:
            return ProjectedPredicate(None, (NOT_IN, _ascending(tuple(apply(item) for item in values))))


def _project_truncated(transform: Truncate, type: PrimitiveType, operation: str, values: Values) -> ProjectedPredicate | None:
    scale = get_scale(type)
    if type.name in WHOLE_SIZES and min(values) - transform.width <= -(1 << WHOLE_SIZES[type.name] * 8 - 1):
        # Truncating the least numbers wraps around.
        return None

    def step(value: Any, by: int) -> Any:
        return to_decimal(to_unscaled(value, scale) + by, scale) if isinstance(value, Decimal) else value + by

    found = _project_ordered(lambda value: transform.apply(type, value), step, operation, values)
    if type.name not in WHOLE_SIZES:
        return found
    greatest = (1 << WHOLE_SIZES[type.name] * 8 - 1) - 1
    return ProjectedPredicate(found.inclusive, found.strict, None, greatest - transform.width)


def _project_time(transform: TimeUnit, type: PrimitiveType, operation: str, values: Values) -> ProjectedPredicate:
    found = _project_ordered(lambda value: transform.apply(type, value), lambda value, by: value + by, operation, values)
    return ProjectedPredicate(
        None if found.inclusive is None else _widen_for_older_writers(*found.inclusive), found.strict, reliable_from=1
    )


def _widen_for_older_writers(operation: str, values: Values) -> FieldCondition:
    """Return an inclusive condition that also covers times before 1970, which older writers rounded up."""
    if operation == LT_EQ and values[0] < 0:
        return operation, (values[0] + 1,)
    if operation in (EQ, IN) and any(value < 0 for value in values):
        return IN, _ascending((*values, *(value + 1 for value in values if value < 0)))
    return operation, values


def _project_text(transform: Truncate, operation: str, values: Values) -> ProjectedPredicate | None:
    value, width = values[0], transform.width
    cut = value[:width]
    is_whole = len(value) <= width
    match operation:
        case "lt" | "lt-eq":
            return ProjectedPredicate((LT_EQ, (cut,)), (LT, (cut,)))
        case "gt" | "gt-eq":
            return ProjectedPredicate((GT_EQ, (cut,)), (GT_EQ if is_whole and operation == GT_EQ else GT, (cut,)))
        case "eq":
            return ProjectedPredicate((EQ, (cut,)), None)
        case "in":
            return ProjectedPredicate((IN, _ascending(tuple(item[:width] for item in values))), None)
        case "not-eq":
            return ProjectedPredicate(None, (NOT_EQ, (cut,)))
        case "not-in":
            return ProjectedPredicate(None, (NOT_IN, _ascending(tuple(item[:width] for item in values))))
        case "starts-with":
            return (
                ProjectedPredicate((STARTS_WITH, (value,)), (STARTS_WITH, (value,))) if is_whole else ProjectedPredicate((EQ, (cut,)), None)
            )
        case _:
            return (
                ProjectedPredicate((NOT_STARTS_WITH, (value,)), (NOT_STARTS_WITH, (value,)))
                if is_whole
                else ProjectedPredicate(None, (NOT_EQ, (cut,)))
            )


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
