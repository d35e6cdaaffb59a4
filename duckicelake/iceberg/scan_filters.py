"""Filters of a scan: as trees and JSON, with both the present and the older predicate names, and bound to a schema. No I/O.

Bound, names are ids, literals iceberg values of the columns' types, and NOT has moved into the predicates. A filter's literals are less
strict than column defaults: an integer may stand for a time in microseconds, and any UTC offset is allowed.
`catalog.scanning` calls this on worker threads.

Source: Iceberg REST specification, «Predicate»; ExpressionParser of Iceberg 1.11
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import TypeAlias, TypeVar, cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import as_list, as_object, get_flag, get_int, get_text
from duckicelake.iceberg.schema import Schema, list_repeated_ids
from duckicelake.iceberg.single_values import FLOAT_MAX, parse_value
from duckicelake.iceberg.transforms import parse_transform
from duckicelake.iceberg.types import IcebergType, NestedField, PrimitiveType, find_decimal, walk_fields

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
"""The operation that holds for every non-null value for which the given one does not hold."""

Leaf = TypeVar("Leaf")


@dataclass(frozen=True, slots=True)
class Term:
    """A column by its dotted name or its id, or a transform of it."""

    name: str | None
    field_id: int | None = None
    transform: str | None = None


@dataclass(frozen=True, slots=True)
class Predicate:
    """A predicate on one term. `values` are JSON single values; `node` is the client's JSON."""

    operation: str
    term: Term
    values: tuple[object, ...]
    node: Mapping[str, object] = field(hash=False)


@dataclass(frozen=True, slots=True)
class And:
    """The conjunction of two or more children."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """The disjunction of two or more children."""

    children: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of the child."""

    child: Expression


Expression: TypeAlias = bool | And | Or | Not | Predicate


