"""A value as DuckDB's SQL writes it, and in the form in which readers are compared."""

import math
from collections import Counter, abc
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, assert_never

from tests.differential.generator.kinds import (
    BEYOND_WORDS,
    Column,
    Kind,
    Listing,
    Mapping,
    Scalar,
    Struct,
    Value,
    decimal_shape,
    format_sql_type,
    quote,
)

# What a reader's answer is turned into: hashable, NaN equal to itself, -0.0 equal to 0.0.
Plain = Any
Rows = Counter[tuple[Plain, ...]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_WIDE = Context(prec=60)


def format_literal(kind: Kind, value: Value) -> str:
    """SQL that DuckDB evaluates to exactly this value, with this type."""
    if value is None:
        return f"CAST(NULL AS {format_sql_type(kind)})"
    match kind:
        case Scalar(name):
            return _format_scalar(name, value)
        case Struct(fields):
            by_id = dict(value)
            parts = ", ".join(f"{quote(part.name)}: {format_literal(part.kind, by_id.get(part.column_id))}" for part in fields)
            return f"{{{parts}}}"
        case Listing(element):
            parts = ", ".join(format_literal(element, part) for part in value)
            return f"CAST([{parts}] AS {format_sql_type(kind)})"
        case Mapping(key, part_kind):
            parts = ", ".join(f"{format_literal(key, k)}: {format_literal(part_kind, v)}" for k, v in value)
            return f"CAST(MAP {{{parts}}} AS {format_sql_type(kind)})"
        case _:
            assert_never(kind)


def format_query(columns: Iterable[Column], rows: Iterable[abc.Mapping[int, Value]]) -> str:
    """A SELECT of exactly these rows, under the columns' names and types."""
    shown = tuple(columns)

    def format_cell(column: Column, row: abc.Mapping[int, Value]) -> str:
        return f"CAST({format_literal(column.kind, row.get(column.column_id))} AS {format_sql_type(column.kind)})"

    values = ", ".join(f"({', '.join(format_cell(column, row) for column in shown)})" for row in rows)
    return f"SELECT * FROM (VALUES {values}) AS v({', '.join(quote(column.name) for column in shown)})"


def format_default(name: str, value: Value) -> str:
    """A literal without a cast, the only form in which ADD COLUMN takes a default."""
    literal = "NULL" if value is None else _format_scalar(name, value)
    if "'" in literal:
        return literal[literal.index("'") : literal.rindex("'") + 1]
    return "NULL" if value is None else f"'{str(value).lower()}'"


def _format_scalar(name: str, value: Value) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
        case int():
            return _format_integer(name, value)
        case _:
            return f"'{value}'::{format_sql_type(Scalar(name))}"


def _format_integer(name: str, value: int) -> str:
    if value in BEYOND_WORDS.get(name, ()):
        return f"'{BEYOND_WORDS[name][value]}'::{format_sql_type(Scalar(name))}"
    match name:
        case "date":
            return f"DATE '{_EPOCH_DAY + timedelta(days=value)}'"
        case "time":
            return f"TIME '{(_EPOCH + timedelta(microseconds=value)).time()}'"
        case "timetz":
            return f"TIMETZ '{(_EPOCH + timedelta(microseconds=value)).time()}+00'"
        case "timestamp" | "timestamp_s" | "timestamp_ms":
            return f"{format_sql_type(Scalar(name))} '{_format_moment(value)}'"
        case "timestamp_ns":
            micros, nanos = divmod(value, 1000)
            return f"TIMESTAMP_NS '{_format_moment(micros - micros % 1_000_000)}.{micros % 1_000_000:06}{nanos:03}'"
        case "timestamptz":
            return f"TIMESTAMPTZ '{_format_moment(value)}+00'"
        case _:
            return f"CAST({value} AS {format_sql_type(Scalar(name))})"


def _format_moment(microseconds: int) -> str:
    return (_EPOCH + timedelta(microseconds=microseconds)).replace(tzinfo=None).isoformat(sep=" ")


def make_plain(kind: Kind, value: Value) -> Plain:
    """The model's value in the form that is compared with a reader's."""
    if value is None:
        return None
    match kind:
        case Scalar(name):
            return _make_scalar_plain(name, value)
        case Struct(fields):
            by_id = dict(value)
            return tuple((part.name, make_plain(part.kind, by_id.get(part.column_id, part.initial))) for part in fields)
        case Listing(element):
            return tuple(make_plain(element, part) for part in value)
        case Mapping(key, part_kind):
            return sort_pairs((make_plain(key, k), make_plain(part_kind, v)) for k, v in value)
        case _:
            assert_never(kind)


def _make_scalar_plain(name: str, value: Value) -> Plain:
    if name == "uuid":
        return str(value)
    if isinstance(value, float):
        return plain_float(value)
    if name.startswith("decimal"):
        _, scale = decimal_shape(name)
        return Decimal(value).quantize(Decimal(1).scaleb(-scale), context=_WIDE)
    return value


def plain_float(value: float) -> float | str:
    """NaN as text, so that it equals itself; both zeros as 0.0 (an inlined -0.0 loses its sign upstream)."""
    return "NaN" if math.isnan(value) else value + 0.0


def sort_pairs(pairs) -> tuple[Plain, ...]:
    """A map's pairs in an order of their own, since maps have none."""
    return tuple(sorted(pairs, key=repr))
