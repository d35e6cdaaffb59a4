"""Random columns, rows and filters, and what a filter means for a row."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.single_values import format_value, lower_bound, upper_bound
from duckicelake.iceberg.transforms import to_decimal
from duckicelake.iceberg.types import NestedField, PrimitiveType

SHORT = st.text("ab", max_size=3) | st.text("aab\u00e9\ud7ff\ue000\U0010ffff", max_size=20)
WHOLES = st.integers(-30, 30) | st.sampled_from([-(2**31), 2**31 - 1, -(2**31) + 3])
LONGS = WHOLES | st.sampled_from([-(2**63), 2**63 - 1, 2**40])
MICROS = st.integers(-5, 5) | st.integers(-(10**13), 10**13)
FLOATS = st.sampled_from([0.0, -0.0, 0.1, 0.10000000149011612, 1.5, -2.0, 3e38, float("inf"), float("-inf"), float("nan")])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": WHOLES,
    "long": LONGS,
    "float": FLOATS.map(lambda value: struct.unpack("<f", struct.pack("<f", value))[0]),
    "double": FLOATS,
    "date": st.integers(-800, 800),
    "time": st.integers(0, 86_399_999_999),
    "timestamp": MICROS,
    "timestamptz": MICROS,
    "timestamp_ns": MICROS.map(lambda value: value * 1000 + 7),
    "string": SHORT,
    "binary": st.binary(max_size=20) | st.just(b"\xff" * 17),
    "uuid": st.binary(min_size=16, max_size=16),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "decimal(9, 2)": st.integers(-500, 500).map(lambda value: to_decimal(value, 2)),
}
TRANSFORMS = {
    "int": ("bucket[4]", "truncate[7]"),
    "long": ("bucket[4]", "truncate[10]"),
    "date": ("year", "month", "day", "bucket[3]"),
    "time": ("bucket[3]",),
    "timestamp": ("year", "month", "day", "hour"),
    "timestamptz": ("day", "hour", "bucket[5]"),
    "timestamp_ns": ("day", "hour"),
    "string": ("truncate[2]", "bucket[4]"),
    "binary": ("truncate[1]", "bucket[4]"),
    "uuid": ("bucket[4]",),
    "decimal(9, 2)": ("truncate[50]", "bucket[4]"),
}
PLAIN = ("lt", "lt-eq", "gt", "gt-eq", "eq", "not-eq", "in", "not-in", "is-null", "not-null")
FIELD_ID = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column `c` of one type and the values of a file's rows."""

    type: PrimitiveType
    values: tuple[Any, ...]

    @property
    def schema(self) -> Schema:
        """The schema of that column alone."""
        return Schema(0, (NestedField(FIELD_ID, "c", self.type, False),))


@st.composite
def columns(draw: st.DrawFn) -> Column:
    """A column with a few rows, some of them null."""
    name = draw(st.sampled_from(sorted(VALUES)))
    values = draw(st.lists(st.none() | VALUES[name] | VALUES[name], min_size=1, max_size=4))
    return Column(PrimitiveType(name), tuple(values))


@st.composite
def predicates(draw: st.DrawFn, type: PrimitiveType) -> dict[str, Any]:
    """A predicate on the column `c`, as JSON."""
    floating = ("is-nan", "not-nan") if type.name in ("float", "double") else ()
    texts = ("starts-with", "not-starts-with") if type.name == "string" else ()
    kind = draw(st.sampled_from((*PLAIN, *floating, *texts)))
    literal = VALUES[type.name].filter(lambda value: value == value).map(lambda value: to_node(type, value))
    if kind in ("in", "not-in"):
        return {"type": kind, "term": "c", "values": draw(st.lists(literal, min_size=1, max_size=3))}
    return {"type": kind, "term": "c"} if kind.startswith(("is-", "not-n")) else {"type": kind, "term": "c", "value": draw(literal)}


def filters(type: PrimitiveType) -> st.SearchStrategy[dict[str, Any]]:
    """Predicates joined by AND, OR and NOT."""
    return st.recursive(
        predicates(type),
        lambda inner: (
            st.builds(lambda kind, left, right: {"type": kind, "left": left, "right": right}, st.sampled_from(["and", "or"]), inner, inner)
            | inner.map(lambda child: {"type": "not", "child": child})
        ),
        max_leaves=4,
    )


def to_node(type: PrimitiveType, value: Any) -> object:
    """A value as JSON."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return format_value(type, value)


def describe(column: Column, *, counts: bool = True) -> DataFile:
    """What a manifest says of a file with those rows."""
    ordered = [value for value in column.values if value is not None and value == value]
    nulls, nans = column.values.count(None), sum(value != value for value in column.values)
    lower = lower_bound(column.type, min(ordered)) if ordered else None
    upper = upper_bound(column.type, max(ordered)) if ordered else None
    is_floating = column.type.name in ("float", "double")
    return DataFile(
        content=0,
        file_path="s3://b/f",
        file_format="PARQUET",
        partition=(),
        record_count=len(column.values),
        file_size_in_bytes=1,
        value_counts={FIELD_ID: len(column.values)} if counts else None,
        null_value_counts={FIELD_ID: nulls} if counts else None,
        nan_value_counts={FIELD_ID: nans} if counts and is_floating else None,
        lower_bounds=None if lower is None else {FIELD_ID: lower},
        upper_bounds=None if upper is None else {FIELD_ID: upper},
    )


def matches(node: Any, type: PrimitiveType, parse: Any, value: Any) -> bool | None:
    """Tell whether a row fits a filter as SQL means it, NaN behind all numbers and equal to itself; None: unknown."""
    match node["type"]:
        case "and" | "or":
            sides = [matches(node[side], type, parse, value) for side in ("left", "right")]
            decisive = node["type"] == "or"
            return decisive if decisive in sides else None if None in sides else not decisive
        case "not":
            inner = matches(node["child"], type, parse, value)
            return None if inner is None else not inner
        case "is-null" | "not-null":
            return (value is None) is (node["type"] == "is-null")
        case _ if value is None:
            return None
        case "is-nan" | "not-nan":
            return (value != value) is (node["type"] == "is-nan")
        case kind:
            literals: Sequence[Any] = [parse(type, item) for item in node.get("values", [node.get("value")])]
            return compare(kind, value, literals)


def compare(kind: str, value: Any, literals: Sequence[Any]) -> bool:
    """Hold one value that is not null against the literals, of which none is NaN."""
    first = literals[0]
    is_nan = value != value
    match kind:
        case "lt" | "lt-eq":
            return not is_nan and (value < first or (kind == "lt-eq" and value == first))
        case "gt" | "gt-eq":
            return is_nan or value > first or (kind == "gt-eq" and value == first)
        case "eq" | "in":
            return value in literals
        case "not-eq" | "not-in":
            return value not in literals
        case _:
            return value.startswith(first) is (kind == "starts-with")
