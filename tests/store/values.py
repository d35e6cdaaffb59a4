"""Types a DuckLake column can have, and values of them.

A value's *plain* form has numbers for dates and times and 16 bytes for a UUID, a dict for a struct and a list of pairs for a
map, and floats by their bits. It is what the tests compare.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import strategies as st

FIELD_NAMES = ["a", "B b", "it's", 'q"uo', "back\\slash", "NULL", "{x", "ü", "k:=v,", " lead"]
LAST_MICRO = 2**63 - 2
FIRST_MICRO = -9_223_372_022_400_000_000

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
AWKWARD_TEXT = st.text(st.sampled_from("ab'\"\\[]{}(),:= \n\tüN"), max_size=6)
WORDS = st.sampled_from(["", "NULL", "null", "nULl", "true", "1.5", "nan", " x ", "''", "\\", "\\'", "}", "]", "CAST('x' AS T)", "'::T"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2)
)


@dataclass(frozen=True)
class Kind:
    """A type: how SQL calls it, what goes into DuckDB through Arrow, and plain values with their way in."""

    sql: str
    arrow: pa.DataType
    values: st.SearchStrategy[Any]
    enter: Callable[[Any], Any] = lambda value: value

    def enter_or_null(self, value: Any) -> Any:
        """What goes into DuckDB for a plain value or NULL."""
        return None if value is None else self.enter(value)

    def enter_all(self, values: list[Any]) -> Any:
        """The Arrow array that goes into DuckDB for a column of plain values."""
        return pa.array([self.enter_or_null(value) for value in values], self.arrow)


def _decimal(precision: int, scale: int) -> Kind:
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda number: Decimal(f"{number}E-{scale}"))
    return Kind(f"DECIMAL({precision}, {scale})", pa.decimal128(precision, scale), numbers)


def _integer(sql: str, arrow: pa.DataType, lowest: int, highest: int) -> Kind:
    return Kind(sql, arrow, st.integers(lowest, highest))


LEAVES = [
    Kind("BOOLEAN", pa.bool_(), st.booleans()),
    _integer("TINYINT", pa.int8(), -(2**7), 2**7 - 1),
    _integer("SMALLINT", pa.int16(), -(2**15), 2**15 - 1),
    _integer("INTEGER", pa.int32(), -(2**31), 2**31 - 1),
    _integer("BIGINT", pa.int64(), -(2**63), 2**63 - 1),
    _integer("UTINYINT", pa.uint8(), 0, 2**8 - 1),
    _integer("USMALLINT", pa.uint16(), 0, 2**16 - 1),
    _integer("UINTEGER", pa.uint32(), 0, 2**32 - 1),
    _integer("UBIGINT", pa.uint64(), 0, 2**64 - 1),
    Kind("HUGEINT", pa.string(), st.integers(-(2**53), 2**53).map(lambda number: float(number << 70)), lambda value: str(int(value))),
    Kind("FLOAT", pa.float32(), st.floats(width=32)),
    Kind("DOUBLE", pa.float64(), st.floats()),
    _decimal(4, 1),
    _decimal(9, 2),
    _decimal(18, 3),
    _decimal(38, 10),
    Kind("VARCHAR", pa.string(), TEXT | AWKWARD_TEXT | WORDS),
    Kind("JSON", pa.string(), JSON.map(json.dumps)),
    Kind("BLOB", pa.binary(), st.binary(max_size=8)),
    Kind("UUID", pa.string(), st.binary(min_size=16, max_size=16), lambda value: str(UUID(bytes=value))),
    Kind("DATE", pa.date32(), st.integers(-(10**9), 2**31 - 2) | st.sampled_from([2**31 - 1, -(2**31) + 1])),
    Kind("TIME", pa.time64("us"), st.integers(0, 86_400_000_000 - 1)),
    Kind("TIMESTAMP", pa.timestamp("us"), st.integers(FIRST_MICRO, LAST_MICRO) | st.sampled_from([2**63 - 1, -(2**63) + 1])),
    Kind("TIMESTAMPTZ", pa.timestamp("us", "UTC"), st.integers(FIRST_MICRO, LAST_MICRO) | st.sampled_from([2**63 - 1, -(2**63) + 1])),
    Kind("TIMESTAMP_S", pa.timestamp("s"), st.integers(-(10**12), 10**12).map(lambda s: s * 10**6), lambda value: value // 10**6),
    Kind("TIMESTAMP_MS", pa.timestamp("ms"), st.integers(-(10**15), 10**15).map(lambda ms: ms * 10**3), lambda value: value // 10**3),
    Kind("TIMESTAMP_NS", pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
]
KEYS = [kind for kind in LEAVES if kind.sql in ("INTEGER", "VARCHAR", "BLOB", "DATE", "UUID", "TIMESTAMP", "DECIMAL(9, 2)")]


def make_list(element: Kind) -> Kind:
    """Lists of a type, NULLs among them."""
    return Kind(
        f"{element.sql}[]",
        pa.list_(element.arrow),
        st.lists(st.none() | element.values, max_size=3),
        lambda value: [element.enter_or_null(item) for item in value],
    )


def make_map(key: Kind, value: Kind) -> Kind:
    """Maps between types; keys differ and are never NULL."""
    return Kind(
        f"MAP({key.sql}, {value.sql})",
        pa.map_(key.arrow, value.arrow),
        st.lists(st.tuples(key.values, st.none() | value.values), max_size=3, unique_by=lambda pair: pair[0]),
        lambda pairs: [(key.enter(k), value.enter_or_null(v)) for k, v in pairs],
    )


def make_struct(fields: dict[str, Kind]) -> Kind:
    """Structs of named fields, any of which may be NULL."""
    declared = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" {kind.sql}' for name, kind in fields.items())
    return Kind(
        f"STRUCT({declared})",
        pa.struct([pa.field(name, kind.arrow) for name, kind in fields.items()]),
        st.fixed_dictionaries({name: st.none() | kind.values for name, kind in fields.items()}),
        lambda value: {name: kind.enter_or_null(value[name]) for name, kind in fields.items()},
    )


def structs(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    """Struct types of one to three fields."""
    return st.dictionaries(st.sampled_from(FIELD_NAMES), inner, min_size=1, max_size=3).map(make_struct)


KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: inner.map(make_list) | st.builds(make_map, st.sampled_from(KEYS), inner) | structs(inner),
    max_leaves=5,
)
NESTED_KINDS = structs(KINDS) | KINDS.map(make_list) | st.builds(make_map, st.sampled_from(KEYS), KINDS)


def plain_values(array: Any) -> list[Any]:
    """The plain form of an Arrow array's values, floats by their bits."""
    return [_by_bits(value) for value in array.view(_plain_type(array.type)).to_pylist()]


def by_bits(values: list[Any]) -> list[Any]:
    """Plain values with their floats by their bits, of the width given."""
    return [_by_bits(value) for value in values]


def _by_bits(value: Any) -> Any:
    if isinstance(value, float):
        return b"nan" if value != value else struct.pack(">d", value)
    if isinstance(value, dict):
        return {name: _by_bits(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_by_bits(part) for part in value)
    return value


def _plain_type(arrow: Any) -> pa.DataType:
    if isinstance(arrow, pa.BaseExtensionType):
        return arrow.storage_type
    if pa.types.is_date32(arrow):
        return pa.int32()
    if pa.types.is_temporal(arrow):
        return pa.int64()
    if pa.types.is_list(arrow):
        return pa.list_(pa.field("element", _plain_type(arrow.value_type)))
    if pa.types.is_map(arrow):
        return pa.map_(_plain_type(arrow.key_type), _plain_type(arrow.item_type))
    if pa.types.is_struct(arrow):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in arrow])
    return arrow
