"""Which rows a DELETE or UPDATE means, as SQL and as Python that agree."""

from dataclasses import dataclass

from tests.differential.generator.kinds import Column, quote
from tests.differential.generator.model import Row, Table


@dataclass(frozen=True, slots=True)
class Everything:
    """No WHERE at all."""


@dataclass(frozen=True, slots=True)
class KeyIn:
    """Rows whose key is one of these."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyModulo:
    """Every n-th key."""

    divisor: int
    remainder: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """Rows where a column is NULL, or (negated) is not."""

    column_id: int
    negated: bool


Predicate = Everything | KeyIn | KeyModulo | IsNull


def key_column(table: Table) -> Column:
    """The column by which rows are chosen: the first, never dropped, never NULL."""
    return table.columns[0]


def format_where(predicate: Predicate, table: Table) -> str:
    """` WHERE …`, or nothing."""
    key = quote(key_column(table).name)
    match predicate:
        case Everything():
            return ""
        case KeyIn(keys):
            return f" WHERE {key} IN ({', '.join(map(str, keys))})"
        case KeyModulo(divisor, remainder):
            return f" WHERE {key} % {divisor} = {remainder}"
        case IsNull(column_id, negated):
            return f" WHERE {quote(table.column(column_id).name)} IS {'NOT ' if negated else ''}NULL"


def holds(predicate: Predicate, table: Table, row: Row) -> bool:
    """True when the row is meant."""
    key = row.values[key_column(table).column_id]
    match predicate:
        case Everything():
            return True
        case KeyIn(keys):
            return key in keys
        case KeyModulo(divisor, remainder):
            return isinstance(key, int) and key % divisor == remainder
        case IsNull(column_id, negated):
            return (row.values.get(column_id, table.column(column_id).initial) is None) != negated
