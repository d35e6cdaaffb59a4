"""XXH64 of many values at once, each with a seed of its own.

Source: the xxHash specification; whole numbers of 4 and 8 bytes are hashed as these bytes, the lowest first
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

WORD_BYTES = 8
_STRIPE_BYTES = 32
_BLOCK = 16384
_LOW, _BYTE = np.uint64(0xFFFF_FFFF), np.uint64(0xFF)
_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4, _P5 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_LANES = (np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) % (1 << 64)), _P2, np.uint64(0), np.uint64((1 << 64) - 0x9E3779B185EBCA87))
_TURNS = (1, 7, 12, 18)


def hash_longs(values: Hashes, seeds: Hashes) -> Hashes:
    """A number for each of these numbers of 64 bits."""
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        begun = np.add(seeds[block], np.uint64(0x27D4EB2F165667C5 + WORD_BYTES), out=found[block])
        _finish(_add_words(begun, values[block]))
    return found


def hash_ints(values: NDArray[np.uint32], seeds: Hashes) -> Hashes:
    """A number for each of these numbers of 32 bits."""
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        begun = np.add(seeds[block], np.uint64(0x27D4EB2F165667C5 + WORD_BYTES // 2), out=found[block])
        _finish(_add_halves(begun, values[block].astype(np.uint64)))
    return found


def hash_spans(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """A number for each span of bytes; eight more bytes follow the last span."""
    # A word begins at every byte.
    words = np.ndarray((len(content) - WORD_BYTES + 1,), np.dtype("<u8"), content.data, strides=(1,))
    found = np.empty(len(seeds), np.uint64)
    for block in _list_blocks(len(found)):
        at, sizes = starts[block], lengths[block]
        left = (sizes & (_STRIPE_BYTES - 1)).astype(np.uint8)
        numbers = np.add(seeds[block], _P5, out=found[block])
        long = np.flatnonzero(sizes >= _STRIPE_BYTES)
        if long.size:
            numbers[long] = _hash_stripes(words, at[long], sizes[long], seeds[block][long])
            at = at + (sizes - left)
        numbers += sizes.view(np.uint64)
        _finish(_add_rest(numbers, words, at, left))
    return found


def _list_blocks(count: int) -> Iterator[slice]:
    """Parts of so many values that what is made of them stays near."""
    return (slice(start, start + _BLOCK) for start in range(0, count, _BLOCK))


def _add_rest(numbers: Hashes, words: Hashes, at: NDArray[np.int64], left: NDArray[np.uint8]) -> Hashes:
    """Go on with the last bytes of spans, so many of each, fewer than a stripe."""
    for end in range(WORD_BYTES, int(left.max(initial=0)) + 1, WORD_BYTES):
        # What lies behind the last span is read for shorter ones, and not gone on with.
        _go_on(_add_words, numbers, words[np.minimum(at + (end - WORD_BYTES), len(words) - 1)], left >= end)
    if not (left % WORD_BYTES).any():
        return numbers
    rest = words[at + (left & 0xF8)]
    has_half = left & 4 != 0
    _go_on(_add_halves, numbers, rest & _LOW, has_half)
    rest >>= has_half.astype(np.uint64) << np.uint64(5)
    for size in range(1, 4):
        _go_on(_add_bytes, numbers, rest & _BYTE, left & 3 >= size)
        rest >>= np.uint64(8)
    return numbers


def _go_on(add: Callable[[Hashes, Hashes], Hashes], numbers: Hashes, values: Hashes, is_there: NDArray[np.bool_]) -> None:
    """Go on with values where they are there, in place; they are spent."""
    count = int(np.count_nonzero(is_there))
    if count == len(numbers):
        add(numbers, values)
    elif count > len(numbers) // 2:
        # Most numbers are gone on with faster where they lie.
        np.copyto(numbers, add(numbers.copy(), values), where=is_there)
    elif count:
        places = np.flatnonzero(is_there)
        numbers[places] = add(numbers[places], values[places])


def _hash_stripes(words: Hashes, starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """What the whole stripes of spans make, each of which has one."""
    counts = lengths // _STRIPE_BYTES
    order = np.argsort(counts, kind="stable")
    at, ends = starts[order], np.cumsum(np.bincount(counts))
    lanes = [seeds[order] + lane for lane in _LANES]
    for stripe in range(len(ends) - 1):
        rest = slice(ends[stripe], None)
        for place, lane in enumerate(lanes):
            turned = lane[rest]
            turned += words[at[rest] + stripe * _STRIPE_BYTES + place * WORD_BYTES] * _P2
            _turn(turned)
    joined = np.zeros(len(order), np.uint64)
    for lane, turn in zip(lanes, _TURNS, strict=True):
        joined += (lane << np.uint64(turn)) | (lane >> np.uint64(64 - turn))
    for lane in lanes:
        joined ^= _turn(lane * _P2)
        joined *= _P1
        joined += _P4
    found = np.empty(len(order), np.uint64)
    found[order] = joined
    return found


def _add_words(numbers: Hashes, words: Hashes) -> Hashes:
    numbers ^= _turn(words * _P2)
    spare = numbers >> np.uint64(64 - 27)
    numbers <<= np.uint64(27)
    numbers |= spare
    numbers *= _P1
    numbers += _P4
    return numbers


def _add_halves(numbers: Hashes, halves: Hashes) -> Hashes:
    """Go on with half words, which are spent."""
    halves *= _P1
    numbers ^= halves
    np.right_shift(numbers, np.uint64(64 - 23), out=halves)
    numbers <<= np.uint64(23)
    numbers |= halves
    numbers *= _P2
    numbers += _P3
    return numbers


def _add_bytes(numbers: Hashes, values: Hashes) -> Hashes:
    """Go on with single bytes, which are spent."""
    values *= _P5
    numbers ^= values
    np.right_shift(numbers, np.uint64(64 - 11), out=values)
    numbers <<= np.uint64(11)
    numbers |= values
    numbers *= _P1
    return numbers


def _turn(multiplied: Hashes) -> Hashes:
    """The second half of a round, in place."""
    spare = multiplied >> np.uint64(64 - 31)
    multiplied <<= np.uint64(31)
    multiplied |= spare
    multiplied *= _P1
    return multiplied


def _finish(numbers: Hashes) -> Hashes:
    spare = numbers >> np.uint64(33)
    numbers ^= spare
    numbers *= _P2
    np.right_shift(numbers, np.uint64(29), out=spare)
    numbers ^= spare
    numbers *= _P3
    np.right_shift(numbers, np.uint64(32), out=spare)
    numbers ^= spare
    return numbers
