"""XXH64 of many values at once, each with a seed of its own.

Source: the xxHash specification; whole numbers of 4 and 8 bytes are hashed as these bytes, the lowest first
"""

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

WORD_BYTES = 8
_STRIPE_BYTES = 32
_LOW, _BYTE = np.uint64(0xFFFF_FFFF), np.uint64(0xFF)
_P1, _P2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P3, _P4, _P5 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)
_LANES = (np.uint64((0x9E3779B185EBCA87 + 0xC2B2AE3D27D4EB4F) % (1 << 64)), _P2, np.uint64(0), np.uint64((1 << 64) - 0x9E3779B185EBCA87))
_TURNS = (1, 7, 12, 18)


def hash_longs(values: Hashes, seeds: Hashes) -> Hashes:
    """A number for each of these numbers of 64 bits."""
    found, spare = seeds + np.uint64(0x27D4EB2F165667C5 + 8), values * _P2
    _add_rounds(found, spare)
    return _finish(found, spare)


def hash_ints(values: NDArray[np.uint32], seeds: Hashes) -> Hashes:
    """A number for each of these numbers of 32 bits."""
    found, spare = seeds + np.uint64(0x27D4EB2F165667C5 + 4), values.astype(np.uint64)
    _add_halves(found, spare)
    return _finish(found, spare)


def hash_spans(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], seeds: Hashes) -> Hashes:
    """A number for each span of bytes; eight more bytes follow the last span."""
    # A word begins at every byte.
    words = np.ndarray((len(content) - WORD_BYTES + 1,), np.dtype("<u8"), content.tobytes(), strides=(1,))
    found = seeds + _P5
    long = np.flatnonzero(lengths >= _STRIPE_BYTES)
    if long.size:
        found[long] = _hash_stripes(words, starts[long], lengths[long], seeds[long])
    found += lengths.view(np.uint64)
    # In the order of what is left after the stripes, spans that go on alike lie together.
    left = (lengths % _STRIPE_BYTES).astype(np.uint8)
    order = np.argsort(left, kind="stable")
    numbers, at = found[order], (starts + (lengths - left))[order]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(left, minlength=_STRIPE_BYTES))])
    for place in range(0, _STRIPE_BYTES - WORD_BYTES, WORD_BYTES):
        rest = slice(bounds[place + WORD_BYTES], None)
        _add_rounds(numbers[rest], words[at[rest] + place] * _P2)
    for size in np.flatnonzero(np.diff(bounds)).tolist():
        same = slice(bounds[size], bounds[size + 1])
        if size % WORD_BYTES:
            _add_rest(numbers[same], words[at[same] + size // WORD_BYTES * WORD_BYTES], size % WORD_BYTES)
    found[order] = _finish(numbers, np.empty_like(numbers))
    return found


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
            _rotate(turned, 31, np.empty_like(turned))
            turned *= _P1
    joined = np.zeros(len(order), np.uint64)
    for lane, turn in zip(lanes, _TURNS, strict=True):
        joined += (lane << np.uint64(turn)) | (lane >> np.uint64(64 - turn))
    for lane in lanes:
        lane *= _P2
        _rotate(lane, 31, np.empty_like(lane))
        joined ^= lane * _P1
        joined *= _P1
        joined += _P4
    found = np.empty(len(order), np.uint64)
    found[order] = joined
    return found


def _add_rest(numbers: Hashes, words: Hashes, size: int) -> None:
    """Go on with the last bytes, fewer than a word."""
    if size >= 4:
        _add_halves(numbers, words & _LOW)
        words >>= np.uint64(32)
    spare = np.empty_like(words)
    for _ in range(size % 4):
        np.bitwise_and(words, _BYTE, out=spare)
        words >>= np.uint64(8)
        spare *= _P5
        numbers ^= spare
        _rotate(numbers, 11, spare)
        numbers *= _P1


def _add_rounds(numbers: Hashes, multiplied: Hashes) -> None:
    """Go on with words, which were multiplied and are spent."""
    _rotate(multiplied, 31, np.empty_like(multiplied))
    multiplied *= _P1
    numbers ^= multiplied
    _rotate(numbers, 27, multiplied)
    numbers *= _P1
    numbers += _P4


def _add_halves(numbers: Hashes, halves: Hashes) -> None:
    """Go on with half words, which are spent."""
    halves *= _P1
    numbers ^= halves
    _rotate(numbers, 23, halves)
    numbers *= _P2
    numbers += _P3


def _rotate(numbers: Hashes, bits: int, spare: Hashes) -> None:
    np.right_shift(numbers, np.uint64(64 - bits), out=spare)
    numbers <<= np.uint64(bits)
    numbers |= spare


def _finish(numbers: Hashes, spare: Hashes) -> Hashes:
    for bits, factor in ((33, _P2), (29, _P3)):
        np.right_shift(numbers, np.uint64(bits), out=spare)
        numbers ^= spare
        numbers *= factor
    np.right_shift(numbers, np.uint64(32), out=spare)
    numbers ^= spare
    return numbers
