"""64-bit hashes of Arrow rows that depend on nothing but the values; Spark computes the same ones in `checksums.py`.

`checksums` calls it: in the driver for rows from DuckDB, in executors for examples of different rows. Pure.

A row is the chain of its columns, each hashed by XXH64 with the hash so far as seed, as Spark's function `xxhash64` does it. That passes
over NULL and takes -0.0 for 0.0, so marks go before the values: NULL differs from empty, and -0.0 from 0.0; every NaN is one. The *Iceberg*
type says what a value is, so the Arrow type that an engine uses does not matter. Elements of a list are added up with their
positions, entries of a map without, as these have no order.

Source: XXH64 of the xxHash specification, and Spark's XXH64.java for whole numbers of 4 and 8 bytes, hashed lowest byte first
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from duckicelake.errors import Unsupported
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal

Hashes = NDArray[np.uint64]

WORD_BYTES = 8
_STRIPE_BYTES = 32
_BLOCK = 16384
_LOW, _BYTE = np.uint64(0xFFFF_FFFF), np.uint64(0xFF)
_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4, _P5 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_LANES = (np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) % (1 << 64)), _P2, np.uint64(0), np.uint64((1 << 64) - 0x9E3779B185EBCA87))
_TURNS = (1, 7, 12, 18)


def hash_longs(values: Hashes, seeds: Hashes) -> Hashes:
    """Return a number for each of these numbers of 64 bits."""
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        begun = np.add(seeds[block], np.uint64(0x27D4EB2F165667C5 + WORD_BYTES), out=found[block])
        _finish(_add_words(begun, values[block]))
    return found


def hash_ints(values: NDArray[np.uint32], seeds: Hashes) -> Hashes:
    """Return a number for each of these numbers of 32 bits."""
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        begun = np.add(seeds[block], np.uint64(0x27D4EB2F165667C5 + WORD_BYTES // 2), out=found[block])
        _finish(_add_halves(begun, values[block].astype(np.uint64)))
    return found


def hash_spans(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """Return a number for each span of bytes; eight more bytes follow the last span."""
    # A word begins at every byte.
    words = np.ndarray((len(content) - WORD_BYTES + 1,), np.dtype("<u8"), content.data, strides=(1,))
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        at, sizes = starts[block], lengths[block]
        left = (sizes & (_STRIPE_BYTES - 1)).astype(np.uint8)
        numbers = np.add(seeds[block], _P5, out=found[block])
        long = np.flatnonzero(sizes >= _STRIPE_BYTES)
        if long.size:
            numbers[long] = _hash_stripes(words, at[long], sizes[long], seeds[block][long])
            at = at + (sizes - left)
        numbers += sizes.view(np.uint64)
        _finish(_add_rest(numbers, words, at, left))
    return found


def _list_blocks(count: int) -> Iterator[slice]:
    """Return parts of so many values that what is made of them stays near."""
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def _add_rest(numbers: Hashes, words: Hashes, at: NDArray[np.int64], left: NDArray[np.uint8]) -> Hashes:
    """Go on with the last bytes of spans, so many of each, fewer than a stripe."""
    for end in range(WORD_BYTES, int(left.max(initial=0)) + 1, WORD_BYTES):
        # What lies behind the last span is read for shorter ones, and not gone on with.
        _go_on(_add_words, numbers, words[np.minimum(at + (end - WORD_BYTES), len(words) - 1)], left >= end)
    if not (left % WORD_BYTES).any():
        return numbers
    rest = words[at + (left & 0xF8)]
    has_half = left & 4 != 0
    _go_on(_add_halves, numbers, rest & _LOW, has_half)
    rest >>= has_half.astype(np.uint64) << np.uint64(5)
    for size in range(1, 4):
        _go_on(_add_bytes, numbers, rest & _BYTE, left & 3 >= size)
        rest >>= np.uint64(8)
    return numbers


def _go_on(add: Callable[[Hashes, Hashes], Hashes], numbers: Hashes, values: Hashes, is_there: NDArray[np.bool_]) -> None:
    """Go on with values where they are there, in place; they are spent."""
    count = int(np.count_nonzero(is_there))
    if count == len(numbers):
        add(numbers, values)
    elif count > len(numbers) // 2:
        # Most numbers are gone on with faster where they lie.
        np.copyto(numbers, add(numbers.copy(), values), where=is_there)
    elif count:
        places = np.flatnonzero(is_there)
        numbers[places] = add(numbers[places], values[places])


def _hash_stripes(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """Return what the whole stripes of spans make, each of which has one."""
    counts = lengths // _STRIPE_BYTES
    order = np.argsort(counts, kind="stable")
    at, ends = starts[order], np.cumsum(np.bincount(counts))
    lanes = [seeds[order] + lane for lane in _LANES]
    for stripe in range(len(ends) - 1):
        rest = slice(ends[stripe], None)
        for place, lane in enumerate(lanes):
            turned = lane[rest]
            turned += words[at[rest] + stripe * _STRIPE_BYTES + place * WORD_BYTES] * _P2
            _turn(turned)
    joined = np.zeros(len(order), np.uint64)
    for lane, turn in zip(lanes, _TURNS, strict=True):
        joined += (lane << np.uint64(turn)) | (lane >> np.uint64(64 - turn))
    for lane in lanes:
        joined ^= _turn(lane * _P2)
        joined *= _P1
        joined += _P4
    found = np.empty(len(order), np.uint64)
    found[order] = joined
    return found


def _add_words(numbers: Hashes, words: Hashes) -> Hashes:
    numbers ^= _turn(words * _P2)
    spare = numbers >> np.uint64(64 - 27)
    numbers <<= np.uint64(27)
    numbers |= spare
    numbers *= _P1
    numbers += _P4
    return numbers


def _add_halves(numbers: Hashes, halves: Hashes) -> Hashes:
    """Go on with half words, which are spent."""
    halves *= _P1
    numbers ^= halves
    np.right_shift(numbers, np.uint64(64 - 23), out=halves)
    numbers <<= np.uint64(23)
    numbers |= halves
    numbers *= _P2
    numbers += _P3
    return numbers


def _add_bytes(numbers: Hashes, values: Hashes) -> Hashes:
    """Go on with single bytes, which are spent."""
    values *= _P5
    numbers ^= values
    np.right_shift(numbers, np.uint64(64 - 11), out=values)
    numbers <<= np.uint64(11)
    numbers |= values
    numbers *= _P1
    return numbers


def _turn(multiplied: Hashes) -> Hashes:
    """Return the second half of a round, in place."""
    spare = multiplied >> np.uint64(64 - 31)
    multiplied <<= np.uint64(31)
    multiplied |= spare
    multiplied *= _P1
    return multiplied


def _finish(numbers: Hashes) -> Hashes:
    spare = numbers >> np.uint64(33)
    numbers ^= spare
    numbers *= _P2
    np.right_shift(numbers, np.uint64(29), out=spare)
    numbers ^= spare
    numbers *= _P3
    np.right_shift(numbers, np.uint64(32), out=spare)
    numbers ^= spare
    return numbers


SEED = 42
"""Spark's own."""
LONG_BYTES = 1024
"""The MD5 of a text or bytes that are longer stands for them."""
BLOCK_FIELDS = 30
"""So many fields have their marks in one number, two bits each."""
NULL, OTHER = 1, 2
"""A field's marks: it has no value; or it is -0.0, or its MD5 stands there."""
SUM_MASK = (1 << 62) - 1
"""Parts of lists and maps are added up modulo 2^62, which no engine's 64 bits overflow."""
LONG_DIGITS = 18
"""Decimals of more digits are hashed as the bytes of a whole number, the shortest ones, the highest first."""