@dataclass(frozen=True, slots=True, eq=False)
class BoundPredicate:
    """A predicate on one column. `values` are iceberg values of `type`; those of IN and NOT IN are sorted and unique.

    `type`: the type of the transform's values, if there is a transform. `rounded_values`: the values as floats, for readers that compare
    floats. `is_repeated`: the column is inside a list or map, so a row has any number of its values.
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
    """The conjunction of two or more parts."""

    parts: tuple[BoundExpression, ...]


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf:
    """The disjunction of two or more parts."""

    parts: tuple[BoundExpression, ...]


BoundExpression: TypeAlias = bool | AllOf | AnyOf | BoundPredicate


def count_comparisons(bound: BoundExpression) -> int:
    """Return about how many comparisons it takes to evaluate a filter with one value of each column."""
    match bound:
        case AllOf(parts) | AnyOf(parts):
            return sum(count_comparisons(part) for part in parts)
        case BoundPredicate():
            return 1 + len(bound.values) // 16
        case _:
            return 0


def all_of(parts: Iterable[BoundExpression]) -> BoundExpression:
    """Return the conjunction of the parts, simplified."""
    kept = [part for part in parts if part is not True]
    if any(part is False for part in kept):
        return False
    return True if not kept else kept[0] if len(kept) == 1 else AllOf(tuple(kept))


def any_of(parts: Iterable[BoundExpression]) -> BoundExpression:
    """Return the disjunction of the parts, simplified."""
    kept = [part for part in parts if part is not False]
    if any(part is True for part in kept):
        return True
    return False if not kept else kept[0] if len(kept) == 1 else AnyOf(tuple(kept))


WHAT = "filter"
DEPTH_MAX = 200
"""How often AND, OR and NOT may alternate; a chain of one of them counts as one level."""
NODES_MAX = 20_000
VALUES_MAX = 200_000
SHOWN_LENGTH = 100


@dataclass(slots=True)
class _FilterBudget:
    """The number of predicates and values that a filter may still have."""

    nodes: int = NODES_MAX
    values: int = VALUES_MAX

    def take(self, nodes: int, values: int) -> None:
        self.nodes -= nodes
        self.values -= values
        if self.nodes < 0 or self.values < 0:
            raise BadRequest(f"Cannot read {WHAT}: it has more than {NODES_MAX} predicates or {VALUES_MAX} values; ask for less at once")


def parse_expression(value: object) -> Expression:
    """Return the filter of a JSON value.

    Raises: BadRequest — malformed, of an unknown kind, nested deeper than DEPTH_MAX, or with too many parts
    """
    return _parse(value, _FilterBudget(), 0)


def _parse(value: object, budget: _FilterBudget, depth: int) -> Expression:
    if isinstance(value, bool):
        return value
    if depth > DEPTH_MAX:
        raise BadRequest(f"Cannot read {WHAT}: it is nested deeper than {DEPTH_MAX} levels; flatten it")
    budget.take(1, 0)
    node = as_object(value, WHAT)
    kind = get_text(node, "type", WHAT).lower().replace("_", "-")
    match kind:
        case "true" | "false":
            return kind == "true"
        case "literal":
            return get_flag(node, "value", WHAT)
        case "and" | "or":
            operands = _flatten_operands(node, kind, budget)
            # The depth of the first operand when the chain is written as a balanced tree of pairs.
            below = depth + max(1, (len(operands) - 1).bit_length())
            children = tuple(_parse(child, budget, below) for child in operands)
            return And(children) if kind == "and" else Or(children)
        case "not":
            return Not(_parse(node.get("child"), budget, depth + 1))
        case _:
            return _parse_predicate(kind, node, budget)


def _flatten_operands(node: Mapping[str, object], kind: str, budget: _FilterBudget) -> Sequence[object]:
    """Return the operands of a chain of AND, or of OR, from left to right. Clients nest thousands of them."""
    found: list[object] = []
    waiting: list[object] = [node]
    while waiting:
        item = waiting.pop()
        known: Mapping[str, object] = cast("dict[str, object]", item) if isinstance(item, dict) else {}
        named = known.get("type")
        if isinstance(named, str) and named.lower() == kind:
            if "left" not in known or "right" not in known:
                raise BadRequest(f"Cannot read {WHAT}: {kind!r} needs 'left' and 'right'")
            budget.take(1, 0)
            waiting += [known["right"], known["left"]]
        else:
            found.append(cast("object", item))
    return found


def _parse_predicate(kind: str, node: Mapping[str, object], budget: _FilterBudget) -> Predicate:
    if kind not in OPERATIONS:
        raise BadRequest(
            f"Cannot read {WHAT}: {kind[:SHOWN_LENGTH]!r} is unknown; send one of {', '.join(sorted(OPERATIONS))}, and, or, not"
        )
    if kind in UNARY:
        return _build_predicate(kind, _get_operand(kind, node, "child", "term"), ())
    if kind in SETS:
        value = _get_operand(kind, node, "child", "term", "values")
        values = _parse_values(node.get("values"))
        budget.take(0, len(values))
        return _build_predicate(kind, value, values, {"values": list(values)})
    older = "term" in node
    term = _get_operand(kind, node, "left", "term", "value" if older else "right")
    literal = _parse_literal(node.get("value" if older else "right"))
    return _build_predicate(kind, term, (literal,), {"value" if older else "right": literal})


def _get_operand(kind: str, node: Mapping[str, object], name: str, older: str, *more: str) -> tuple[str, object]:
    """Return the key and the value of a predicate's column, which has a present and an older name. `more` are the other keys.

    Raises: BadRequest — it has both or none, or keys that do not belong there
    """
    if (name in node) == (older in node):
        raise BadRequest(f"Cannot read {WHAT}: {kind!r} needs {name!r}, or {older!r} as it was called before")
    found = name if name in node else older
    others = sorted(node.keys() ^ {"type", found, *more})
    if others:
        what = "which does not belong there" if others[0] in node else "which is missing"
        raise BadRequest(f"Cannot read {WHAT}: {kind!r} and {others[0][:SHOWN_LENGTH]!r}, {what}")
    return found, node[found]


def _build_predicate(
    kind: str, term: tuple[str, object], values: tuple[object, ...], more: Mapping[str, object] | None = None
) -> Predicate:
    """Return a predicate with its JSON, in the names that the client used and without unknown keys."""
    key, column = term
    parsed = _parse_term(column)
    return Predicate(kind, parsed, values, {"type": kind, key: column if isinstance(column, str) else _format_term(parsed), **(more or {})})


def _format_term(term: Term) -> object:
    if term.transform is not None:
        return {"type": "transform", "transform": term.transform, "term": term.name or _format_term(replace(term, transform=None))}
    if term.name is None:
        return {"type": "reference", "id": term.field_id}
    return {"type": "reference", "name": term.name}


def _parse_term(value: object) -> Term:
    if isinstance(value, str):
        return Term(value)
    node = as_object(value, f"term of {WHAT}")
    kind = get_text(node, "type", f"term of {WHAT}")
    match kind:
        case "reference" if "id" in node:
            return Term(None, get_int(node, "id", f"term of {WHAT}"))
        case "reference":
            return Term(get_text(node, "name" if "name" in node else "term", f"term of {WHAT}"))
        case "transform":
            inner = _parse_term(node.get("term"))
            if inner.transform is not None:
                raise BadRequest(f"Cannot read {WHAT}: a transform of a transform is no term; send one of a column")
            return Term(inner.name, inner.field_id, str(parse_transform(get_text(node, "transform", f"term of {WHAT}"))))
        case _:
            raise BadRequest(
                f"Cannot read {WHAT}: a term of type {kind[:SHOWN_LENGTH]!r} is not supported; send a column's name or a transform of it"
            )


def _parse_values(value: object) -> tuple[object, ...]:
    if isinstance(value, dict):
        node = as_object(cast("object", value), f"values of {WHAT}")
        if node.get("type") != "literals":
            raise BadRequest(f"Cannot read {WHAT}: 'values' of {IN!r} and {NOT_IN!r} are an array, or an object of type 'literals'")
        value = node.get("values")
    return tuple(_parse_literal(item) for item in as_list(value, f"values of {WHAT}"))


def _parse_literal(value: object) -> object:
    if isinstance(value, dict):
        node = as_object(cast("object", value), f"value of {WHAT}")
        if node.get("type") != "literal" or "value" not in node:
            raise BadRequest(f"Cannot read {WHAT}: a value is a JSON single value, or an object of type 'literal'")
        value = node["value"]
    if value is None or isinstance(value, list | dict) or (isinstance(value, float) and not isfinite(value)):
        raise BadRequest(f"Cannot read {WHAT}: a value is null, no finite number, an array or an object; send a JSON single value")
    return value


def format_bound(bound: BoundExpression) -> object:
    """Return a bound filter as JSON. Chains of AND and OR become balanced trees, so the depth is small."""
    match bound:
        case bool():
            return bound
        case BoundPredicate():
            return bound.node
        case AllOf(parts):
            return _join("and", [format_bound(part) for part in parts])
        case AnyOf(parts):
            return _join("or", [format_bound(part) for part in parts])


def format_expression(expression: Expression) -> object:
    """Return a filter as JSON with balanced trees, so that every filter that was parsed can be parsed again."""
    match expression:
        case bool():
            return expression
        case Predicate():
            return expression.node
        case Not(child):
            return {"type": "not", "child": format_expression(child)}
        case And(children):
            return _join("and", [format_expression(child) for child in children])
        case Or(children):
            return _join("or", [format_expression(child) for child in children])


def _join(kind: str, nodes: list[object]) -> object:
    while len(nodes) > 1:
        pairs = [{"type": kind, "left": left, "right": right} for left, right in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = [*pairs, *nodes[len(nodes) - len(nodes) % 2 :]]
    return nodes[0]


NUMBERS = ("float", "double")
UNORDERED = ("unknown", "variant", "geometry", "geography")
METADATA_COLUMNS = frozenset({"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"})
"""Metadata columns that clients may select in addition to the columns of a table, and their fields."""


@dataclass(frozen=True, slots=True)
class SchemaColumns:
    """The columns of a schema by dotted name and by id, for case-sensitive or case-insensitive names."""

    by_name: Mapping[str, NestedField]
    by_id: Mapping[int, NestedField]
    repeated: frozenset[int]
    case_sensitive: bool = True
    ambiguous: frozenset[str] = field(default_factory=frozenset[str])

    def find(self, name: str) -> NestedField | None:
        """Return the field of that name, or None. Raises BadRequest when several match."""
        key = name if self.case_sensitive else name.lower()
        if key in self.ambiguous:
            raise BadRequest(f"Several columns are called {name[:100]!r} in any case; send 'case-sensitive': true")
        return self.by_name.get(key)

    def get(self, name: str, what: str) -> NestedField:
        """Return the field of that name. Raises BadRequest when there is none."""
        found = self.find(name)
        if found is None:
            raise BadRequest(f"Cannot read {what}: the schema has no column {name[:100]!r}")
        return found


def build_schema_columns(schema: Schema, case_sensitive: bool) -> SchemaColumns:
    """Return the columns of a schema."""
    by_name: dict[str, NestedField] = {}
    ambiguous: set[str] = set()
    by_id: dict[int, NestedField] = {}
    for path, item in walk_fields(schema.fields):
        key = path if case_sensitive else path.lower()
        if key in by_name:
            ambiguous.add(key)
        by_name.setdefault(key, item)
        by_id[item.field_id] = item
    return SchemaColumns(by_name, by_id, list_repeated_ids(schema), case_sensitive, frozenset() if case_sensitive else frozenset(ambiguous))


def check_selected(names: SchemaColumns, selected: Iterable[str]) -> None:
    """Raise BadRequest when a name is neither a column nor a metadata column."""
    for name in selected:
        if name.split(".", 1)[0] not in METADATA_COLUMNS:
            names.get(name, "'select'")


def bind(expression: Expression, names: SchemaColumns, *, negated: bool = False) -> BoundExpression:
    """Return the filter bound to the columns of a schema; `negated`: the negation of the filter.

    Raises: BadRequest — an unknown column, a value that is not of its type, an operation that the type does not have
    """
    match expression:
        case bool():
            return expression is not negated
        case Not(child):
            return bind(child, names, negated=not negated)
        case And(children) | Or(children):
            parts = [bind(child, names, negated=negated) for child in children]
            return all_of(parts) if isinstance(expression, And) is not negated else any_of(parts)
        case Predicate():
            return _bind_predicate(expression, names, negated)


def _bind_predicate(predicate: Predicate, names: SchemaColumns, negated: bool) -> BoundExpression:
    item = _get_field(predicate.term, names)
    type = _get_type(predicate.term, item)
    operation = NEGATED[predicate.operation] if negated else predicate.operation
    node = {**predicate.node, "type": operation}
    is_repeated = item.field_id in names.repeated
    values = _bind_values(operation, type, predicate.values, item.name)
    if operation in SETS and not values:
        # IN () holds for no value, NOT IN () for every value.
        return operation == "not-in"
    rounded_values = _round_values(operation, values) if isinstance(type, PrimitiveType) and type.name == "float" else None
    return BoundPredicate(operation, item.field_id, type, values, node, rounded_values, predicate.term.transform, is_repeated)


def _round_values(operation: str, values: tuple[object, ...]) -> tuple[object, ...] | None:
    """Return the values rounded to floats, for readers that compare them as floats; None when rounding changes nothing."""
    rounded = tuple(map(round_float, values))
    found = tuple(sorted(set(rounded), key=_order)) if operation in SETS else rounded
    return None if found == values else found


def _get_field(term: Term, names: SchemaColumns) -> NestedField:
    if term.name is not None:
        return names.get(term.name, "filter")
    found = names.by_id.get(-1 if term.field_id is None else term.field_id)
    if found is None:
        raise BadRequest(f"Cannot read filter: the schema has no column of the id {term.field_id}")
    return found


def _get_type(term: Term, item: NestedField) -> IcebergType:
    if term.transform is None or term.transform == "identity":
        return item.type
    found = parse_transform(term.transform).result_type(item.type) if isinstance(item.type, PrimitiveType) else None
    if found is None:
        raise BadRequest(f"Cannot read filter: {term.transform} cannot be applied to the column {item.name!r}")
    return found


def _bind_values(operation: str, type: IcebergType, values: tuple[object, ...], name: str) -> tuple[object, ...]:
    plain = type if isinstance(type, PrimitiveType) else None
    if operation in (IS_NAN, NOT_NAN) and (plain is None or plain.name not in NUMBERS):
        raise BadRequest(f"Cannot read filter: {operation} needs a floating-point column, and {name!r} is of another type")
    if operation in UNARY:
        return ()
    if plain is None or plain.name.split("(")[0] in UNORDERED:
        raise BadRequest(f"Cannot read filter: {operation} needs a type with an order, and column {name!r} has none; filter by null only")
    if operation in PREFIXED and plain.name != "string":
        raise BadRequest(f"Cannot read filter: {operation} needs a string column, and {name!r} is of another type")
    found = [parse_literal(plain, value) for value in values]
    return tuple(sorted(set(found), key=_order)) if operation in SETS else tuple(found)


def _order(value: object) -> float | int | str | bytes | Decimal:
    """Return the value as the sort key. Values of one type are comparable."""
    assert isinstance(value, float | int | str | bytes | Decimal)
    return value


INFINITIES = {"Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}
NANOS = ("timestamp_ns", "timestamptz_ns")
COUNTED = ("date", "time", "timestamp", "timestamptz", *NANOS)
WHOLE_DIGITS_MAX = 40
LENGTH_MAX = 100
"""The most characters of a number, date, time or uuid."""
_OFFSET = re.compile(r"(.*[T ].*?)(?:Z|([+-])(\d\d):?(\d\d)(?::?00)?)?", re.ASCII | re.IGNORECASE)


def parse_literal(type: PrimitiveType, node: object) -> object:
    """Return the iceberg value of a literal; integers may exceed the range of the type.

    Raises: BadRequest — not a value that can be compared with that type
    """
    try:
        return _parse_literal_of(type, node)
    except (ValueError, ArithmeticError, BadRequest) as error:
        raise BadRequest(f"Cannot read filter: {str(node)[:100]!r} is no value for a column of type {type}") from error


def round_float(value: object) -> object:
    """Return the number as a column of floats would hold it."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if abs(value) > FLOAT_MAX:
        return math.copysign(math.inf, value)
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _parse_literal_of(type: PrimitiveType, node: object) -> object:
    name = type.name
    if isinstance(node, bool):
        return parse_value(type, node)
    if isinstance(node, int) and abs(node) >= 10**WHOLE_DIGITS_MAX:
        raise ValueError("too large")
    if isinstance(node, str) and name not in ("string", "binary") and not name.startswith("fixed") and len(node) > LENGTH_MAX:
        raise ValueError("too long")
    if name in ("int", "long") and isinstance(node, int):
        return node
    if name in COUNTED and isinstance(node, int):
        # Java writes microseconds for nanosecond columns too.
        return node * 1000 if name in NANOS else node
    if name in ("float", "double"):
        return _parse_floating(type, node)
    if find_decimal(type) is not None:
        return _parse_decimal(node)
    if name in ("timestamptz", "timestamptz_ns") and isinstance(node, str):
        return _parse_instant(type, node)
    return parse_value(type, node)


def _parse_floating(type: PrimitiveType, node: object) -> float:
    if isinstance(node, str):
        if node not in INFINITIES:
            raise ValueError("no number")
        return INFINITIES[node]
    if not isinstance(node, int | float):
        raise ValueError("no number")
    return float(node)


def _parse_decimal(node: object) -> Decimal:
    if not isinstance(node, str | int | float):
        raise ValueError("no number")
    try:
        value = Decimal(str(node))
    except InvalidOperation as error:
        raise ValueError("no number") from error
    if not value.is_finite() or abs(value.adjusted()) > 2 * WHOLE_DIGITS_MAX:
        raise ValueError("out of range")
    return value


def _parse_instant(type: PrimitiveType, text: str) -> int:
    """Return a timestamp in UTC. PyIceberg omits the offset, which means UTC."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ValueError("malformed")
    local = parse_value(PrimitiveType(type.name.replace("tz", "")), match[1])
    if not isinstance(local, int):
        raise ValueError("malformed")
    if match[2] is None:
        return local
    minutes = int(match[3]) * 60 + int(match[4])
    ahead = minutes * 60_000_000 * (1000 if type.name in NANOS else 1)
    return local - ahead if match[2] == "+" else local + ahead
