"""The LRU cache of ready-made table loads, bounded in entries and in bytes."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from starlette.types import Scope

from duckicelake.catalog.tables import Position
from duckicelake.rest.cached_response import CachedResponse
from duckicelake.rest.errors import READS

DEFAULT_MAX_BYTES = 128 * 1024 * 1024

TableKey = tuple[bytes, str]
"""The raw path of a load, and its shape, with the rights that keys in it have."""

SHAPES: Mapping[bytes, str] = {b"": "all", b"snapshots=all": "all", b"snapshots=refs": "refs"}
"""The queries worth keeping an answer for; any other spelling takes the long way and fills nothing."""

TABLE_PATH_PARTS = 7


@dataclass(frozen=True, slots=True)
class CachedLoad:
    """A table's ready answer, with the state of the lake that it shows. `local_file`: the answer holds while that is there.

    `fresh_until_s`: it holds keys, which are given out until then, or until a table came that could lie where this one does.
    """

    prefix: str
    table_id: int
    position: Position
    answer: CachedResponse
    local_file: str | None = None
    fresh_until_s: float | None = None


class ResponseCache:
    """Filled by worker threads, read by the event loop; the least recently used entries leave first."""

    def __init__(self, max_entries: int, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._entries: OrderedDict[TableKey, CachedLoad] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: TableKey) -> CachedLoad | None:
        """Return the entry, which now counts as just used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: TableKey, entry: CachedLoad) -> None:
        """Keep an entry in the place of an older one; one that is larger than the cache is not kept."""
        with self._lock:
            self._remove(key)
            if entry.answer.size_bytes > self._max_bytes:
                return
            self._entries[key] = entry
            self.size_bytes += entry.answer.size_bytes
            while self._entries and (len(self._entries) > self._max_entries or self.size_bytes > self._max_bytes):
                self._remove(next(iter(self._entries)))

    def forget(self, prefix: str, table_id: int) -> None:
        """Keep no answer of a table any longer."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if (entry.prefix, entry.table_id) == (prefix, table_id)]:
                self._remove(key)

    def _remove(self, key: TableKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry.answer.size_bytes


def find_table_key(scope: Scope) -> TableKey | None:
    """Return where the cache keeps the answer to this request, or None if it keeps none."""
    shape = SHAPES.get(scope["query_string"])
    if shape is None or scope["method"] not in READS:
        return None
    raw_path: bytes = scope.get("raw_path") or b""
    parts = raw_path.split(b"/")
    if len(parts) != TABLE_PATH_PARTS or parts[3] != b"namespaces" or parts[5] != b"tables":
        return None
    return raw_path, shape
