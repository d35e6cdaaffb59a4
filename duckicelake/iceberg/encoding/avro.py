"""Avro object container files: writing them from rows already encoded, and reading anybody's.

Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | deflated rows | sync marker)
Units:  whole numbers are zigzag varints; a byte count goes before strings and bytes
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from io import BytesIO
from json import loads
from typing import cast

import fastavro
import pyarrow
from fastavro.schema import SchemaParseException

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.encoding.json_reader import as_object

MAGIC = b"Obj\x01"
BLOCK_BYTES = 1 << 16
MEMO_MAX = 1 << 16
BLOCK_BYTES_MAX = 1 << 29
NULL = b"\x00"
PRESENT = b"\x02"

_SCHEMA_KEYS = ("type", "name", "namespace", "fields", "items", "values", "size", "symbols", "field-id")
_NESTED_KEYS = ("type", "fields", "items", "values")

# What fastavro and the codecs raise on bytes that are no Avro.
BROKEN = (
    *(ArithmeticError, AttributeError, EOFError, LookupError, OSError, RecursionError, TypeError, ValueError),
    *(struct.error, zlib.error, SchemaParseException),
)


class Longs(dict[int, bytes]):
    """Encoded whole numbers by number: one look-up for those seen before, and a bounded memory of them."""

    def __missing__(self, number: int) -> bytes:
        if len(self) >= MEMO_MAX:
            self.clear()
        encoded = self[number] = encode_long(number)
        return encoded


def encode_long(number: int) -> bytes:
    """A 32- or 64-bit whole number."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    if zigzag < 0x80:
        return bytes((zigzag,))
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    if zigzag < 0x20_0000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7 & 0x7F | 0x80, zigzag >> 14))
    encoded = bytearray()
    while zigzag >= 0x80:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def encode_bytes(content: bytes) -> bytes:
    """Bytes, or a string's UTF-8."""
    return encode_long(len(content)) + content


def encode_container(metadata: Mapping[str, str], schema: str, rows: Iterable[bytes]) -> bytes:
    """An Avro file of those rows. The same input gives the same bytes: the sync marker is the header's digest."""
    return container_encoder(metadata, schema)(rows)


def container_encoder(metadata: Mapping[str, str], schema: str) -> Callable[[Iterable[bytes]], bytes]:
    """What makes Avro files with that header, each of its rows."""
    pairs = {**metadata, "avro.schema": schema, "avro.codec": "deflate"}
    encoded = [encode_bytes(key.encode()) + encode_bytes(value.encode()) for key, value in pairs.items()]
    header = b"".join([MAGIC, encode_long(len(pairs)), *encoded, NULL])
    sync = blake2b(header, digest_size=16).digest()
    return lambda rows: b"".join([header, sync, *_encode_blocks(rows, sync)])


def _encode_blocks(rows: Iterable[bytes], sync: bytes) -> Iterator[bytes]:
    pending: list[bytes] = []
    size = 0
    for row in rows:
        pending.append(row)
        size += len(row)
        if size >= BLOCK_BYTES:
            yield _encode_block(pending, sync)
            pending, size = [], 0
    if pending:
        yield _encode_block(pending, sync)


def _encode_block(rows: list[bytes], sync: bytes) -> bytes:
    deflated = zlib.compress(b"".join(rows), level=1, wbits=-15)
    return b"".join([encode_long(len(rows)), encode_bytes(deflated), sync])


