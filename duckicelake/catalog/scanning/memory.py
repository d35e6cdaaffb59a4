"""What is remembered of objects that never change, so that the next plan does not read them again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar, cast

Kept = TypeVar("Kept")
USUAL_BYTES = 256 * 1024 * 1024


@dataclass(slots=True)
class ScanMemory:
    """Values by key, those used last, up to about `most_bytes`; what is larger than a fourth of that is not kept."""

    most_bytes: int = USUAL_BYTES
    size_bytes: int = 0
    _kept: OrderedDict[Hashable, tuple[object, int]] = field(default_factory=OrderedDict[Hashable, tuple[object, int]])
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable, make: Callable[[], tuple[Kept, int]]) -> Kept:
        """Return what was kept under a key, or what `make` gives with about its size; two threads may make it at once."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return cast("Kept", found[0])
        made, size_bytes = make()
        if size_bytes <= self.most_bytes // 4:
            self._put(key, made, size_bytes)
        return made

    def _put(self, key: Hashable, made: object, size_bytes: int) -> None:
        with self._lock:
            known = self._kept.pop(key, (None, 0))
            self._kept[key] = (made, size_bytes)
            self.size_bytes += size_bytes - known[1]
            while self.size_bytes > self.most_bytes:
                self.size_bytes -= self._kept.popitem(last=False)[1][1]

    def __len__(self) -> int:
        return len(self._kept)
