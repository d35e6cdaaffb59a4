"""What a predicate on a column says of a partition field's values: what must hold of them, and what is enough.

A partition value is what a transform made of each of the file's values. `inclusive`: no row of a file fits without it.
`strict`: every row does with it.
Source: Iceberg spec «Scan Planning»; Projections and ResidualEvaluator of Iceberg 1.11
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from duckicelake.iceberg.bounds import WHOLE_SIZES
from duckicelake.iceberg.expressions.comparing import Values, evaluate
from duckicelake.iceberg.expressions.tree import (
    EQ,
    GT,
    GT_EQ,
    IN,
    LT,
    LT_EQ,
    NOT_EQ,
    NOT_IN,
    NOT_STARTS_WITH,
    STARTS_WITH,
    UNARY,
    BoundPredicate,
)
from duckicelake.iceberg.partition import PartitionField
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

FieldCondition = tuple[str, Values]


@dataclass(frozen=True, slots=True)
class ProjectedPredicate:
    """What is asked of one partition value, by its place in the tuple. None: nothing is known that would do.

    `reliable_from` and `reliable_to` are the values outside of which nothing is said: older writers rounded times before 1970 up, and
    truncated numbers wrap around.
    """

    inclusive: FieldCondition | None
    strict: FieldCondition | None
    reliable_from: int | None = None
    reliable_to: int | None = None

    def decide(self, value: Any) -> bool | None:
        """Tell whether all rows of a file with this partition value fit, or none does; None: some may."""
        if self.reliable_to is not None and value is not None and value > self.reliable_to:
            return None
        if self.inclusive is not None and evaluate(*self.inclusive, value) is False:
            return False
        if self.reliable_from is not None and (value is None or value < self.reliable_from):
            return None
        return True if self.strict is not None and evaluate(*self.strict, value) is True else None


def project(predicate: BoundPredicate, item: PartitionField) -> ProjectedPredicate | None:
    """Return what a predicate asks of a partition field; None: nothing."""
    if item.source_id != predicate.field_id or not isinstance(predicate.type, PrimitiveType) or predicate.is_repeated:
        return None
    transform = parse_transform(item.transform)
    told = predicate.transform if predicate.transform not in (None, "identity") else None
    if str(transform) == "void" or (told is not None and told != str(transform)):
        return None
    if told is not None or isinstance(transform, Identity):
        return _project_unrounded(predicate, lambda values: _exact(predicate.operation, values))
    if predicate.operation in UNARY:
        # a transform makes null of null alone, and never NaN
        asked = (predicate.operation, ())
        return ProjectedPredicate(asked, asked) if predicate.operation in ("is-null", "not-null") else None
    type = predicate.type
    return _project_unrounded(predicate, lambda values: _project_values(transform, type, predicate.operation, values))


def _project_unrounded(predicate: BoundPredicate, make: Callable[[Values], ProjectedPredicate | None]) -> ProjectedPredicate | None:
    """What is needed and enough whichever way the values are taken."""
    found = make(predicate.values)
    if predicate.rounded_values is None or found is None:
        return found
    # identity alone is left: floats are not hashed, cut or times
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
    """Tell whether a column of that type could hold the value."""
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
    """What a transform that keeps the order of whole steps asks."""
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
        # what is cut from it may wrap around
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
    """What is needed of times before 1970 too, which older writers rounded up."""
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
