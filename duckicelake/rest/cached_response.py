"""Complete responses to table loads: bytes, headers and ETag, built once and sent many times from an LRU cache.

Threads that run catalog operations build and store responses; `layers.fast_paths` reads them on the event loop, and the thread of the
object monitor drops those of a table. In memory only. An ETag is a hash of the body, so two bodies never share one.
"""

import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from starlette.types import Scope

from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.tables import Position
from duckicelake.rest.errors import READS


def build_etag(*body: bytes) -> bytes:
    """Return the ETag of a body that is given in parts.

    The ETag is weak because the plain and the gzipped form of a body share it (RFC 9110, 8.8.1).
    """
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return b'W/"%b"' % digest.hexdigest()[:24].encode()


def matches_etag(if_none_match: bytes, etag: bytes) -> bool:
    """True if an If-None-Match header matches the ETag: by weak comparison, in a list, or as `*`."""
    if if_none_match == etag:
        return True
    opaque = etag.removeprefix(b"W/")
    tags = [tag.strip() for tag in if_none_match.split(b",")]
    return b"*" in tags or any(tag.removeprefix(b"W/") == opaque for tag in tags)


GZIP_FROM_BYTES = 64 * 1024
GZIP_LEVEL = 5
JSON_TYPE = (b"content-type", b"application/json")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A JSON body with the headers of its 200 and of its 304 response."""

    etag: bytes
    body: bytes
    headers: Headers
    gzipped_body: bytes | None
    gzipped_headers: Headers
    not_modified_headers: Headers

    @property
    def size_bytes(self) -> int:
        """Memory of the plain and the gzipped body."""
        return len(self.body) + len(self.gzipped_body or b"")

    def choose(self, if_none_match: bytes | None, accept_encoding: bytes | None) -> tuple[int, Headers, bytes]:
        """Return status, headers and body for a client's If-None-Match and Accept-Encoding headers."""
        if if_none_match is not None and matches_etag(if_none_match, self.etag):
            return 304, self.not_modified_headers, b""
        if self.gzipped_body is not None and accept_encoding is not None and accepts_gzip(accept_encoding):
            return 200, self.gzipped_headers, self.gzipped_body
        return 200, self.headers, self.body


def list_headers(etag: bytes, length_bytes: int) -> Headers:
    """Return the headers of a JSON body that is not compressed."""
    return [(b"content-length", b"%d" % length_bytes), JSON_TYPE, *_list_common(etag)]


def _list_common(etag: bytes) -> Headers:
    """Return the headers of 200 and 304. `no-cache` makes a client validate its copy before each use, so a load is never stale."""
    return [(b"etag", etag), (b"cache-control", b"private, no-cache"), (b"vary", b"accept-encoding")]


def build_cached_response(body: bytes, *, is_kept: bool = True, tagged: Sequence[bytes] = ()) -> CachedResponse:
    """Return the response with a JSON body. A long body that will be cached is gzipped here, once.

    `tagged`: the bytes to hash for the ETag instead of the body; they must differ whenever the body differs.
    """
    etag = build_etag(*(tagged or (body,)))
    common = _list_common(etag)
    gzipped = gzip.compress(body, GZIP_LEVEL, mtime=0) if is_kept and len(body) > GZIP_FROM_BYTES else None
    return CachedResponse(
        etag=etag,
        body=body,
        headers=list_headers(etag, len(body)),
        gzipped_body=gzipped,
        gzipped_headers=[(b"content-length", b"%d" % len(gzipped or b"")), JSON_TYPE, (b"content-encoding", b"gzip"), *common],
        not_modified_headers=common,
    )


def read_conditional_headers(request_headers: Headers) -> tuple[bytes | None, bytes | None]:
    """Return the request's If-None-Match and Accept-Encoding headers."""
    if_none_match = accept_encoding = None
    for name, value in request_headers:
        if name == b"if-none-match":
            if_none_match = value
        elif name == b"accept-encoding":
            accept_encoding = value
    return if_none_match, accept_encoding


def accepts_gzip(accept_encoding: bytes) -> bool:
    """True if an Accept-Encoding header accepts gzip (RFC 9110, 12.5.3)."""
    taken: dict[bytes, bool] = {}
    for part in accept_encoding.lower().split(b","):
        coding, _, weight = part.partition(b";")
        taken[coding.strip()] = weight.replace(b" ", b"").rstrip(b"0.") != b"q="
    return taken.get(b"gzip", taken.get(b"*", False))


ENTRY_BYTES = 1280
"""About what an entry takes beside its bodies: key, headers and objects (measured with tracemalloc, Python 3.13)."""

TableKey = tuple[bytes, str]
"""The raw path of a load, and the snapshots that it shows, with the rights of the credentials in it."""

SHAPES: Mapping[bytes, str] = {b"": "all", b"snapshots=all": "all", b"snapshots=refs": "refs"}
"""The query strings whose responses are cached, as clients spell them; a request with another spelling goes through FastAPI uncached."""

TABLE_PATH_PARTS = 7


@dataclass(frozen=True, slots=True)
class CachedLoad:
    """A cached response of a table load, with the lake position that it shows.

    `read`: what the audit of reads says of it. `local_file`: the response is valid only while this file exists.
    `fresh_until_s`: the response holds vended credentials; it is valid until then, and only while no new table could share the location.
    """

    prefix: str
    table_id: int
    position: Position
    answer: CachedResponse
    read: ReadAnswer
    local_file: str | None = None
    fresh_until_s: float | None = None

    @property
    def size_bytes(self) -> int:
        """About how much memory the entry takes."""
        return ENTRY_BYTES + self.answer.size_bytes


class ResponseCache:
    """LRU cache of table loads, bounded in bytes. Worker threads fill it, the event loop reads it. Safe to share."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[TableKey, CachedLoad] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: TableKey) -> CachedLoad | None:
        """Return the entry, and mark it as most recently used."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
            return entry

    def put(self, key: TableKey, entry: CachedLoad) -> None:
        """Store an entry and replace an older one. An entry larger than the cache is not stored."""
        with self._lock:
            self._remove(key)
            if entry.size_bytes > self._max_bytes:
                return
            self._entries[key] = entry
            self.size_bytes += entry.size_bytes
            while self.size_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def forget(self, prefix: str, table_id: int) -> None:
        """Remove all entries of a table."""
        with self._lock:
            for key in [key for key, entry in self._entries.items() if (entry.prefix, entry.table_id) == (prefix, table_id)]:
                self._remove(key)

    def _remove(self, key: TableKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes


def find_table_key(scope: Scope) -> TableKey | None:
    """Return the cache key of a request, or None if its response is never cached."""
    shape = SHAPES.get(scope["query_string"])
    if shape is None or scope["method"] not in READS:
        return None
    raw_path: bytes = scope.get("raw_path") or b""
    parts = raw_path.split(b"/")
    if len(parts) != TABLE_PATH_PARTS or parts[3] != b"namespaces" or parts[5] != b"tables":
        return None
    return raw_path, shape
