"""Deletion vectors (bitmaps of the deleted rows of one data file), and the Puffin files that carry them and statistics.

DuckLake stores a deletion vector as a bare blob without the Puffin header and footer; both forms are decoded and encoded here. No I/O:
`catalog.row_files`, `catalog.incoming`, executors of `verify`, and PyIceberg with `pyiceberg_v3` pass bytes.
"""

import array
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import dumps, loads
from typing import TypeAlias, cast

import numpy
import pyarrow
from numpy.typing import NDArray
from pyroaring import BitMap64, FrozenBitMap64

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.json_reader import (
    as_object,
    find_text,
    find_text_map,
    get_long,
    get_text,
    list_ints,
    list_objects,
)

VECTOR_MAGIC = bytes.fromhex("D1D33964")

Positions: TypeAlias = BitMap64 | FrozenBitMap64 | NDArray[numpy.int64] | Iterable[int]


def encode_deletion_vector(positions: Positions) -> bytes:
    """Return the deletion-vector-v1 blob of row positions, in any order. The same positions give the same bytes.

    Shape:  see `decode_deletion_vector`
    Raises: BadRequest — a negative position
    """
    marked = VECTOR_MAGIC + BitMap64(to_bitmap(positions), optimize=True).serialize()
    return len(marked).to_bytes(4, "big") + marked + zlib.crc32(marked).to_bytes(4, "big")


