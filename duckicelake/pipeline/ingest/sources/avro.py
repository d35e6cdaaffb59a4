"""Avro files: where they end, how many rows they say they have, and the columns of all of them.

Spark takes a file that was cut for one that ends there, and the columns of one file for those of all.
Shape:  "Obj" 01 | metadata map | sync marker (16 bytes) | blocks of (row count | byte count | compressed rows | sync marker)
Source: Apache Avro 1.12 specification, «Object Container Files»
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, cast

from pyarrow.fs import S3FileSystem
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.evolution import fits
from duckicelake.pipeline.ingest.sources.reading import Taken

MAGIC, SYNC_BYTES = b"Obj\x01", 16
_THREADS = 16
Opening = Callable[[Taken], BinaryIO]


@dataclass(frozen=True, slots=True)
class AvroHeader:
    """What a file says of itself: the schema that it was written with, and its rows, where they were counted."""

    schema: bytes
    rows: int | None


class _DamagedAvro(Exception):
    """What is wrong with a file."""


def read_avro_headers(files: Sequence[Taken], opening: Opening, *, counts: bool) -> Mapping[str, AvroHeader]:
    """What each file says of itself, by URI; `counts`: go through its blocks, without their rows.

    Raises: BadRequest: one is no Avro file, or was cut
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        looks = pool.map(partial(_read_avro, opening, counts), files)
        return dict(zip((file.uri for file in files), looks, strict=True))


def _read_avro(opening: Opening, counts: bool, file: Taken) -> AvroHeader:
    try:
        with opening(file) as source:
            size = source.seek(0, os.SEEK_END)
            source.seek(0)
            schema, sync = _read_header(source)
            if counts:
                return AvroHeader(schema, _count_rows(source, sync, size))
            source.seek(max(size - SYNC_BYTES, 0))
            if source.read(SYNC_BYTES) != sync:
                raise _DamagedAvro("it does not end where a block ends: it was cut")
            return AvroHeader(schema, None)
    except (_DamagedAvro, OSError) as error:
        raise BadRequest(f"{file.path} cannot be read as Avro: {error}; nothing was taken") from error


def _read_header(source: BinaryIO) -> tuple[bytes, bytes]:
    if source.read(len(MAGIC)) != MAGIC:
        raise _DamagedAvro("it does not begin as one")
    metadata: dict[bytes, bytes] = {}
    while count := _read_long(source):
        if count < 0:
            _read_long(source)
        for _ in range(abs(count)):
            key = _read_exactly(source, _read_long(source))
            metadata[key] = _read_exactly(source, _read_long(source))
    return metadata.get(b"avro.schema", b""), _read_exactly(source, SYNC_BYTES)


def _count_rows(source: BinaryIO, sync: bytes, size: int) -> int:
    rows = 0
    while source.tell() < size:
        count, length = _read_long(source), _read_long(source)
        if count < 0 or length < 0:
            raise _DamagedAvro("a block is damaged")
        source.seek(length, os.SEEK_CUR)
        if _read_exactly(source, SYNC_BYTES) != sync:
            raise _DamagedAvro("a block is damaged")
        rows += count
    return rows


def _read_long(source: BinaryIO) -> int:
    value, shift = 0, 0
    while True:
        (byte,) = _read_exactly(source, 1)
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
        if shift > 63:
            raise _DamagedAvro("a number has too many bytes")


def _read_exactly(source: BinaryIO, length: int) -> bytes:
    if length < 0:
        raise _DamagedAvro("a length is below 0")
    content = source.read(length)
    if len(content) != length:
        raise _DamagedAvro("it was cut")
    return content


def open_object(files: S3FileSystem, file: Taken) -> BinaryIO:
    """An object of S3 to look at."""
    return cast(BinaryIO, files.open_input_file(file.path.partition("://")[2]))


def merge_columns(known: StructType, more: StructType, file: str) -> StructType:
    """The columns of both, by name, of two types the one that holds all values of the other.

    Raises: BadRequest: neither does; names the column and the file that has it otherwise than others
    """
    fields = {field.name.lower(): field for field in known.fields}
    for field in more.fields:
        own = fields.get(field.name.lower())
        form = field.dataType if own is None else _merge_types(own.dataType, field.dataType, field.name, file)
        fields[field.name.lower()] = StructField(field.name if own is None else own.name, form)
    return StructType(list(fields.values()))


def _merge_types(known: DataType, more: DataType, path: str, file: str) -> DataType:
    if isinstance(known, StructType) and isinstance(more, StructType):
        return merge_columns(known, more, file)
    if isinstance(known, ArrayType) and isinstance(more, ArrayType):
        return ArrayType(_merge_types(known.elementType, more.elementType, path, file))
    if isinstance(known, MapType) and isinstance(more, MapType):
        return MapType(known.keyType, _merge_types(known.valueType, more.valueType, path, file))
    if known != more and not (fits(known, more) or fits(more, known)):
        shown = f"{more.simpleString()}, and others {known.simpleString()}"
        raise BadRequest(f"column {path} of {file} is {shown}: take these files apart from each other")
    return more if fits(known, more) else known
