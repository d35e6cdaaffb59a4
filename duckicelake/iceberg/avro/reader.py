"""A reader of Avro object container files of any writer, in bounded time and memory.

A schema is compiled once into functions that read values, one per type. Schemas that could cost more time than the file has bytes are
refused at that point: recursive types, deep nesting, and values that take no bytes, of which a few bytes could declare billions.
Callers run on the server's worker threads, in the drivers of jobs, and in Spark executors (`verify`). A `CompiledReader` is used by one
thread at a time. No I/O.

Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | compressed rows | sync marker)
Source: Apache Avro 1.12 specification, «Object Container Files», «Binary Encoding»; Iceberg spec, appendix A «Avro» (field ids, maps
        as arrays)
"""

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from json import loads
from typing import cast

import pyarrow

from duckicelake.errors import BadRequest

ReadFunction = Callable[[bytes, int], tuple[object, int]]
"""Return the value at a position, and the position after it."""

DEPTH_MAX = 64
EMPTY_MAX = 64
SCHEMAS_MAX, SCHEMA_LENGTH_MAX, IDLE_READERS_MAX = 64, 32 * 1024, 8
"""How many schemas have cached readers, how many characters such a schema may have, and how many idle readers each has."""


@dataclass(frozen=True, slots=True)
class AvroReader:
    """The reader of one Avro type. `kind` is Avro's name of the type, or `pairs` for an array of key and value records.

    `empty`: its values take no bytes; `empty_count`: how many such values one of its values contains.
    `fields`: the fields of a record by field id (negative where it has none); `items`: the types inside an array, map or pairs.
    """

    kind: str
    read: ReadFunction
    empty: bool = False
    empty_count: int = 0
    optional: bool = False
    fields: Mapping[int, "AvroReader"] = field(default_factory=dict[int, "AvroReader"])
    items: tuple["AvroReader", ...] = ()


@dataclass(slots=True)
class ReadBudget:
    """The decompressed bytes, and the items of arrays and maps, that may still be read. An item takes far more memory than its bytes."""

    bytes: int
    items: int

    def take_items(self, count: int) -> None:
        """Subtract items before they are read. Raises BadRequest when there are too many."""
        self.items -= count
        if self.items < 0:
            raise BadRequest("its arrays and maps hold more items than are taken at once; write fewer files or columns with statistics")


@dataclass(slots=True)
class SchemaScope:
    """The named types of a schema that are complete so far, and the budget of the file that is being read."""

    named: dict[str, AvroReader]
    budget: ReadBudget


def build_reader(schema: object, budget: ReadBudget) -> AvroReader:
    """Return the reader of a schema. Raises ValueError for an invalid schema, or one that could take more time than its bytes."""
    return _build(schema, SchemaScope({}, budget), 0)


@dataclass(frozen=True, slots=True)
class CompiledReader:
    """The reader of rows of one schema. It reads one file after another, each within the budget that its scope has at that time."""

    row: AvroReader
    scope: SchemaScope


class ReaderPool:
    """Idle compiled readers by the text of their schema, because writers repeat a schema in file after file.

    A reader that was taken belongs to its caller until it is given back.
    """

    def __init__(self) -> None:
        self._idle: dict[str, list[CompiledReader]] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, schema: str, budget: ReadBudget) -> CompiledReader:
        """Return a reader of rows of a schema. Raises ValueError as `build_reader` does."""
        idle = self._idle.get(schema)
        try:
            compiled = idle.pop() if idle else None
        except IndexError:
            # Another thread took the last one.
            compiled = None
        if compiled is None:
            scope = SchemaScope({}, budget)
            return CompiledReader(_build(loads(schema), scope, 0), scope)
        compiled.scope.budget = budget
        return compiled

    def give_back(self, schema: str, compiled: CompiledReader) -> None:
        """Keep a reader for the next file, unless its schema is long or has enough idle readers."""
        if len(schema) > SCHEMA_LENGTH_MAX:
            return
        if len(self._idle) >= SCHEMAS_MAX:
            self._idle = {}
        idle = self._idle.setdefault(schema, [])
        if len(idle) < IDLE_READERS_MAX:
            idle.append(compiled)


def read_long(content: bytes, at: int) -> tuple[int, int]:
    """Return a 32- or 64-bit integer (zigzag varint) and the position after it."""
    byte = content[at]
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at + 1
    number = byte & 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = content[at]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >> 64:
                break
            return number >> 1 ^ -(number & 1), at + 1
    raise ValueError("a number of more than 64 bits")


def read_bytes(content: bytes, at: int) -> tuple[bytes, int]:
    """Return bytes that follow their length, and the position after them."""
    count, at = read_long(content, at)
    end = at + count
    if count < 0 or end > len(content):
        raise EOFError("bytes beyond the end")
    return content[at:end], end


def read_text(content: bytes, at: int) -> tuple[str, int]:
    """Return a string that follows its length in bytes, and the position after it."""
    found, at = read_bytes(content, at)
    return found.decode(), at


