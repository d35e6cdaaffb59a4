"""Entity tags: a short hash of the body, so a tag differs whenever an answer does."""

import hashlib


def build_etag(*body: bytes) -> bytes:
    """Return the tag of a body, which may come in parts.

    It is weak because the plain and the gzipped form of a body share it (RFC 9110, 8.8.1).
    """
    digest = hashlib.sha256()
    for part in body:
        digest.update(part)
    return b'W/"%b"' % digest.hexdigest()[:24].encode()


def matches_etag(if_none_match: bytes, etag: bytes) -> bool:
    """Tell whether an If-None-Match header names the tag: by weak comparison, in a list, or as `*`."""
    if if_none_match == etag:
        return True
    opaque = etag.removeprefix(b"W/")
    tags = [tag.strip() for tag in if_none_match.split(b",")]
    return b"*" in tags or any(tag.removeprefix(b"W/") == opaque for tag in tags)
