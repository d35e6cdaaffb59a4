"""Thrift's compact protocol, as far as Parquet footers need it: structs and lists are decoded one level at a time.

Shape:  a struct is its fields as (id, kind, value) in order; a value is its encoded bytes
Source: Thrift «Compact protocol encoding»
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from duckicelake.errors import Unsupported

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
FIXED_LENGTHS = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
MAX_DEPTH = 16
LONG_LIST, MAX_DELTA = 15, 15
MAX_SHIFT = 63


class ThriftField(NamedTuple):
    """One field of a struct."""

    id: int
    kind: int
    value: bytes


def split_struct(encoded: bytes) -> list[ThriftField]:
    """Return the fields of a struct, their ids ascending. Raises Unsupported for other bytes."""
    fields, end = read_struct(encoded, 0)
    if end != len(encoded):
        raise _damaged()
    return fields


def read_struct(encoded: bytes, place: int) -> tuple[list[ThriftField], int]:
    """Return the fields of the struct at an offset, and the offset of its end. Raises Unsupported for other bytes."""
    fields: list[ThriftField] = []
    try:
        end = _walk_struct(encoded, place, fields)
    except IndexError:
        raise _damaged() from None
    # Reject duplicate field ids: readers disagree on which one wins.
    if any(field.id >= following.id for field, following in pairwise(fields)):
        raise _damaged()
    return fields, end


def join_struct(fields: Iterable[ThriftField]) -> bytes:
    """Return the bytes of a struct; `fields` ascend by id."""
    encoded = bytearray()
    last = 0
    for field in fields:
        delta = field.id - last
        is_short = 0 < delta <= MAX_DELTA
        encoded += bytes([delta << 4 | field.kind]) if is_short else bytes([field.kind]) + encode_int(field.id)
        encoded += field.value
        last = field.id
    return bytes(encoded) + b"\0"


def split_list(encoded: bytes) -> tuple[int, list[bytes]]:
    """Return the kind of a list's items, and the items. Raises Unsupported for other bytes."""
    items: list[bytes] = []
    try:
        kind, count, place = _read_list_header(encoded, 0)
        for _ in range(count):
            end = _skip_item(encoded, place, kind, MAX_DEPTH)
            items.append(encoded[place:end])
            place = end
    except IndexError:
        raise _damaged() from None
    if place != len(encoded):
        raise _damaged()
    return kind, items


def join_list(kind: int, items: Sequence[bytes]) -> bytes:
    """Return the bytes of a list."""
    count = len(items)
    header = bytes([count << 4 | kind]) if count < LONG_LIST else bytes([LONG_LIST << 4 | kind]) + _encode_varint(count)
    return header + b"".join(items)


def encode_int(number: int) -> bytes:
    """Return the bytes of an i16, i32 or i64."""
    return _encode_varint(number << 1 ^ number >> 63)


def decode_int(encoded: bytes) -> int:
    """Return the number in the bytes of an i16, i32 or i64."""
    number, _ = _read_varint(encoded, 0)
    return number >> 1 ^ -(number & 1)


def encode_binary(content: bytes) -> bytes:
    """Return the bytes of a binary or string."""
    return _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _read_varint(encoded: bytes, place: int) -> tuple[int, int]:
    """Return the unsigned varint at an offset, and the offset of its end."""
    number = shift = 0
    while encoded[place] & 0x80:
        number |= (encoded[place] & 0x7F) << shift
        shift += 7
        place += 1
        if shift > MAX_SHIFT:
            raise _damaged()
    return number | encoded[place] << shift, place + 1


def _read_list_header(encoded: bytes, place: int) -> tuple[int, int, int]:
    kind, count = encoded[place] & 0x0F, encoded[place] >> 4
    if count < LONG_LIST:
        return kind, count, place + 1
    return kind, *_read_varint(encoded, place + 1)


def _walk_struct(encoded: bytes, place: int, found: list[ThriftField] | None, depth: int = MAX_DEPTH) -> int:
    """Return the offset of a struct's end; its fields are appended to `found`."""
    if depth == 0:
        raise _damaged()
    field_id = 0
    while encoded[place]:
        kind, delta = encoded[place] & 0x0F, encoded[place] >> 4
        place += 1
        if delta:
            field_id += delta
        else:
            number, place = _read_varint(encoded, place)
            field_id = number >> 1 ^ -(number & 1)
        end = _skip(encoded, place, kind, depth - 1)
        if found is not None:
            found.append(ThriftField(field_id, kind, encoded[place:end]))
        place = end
    return place + 1


def _skip_item(encoded: bytes, place: int, kind: int, depth: int) -> int:
    """Return the offset of the end of a list item; booleans in lists take one byte."""
    return _within(encoded, place + 1) if kind in (TRUE, FALSE) else _skip(encoded, place, kind, depth)


def _skip(encoded: bytes, place: int, kind: int, depth: int) -> int:
    """Return where a value ends. Raises Unsupported, or IndexError past the end."""
    if kind in FIXED_LENGTHS:
        return _within(encoded, place + FIXED_LENGTHS[kind])
    if kind in (I16, I32, I64):
        while encoded[place] & 0x80:
            place += 1
        return place + 1
    if kind == BINARY:
        length, place = _read_varint(encoded, place)
        return _within(encoded, place + length)
    if kind == STRUCT:
        return _walk_struct(encoded, place, None, depth)
    if kind in (LIST, SET) and depth:
        kind, count, place = _read_list_header(encoded, place)
        for _ in range(count):
            place = _skip_item(encoded, place, kind, depth - 1)
        return place
    raise _damaged()


def _within(encoded: bytes, place: int) -> int:
    if place > len(encoded):
        raise _damaged()
    return place


def _damaged() -> Unsupported:
    return Unsupported("A Parquet file's footer is damaged, or of a kind that no known writer makes.")
