"""Rows of any reader, from Arrow into the form that is compared, checking Arrow's exact type on the way."""

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt

from tests.differential.generator.kinds import ICEBERG_NAMES, NARROW, Column, Kind, Listing, Mapping, Scalar, Struct, decimal_shape
from tests.differential.generator.literals import Plain, Rows, plain_float, sort_pairs

Shape = Callable[[pa.DataType], bool]


class Dialect(Enum):
    """Whose types an answer has: DuckLake's own, also after clients wrote to the table, or those that Iceberg gives them."""

    DUCKLAKE = "ducklake"
    WIDENED = "ducklake, narrow types perhaps widened"
    ICEBERG = "iceberg"


class WrongShape(AssertionError):
    """A reader's columns or types are not those of the model."""


def plain_rows(columns: Sequence[Column], table: pa.Table, dialect: Dialect = Dialect.ICEBERG) -> Rows:
    """The rows of a reader's answer, as a multiset; columns go by name, for clients may have moved them."""
    if sorted(table.column_names) != sorted(column.name for column in columns):
        raise WrongShape(f"columns {table.column_names}, expected {[column.name for column in columns]}")
    plain = [_plain_chunks(column, table.column(column.name), dialect) for column in columns]
    return Counter(zip(*plain, strict=True))


def _plain_chunks(column: Column, chunks: pa.ChunkedArray, dialect: Dialect) -> list[Plain]:
    try:
        return [value for chunk in chunks.chunks for value in _plain_array(column.kind, chunk, dialect)]
    except WrongShape as wrong:
        raise WrongShape(f"column {column.name}: {wrong}") from wrong


def _plain_array(kind: Kind, array: Any, dialect: Dialect) -> list[Plain]:
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    match kind:
        case Scalar(name):
            return _plain_scalars(name, array, dialect)
        case Struct(fields):
            return _plain_structs(fields, array, dialect)
        case Listing(element):
            _check(pt.is_list(array.type) or pt.is_large_list(array.type), kind, array)
            values = _plain_array(element, array.values, dialect)
            return [None if span is None else tuple(values[span]) for span in _spans(array)]
        case Mapping(key, value):
            _check(pt.is_map(array.type), kind, array)
            keys, values = _plain_array(key, array.keys, dialect), _plain_array(value, array.items, dialect)
            return [None if span is None else sort_pairs(zip(keys[span], values[span], strict=True)) for span in _spans(array)]


def _plain_structs(fields: tuple[Column, ...], array: Any, dialect: Dialect) -> list[Plain]:
    _check(pt.is_struct(array.type), fields, array)
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    if names != [part.name for part in fields]:
        raise WrongShape(f"fields {names}, expected {[part.name for part in fields]}")
    parts = [[(part.name, value) for value in _plain_array(part.kind, array.field(index), dialect)] for index, part in enumerate(fields)]
    rows = list(zip(*parts, strict=True))
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _spans(array: Any) -> list[slice | None]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [slice(offsets[index], offsets[index + 1]) if valid[index] else None for index in range(len(array))]


def _plain_scalars(name: str, array: Any, dialect: Dialect) -> list[Plain]:
    if not find_shape(name, dialect)(array.type):
        raise WrongShape(f"Arrow type {array.type}, expected one for {name} in {dialect.value}")
    return next(convert for is_such, convert in _CONVERTERS if is_such(name, array.type))(array)


def find_shape(name: str, dialect: Dialect) -> Shape:
    """Which Arrow types say exactly what a DuckLake type is, or what Iceberg makes of it."""
    if name.startswith("decimal"):
        wanted = pa.decimal128(*decimal_shape(name))
        return lambda found: found == wanted
    iceberg = ICEBERG_NAMES[name]
    if dialect is Dialect.WIDENED and name in NARROW:
        return lambda found: _DUCKLAKE[name](found) or _ICEBERG[iceberg](found)
    if dialect is not Dialect.ICEBERG:
        return _DUCKLAKE[name]
    if iceberg.startswith("decimal"):
        wide = pa.decimal128(*decimal_shape(iceberg.replace(" ", "")))
        return lambda found: found == wide
    return _ICEBERG[iceberg]


def _check(is_right: bool, kind: object, array: Any) -> None:
    if not is_right:
        raise WrongShape(f"Arrow type {array.type}, expected one for {kind}")


def _as_integers(array: Any) -> list[Plain]:
    return array.to_pylist()


def _as_nanoseconds(array: Any) -> list[Plain]:
    return array.cast(pa.int64()).to_pylist()


def _as_microseconds(array: Any) -> list[Plain]:
    micros = pa.time64("us") if pt.is_time(array.type) else pa.timestamp("us", tz=array.type.tz)
    return array.cast(micros).cast(pa.int64()).to_pylist()


def _as_days(array: Any) -> list[Plain]:
    return array.cast(pa.date32()).cast(pa.int32()).to_pylist()


def _as_floats(array: Any) -> list[Plain]:
    return [None if value is None else plain_float(value) for value in array.to_pylist()]


def _as_uuids(array: Any) -> list[Plain]:
    return [None if value is None else str(UUID(bytes=value) if isinstance(value, bytes) else UUID(value)) for value in array.to_pylist()]


def _as_is(array: Any) -> list[Plain]:
    return array.to_pylist()


def _is_text(kind: pa.DataType) -> bool:
    return pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)


def _is_uuid(kind: pa.DataType) -> bool:
    return _is_text(kind) or kind == pa.binary(16)


def _exactly(wanted: pa.DataType) -> Shape:
    return lambda found: found == wanted


def _instant(unit: str) -> Shape:
    return lambda found: pt.is_timestamp(found) and found.unit == unit and found.tz is not None


_SHARED: dict[str, Shape] = {
    "boolean": pt.is_boolean,
    "uuid": _is_uuid,
    "date": _exactly(pa.date32()),
    "time": _exactly(pa.time64("us")),
    "timestamp": _exactly(pa.timestamp("us")),
    "timestamp_ns": _exactly(pa.timestamp("ns")),
    "timestamptz": _instant("us"),
}
_ICEBERG: dict[str, Shape] = {
    **_SHARED,
    "int": _exactly(pa.int32()),
    "long": _exactly(pa.int64()),
    "float": _exactly(pa.float32()),
    "double": _exactly(pa.float64()),
    "string": _is_text,
    "binary": _is_bytes,
}
_DUCKLAKE: dict[str, Shape] = {
    **_SHARED,
    **{f"{sign}int{bits}": _exactly(pa.type_for_alias(f"{sign}int{bits}")) for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{name: _exactly(pa.decimal128(38, 0)) for name in ("int128", "uint128")},
    "float32": _exactly(pa.float32()),
    "float64": _exactly(pa.float64()),
    "timetz": _exactly(pa.time64("us")),
    "timestamp_s": _exactly(pa.timestamp("s")),
    "timestamp_ms": _exactly(pa.timestamp("ms")),
    "varchar": _is_text,
    "blob": _is_bytes,
}
_CONVERTERS: tuple[tuple[Callable[[str, pa.DataType], bool], Callable[[Any], list[Plain]]], ...] = (
    (lambda name, kind: name == "uuid", _as_uuids),
    (lambda name, kind: pt.is_integer(kind), _as_integers),
    (lambda name, kind: pt.is_floating(kind), _as_floats),
    (lambda name, kind: pt.is_date(kind), _as_days),
    (lambda name, kind: kind == pa.timestamp("ns"), _as_nanoseconds),
    (lambda name, kind: pt.is_time(kind) or pt.is_timestamp(kind), _as_microseconds),
    (lambda name, kind: True, _as_is),
)
