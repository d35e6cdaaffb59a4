"""XXH64 itself: the numbers that everybody has of the same bytes."""

import random
import struct

import numpy as np
import pytest

from duckicelake.pipeline.verify.row_hashes import hash_ints, hash_longs, hash_spans

MASK = (1 << 64) - 1
P1, P2, P3, P4, P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotate(number: int, bits: int) -> int:
    """Bits turned to the left."""
    return (number << bits | number >> (64 - bits)) & MASK


def mix(lane: int, word: int) -> int:
    """One round of the specification."""
    return rotate((lane + word * P2) & MASK, 31) * P1 & MASK


def xxh64(content: bytes, seed: int) -> int:
    """The specification, one value at a time."""
    found = (seed + P5) & MASK
    stripes = len(content) // 32
    if stripes:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        for place in range(stripes):
            lanes = [mix(lane, word) for lane, word in zip(lanes, struct.unpack_from("<4Q", content, 32 * place), strict=True)]
        found = sum(rotate(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            found = ((found ^ mix(0, lane)) * P1 + P4) & MASK
    found = (found + len(content)) & MASK
    rest = content[32 * stripes :]
    while len(rest) >= 8:
        found = (rotate(found ^ mix(0, int.from_bytes(rest[:8], "little")), 27) * P1 + P4) & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        found = (rotate(found ^ int.from_bytes(rest[:4], "little") * P1 & MASK, 23) * P2 + P3) & MASK
        rest = rest[4:]
    for byte in rest:
        found = rotate(found ^ byte * P5 & MASK, 11) * P1 & MASK
    found = (found ^ found >> 33) * P2 & MASK
    found = (found ^ found >> 29) * P3 & MASK
    return found ^ found >> 32


def hash_all(values: list[bytes], seeds: list[int]) -> list[int]:
    """The numbers of values that lie one after the other."""
    lengths = np.array([len(value) for value in values], np.int64)
    content = np.frombuffer(b"".join(values) + bytes(8), np.uint8)
    return hash_spans(content, np.cumsum(lengths) - lengths, lengths, np.array(seeds, np.uint64)).tolist()


@pytest.mark.parametrize(
    ("content", "seed", "number"),
    [
        pytest.param(b"", 0, 0xEF46DB3751D8E999, id="empty"),
        pytest.param(b"a", 0, 0xD24EC4F1A98C6E5B, id="byte"),
        pytest.param(b"abc", 0, 0x44BC2CF5AD770999, id="bytes"),
        pytest.param(b"xxhash", 20141025, 0xB559B98D844E0635, id="seed"),
        pytest.param(b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1, id="stripe"),
    ],
)
def test_known_numbers(content: bytes, seed: int, number: int) -> None:
    """Those that the world's libraries print."""
    assert (xxh64(content, seed), hash_all([content], [seed])) == (number, [number])


def test_spans_of_every_length_are_hashed_together() -> None:
    """Each by its own seed, more than one block of them, in any order."""
    chance = random.Random(3)
    values = [chance.randbytes(chance.randrange(200)) for _ in range(3000)] + [chance.randbytes(11) for _ in range(9000)]
    chance.shuffle(values)
    seeds = [chance.getrandbits(64) for _ in values]
    assert hash_all(values, seeds) == [xxh64(value, seed) for value, seed in zip(values, seeds, strict=True)]
    assert hash_all([], []) == []


def test_whole_numbers_are_their_bytes() -> None:
    """The lowest first."""
    chance = random.Random(5)
    seeds = [chance.getrandbits(64) for _ in range(9000)]
    longs, ints = ([chance.getrandbits(bits) for _ in seeds] for bits in (64, 32))
    found = hash_longs(np.array(longs, np.uint64), np.array(seeds, np.uint64)).tolist()
    assert found == [xxh64(value.to_bytes(8, "little"), seed) for value, seed in zip(longs, seeds, strict=True)]
    found = hash_ints(np.array(ints, np.uint32), np.array(seeds, np.uint64)).tolist()
    assert found == [xxh64(value.to_bytes(4, "little"), seed) for value, seed in zip(ints, seeds, strict=True)]
