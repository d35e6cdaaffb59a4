"""Values of the type `variant`, decoded from the bytes that a Parquet file holds, and as JSON text.

`pyiceberg_v3` calls this in the client's process. No I/O.

Shape:  metadata is u8 header | count | offsets | names; a value is u8 header (kind in the lowest 2 bits) | content; integers are LE
Source: Parquet «VariantEncoding.md», «VariantShredding.md»
"""

import base64
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import cast
from uuid import UUID

from duckicelake.errors import BadRequest

PRIMITIVE, SHORT_STRING, OBJECT, ARRAY = range(4)
EPOCH, MICROS_PER_DAY = datetime(1970, 1, 1), 86_400_000_000  # noqa: DTZ001 - a timestamp without a zone


def decode_names(metadata: bytes) -> list[str]:
    """Return the names in a variant's metadata. Raises: BadRequest: damaged"""
    try:
        size = (metadata[0] >> 6) + 1
        count = _int(metadata, 1, size)
        ends = [_int(metadata, 1 + size * (place + 1), size) for place in range(count + 1)]
        start = 1 + size * (count + 2)
        return [metadata[start + first : start + last].decode() for first, last in zip(ends, ends[1:], strict=False)]
    except (IndexError, ValueError):
        raise _damaged() from None


def decode_variant(names: Sequence[str], value: bytes) -> object:
    """Return the value of a variant; `names` are those of its metadata. Raises: BadRequest: damaged, or a type that is not known"""
    try:
        return _decode(names, value, 0)
    except (IndexError, ValueError, OverflowError, struct.error, RecursionError):
        raise _damaged() from None


def _decode(names: Sequence[str], value: bytes, place: int) -> object:
    kind, header, place = value[place] & 3, value[place] >> 2, place + 1
    if kind == SHORT_STRING:
        return _bytes(value, place, header).decode()
    if kind == PRIMITIVE:
        if header not in DECODERS:
            raise BadRequest(f"A variant has a value of the type {header}, which is not known.")
        return DECODERS[header](value, place)
    offset_size = (header & 3) + 1
    id_size = (header >> 2 & 3) + 1 if kind == OBJECT else 0
    is_large = header >> (4 if kind == OBJECT else 2) & 1
    count_size = 4 if is_large else 1
    count = _int(value, place, count_size)
    offsets = place + count_size + count * id_size
    start = offsets + (count + 1) * offset_size
    places = [start + _int(value, offsets + offset_size * number, offset_size) for number in range(count)]
    items = [_decode(names, value, at) for at in places]
    if kind == ARRAY:
        return items
    ids = [_int(value, place + count_size + id_size * number, id_size) for number in range(count)]
    return {names[field_id]: item for field_id, item in zip(ids, items, strict=True)}


def _int(content: bytes, place: int, size: int, *, signed: bool = False) -> int:
    return int.from_bytes(_bytes(content, place, size), "little", signed=signed)


def _bytes(content: bytes, place: int, size: int) -> bytes:
    found = content[place : place + size]
    if len(found) != size:
        raise IndexError
    return found


def _read_int(size: int) -> Callable[[bytes, int], int]:
    return lambda value, place: _int(value, place, size, signed=True)


def _read_decimal(size: int) -> Callable[[bytes, int], Decimal]:
    def read(value: bytes, place: int) -> Decimal:
        sign, digits, _ = Decimal(_int(value, place + 1, size, signed=True)).as_tuple()
        return Decimal((sign, digits, -value[place]))

    return read


def _read_micros(value: bytes, place: int) -> datetime:
    return EPOCH + timedelta(microseconds=_int(value, place, 8, signed=True))


def _read_micros_in_utc(value: bytes, place: int) -> datetime:
    return _read_micros(value, place).replace(tzinfo=UTC)


def _read_nanos(value: bytes, place: int) -> str:
    nanos = _int(value, place, 8, signed=True)
    return f"{(EPOCH + timedelta(seconds=nanos // 10**9)).isoformat()}.{nanos % 10**9:09}"


def _read_time(value: bytes, place: int) -> time:
    return (EPOCH + timedelta(microseconds=_int(value, place, 8) % MICROS_PER_DAY)).time()


def _read_long_bytes(value: bytes, place: int) -> bytes:
    return _bytes(value, place + 4, _int(value, place, 4))


DECODERS: Mapping[int, Callable[[bytes, int], object]] = {
    0: lambda value, place: None,
    1: lambda value, place: True,
    2: lambda value, place: False,
    3: _read_int(1),
    4: _read_int(2),
    5: _read_int(4),
    6: _read_int(8),
    7: lambda value, place: struct.unpack_from("<d", value, place)[0],
    8: _read_decimal(4),
    9: _read_decimal(8),
    10: _read_decimal(16),
    11: lambda value, place: date(1970, 1, 1) + timedelta(days=_int(value, place, 4, signed=True)),
    12: _read_micros_in_utc,
    13: _read_micros,
    14: lambda value, place: struct.unpack_from("<f", value, place)[0],
    15: _read_long_bytes,
    16: lambda value, place: _read_long_bytes(value, place).decode(),
    17: _read_time,
    18: lambda value, place: _read_nanos(value, place) + "+00:00",
    19: _read_nanos,
    20: lambda value, place: UUID(bytes=_bytes(value, place, 16)),
}
"""The types of primitive values by number."""

MISSING = object()


def assemble_variant(names: Sequence[str], value: bytes | None, typed: object) -> object:
    """Return the value of a variant, or of a part of one, that may be shredded; `MISSING` for a field that an object lacks.

    `typed` is what the column `typed_value` holds: for objects a mapping, for arrays a sequence of such parts, else the value itself.
    Raises: as `decode_variant`
    """
    if typed is None:
        return MISSING if value is None else decode_variant(names, value)
    if isinstance(typed, Mapping):
        rest = cast("dict[str, object]", decode_variant(names, value) if value is not None else {})
        parts = {name: _assemble_part(names, part) for name, part in cast("Mapping[str, object]", typed).items()}
        return {**rest, **{name: part for name, part in parts.items() if part is not MISSING}}
    if isinstance(typed, list):
        parts = [_assemble_part(names, part) for part in cast("list[object]", typed)]
        return [None if part is MISSING else part for part in parts]
    return typed


def _assemble_part(names: Sequence[str], part: object) -> object:
    columns = cast("Mapping[str, object]", part or {})
    return assemble_variant(names, cast("bytes | None", columns.get("value")), columns.get("typed_value"))


def format_json(value: object) -> str:
    """Return a variant's value as JSON; what JSON has no type for is a text: ISO 8601, base64, a UUID, or `NaN` and `Infinity`."""
    match value:
        case Mapping():
            items = cast("Mapping[str, object]", value).items()
            return "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{format_json(item)}" for name, item in items) + "}"
        case list():
            return "[" + ",".join(map(format_json, cast("list[object]", value))) + "]"
        case bool() | int() | None:
            return json.dumps(value)
        case float():
            return json.dumps(value) if math.isfinite(value) else f'"{json.dumps(value)}"'
        case Decimal():
            return f"{value:f}"
        case bytes():
            return json.dumps(base64.b64encode(value).decode())
        case date() | time():
            return json.dumps(value.isoformat())
        case _:
            return json.dumps(str(value), ensure_ascii=False)


def _damaged() -> BadRequest:
    return BadRequest("A variant is damaged.")
