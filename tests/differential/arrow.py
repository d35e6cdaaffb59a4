"""Rows of any reader, from Arrow into the form that is compared, checking Arrow's type on the way."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.types as pt

from tests.differential.generator.kinds import Column, Kind, Listing, Mapping, Scalar, Struct
from tests.differential.generator.literals import Plain, Rows, plain_float, sort_pairs


class WrongShape(AssertionError):
    """A reader's columns or types are not those of the model."""


def plain_rows(columns: Sequence[Column], table: pa.Table) -> Rows:
    """The rows of a reader's answer, as a multiset."""
    if table.column_names != [column.name for column in columns]:
        raise WrongShape(f"columns {table.column_names}, expected {[column.name for column in columns]}")
    plain = [_plain_chunks(column, table.column(index)) for index, column in enumerate(columns)]
    return Counter(zip(*plain, strict=True))


def _plain_chunks(column: Column, chunks: pa.ChunkedArray) -> list[Plain]:
    try:
        return [value for chunk in chunks.chunks for value in _plain_array(column.kind, chunk)]
    except WrongShape as wrong:
        raise WrongShape(f"column {column.name}: {wrong}") from wrong


def _plain_array(kind: Kind, array: Any) -> list[Plain]:
    if isinstance(array.type, pa.DictionaryType):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    match kind:
        case Scalar(name):
            return _plain_scalars(name, array)
        case Struct(fields):
            return _plain_structs(fields, array)
        case Listing(element):
            _check(pt.is_list(array.type) or pt.is_large_list(array.type), kind, array)
            values = _plain_array(element, array.values)
            return [None if span is None else tuple(values[span]) for span in _spans(array)]
        case Mapping(key, value):
            _check(pt.is_map(array.type), kind, array)
            keys, values = _plain_array(key, array.keys), _plain_array(value, array.items)
            return [None if span is None else sort_pairs(zip(keys[span], values[span], strict=True)) for span in _spans(array)]


def _plain_structs(fields: tuple[Column, ...], array: Any) -> list[Plain]:
    _check(pt.is_struct(array.type), fields, array)
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    if names != [part.name for part in fields]:
        raise WrongShape(f"fields {names}, expected {[part.name for part in fields]}")
    parts = [[(part.name, value) for value in _plain_array(part.kind, array.field(index))] for index, part in enumerate(fields)]
    rows = list(zip(*parts, strict=True))
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _spans(array: Any) -> list[slice | None]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [slice(offsets[index], offsets[index + 1]) if valid[index] else None for index in range(len(array))]


def _plain_scalars(name: str, array: Any) -> list[Plain]:
    is_right, convert = _SCALARS[name.partition("(")[0]]
    _check(is_right(array.type), name, array)
    return convert(array)


def _check(is_right: bool, kind: object, array: Any) -> None:
    if not is_right:
        raise WrongShape(f"Arrow type {array.type}, expected one for {kind}")


def _as_integers(array: Any) -> list[Plain]:
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


def _is_timestamp(kind: pa.DataType) -> bool:
    return pt.is_timestamp(kind) and kind.tz is None


def _is_instant(kind: pa.DataType) -> bool:
    return pt.is_timestamp(kind) and kind.tz is not None


def _is_uuid(kind: pa.DataType) -> bool:
    return _is_text(kind) or _is_bytes(kind)


_INTEGERS = (pt.is_integer, _as_integers)
_SCALARS: dict[str, tuple[Callable[[pa.DataType], bool], Callable[[Any], list[Plain]]]] = {
    "boolean": (pt.is_boolean, _as_is),
    "int8": _INTEGERS,
    "int16": _INTEGERS,
    "int32": _INTEGERS,
    "int64": _INTEGERS,
    "uint8": _INTEGERS,
    "uint16": _INTEGERS,
    "float32": (pt.is_float32, _as_floats),
    "float64": (pt.is_float64, _as_floats),
    "decimal": (pt.is_decimal, _as_is),
    "varchar": (_is_text, _as_is),
    "blob": (_is_bytes, _as_is),
    "uuid": (_is_uuid, _as_uuids),
    "date": (pt.is_date, _as_days),
    "time": (pt.is_time, _as_microseconds),
    "timestamp": (_is_timestamp, _as_microseconds),
    "timestamptz": (_is_instant, _as_microseconds),
}
