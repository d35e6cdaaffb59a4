"""The hash behind `bucket`."""

_MASK = 0xFFFFFFFF


def hash_bytes(content: bytes) -> int:
    """The 32-bit Murmur3 hash (x86 variant, seed 0), unsigned.

    Source: Iceberg spec, appendix B; the algorithm is Austin Appleby's, in the public domain
    """
    state = 0
    whole = len(content) // 4 * 4
    for start in range(0, whole, 4):
        state ^= _mix(int.from_bytes(content[start : start + 4], "little"))
        state = (_rotate(state, 13) * 5 + 0xE6546B64) & _MASK
    if whole < len(content):
        state ^= _mix(int.from_bytes(content[whole:], "little"))
    state ^= len(content)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16


def _mix(block: int) -> int:
    return _rotate(block * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK


def _rotate(number: int, count: int) -> int:
    return (number << count | number >> 32 - count) & _MASK