def decode_container(content: bytes, what: str) -> tuple[dict[str, str], list[Mapping[str, object]]]:
    """The metadata and the rows of an Avro file, fields named `f<field-id>`, without logical types (a date stays a number).

    Raises: BadRequest — `what` is no Avro file or a damaged one · Unsupported — compressed with an unknown codec
    """
    try:
        stream = BytesIO(content)
        metadata, sync = _decode_header(stream)
        schema = as_object(loads(metadata["avro.schema"]), f"Avro schema of {what}")
        plain = fastavro.parse_schema(cast("dict[str, object]", plain_schema(schema, set())))
        rows: list[Mapping[str, object]] = []
        for row_count, block in _decode_blocks(stream, metadata.get("avro.codec", "null"), sync):
            rows.extend(cast("Mapping[str, object]", fastavro.schemaless_reader(block, plain, None)) for _ in range(row_count))
    except BROKEN as error:
        raise BadRequest(f"Cannot read {what}: it is no valid Avro file ({type(error).__name__}); write it again") from error
    return metadata, rows


def plain_schema(node: object, names: set[str]) -> object:
    """An Avro schema to read values as they lie: no logical types, fields named `f<field-id>`, no name defined twice."""
    if isinstance(node, list):
        return [plain_schema(item, names) for item in cast("list[object]", node)]
    if not isinstance(node, dict):
        return node
    found = {key: value for key, value in cast("dict[str, object]", node).items() if key in _SCHEMA_KEYS}
    if "field-id" in found:
        found["name"] = f"f{found['field-id']}"
    elif found.get("type") in ("record", "fixed", "enum"):
        found["name"] = _unused_name(str(found.get("name")), names)
    return {key: plain_schema(value, names) if key in _NESTED_KEYS else value for key, value in found.items()}


def _unused_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _decode_header(stream: BytesIO) -> tuple[dict[str, str], bytes]:
    if stream.read(4) != MAGIC:
        raise ValueError("no Avro magic")
    metadata: dict[str, str] = {}
    while count := decode_long(stream):
        if count < 0:
            decode_long(stream)
        for _ in range(abs(count)):
            key = _read_exactly(stream, decode_long(stream)).decode()
            metadata[key] = _read_exactly(stream, decode_long(stream)).decode()
    return metadata, _read_exactly(stream, 16)


def decode_long(stream: BytesIO) -> int:
    """The whole number at the stream's position."""
    zigzag = decode_varint(stream)
    return zigzag >> 1 ^ -(zigzag & 1)


def decode_varint(stream: BytesIO) -> int:
    """The number at the stream's position, seven bits a byte, lowest first, without zigzag."""
    number = 0
    for shift in range(0, 70, 7):
        byte = _read_exactly(stream, 1)[0]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number
    raise ValueError("varint too long")


def _read_exactly(stream: BytesIO, count: int) -> bytes:
    content = stream.read(count) if count >= 0 else b""
    if len(content) != count:
        raise EOFError("file too short")
    return content


def _decode_blocks(stream: BytesIO, codec: str, sync: bytes) -> Iterator[tuple[int, BytesIO]]:
    while stream.tell() < stream.getbuffer().nbytes:
        row_count = decode_long(stream)
        block = _decompress(codec, _read_exactly(stream, decode_long(stream)))
        if _read_exactly(stream, 16) != sync or not 0 <= row_count <= len(block):
            raise ValueError("damaged block")
        yield row_count, BytesIO(block)


def _decompress(codec: str, content: bytes) -> bytes:
    match codec:
        case "null":
            return content
        case "deflate":
            inflater = zlib.decompressobj(wbits=-15)
            return _at_most(inflater.decompress(content, BLOCK_BYTES_MAX + 1))
        case "snappy":
            return _decompress_snappy(content[:-4])
        case "zstandard":
            return _at_most(pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read(BLOCK_BYTES_MAX + 1))
        case _:
            raise Unsupported(f"Cannot read Avro files compressed with {codec!r}; write them with deflate")


def _decompress_snappy(content: bytes) -> bytes:
    size = decode_varint(BytesIO(content))
    if size > BLOCK_BYTES_MAX:
        raise ValueError("block too large")
    return pyarrow.decompress(content, size, "snappy", asbytes=True)


def _at_most(content: bytes) -> bytes:
    if len(content) > BLOCK_BYTES_MAX:
        raise ValueError("block too large")
    return content
