"""Filters bound to a schema: names become ids, values become the columns' own, and NOT goes into the predicates."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from duckicelake.errors import BadRequest
from duckicelake.iceberg.expressions.literals import parse_literal, round_float
from duckicelake.iceberg.expressions.tree import (
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
from duckicelake.iceberg.transforms import parse_transform
from duckicelake.iceberg.types import IcebergType, NestedField, PrimitiveType, walk_fields

NUMBERS = ("float", "double")
UNORDERED = ("unknown", "variant", "geometry", "geography")
METADATA_COLUMNS = frozenset({"_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"})
"""What clients may select beside a table's columns, and what is below them."""


@dataclass(frozen=True, slots=True)
class SchemaColumns:
    """The columns of a schema by dotted name and by id, for one reading of names."""

    by_name: Mapping[str, NestedField]
    by_id: Mapping[int, NestedField]
    repeated: frozenset[int]
    case_sensitive: bool = True
    ambiguous: frozenset[str] = field(default_factory=frozenset[str])

    def find(self, name: str) -> NestedField | None:
        """The field of that name. Raises: BadRequest: several are meant"""
        key = name if self.case_sensitive else name.lower()
        if key in self.ambiguous:
            raise BadRequest(f"Several columns are called {name[:100]!r} in any case; send 'case-sensitive': true")
        return self.by_name.get(key)

    def get(self, name: str, what: str) -> NestedField:
        """The field of that name. Raises: BadRequest: there is none"""
        found = self.find(name)
        if found is None:
            raise BadRequest(f"Cannot read {what}: the schema has no column {name[:100]!r}")
        return found


def build_schema_columns(schema: Schema, case_sensitive: bool) -> SchemaColumns:
    """Return the names of a schema's columns."""
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
    """Raise BadRequest when a name is neither a column's nor one of Iceberg's own."""
    for name in selected:
        if name.split(".", 1)[0] not in METADATA_COLUMNS:
            names.get(name, "'select'")


def bind(expression: Expression, names: SchemaColumns, *, negated: bool = False) -> BoundExpression:
    """Return the filter for the columns of a schema; `negated`: what holds of the rows of which it does not.

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
        # nothing is in an empty set, and everything outside of it
        return operation == "not-in"
    rounded_values = _round_values(operation, values) if isinstance(type, PrimitiveType) and type.name == "float" else None
    return BoundPredicate(operation, item.field_id, type, values, node, rounded_values, predicate.term.transform, is_repeated)


def _round_values(operation: str, values: tuple[object, ...]) -> tuple[object, ...] | None:
    """The values as readers take them that hold them against floats as floats; None when that is no difference."""
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
        raise BadRequest(f"Cannot read filter: {operation} is asked of the column {name!r}, which holds no floating-point numbers")
    if operation in UNARY:
        return ()
    if plain is None or plain.name.split("(")[0] in UNORDERED:
        raise BadRequest(f"Cannot read filter: {operation} is asked of the column {name!r}, whose type has no order; ask for null alone")
    if operation in PREFIXED and plain.name != "string":
        raise BadRequest(f"Cannot read filter: {operation} is asked of the column {name!r}, which holds no strings")
    found = [parse_literal(plain, value) for value in values]
    return tuple(sorted(set(found), key=_order)) if operation in SETS else tuple(found)


def _order(value: object) -> float | int | str | bytes | Decimal:
    """Values of one type are one kind."""
    assert isinstance(value, float | int | str | bytes | Decimal)
    return value
