"""Rows of Arrow as 64-bit numbers that depend on nothing but the values: the same for every engine that shows the same rows.

The *Iceberg* type says what a value is, so it does not matter in which of Arrow's types an engine gives it. NULL differs from empty, and
-0.0 from 0.0; every NaN is one, and the entries of a map have no order.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from duckicelake.errors import Unsupported
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal

Hashes = NDArray[np.uint64]

NULL = np.uint64(0x6E756C6C9E3779B1)
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_WORD_BYTES = 8
_LONG_BYTES = 1024
"""Values that are longer are hashed one by one."""

_WHOLE = {
    "boolean": pa.uint8(),
    "int": pa.int64(),
    "long": pa.int64(),
    "date": pa.int32(),
    "time": pa.int64(),
    "timestamp": pa.int64(),
    "timestamptz": pa.int64(),
    "timestamp_ns": pa.int64(),
}
_BYTES = ("string", "binary", "uuid")


def hash_rows(rows: pa.RecordBatch, fields: Sequence[NestedField]) -> Hashes:
    """A number for each row, by these columns of it, which are found by name."""
    found = np.zeros(rows.num_rows, np.uint64)
    for field in fields:
        found = _join(found, hash_values(rows.column(rows.schema.get_field_index(field.name)), field.type))
    return mix(found)


def hash_values(values: Any, form: IcebergType) -> Hashes:
    """A number for each value of an Arrow array."""
    if isinstance(values.type, pa.DictionaryType):
        values = values.dictionary_decode()
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    found = _hash_filled(values, form)
    if values.null_count:
        found[~_as_numpy(values.is_valid())] = NULL
    return found


def mix(numbers: Hashes) -> Hashes:
    """Numbers of which each bit depends on every bit of the given ones.

    Source: the finaliser of SplitMix64
    """
    mixed = numbers + _ODD
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def _hash_filled(values: Any, form: IcebergType) -> Hashes:
    match form:
        case StructType(fields):
            found = np.zeros(len(values), np.uint64)
            for field in fields:
                found = _join(found, hash_values(values.field(values.type.get_field_index(field.name)), field.type))
            return mix(found)
        case ListType():
            return _hash_spans(values, lambda span: _number(values.values.slice(*span), form.element_type, values.offsets))
        case MapType():
            return _hash_spans(
                values,
                lambda span: mix(
                    _join(hash_values(values.keys.slice(*span), form.key_type), hash_values(values.items.slice(*span), form.value_type))
                ),
            )
        case PrimitiveType():
            return _hash_leaves(values, form)


def _hash_spans(values: Any, hash_parts: Callable[[tuple[int, int]], Hashes]) -> Hashes:
    """The sum of the parts that belong to each value, and their number."""
    offsets = _as_numpy(values.offsets).astype(np.int64)
    first = int(offsets[0])
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hash_parts((first, int(offsets[-1]) - first)), dtype=np.uint64)])
    starts, ends = offsets[:-1] - first, offsets[1:] - first
    return mix(sums[ends] - sums[starts] + (ends - starts).astype(np.uint64) * _ODD)


def _number(elements: Any, form: IcebergType, offsets: Any) -> Hashes:
    """Numbers of list elements that depend on their places in their lists."""
    bounds = _as_numpy(offsets).astype(np.int64)
    places = np.arange(len(elements)) - np.repeat(bounds[:-1] - bounds[0], np.diff(bounds))
    return mix(hash_values(elements, form) + mix(places.astype(np.uint64)))


def _hash_leaves(values: Any, form: PrimitiveType) -> Hashes:
    if form.name in _WHOLE:
        return mix(_as_whole(values, form.name).astype(np.int64).view(np.uint64))
    if form.name in ("float", "double"):
        size = 4 if form.name == "float" else 8
        numbers = read_plain(values.cast(pa.float32() if size == 4 else pa.float64()), np.dtype(f"<f{size}")).copy()
        numbers[np.isnan(numbers)] = np.nan
        return mix(numbers.view(np.dtype(f"<u{size}")).astype(np.uint64))
    decimal = find_decimal(form)
    if decimal is not None:
        wide = values.cast(pa.decimal128(38, decimal[1]))
        lanes = np.frombuffer(wide.buffers()[1] or b"", np.uint64).reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
        return mix(_join(lanes[:, 0], lanes[:, 1]))
    if form.name in _BYTES or form.name.startswith("fixed"):
        return _hash_bytes(values)
    raise Unsupported(f"Values of the type {form} are not compared")


def _as_whole(values: Any, name: str) -> NDArray[Any]:
    if name in ("timestamp", "timestamptz", "timestamp_ns"):
        values = values.cast(pa.timestamp("ns" if name.endswith("ns") else "us", tz=values.type.tz))
    target = _WHOLE[name]
    return read_plain(values.cast(target), np.dtype(str(target)))


def _hash_bytes(values: Any) -> Hashes:
    if pa.types.is_string(values.type) or pa.types.is_string_view(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_string())
    values = values.cast(pa.large_binary())
    offsets = np.frombuffer(values.buffers()[1] or b"\0" * 8, np.int64)[values.offset : values.offset + len(values) + 1]
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    starts, lengths = offsets[: len(values)], np.diff(offsets)
    first, end = (int(offsets[0]), int(offsets[-1])) if len(values) else (0, 0)
    padded = np.concatenate([content[first:end], np.zeros(_WORD_BYTES, np.uint8)])
    return hash_spans(padded, starts - first, lengths)


def hash_spans(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Hashes:
    """A number for each span of bytes; eight more bytes follow the last span."""
    # A word begins at every byte.
    words = np.ndarray((len(content) - _WORD_BYTES + 1,), np.dtype("<u8"), content.tobytes(), strides=(1,))
    found = mix(lengths.astype(np.uint64))
    for place in np.flatnonzero(lengths > _LONG_BYTES):
        span = content[starts[place] : starts[place] + lengths[place]]
        found[place] = int.from_bytes(hashlib.blake2b(span.tobytes(), digest_size=8).digest(), "little")
    alive = np.flatnonzero((lengths > 0) & (lengths <= _LONG_BYTES))
    at, left = starts[alive], lengths[alive]
    while alive.size:
        word = words[at]
        short = left < _WORD_BYTES
        word[short] &= (np.uint64(1) << (left[short] * 8).astype(np.uint64)) - np.uint64(1)
        found[alive] = mix(_join(found[alive], word))
        more = left > _WORD_BYTES
        alive, at, left = alive[more], at[more] + _WORD_BYTES, left[more] - _WORD_BYTES
    return found


def _join(before: Hashes, added: Hashes) -> Hashes:
    """What depends on both and on their order."""
    joined = (before ^ (before >> np.uint64(29))) * _FIRST
    joined += added
    return joined * _ODD


def read_plain(values: Any, form: np.dtype[Any]) -> NDArray[Any]:
    """The values of an array as they lie in memory, whatever stands where there is none."""
    return np.frombuffer(values.buffers()[1] or b"", form)[values.offset : values.offset + len(values)]


def _as_numpy(values: Any) -> NDArray[Any]:
    return values.to_numpy(zero_copy_only=False)
