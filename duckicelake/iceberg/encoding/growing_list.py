"""Long JSON lists that only grow, encoded as they grow."""

from collections.abc import Callable
from hashlib import sha256
from typing import Generic, TypeVar

Item = TypeVar("Item")


class GrowingList(Generic[Item]):
    """The JSON of a list that grows: every item is encoded and digested once, however often the whole is asked for."""

    def __init__(self, encode: Callable[[Item], bytes]) -> None:
        self._encode = encode
        self._items: tuple[Item, ...] = ()
        self._json = bytearray()
        self._digest = sha256()
        self._followed: tuple[tuple[Item, ...], int] = ((), 0)
        self._first = b""

    def follow(self, items: tuple[Item, ...], ahead: int = 0) -> tuple[bytes, bytearray]:
        """The items without brackets, in two parts: the first `ahead` of them, made anew, and those that grow.

        Starts again when these are not the ones before and more.
        """
        if items is not self._followed[0] or ahead != self._followed[1]:
            first = b"".join([self._encode(item) + b"," for item in items[:ahead]])
            growing = items[ahead:] if ahead else items
            self._take(growing)
            self._followed, self._first = (items, ahead), first if growing else first[:-1]
        return self._first, self._json

    def _take(self, growing: tuple[Item, ...]) -> None:
        if growing[: len(self._items)] != self._items:
            self._items, self._json, self._digest = (), bytearray(), sha256()
        fresh = b"".join([b"," + self._encode(item) for item in growing[len(self._items) :]])
        self._digest.update(fresh)
        self._json += fresh if self._json else fresh[1:]
        self._items = growing

    def digest(self, items: tuple[Item, ...], ahead: int = 0) -> bytes:
        """What tells one list from another."""
        first, _ = self.follow(items, ahead)
        digest = self._digest.copy()
        digest.update(first)
        return digest.digest()

    @property
    def nbytes(self) -> int:
        """How much memory the JSON takes."""
        return len(self._json)
