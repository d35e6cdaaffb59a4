"""Avro object container files that anybody wrote.

Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | compressed rows | sync marker)
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow

from duckicelake.errors import BadRequest
from duckicelake.iceberg.decoding.avro_types import AvroReader, CompiledReader, ReadBudget, ReaderPool, read_bytes, read_long, read_text

MAGIC = b"Obj\x01"
SYNC_BYTES = 16
HEADER_BYTES_MAX = 16 * 1024 * 1024
CODECS = ("null", "deflate", "snappy", "zstandard")

# What bytes that are no Avro raise, here and in the codecs.
DECODE_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


@dataclass(frozen=True, slots=True)
class AvroLimits:
    """How much one file may hold, decompressed: a small file can say a lot. `items` are those of all its arrays and maps."""

    rows: int = 250_000
    bytes: int = 256 * 1024 * 1024
    items: int = 16_000_000

    def budget(self) -> ReadBudget:
        """Return what a single file may take."""
        return ReadBudget(self.bytes, self.items)


UNLIMITED = AvroLimits(rows=2**40, bytes=2**40, items=2**60)
"""For files that we wrote ourselves: whatever is in them was in memory once."""


@dataclass(frozen=True, slots=True)
class AvroFile:
    """An opened file: what its header says, what reads a row, and its blocks, not yet decompressed; `budget` is what they may take."""

    metadata: Mapping[str, str]
    compiled: CompiledReader
    blocks: tuple[tuple[int, bytes], ...]
    codec: str
    budget: ReadBudget
    readers: ReaderPool

    @property
    def row(self) -> AvroReader:
        """What reads a row."""
        return self.compiled.row

    def close(self) -> None:
        """Let others read with what has read this file: nothing of it may be read any more."""
        self.readers.give_back(self.metadata["avro.schema"], self.compiled)


def open_avro(content: bytes, limits: AvroLimits, shared: ReadBudget | None = None, readers: ReaderPool | None = None) -> AvroFile:
    """The file that those bytes are; `shared` is what it and others may take together, `readers` what has read others.

    Raises: BadRequest — more rows than the limit, an unknown codec · any of BROKEN — no Avro file, or a damaged one
    """
    if content[:4] != MAGIC:
        raise ValueError("no Avro magic")
    metadata, at = _read_metadata(content)
    codec = metadata.get("avro.codec", "null")
    if codec not in CODECS:
        raise BadRequest(f"it is compressed with {codec[:100]!r}; write it with deflate")
    blocks = tuple(_split_blocks(content, at))
    row_count = sum(count for count, _ in blocks)
    if row_count > limits.rows:
        raise BadRequest(f"it has {row_count} entries, more than {limits.rows}; split it")
    budget = shared or limits.budget()
    readers = ReaderPool() if readers is None else readers
    compiled = readers.take(metadata["avro.schema"], budget)
    if compiled.row.empty:
        raise ValueError("rows that take no bytes")
    return AvroFile(metadata, compiled, blocks, codec, budget, readers)


def read_rows(file: AvroFile) -> Iterator[object]:
    """The rows, one at a time. Raises as `open_avro` does; too many bytes are a BadRequest."""
    most_bytes = file.budget.bytes
    for row_count, compressed in file.blocks:
        left = file.budget.bytes
        content = _decompress(file.codec, compressed, left)
        if len(content) > left:
            raise BadRequest(f"it holds more than {most_bytes} bytes; split it")
        file.budget.bytes -= len(content)
        at = 0
        for _ in range(row_count):
            row, at = file.row.read(content, at)
            yield row
        if at != len(content):
            raise ValueError("bytes behind the last row of a block")


def _read_metadata(content: bytes) -> tuple[dict[str, str], int]:
    metadata: dict[str, str] = {}
    count, at = read_long(content, len(MAGIC))
    while count:
        if count < 0:
            _, at = read_long(content, at)
        for _ in range(abs(count)):
            key, at = read_text(content, at)
            metadata[key], at = read_text(content, at)
        count, at = read_long(content, at)
        if at > HEADER_BYTES_MAX:
            raise BadRequest(f"its header has more than {HEADER_BYTES_MAX} bytes; write it again")
    return metadata, at


def _split_blocks(content: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    sync = content[at : at + SYNC_BYTES]
    at += SYNC_BYTES
    if at > len(content):
        raise EOFError("no sync marker")
    while at < len(content):
        row_count, at = read_long(content, at)
        block, at = read_bytes(content, at)
        if content[at : at + SYNC_BYTES] != sync or row_count < 0:
            raise ValueError("damaged block")
        at += SYNC_BYTES
        yield row_count, block


def _decompress(codec: str, content: bytes, limit: int) -> bytes:
    """The rows of a block, or more than `limit` bytes of them."""
    match codec:
        case "deflate":
            return zlib.decompressobj(wbits=-15).decompress(content, limit + 1)
        case "snappy":
            return _decompress_snappy(content, limit)
        case "zstandard":
            return pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd").read(limit + 1)
        case _:
            return content


def _decompress_snappy(content: bytes, limit: int) -> bytes:
    """Snappy says its size first (a varint); Avro puts a checksum of the rows behind it."""
    size = 0
    for i, byte in enumerate(content[:5]):
        size |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            break
    if size > limit:
        raise BadRequest(f"a block of it holds {size} bytes; split it")
    rows = pyarrow.decompress(content[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(rows) != int.from_bytes(content[-4:], "big"):
        raise ValueError("damaged block")
    return rows
