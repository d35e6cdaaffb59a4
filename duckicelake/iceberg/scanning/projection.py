"""Evaluation of one predicate on a value or on a range of values, and its projections on partition fields.

The *inclusive* projection is a condition that the partition value of every file with a matching row meets; the *strict* projection is one
that implies that every row of the file matches. Readers differ in the order and equality of NaN, so nothing is concluded from NaN.

Source: Iceberg spec «Scan Planning»; Projections and ResidualEvaluator of Iceberg 1.11
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from duckicelake.iceberg.partition import PartitionField
from duckicelake.iceberg.scanning.expressions import (
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
    BoundPredicate,
)
from duckicelake.iceberg.single_values import WHOLE_SIZES
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
