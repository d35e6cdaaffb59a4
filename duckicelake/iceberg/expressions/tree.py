"""What a filter is made of, before and after it is bound to a schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from duckicelake.iceberg.types import IcebergType

IS_NULL, NOT_NULL, IS_NAN, NOT_NAN = "is-null", "not-null", "is-nan", "not-nan"
LT, LT_EQ, GT, GT_EQ, EQ, NOT_EQ = "lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq"
IN, NOT_IN, STARTS_WITH, NOT_STARTS_WITH = "in", "not-in", "starts-with", "not-starts-with"

UNARY = frozenset({IS_NULL, NOT_NULL, IS_NAN, NOT_NAN})
SETS = frozenset({IN, NOT_IN})
COMPARING = frozenset({LT, LT_EQ, GT, GT_EQ, EQ, NOT_EQ, STARTS_WITH, NOT_STARTS_WITH})
PREFIXED = frozenset({STARTS_WITH, NOT_STARTS_WITH})
OPERATIONS = UNARY | SETS | COMPARING

_PAIRS = ((IS_NULL, NOT_NULL), (IS_NAN, NOT_NAN), (LT, GT_EQ), (GT, LT_EQ), (EQ, NOT_EQ), (IN, NOT_IN), (STARTS_WITH, NOT_STARTS_WITH))
NEGATED: Mapping[str, str] = {a: b for a, b in _PAIRS} | {b: a for a, b in _PAIRS}
"""What holds of every value, null aside, of which the other one does not."""

Leaf = TypeVar("Leaf")


@dataclass(frozen=True, slots=True)
class Term:
    """A column by its dotted name or its id, or what a transform makes of it."""

    name: str | None
    field_id: int | None = None
    transform: str | None = None


@dataclass(frozen=True, slots=True)
class Predicate:
    """What is asked of one term. `values` are JSON single values; `node` is how the client said it."""

    operation: str
    term: Term
    values: tuple[object, ...]
    node: Mapping[str, object] = field(hash=False)


@dataclass(frozen=True, slots=True)
class And:
    """All of the children, of which there are two at least."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """One of the children, of which there are two at least."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Not the child."""

    child: Expression


Expression: TypeAlias = bool | And | Or | Not | Predicate


@dataclass(frozen=True, slots=True, eq=False)
class BoundPredicate:
    """What is asked of one column. `values` are iceberg values of `type`, those of IN ascending and each once.

    `type`: that of the values of the transform, where there is one. `rounded_values`: the values as floats, for readers comparing floats.
    `is_repeated`: the column lies in a list or map, so a row has any number of its values.
    """

    operation: str
    field_id: int
    type: IcebergType
    values: tuple[object, ...]
    node: Mapping[str, object]
    rounded_values: tuple[object, ...] | None = None
    transform: str | None = None
    is_repeated: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class AllOf:
    """All of the parts, of which there are two at least."""

    parts: tuple[BoundExpression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """One of the parts, of which there are two at least."""

    parts: tuple[BoundExpression, ...]


BoundExpression: TypeAlias = bool | AllOf | AnyOf | BoundPredicate


def count_comparisons(bound: BoundExpression) -> int:
    """Return about how many comparisons it takes to hold a filter against one value of each column."""
    match bound:
        case AllOf(parts) | AnyOf(parts):
            return sum(count_comparisons(part) for part in parts)
        case BoundPredicate():
            return 1 + len(bound.values) // 16
        case _:
            return 0


def all_of(parts: Iterable[BoundExpression]) -> BoundExpression:
    """Return what holds when all parts do."""
    kept = [part for part in parts if part is not True]
    if any(part is False for part in kept):
        return False
    return True if not kept else kept[0] if len(kept) == 1 else AllOf(tuple(kept))


def any_of(parts: Iterable[BoundExpression]) -> BoundExpression:
    """Return what holds when one of the parts does."""
    kept = [part for part in parts if part is not False]
    if any(part is True for part in kept):
        return True
    return False if not kept else kept[0] if len(kept) == 1 else AnyOf(tuple(kept))
