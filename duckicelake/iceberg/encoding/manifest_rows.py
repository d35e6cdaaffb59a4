"""Rows of manifests as Avro bytes. A function per row shape, put together once per file and then only called."""

import struct
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import cast

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.avro import NULL, PRESENT, EncodedLongs
from duckicelake.iceberg.encoding.manifest_schema import compute_decimal_size, get_value_schema
from duckicelake.iceberg.transforms import to_unscaled
from duckicelake.iceberg.types import PrimitiveType, find_decimal, find_fixed_length

Encode = Callable[[object], bytes]


class RowParts:
    """Encoders of the parts that rows are made of, over one memory of encoded numbers."""

    __slots__ = ("longs",)

    def __init__(self) -> None:
        self.longs = EncodedLongs()

    def text(self, value: str) -> bytes:
        """A string."""
        content = value.encode()
        return self.longs[len(content)] + content

    def optional_long(self, value: int | None) -> bytes:
        """A number or null."""
        return NULL if value is None else PRESENT + self.longs[value]

    def optional_text(self, value: str | None) -> bytes:
        """A string or null."""
        return NULL if value is None else PRESENT + self.text(value)

    def optional_bytes(self, value: bytes | None) -> bytes:
        """Bytes or null."""
        return NULL if value is None else PRESENT + self.longs[len(value)] + value

    def optional_longs(self, values: Iterable[int] | None) -> bytes:
        """An array of numbers or null."""
        return NULL if values is None else PRESENT + self.array([self.longs[value] for value in values])

    def long_map(self, values: Mapping[int, int] | None) -> bytes:
        """Numbers by column id, or null."""
        if values is None:
            return NULL
        longs = self.longs
        return PRESENT + self.array([longs[key] + longs[value] for key, value in values.items()])

    def bytes_map(self, values: Mapping[int, bytes] | None) -> bytes:
        """Bytes by column id, or null."""
        if values is None:
            return NULL
        longs = self.longs
        return PRESENT + self.array([longs[key] + longs[len(value)] + value for key, value in values.items()])

    def array(self, items: list[bytes]) -> bytes:
        """Encoded items in one block."""
        return self.longs[len(items)] + b"".join(items) + NULL if items else NULL

    def value_encoder(self, type: PrimitiveType) -> Encode:
        """What encodes an iceberg value of the type, or null.

        Raises: BadRequest, when called — the value is not one of the type
        """
        encode = self._plain_encoder(type)
        if encode is None:
            return lambda _: b""

        def encode_optional(value: object) -> bytes:
            if value is None:
                return NULL
            try:
                return PRESENT + encode(value)
            except (AttributeError, TypeError, ValueError, OverflowError, struct.error) as error:
                raise BadRequest(f"Cannot write partition value {value!r} as {type}; give a value of that type") from error

        return encode_optional

    def _plain_encoder(self, type: PrimitiveType) -> Encode | None:
        avro_type = get_value_schema(type)
        kind = avro_type if isinstance(avro_type, str) else avro_type["type"]
        found = find_decimal(type)
        if found is not None:
            return _build_decimal_encoder(*found)
        match kind:
            case "null":
                return None
            case "boolean":
                return lambda value: b"\x01" if value else b"\x00"
            case "int" | "long":
                return lambda value: self.longs[cast("int", value)]
            case "float" | "double":
                pack = struct.Struct("<f" if kind == "float" else "<d").pack
                return lambda value: pack(cast("float", value))
            case "string":
                return lambda value: self.text(cast("str", value))
            case "bytes":
                return lambda value: self.longs[len(cast("bytes", value))] + cast("bytes", value)
            case _:
                return _build_fixed_encoder(16 if type.name == "uuid" else find_fixed_length(type) or 0)


def _build_decimal_encoder(precision: int, scale: int) -> Encode:
    size = compute_decimal_size(precision)
    return lambda value: to_unscaled(cast("Decimal", value), scale).to_bytes(size, "big", signed=True)


def _build_fixed_encoder(length: int) -> Encode:
    def encode(value: object) -> bytes:
        if not isinstance(value, bytes) or len(value) != length:
            raise ValueError(f"not {length} bytes")
        return value

    return encode
