"""Long JSON lists that only grow, encoded as they grow."""

from collections.abc import Callable
from hashlib import sha256
from typing import Generic, TypeVar

ListItem = TypeVar("Item")


class EncodedList(Generic[ListItem]):
    """The JSON of a list that grows: every item is encoded and digested once, however often the whole is asked for."""

    def __init__(self, encode: Callable[[ListItem], bytes]) -> None:
        self._encode = encode
        self._items: tuple[ListItem, ...] = ()
        self._json = bytearray()
        self._digest = sha256()
        self._followed: tuple[tuple[ListItem, ...], int] = ((), 0)
        self._first = b""

    def follow(self, items: tuple[ListItem, ...], alias_count: int = 0) -> tuple[bytes, bytearray]:
        """The items without brackets, in two parts: the first `alias_count` of them, made anew, and those that grow.

        Starts again when these are not the ones before and more.
        """
        if items is not self._followed[0] or alias_count != self._followed[1]:
            first = b"".join([self._encode(item) + b"," for item in items[:alias_count]])
            growing = items[alias_count:] if alias_count else items
            self._take(growing)
            self._followed, self._first = (items, alias_count), first if growing else first[:-1]
        return self._first, self._json

    def _take(self, growing: tuple[ListItem, ...]) -> None:
        if growing[: len(self._items)] != self._items:
            self._items, self._json, self._digest = (), bytearray(), sha256()
        fresh = b"".join([b"," + self._encode(item) for item in growing[len(self._items) :]])
        self._digest.update(fresh)
        self._json += fresh if self._json else fresh[1:]
        self._items = growing

    def digest(self, items: tuple[ListItem, ...], alias_count: int = 0) -> bytes:
        """What tells one list from another."""
        first, _ = self.follow(items, alias_count)
        digest = self._digest.copy()
        digest.update(first)
        return digest.digest()

    @property
    def nbytes(self) -> int:
        """How much memory the JSON takes."""
        return len(self._json)