def decode_deletion_vector(blob: bytes) -> FrozenBitMap64:
    """Return the row positions that a deletion-vector-v1 blob marks as deleted. DuckLake's bare Puffin files are such blobs.

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
    """Return the positions as a bitmap. Raises BadRequest when one is negative."""
    if isinstance(positions, BitMap64 | FrozenBitMap64):
        return positions
    try:
        if isinstance(positions, numpy.ndarray):
            return BitMap64(array.array("Q", _unsigned(cast("NDArray[numpy.int64]", positions)).tobytes()))
        return BitMap64(positions)
    except OverflowError as error:
        raise BadRequest("Cannot mark a negative row position as deleted; positions count from 0") from error


def to_positions(bitmap: BitMap64 | FrozenBitMap64) -> NDArray[numpy.int64]:
    """Return the positions of a bitmap, ascending."""
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


PUFFIN_MAGIC = b"PFA1"
FOOTER_TAIL_BYTES = 12
DELETION_VECTOR = "deletion-vector-v1"
REFERENCED_DATA_FILE = "referenced-data-file"
DUCKLAKE_SNAPSHOT_ID = "ducklake-snapshot-id"
CARDINALITY = "cardinality"
ROW_POSITION_FIELD_ID = 2147483645
CREATED_BY = {"created-by": "DuckIceLake"}
BLOB_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class PuffinBlob:
    """The metadata of one blob of a Puffin file: its type, and its offset and length in the file."""

    type: str
    fields: tuple[int, ...]
    snapshot_id: int
    sequence_number: int
    offset: int
    length: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    compression_codec: str | None = None


@dataclass(frozen=True, slots=True)
class PuffinFile:
    """The bytes of a Puffin file, and the metadata of its blobs. `footer_bytes` is the size of the whole footer."""

    content: bytes
    blobs: tuple[PuffinBlob, ...]
    footer_bytes: int


def encode_deletion_vectors(vectors: Sequence[tuple[str, Positions]]) -> PuffinFile:
    """Return a Puffin file with one deletion vector for each (location of a data file, positions of its deleted rows).

    The blobs keep the given order; the manifest entry must repeat offset, length and cardinality.
    """
    return _encode_vectors(PUFFIN_MAGIC, vectors)


def decode_puffin(content: bytes) -> tuple[PuffinBlob, ...]:
    """Return the blobs of a Puffin file's footer. `content` may also be only the end of the file, footer included.

    Shape:  "PFA1" | blobs | "PFA1" | JSON | its size i32 LE | flags (4 bytes) | "PFA1"
    Raises: BadRequest — not a Puffin file, or a damaged one · Unsupported — a compressed footer
    Source: Iceberg puffin-spec
    """
    size = int.from_bytes(content[-12:-8], "little", signed=True)
    start = len(content) - FOOTER_TAIL_BYTES - size
    if content[-4:] != PUFFIN_MAGIC or size < 0 or start < 4 or content[start - 4 : start] != PUFFIN_MAGIC:
        raise BadRequest("Cannot read Puffin file: its magic number or footer is wrong; write it again")
    if any(content[-8:-4]):
        raise Unsupported("Cannot read Puffin file: its footer is compressed; write it without compression")
    try:
        footer = as_object(loads(content[start : start + size]), "Puffin footer")
    except (ValueError, RecursionError) as error:
        raise BadRequest("Cannot read Puffin file: its footer is no JSON; write it again") from error
    return tuple(_parse_blob(node) for node in list_objects(footer, "blobs", "Puffin footer"))


def decode_dated_positions(content: bytes) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64] | None]:
    """Return the deleted positions of one of DuckLake's Puffin files, and the lake snapshot from which each is deleted, if it says so.

    Shape:  one bare blob, whose file says no snapshot; or, since DuckLake 1.1, a Puffin file with a cumulative vector for each snapshot
    Raises: BadRequest — a damaged file, or one of several vectors without a snapshot · Unsupported — a compressed footer
    """
    if not (content.startswith(PUFFIN_MAGIC) and content.endswith(PUFFIN_MAGIC)):
        return to_positions(decode_deletion_vector(content)), None
    dated: dict[int | None, FrozenBitMap64] = {}
    for blob in decode_puffin(content):
        text = blob.properties.get(DUCKLAKE_SNAPSHOT_ID)
        if blob.type == DELETION_VECTOR:
            dated[None if text is None else int(text)] = decode_deletion_vector(read_blob(content, blob))
    if None in dated and len(dated) > 1:
        raise BadRequest("Cannot read Puffin file: it has several deletion vectors and not a lake snapshot for each; write it again")
    seen, positions, snapshot_ids = FrozenBitMap64(), [numpy.array([], numpy.int64)], [numpy.array([], numpy.int64)]
    for snapshot_id in sorted(dated, key=lambda key: key or 0):
        positions.append(to_positions(dated[snapshot_id] - seen))
        snapshot_ids.append(numpy.full(len(positions[-1]), snapshot_id or 0, numpy.int64))
        seen |= dated[snapshot_id]
    joined = numpy.concatenate(positions)
    order = numpy.argsort(joined)
    return joined[order], None if None in dated else numpy.concatenate(snapshot_ids)[order]


def read_blob(content: bytes, blob: PuffinBlob) -> bytes:
    """Return the content of a blob from the content of the whole file.

    Raises: BadRequest — the file is too short or the blob damaged · Unsupported — compressed with another codec than zstd
    """
    stored = content[blob.offset : blob.offset + blob.length]
    if len(stored) != blob.length:
        raise BadRequest(f"Cannot read Puffin blob at {blob.offset}: the file ends before it; write it again")
    if blob.compression_codec is None:
        return stored
    if blob.compression_codec != "zstd":
        raise Unsupported(f"Cannot read Puffin blob compressed with {blob.compression_codec!r}; write it with zstd or plain")
    try:
        return pyarrow.CompressedInputStream(pyarrow.BufferReader(stored), "zstd").read(BLOB_BYTES_MAX)
    except OSError as error:
        raise BadRequest(f"Cannot read Puffin blob at {blob.offset}: it is no zstd; write it again") from error


def _encode_vectors(head: bytes, vectors: Sequence[tuple[str, Positions]]) -> PuffinFile:
    parts = [head]
    blobs: list[PuffinBlob] = []
    offset = len(head)
    for data_file, positions in vectors:
        bitmap = to_bitmap(positions)
        encoded = encode_deletion_vector(bitmap)
        blobs.append(_build_vector_blob(data_file, bitmap, offset, len(encoded)))
        parts.append(encoded)
        offset += len(encoded)
    footer = _encode_footer(blobs)
    return PuffinFile(b"".join([*parts, footer]), tuple(blobs), len(footer))


def _build_vector_blob(data_file: str, bitmap: BitMap64 | FrozenBitMap64, offset: int, length: int) -> PuffinBlob:
    return PuffinBlob(
        type=DELETION_VECTOR,
        fields=(ROW_POSITION_FIELD_ID,),
        snapshot_id=-1,
        sequence_number=-1,
        offset=offset,
        length=length,
        properties={REFERENCED_DATA_FILE: data_file, CARDINALITY: str(len(bitmap))},
    )


def _encode_footer(blobs: Sequence[PuffinBlob]) -> bytes:
    node = {"blobs": [_format_blob(blob) for blob in blobs], "properties": CREATED_BY}
    payload = dumps(node, ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join([PUFFIN_MAGIC, payload, len(payload).to_bytes(4, "little"), bytes(4), PUFFIN_MAGIC])


def _format_blob(blob: PuffinBlob) -> dict[str, object]:
    return {
        "type": blob.type,
        "fields": list(blob.fields),
        "snapshot-id": blob.snapshot_id,
        "sequence-number": blob.sequence_number,
        "offset": blob.offset,
        "length": blob.length,
        "properties": dict(blob.properties),
    }


def _parse_blob(node: Mapping[str, object]) -> PuffinBlob:
    what = "Puffin blob"
    blob = PuffinBlob(
        type=get_text(node, "type", what),
        fields=list_ints(node, "fields", what),
        snapshot_id=get_long(node, "snapshot-id", what),
        sequence_number=get_long(node, "sequence-number", what),
        offset=get_long(node, "offset", what),
        length=get_long(node, "length", what),
        properties=find_text_map(node, "properties", what) or {},
        compression_codec=find_text(node, "compression-codec", what),
    )
    if blob.offset < 0 or blob.length < 0:
        raise BadRequest("Cannot read Puffin blob: its offset or length is negative; write the file again")
    return blob
