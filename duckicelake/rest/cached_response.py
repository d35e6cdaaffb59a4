"""Ready-made answers: the bytes, headers and tag of one body, prepared once and sent many times."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.rest.etag import build_etag, matches_etag

GZIP_FROM_BYTES = 64 * 1024
GZIP_LEVEL = 5
JSON_TYPE = (b"content-type", b"application/json")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class CachedResponse:
    """A JSON body with everything its 200 and its 304 need."""

    etag: bytes
    body: bytes
    headers: Headers
    gzipped_body: bytes | None
    gzipped_headers: Headers
    not_modified_headers: Headers

    @property
    def size_bytes(self) -> int:
        """Memory that the bodies take."""
        return len(self.body) + len(self.gzipped_body or b"")

    def choose(self, if_none_match: bytes | None, accept_encoding: bytes | None) -> tuple[int, Headers, bytes]:
        """Return status, headers and body for what the client has and takes."""
        if if_none_match is not None and matches_etag(if_none_match, self.etag):
            return 304, self.not_modified_headers, b""
        if self.gzipped_body is not None and accept_encoding is not None and accepts_gzip(accept_encoding):
            return 200, self.gzipped_headers, self.gzipped_body
        return 200, self.headers, self.body


def list_headers(etag: bytes, length_bytes: int) -> Headers:
    """Return the headers of a JSON body that is not compressed."""
    return [(b"content-length", b"%d" % length_bytes), JSON_TYPE, *_list_common(etag)]


def _list_common(etag: bytes) -> Headers:
    """`no-cache` lets a client keep the answer and makes it ask again: a load is never stale."""
    return [(b"etag", etag), (b"cache-control", b"private, no-cache"), (b"vary", b"accept-encoding")]


def build_cached_response(body: bytes, *, is_kept: bool = True, tagged: Sequence[bytes] = ()) -> CachedResponse:
    """Return the answer that carries a JSON body; a long one that is kept for many requests is compressed here, once.

    `tagged`: what its tag is of, when that is not the body itself: it must differ whenever the body does.
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
    """Tell whether an Accept-Encoding header takes gzip (RFC 9110, 12.5.3)."""
    taken: dict[bytes, bool] = {}
    for part in accept_encoding.lower().split(b","):
        coding, _, weight = part.partition(b";")
        taken[coding.strip()] = weight.replace(b" ", b"").rstrip(b"0.") != b"q="
    return taken.get(b"gzip", taken.get(b"*", False))
