"""The LRU cache of ready-made table loads, bounded in entries and in bytes."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock

from duckicelake.catalog.tables import Position
from duckicelake.rest.ready import ReadyAnswer

DEFAULT_MAX_BYTES = 128 * 1024 * 1024

TableKey = tuple[bytes, str]
"""The raw path of a load, and its shape."""


@dataclass(frozen=True, slots=True)
class ReadyTable:
    """A table's ready answer, with the state of the lake that it shows."""

    prefix: str
    table_id: int
    position: Position
    answer: ReadyAnswer


class TableCache:
    """Filled by worker threads, read by the event loop; the least recently used entries leave first."""

    def __init__(self, max_entries: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[TableKey, ReadyTable] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: TableKey) -> ReadyTable | None:
        """Return the entry, which now counts as just used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: TableKey, entry: ReadyTable) -> None:
        """Keep an entry in the place of an older one; one that is larger than the cache is not kept."""
        with self._lock:
            self._remove(key)
            self._entries[key] = entry
            self.size_bytes += entry.answer.size_bytes
            while self._entries and (len(self._entries) > self._max_entries or self.size_bytes > self._max_bytes):
                self._remove(next(iter(self._entries)))

    def _remove(self, key: TableKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry.answer.size_bytes
