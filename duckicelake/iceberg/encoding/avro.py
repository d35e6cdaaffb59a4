"""Avro object container files: writing them from rows already encoded. `decoding/avro_file` reads anybody's.

Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | deflated rows | sync marker)
Units:  whole numbers are zigzag varints; a byte count goes before strings and bytes
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b

MAGIC = b"Obj\x01"
BLOCK_BYTES = 1 << 16
CACHED_LONGS_MAX = 1 << 16
NULL = b"\x00"
PRESENT = b"\x02"
LONG_BITS = 64


class EncodedLongs(dict[int, bytes]):
    """Encoded whole numbers by number: one look-up for those seen before, and a bounded memory of them."""

    def __missing__(self, number: int) -> bytes:
        if len(self) >= CACHED_LONGS_MAX:
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
    return build_container_encoder(metadata, schema)(rows)


def build_container_encoder(metadata: Mapping[str, str], schema: str) -> Callable[[Iterable[bytes]], bytes]:
    """What makes Avro files with that header, each of its rows."""
    encoded = [_encode_text(text) for pair in metadata.items() for text in pair]
    header = b"".join([MAGIC, encode_long(len(metadata) + 2), *encoded, _encode_schema(schema), NULL])
    sync = blake2b(header, digest_size=16).digest()
    return lambda rows: b"".join([header, sync, *_encode_blocks(rows, sync)])


@lru_cache(maxsize=256)
def _encode_schema(schema: str) -> bytes:
    """The last two entries of a header's map: there are few schemas, and they are long."""
    return b"".join(map(_encode_text, ("avro.schema", schema, "avro.codec", "deflate")))


def _encode_text(text: str) -> bytes:
    encoded = text.encode()
    return encode_long(len(encoded)) + encoded


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


def count_rows(content: bytes, empty: bytes) -> int:
    """How many rows an Avro file has by its blocks, which are not opened; `empty` is the file of the same header without rows.

    -1: it has another header, or is broken off
    """
    if not content.startswith(empty):
        return -1
    sync, place, rows = empty[-16:], len(empty), 0
    while place < len(content):
        count, place = _decode_long(content, place)
        length, place = _decode_long(content, place)
        place += max(length, 0) + len(sync)
        if count < 0 or length < 0 or content[place - len(sync) : place] != sync:
            return -1
        rows += count
    return rows


def _decode_long(content: bytes, place: int) -> tuple[int, int]:
    zigzag = shift = 0
    while place < len(content) and shift < LONG_BITS:
        byte = content[place]
        zigzag, shift, place = zigzag | (byte & 0x7F) << shift, shift + 7, place + 1
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), place
    return -1, place
