"""Deletion vectors: which rows of one data file are deleted, as a bitmap in a blob."""

import array
import zlib
from collections.abc import Iterable
from typing import TypeAlias, cast

import numpy
from numpy.typing import NDArray
from pyroaring import BitMap64, FrozenBitMap64

from duckicelake.errors import BadRequest

VECTOR_MAGIC = bytes.fromhex("D1D33964")

Positions: TypeAlias = BitMap64 | FrozenBitMap64 | NDArray[numpy.int64] | Iterable[int]


def encode_deletion_vector(positions: Positions) -> bytes:
    """The deletion-vector-v1 blob of row positions, in any order. The same positions give the same bytes.

    Shape:  see `decode_deletion_vector`
    Raises: BadRequest — a negative position
    """
    marked = VECTOR_MAGIC + BitMap64(to_bitmap(positions), optimize=True).serialize()
    return len(marked).to_bytes(4, "big") + marked + zlib.crc32(marked).to_bytes(4, "big")


def decode_deletion_vector(blob: bytes) -> FrozenBitMap64:
    """Read the row positions a deletion-vector-v1 blob marks as deleted. DuckLake's bare Puffin files are such a blob.

    Shape:  length u32 BE | magic D1D33964 | roaring64 LE | crc32 u32 BE     (length covers magic + bitmap)
    Units:  positions are 0-based row numbers within one data file
    Raises: BadRequest — wrong length, magic or checksum, or a damaged bitmap
    Source: Iceberg puffin-spec «deletion-vector-v1»
    """
    length = len(blob) - 8
    marked = blob[4:-4]
    if length < len(VECTOR_MAGIC) or int.from_bytes(blob[:4], "big") != length:
        raise BadRequest(f"Cannot read deletion vector: {len(blob)} bytes are not what its length says; give the exact blob")
    if not marked.startswith(VECTOR_MAGIC):
        raise BadRequest("Cannot read deletion vector: its magic number is wrong; give a deletion-vector-v1 blob")
    if zlib.crc32(marked) != int.from_bytes(blob[-4:], "big"):
        raise BadRequest("Cannot read deletion vector: its checksum is wrong; the file is damaged")
    return _decode_bitmap(marked[len(VECTOR_MAGIC) :])


def to_bitmap(positions: Positions) -> BitMap64 | FrozenBitMap64:
    """The positions as a bitmap. Raises BadRequest when one is negative."""
    if isinstance(positions, BitMap64 | FrozenBitMap64):
        return positions
    try:
        if isinstance(positions, numpy.ndarray):
            return BitMap64(array.array("Q", _unsigned(cast("NDArray[numpy.int64]", positions)).tobytes()))
        return BitMap64(positions)
    except OverflowError as error:
        raise BadRequest("Cannot mark a negative row position as deleted; positions count from 0") from error


def to_positions(bitmap: BitMap64 | FrozenBitMap64) -> NDArray[numpy.int64]:
    """The positions of a bitmap, ascending."""
    return numpy.frombuffer(bitmap.to_array(), dtype=numpy.uint64).astype(numpy.int64)


def _unsigned(positions: NDArray[numpy.int64]) -> NDArray[numpy.uint64]:
    if positions.size and positions.min() < 0:
        raise OverflowError
    return positions.astype(numpy.uint64)


def _decode_bitmap(content: bytes) -> FrozenBitMap64:
    try:
        bitmap = FrozenBitMap64.deserialize(content)
    except (IndexError, ValueError) as error:
        raise BadRequest("Cannot read deletion vector: its bitmap is damaged; write the delete file again") from error
    if len(bitmap.serialize()) != len(content):
        raise BadRequest("Cannot read deletion vector: bytes follow its bitmap; write the delete file again")
    return bitmap