_DECIMAL_BYTES = 16
_INTS = {"boolean": pa.uint8(), "int": pa.int32(), "date": pa.int32()}
_LONGS = ("long", "time", "timestamp", "timestamptz", "timestamp_ns")
_STAMPS = ("timestamp", "timestamptz", "timestamp_ns")
_FLOATS = {"float": np.dtype("<f4"), "double": np.dtype("<f8")}
_BYTES = ("string", "binary", "uuid")

Parts = Sequence[tuple[Any, IcebergType]]


def hash_rows(rows: pa.RecordBatch, fields: Sequence[NestedField]) -> Hashes:
    """Return a number for each row, by these columns of it, which are found by name."""
    parts: Any = [(rows.column(rows.schema.get_field_index(field.name)), field.type) for field in fields]
    return _chain(_begin(rows.num_rows), parts)


def hash_values(values: Any, form: IcebergType) -> Hashes:
    """Return a number for each value of an Arrow array."""
    return _chain(_begin(len(values)), [(values, form)])


def is_bytes(form: PrimitiveType) -> bool:
    """Return True if values are hashed as the bytes that they are."""
    return form.name in _BYTES or form.name.startswith("fixed")


def is_float(form: PrimitiveType) -> bool:
    """Return True if there is a zero below zero."""
    return form.name in _FLOATS


