import zlib

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload
from pyroaring import BitMap64, FrozenBitMap64

from duckicelake.errors import BadRequest
from duckicelake.iceberg.puffin import VECTOR_MAGIC, decode_deletion_vector, encode_deletion_vector, to_bitmap, to_positions

# PyIceberg makes a list entry for every key below the highest, so its positions stay low.
LOW = st.sets(st.integers(0, 2**34))
RUNS = st.lists(st.tuples(st.integers(0, 2**33), st.integers(1, 5000)), max_size=3)
POSITIONS = st.sets(st.integers(0, 2**63 - 1), max_size=50) | RUNS.map(
    lambda runs: {i for start, count in runs for i in range(start, start + count)}
)


def framed(marked, length=None, crc=None):
    """A blob around magic and bitmap, with a length and checksum of one's own if wanted."""
    checksum = zlib.crc32(marked) if crc is None else crc
    return (len(marked) if length is None else length).to_bytes(4, "big") + marked + checksum.to_bytes(4, "big")


@given(POSITIONS)
def test_positions_come_back(positions):
    """decode_deletion_vector(encode_deletion_vector(x)) = x."""
    found = decode_deletion_vector(encode_deletion_vector(positions))
    assert found == FrozenBitMap64(positions)
    assert to_positions(found).tolist() == sorted(positions)


@given(LOW)
def test_pyiceberg_reads_our_vectors(positions):
    """PyIceberg finds the same positions in the blob."""
    bitmaps = DeletionVector._deserialize_bitmap(_extract_vector_payload(encode_deletion_vector(positions)))
    assert [(key << 32) + low for key, bitmap in enumerate(bitmaps) for low in bitmap] == sorted(positions)


@given(POSITIONS, st.randoms())
def test_same_positions_give_the_same_bytes(positions, random):
    """However the positions were gathered, the blob is the same."""
    shuffled = sorted(positions)
    random.shuffle(shuffled)
    half = len(shuffled) // 2
    gathered = BitMap64(shuffled[:half]) | BitMap64(shuffled[half:])
    gathered |= BitMap64([7, 2**40])
    gathered -= BitMap64({7, 2**40} - positions)
    blob = encode_deletion_vector(positions)
    assert encode_deletion_vector(gathered) == blob
    assert encode_deletion_vector(FrozenBitMap64(shuffled)) == blob
    assert encode_deletion_vector(numpy.array(shuffled, dtype=numpy.int64)) == blob


def test_a_vector_has_the_specifications_shape():
    """length | D1D33964 | number of bitmaps | key | bitmap | checksum."""
    blob = encode_deletion_vector([1, 2**32 + 5])
    assert int.from_bytes(blob[:4], "big") == len(blob) - 8
    assert blob[4:8] == bytes.fromhex("D1D33964")
    assert int.from_bytes(blob[8:16], "little") == 2
    assert int.from_bytes(blob[16:20], "little") == 0
    assert int.from_bytes(blob[-4:], "big") == zlib.crc32(blob[4:-4])


def test_runs_are_stored_as_runs():
    """A million rows in a row take bytes, not kilobytes."""
    assert len(encode_deletion_vector(numpy.arange(1_000_000))) < 300


@pytest.mark.parametrize("positions", [[-1], numpy.array([3, -1]), [2**64]])
def test_negative_positions_are_refused(positions):
    """A position is a row number from 0."""
    with pytest.raises(BadRequest):
        to_bitmap(positions)


GOOD = encode_deletion_vector([1, 5, 2**40])


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        pytest.param(b"", "length", id="empty"),
        pytest.param(GOOD[:-1], "length", id="cut"),
        pytest.param(GOOD + b"\0", "length", id="followed"),
        pytest.param(framed(b"WXYZ" + GOOD[8:-4]), "magic", id="magic"),
        pytest.param(framed(GOOD[4:-4], crc=1), "checksum", id="checksum"),
        pytest.param(framed(VECTOR_MAGIC), "damaged", id="no-bitmap"),
        pytest.param(framed(VECTOR_MAGIC + b"\1" * 30), "damaged", id="nonsense"),
        pytest.param(framed(GOOD[4:-4] + b"zz"), "bytes follow", id="trailing"),
    ],
)
def test_damaged_vectors_are_bad_requests(blob, words):
    """Length, magic and checksum are checked before the bitmap is believed."""
    with pytest.raises(BadRequest, match=words):
        decode_deletion_vector(blob)