def _read_flag(content: bytes, at: int) -> tuple[bool, int]:
    if content[at] > 1:
        raise ValueError("neither true nor false")
    return content[at] == 1, at + 1


def _read_float(content: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<f", content, at)[0], at + 4


def _read_double(content: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from("<d", content, at)[0], at + 8


_PRIMITIVES: Mapping[str, AvroReader] = {
    "null": AvroReader("null", lambda _, at: (None, at), empty=True, empty_count=1),
    "boolean": AvroReader("boolean", _read_flag),
    "int": AvroReader("int", read_long),
    "long": AvroReader("long", read_long),
    "float": AvroReader("float", _read_float),
    "double": AvroReader("double", _read_double),
    "bytes": AvroReader("bytes", read_bytes),
    "string": AvroReader("string", read_text),
}


def _build(node: object, scope: SchemaScope, depth: int) -> AvroReader:
    reader = _build_unchecked(node, scope, depth)
    if depth > DEPTH_MAX or reader.empty_count > EMPTY_MAX:
        raise ValueError("a schema nested too deep" if depth > DEPTH_MAX else "a schema of too many empty values")
    return reader


def _build_unchecked(node: object, scope: SchemaScope, depth: int) -> AvroReader:
    if isinstance(node, str):
        return _get_named_reader(node, scope)
    if depth > DEPTH_MAX:
        raise ValueError("a schema nested too deep")
    if isinstance(node, list):
        return _build_union([_build(item, scope, depth + 1) for item in cast("list[object]", node)])
    if not isinstance(node, dict):
        raise ValueError(f"{node!r} is no type")
    found = cast("dict[str, object]", node)
    match found.get("type"):
        case "record" | "error":
            return _build_named(found, scope, lambda: _build_record(found, scope, depth))
        case "fixed":
            return _build_named(found, scope, lambda: _build_fixed(found.get("size")))
        case "enum":
            return _build_named(found, scope, lambda: AvroReader("enum", read_long))
        case "array":
            return _build_array(found.get("items"), scope, depth)
        case "map":
            return _build_map(_build(found.get("values"), scope, depth + 1), scope)
        case other:
            return _build(other, scope, depth + 1)


def _get_named_reader(name: str, scope: SchemaScope) -> AvroReader:
    found = _PRIMITIVES.get(name) or scope.named.get(name.rsplit(".", 1)[-1])
    if found is None:
        raise ValueError(f"type {name[:100]!r} is not defined, or holds itself")
    return found


def _build_named(node: Mapping[str, object], scope: SchemaScope, build: Callable[[], AvroReader]) -> AvroReader:
    """Build a named type and register it when it is complete, so no type can contain itself. PyIceberg repeats definitions."""
    reader = scope.named[str(node.get("name")).rsplit(".", 1)[-1]] = build()
    return reader


def _build_record(node: Mapping[str, object], scope: SchemaScope, depth: int) -> AvroReader:
    parts: list[tuple[int, AvroReader]] = []
    for i, item in enumerate(_list_objects(node.get("fields"))):
        field_id = item.get("field-id")
        number = field_id if isinstance(field_id, int) and field_id >= 0 else -1 - i
        parts.append((number, _build(item.get("type"), scope, depth + 1)))
    reads = [(field_id, reader.read) for field_id, reader in parts]

    def read(content: bytes, at: int) -> tuple[dict[int, object], int]:
        found: dict[int, object] = {}
        for field_id, read_field in reads:
            found[field_id], at = read_field(content, at)
        return found, at

    empty_count = sum(reader.empty_count for _, reader in parts) or int(not parts)
    return AvroReader("record", read, all(reader.empty for _, reader in parts), empty_count, fields=dict(parts))


def _list_objects(value: object) -> list[Mapping[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in cast("list[object]", value)):
        raise ValueError("a record without fields")
    return cast("list[Mapping[str, object]]", value)


def _build_fixed(size: object) -> AvroReader:
    if not isinstance(size, int) or size < 0:
        raise ValueError("a fixed type without size")

    def read(content: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(content):
            raise EOFError("bytes beyond the end")
        return content[at:end], end

    return AvroReader("fixed", read, empty=size == 0, empty_count=int(size == 0))


def _build_union(branches: list[AvroReader]) -> AvroReader:
    reads = [branch.read for branch in branches]

    def read(content: bytes, at: int) -> tuple[object, int]:
        index = content[at] >> 1
        if content[at] & 0x81 or index >= len(reads):
            raise ValueError("no such branch of a union")
        return reads[index](content, at + 1)

    others = [branch for branch in branches if branch.kind != "null"]
    empty_count = max((branch.empty_count for branch in branches), default=0)
    if len(others) != 1:
        return AvroReader("union", read, empty_count=empty_count)
    return replace(others[0], read=read, empty=False, empty_count=empty_count, optional=len(branches) > 1)


def _build_array(node: object, scope: SchemaScope, depth: int) -> AvroReader:
    item = _check_takes_bytes(_build(node, scope, depth + 1))
    pair = tuple(item.fields.values())
    if item.kind == "record" and not item.optional and len(pair) == 2 and min(item.fields) >= 0:
        return AvroReader("pairs", _build_column_map_read(*pair, scope) or _build_pairs_read(pair[0].read, pair[1].read, scope), items=pair)
    return AvroReader("array", _build_array_read(item.read, scope), items=(item,))


def _build_map(value: AvroReader, scope: SchemaScope) -> AvroReader:
    return AvroReader("map", _build_pairs_read(read_text, value.read, scope), items=(value,))


def _check_takes_bytes(item: AvroReader) -> AvroReader:
    if item.empty:
        raise ValueError("an array of values that take no bytes")
    return item


def _build_array_read(read_item: ReadFunction, scope: SchemaScope) -> ReadFunction:
    def read(content: bytes, at: int) -> tuple[list[object], int]:
        found: list[object] = []
        count, at = _read_block_count(content, at, scope)
        while count:
            for _ in range(count):
                item, at = read_item(content, at)
                found.append(item)
            count, at = _read_block_count(content, at, scope)
        return found, at

    return read


def _build_pairs_read(read_key: ReadFunction, read_value: ReadFunction, scope: SchemaScope) -> ReadFunction:
    def read(content: bytes, at: int) -> tuple[dict[object, object], int]:
        found: dict[object, object] = {}
        count, at = _read_block_count(content, at, scope)
        while count:
            for _ in range(count):
                key, at = read_key(content, at)
                value, at = read_value(content, at)
                if key is not None and value is not None:  # DuckDB's schema allows null for both; it never writes one.
                    found[key] = value
            count, at = _read_block_count(content, at, scope)
        return found, at

    return read


def _build_column_map_read(key: AvroReader, value: AvroReader, scope: SchemaScope) -> ReadFunction | None:
    """Return a reader of numbers or bytes by column id: most of a manifest, so it reads small numbers inline."""
    in_bytes = value.kind == "bytes"
    if key.optional or value.optional or key.kind not in ("int", "long") or value.kind not in ("int", "long", "bytes"):
        return None

    def read(content: bytes, at: int) -> tuple[dict[object, object], int]:
        found: dict[object, object] = {}
        count, at = _read_block_count(content, at, scope)
        while count:
            for _ in range(count):
                byte = content[at]
                column_id, at = (byte >> 1, at + 1) if not byte & 0x81 else read_long(content, at)
                byte = content[at]
                number, at = (byte >> 1, at + 1) if not byte & 0x81 else read_long(content, at)
                if in_bytes:
                    end = at + number
                    if number < 0 or end > len(content):
                        raise EOFError("bytes beyond the end")
                    found[column_id], at = content[at:end], end
                else:
                    found[column_id] = number
            count, at = _read_block_count(content, at, scope)
        return found, at

    return read


def _read_block_count(content: bytes, at: int, scope: SchemaScope) -> tuple[int, int]:
    """Return how many items follow, and take them from the budget; a negative count is followed by its size in bytes."""
    count, at = read_long(content, at)
    if count < 0:
        _, at = read_long(content, at)
    scope.budget.take_items(abs(count))
    return abs(count), at


MAGIC = b"Obj\x01"
SYNC_BYTES = 16
HEADER_BYTES_MAX = 16 * 1024 * 1024
CODECS = ("null", "deflate", "snappy", "zstandard")

# The errors that invalid Avro raises, here and in the codecs.
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
    """The most that one file may hold when decompressed. `items` counts the items of all its arrays and maps."""

    rows: int = 250_000
    bytes: int = 256 * 1024 * 1024
    items: int = 16_000_000

    def budget(self) -> ReadBudget:
        """Return the budget of a single file."""
        return ReadBudget(self.bytes, self.items)


UNLIMITED = AvroLimits(rows=2**40, bytes=2**40, items=2**60)
"""For files that this server wrote: their content was in memory before."""


@dataclass(frozen=True, slots=True)
class AvroFile:
    """An opened file: its header, the reader of its rows, and its blocks, still compressed. `budget` limits what the blocks may hold."""

    metadata: Mapping[str, str]
    compiled: CompiledReader
    blocks: tuple[tuple[int, bytes], ...]
    codec: str
    budget: ReadBudget
    readers: ReaderPool

    @property
    def row(self) -> AvroReader:
        """Return the reader of a row."""
        return self.compiled.row

    def close(self) -> None:
        """Give the reader of this file back to the pool. Nothing of the file may be read afterwards."""
        self.readers.give_back(self.metadata["avro.schema"], self.compiled)


def open_avro(content: bytes, limits: AvroLimits, shared: ReadBudget | None = None, readers: ReaderPool | None = None) -> AvroFile:
    """Return the Avro file in `content`. `shared` is a budget for several files, `readers` a pool of compiled readers.

    Raises: BadRequest — more rows than the limit, an unknown codec · any of DECODE_ERRORS — no Avro file, or a damaged one
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
    """Yield the rows. Raises as `open_avro` does, and BadRequest for too many bytes."""
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
    """Return the rows of a block, or more than `limit` bytes of them."""
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
    """Return the rows of a block. Snappy begins with the size (a varint), and Avro appends a checksum of the rows."""
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