def read_plain(values: Any, form: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of an array as they lie in memory, with arbitrary values where there is NULL."""
    return np.frombuffer(values.buffers()[1] or b"", form)[values.offset : values.offset + len(values)]


def _begin(count: int) -> Hashes:
    return np.full(count, SEED, np.uint64)


def _chain(numbers: Hashes, parts: Parts, *, is_begun: bool = False) -> Hashes:
    """Return the numbers so far, and after them these values of each: the marks of a block of fields, then its values.

    `is_begun`: the numbers are not the seed alone.
    """
    for start in range(0, len(parts), BLOCK_FIELDS):
        block = [_Leaves(_unwrap(values), form) for values, form in parts[start : start + BLOCK_FIELDS]]
        numbers = _mark(block, numbers, is_first=start == 0 and not is_begun)
        for leaves in block:
            numbers = leaves.join(numbers)
    return numbers


def _mark(block: "list[_Leaves]", numbers: Hashes, *, is_first: bool) -> Hashes:
    marks = np.zeros(len(numbers), np.uint64)
    for place, leaves in enumerate(block):
        leaves.mark(marks, 2 * place)
    if is_first and not marks.any():
        # All are alike: nothing but the seed came before.
        return np.full(len(numbers), hash_longs(marks[:1], numbers[:1])[0] if len(numbers) else 0, np.uint64)
    return hash_longs(marks, numbers)


def _unwrap(values: Any) -> Any:
    if isinstance(values.type, pa.DictionaryType):
        values = values.dictionary_decode()
    return values.storage if isinstance(values.type, pa.BaseExtensionType) else values


class _Leaves:
    """The values of one field, by which the numbers of rows go on."""

    def __init__(self, values: Any, form: IcebergType) -> None:
        self._values, self._form = values, form
        self._missing = None if values.null_count == 0 else ~_as_numpy(values.is_valid())
        self._floats: NDArray[Any] | None = None
        self._spans: tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]] | None = None
        if isinstance(form, PrimitiveType) and is_float(form):
            self._floats = _read_floats(values, _FLOATS[form.name])
        elif isinstance(form, PrimitiveType) and is_bytes(form):
            self._spans = _read_spans(values)

    def mark(self, marks: Hashes, bit: int) -> None:
        """Add what hashing would pass over."""
        others = None
        if self._floats is not None:
            others = self._floats == 0
            others = others & np.signbit(self._floats) if others.any() else None
        elif self._spans is not None:
            others = self._spans[2] > LONG_BYTES
        if others is not None and others.any():
            marks[others] |= np.uint64(OTHER << bit)
        if self._missing is not None:
            marks[self._missing] &= np.uint64(~(OTHER << bit) & 0xFFFF_FFFF_FFFF_FFFF)
            marks[self._missing] |= np.uint64(NULL << bit)

    def join(self, numbers: Hashes) -> Hashes:
        """Return the numbers with these values after them; where there is none they stay."""
        joined = self._hash(numbers)
        return joined if self._missing is None else np.where(self._missing, numbers, joined)

    def _hash(self, numbers: Hashes) -> Hashes:
        values, form = self._values, self._form
        match form:
            case StructType(fields):
                parts = [(values.field(values.type.get_field_index(field.name)), field.type) for field in fields]
                return hash_longs(_chain(_begin(len(values)), parts), numbers)
            case ListType():
                return hash_longs(_hash_elements(values, form), numbers)
            case MapType():
                return hash_longs(_hash_entries(values, form), numbers)
            case PrimitiveType():
                if self._floats is not None:
                    return _hash_floats(self._floats, numbers)
                return _hash_plain(values, form, numbers) if self._spans is None else _hash_bytes(*self._spans, numbers)


def _hash_elements(values: Any, form: ListType) -> Hashes:
    offsets = _read_offsets(values)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    places = np.arange(count, dtype=np.int64) - np.repeat(offsets[:-1] - first, np.diff(offsets))
    numbered = hash_longs(places.view(np.uint64), _begin(count))
    return _add_up(offsets, _chain(numbered, [(values.values.slice(first, count), form.element_type)], is_begun=True))


def _hash_entries(values: Any, form: MapType) -> Hashes:
    offsets = _read_offsets(values)
    first, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    parts = [(values.keys.slice(first, count), form.key_type), (values.items.slice(first, count), form.value_type)]
    return _add_up(offsets, _chain(_begin(count), parts))


def _read_offsets(values: Any) -> NDArray[np.int64]:
    """Return where the parts of each value begin, and the last ones end."""
    # Of no values Java's offsets take no bytes.
    return _as_numpy(values.offsets).astype(np.int64) if len(values) else np.zeros(1, np.int64)


def _add_up(offsets: NDArray[np.int64], parts: Hashes) -> Hashes:
    """Return how many parts belong to each value, and their sum."""
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(parts, dtype=np.uint64)])
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    counted = hash_longs((ends - starts).view(np.uint64), _begin(len(starts)))
    return hash_longs((sums[ends] - sums[starts]) & np.uint64(SUM_MASK), counted)


def _hash_plain(values: Any, form: PrimitiveType, numbers: Hashes) -> Hashes:
    if form.name in _INTS:
        target = _INTS[form.name]
        return hash_ints(read_plain(values.cast(target), np.dtype(str(target))).astype(np.int32).view(np.uint32), numbers)
    if form.name in _LONGS:
        return hash_longs(_read_longs(values, form.name), numbers)
    decimal = find_decimal(form)
    if decimal is None:
        raise Unsupported(f"Values of the type {form} are not compared")
    wide = values if pa.types.is_decimal128(values.type) and values.type.scale == decimal[1] else values.cast(pa.decimal128(38, decimal[1]))
    if decimal[0] > LONG_DIGITS:
        return _hash_wide(read_plain(wide, np.dtype((np.void, _DECIMAL_BYTES))), numbers)
    return hash_longs(read_plain(wide, np.dtype([("low", "<u8"), ("high", "<u8")]))["low"], numbers)


def _read_longs(values: Any, name: str) -> Hashes:
    if name in _STAMPS:
        values = values.cast(pa.timestamp("ns" if name.endswith("ns") else "us", tz=values.type.tz))
    return read_plain(values.cast(pa.int64()), np.dtype(np.int64)).view(np.uint64)


def _read_floats(values: Any, form: np.dtype[Any]) -> NDArray[Any]:
    return read_plain(values.cast(pa.float32() if form.itemsize == 4 else pa.float64()), form)


def _hash_floats(values: NDArray[Any], numbers: Hashes) -> Hashes:
    plain = values + values.dtype.type(0)
    is_nan = np.isnan(plain)
    if is_nan.any():
        plain[is_nan] = np.nan
    return hash_ints(plain.view(np.uint32), numbers) if plain.itemsize == 4 else hash_longs(plain.view(np.uint64), numbers)


def _hash_wide(values: NDArray[Any], numbers: Hashes) -> Hashes:
    """Whole numbers of 16 bytes, the lowest first, as the fewest bytes that hold them and their sign, the highest first."""
    content = values.view(np.uint8).reshape(-1, _DECIMAL_BYTES)[:, ::-1]
    sign = np.where(content[:, :1] & 0x80, 0xFF, 0).astype(np.uint8)
    # A byte is needed from the first on that is not the sign's, and one more where its highest bit is not the sign.
    is_other = content != sign
    firsts = np.where(is_other.any(axis=1), is_other.argmax(axis=1), _DECIMAL_BYTES)
    tops = content[np.arange(len(content)), np.minimum(firsts, _DECIMAL_BYTES - 1)]
    firsts -= (firsts == _DECIMAL_BYTES) | ((tops ^ sign[:, 0]) & 0x80 != 0)
    padded = np.concatenate([np.ascontiguousarray(content).ravel(), np.zeros(WORD_BYTES, np.uint8)])
    return hash_spans(padded, np.arange(len(content)) * _DECIMAL_BYTES + firsts, _DECIMAL_BYTES - firsts, numbers)


def _read_spans(values: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    """Return the bytes of all values, with a word after them; where each value begins; and how long it is."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        is_text = pa.types.is_string_view(values.type) or pa.types.is_large_string(values.type)
        values = (values.cast(pa.large_string()) if is_text else values).cast(pa.large_binary())
    is_large = pa.types.is_large_binary(values.type)
    found = np.frombuffer(values.buffers()[1] or b"\0" * WORD_BYTES, np.int64 if is_large else np.int32)
    offsets = found[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first, end = (int(offsets[0]), int(offsets[-1])) if len(values) else (0, 0)
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)[first:end]
    return np.concatenate([content, np.zeros(WORD_BYTES, np.uint8)]), offsets[: len(values)] - first, np.diff(offsets)[: len(values)]


def _hash_bytes(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], numbers: Hashes) -> Hashes:
    long = np.flatnonzero(lengths > LONG_BYTES)
    if not long.size:
        return hash_spans(content, starts, lengths, numbers)
    sums = b"".join(_list_digests(content, starts[long], lengths[long]))
    starts, lengths = starts.copy(), lengths.copy()
    size = len(sums) // len(long)
    starts[long], lengths[long] = len(content) + np.arange(len(long)) * size, size
    added = np.frombuffer(sums + b"\0" * WORD_BYTES, np.uint8)
    return hash_spans(np.concatenate([content, added]), starts, lengths, numbers)


def _list_digests(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[bytes]:
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        yield hashlib.md5(content[start : start + length].tobytes(), usedforsecurity=False).hexdigest().encode()


def _as_numpy(values: Any) -> NDArray[Any]:
    return values.to_numpy(zero_copy_only=False)
