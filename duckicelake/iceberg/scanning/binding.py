"""Filters bound to a schema: names become ids, literals become iceberg values of the columns' types, NOT moves into the predicates.

A filter's literals are less strict than column defaults: an integer may stand for a time in microseconds, and any UTC offset is allowed.
"""

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from duckicelake.errors import BadRequest
from duckicelake.iceberg.scanning.expressions import (
    IS_NAN,
    NEGATED,
    NOT_NAN,
    PREFIXED,
    SETS,
    UNARY,
    And,
    BoundExpression,
    BoundPredicate,
    Expression,
    Not,
    Or,
    Predicate,
    Term,
    all_of,
    any_of,
)
from duckicelake.iceberg.schema import Schema, list_repeated_ids
from duckicelake.iceberg.single_values import FLOAT_MAX, parse_value
from duckicelake.iceberg.transforms import parse_transform
from duckicelake.iceberg.types import IcebergType, NestedField, PrimitiveType, find_decimal, walk_fields

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
        return _parse(type, node)
    except (ValueError, ArithmeticError, BadRequest) as error:
        raise BadRequest(f"Cannot read filter: {str(node)[:100]!r} is no value for a column of type {type}") from error


def round_float(value: object) -> object:
    """Return the number as a column of floats would hold it."""
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if abs(value) > FLOAT_MAX:
        return math.copysign(math.inf, value)
    return struct.unpack("<f", struct.pack("<f", value))[0]


def _parse(type: PrimitiveType, node: object) -> object:
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
