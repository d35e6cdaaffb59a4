"""One predicate held against one value, or against a range of values.

Numbers that are no number (NaN) come after all others in some readers and are like none in others, so nothing is said of them.
"""

from bisect import bisect_left
from typing import Any

from duckicelake.iceberg.expressions.tree import (
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
)

Values = tuple[Any, ...]


def evaluate(operation: str, values: Values, value: Any) -> bool | None:
    """Tell whether a value, which may be null, is what the predicate asks for; None: readers differ, or may.

    Shape: null is like nothing, and whether it is unlike something readers tell differently
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
    """Tell whether a predicate may hold of a value from `lower` to `upper`; None is no bound. No value of the range is null or NaN."""
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
"""What holds of no null."""
MAY_MATCH_NAN = frozenset({GT, GT_EQ})
"""What holds of NaN for readers that put it behind all numbers."""
