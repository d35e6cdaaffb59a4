"""URIs of objects, and the protocol of the backends that hold them (`s3.S3Bucket`, `objects.LocalDisk`).

Nothing here contacts a store. `store`, `catalog` and `commands` parse URIs with it.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from duckicelake.errors import Unsupported

S3_SCHEMES = ("s3", "s3a", "s3n")

MAX_KEY_BYTES = 1024
"""The longest key that S3 allows; clients fail on longer keys in different ways."""

# An empty, `.` or `..` part, or a control character: clients and servers normalize these in different ways.
UNSAFE_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|$)|[\x00-\x1f\x7f]")


class ObjectBackend(Protocol):
    """One bucket, or the local disk. Keys are literal, never percent-encoded.

    Every method raises ServiceUnavailable when the store does not answer; those that read raise
    NotFound when the object is missing.
    """

    def read(self, key: str) -> bytes: ...

    def open(self, key: str) -> tuple[int, Callable[[], bytes]]:
        """Return the object's size and a function that reads its content."""
        ...

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]: ...

    def find_size(self, key: str) -> int | None: ...

    def find_etag(self, key: str) -> str | None: ...

    def put_new(self, key: str, content: bytes) -> bool: ...

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None: ...

    def replace(self, key: str, content: bytes, etag: str) -> str | None: ...

    def delete(self, key: str) -> None: ...

    def list_under(self, prefix: str) -> Iterator[tuple[str, int]]: ...

    def list_modified(self, prefix: str) -> Iterator[tuple[str, datetime]]: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """The address of an object. On the local disk `bucket` is empty and keys start with `/`."""

    prefix: str
    bucket: str
    key: str

    def format_uri(self, key: str) -> str:
        """Return the URI of another key in the same bucket, with the same scheme."""
        return self.prefix + key


def parse_uri(uri: str) -> ObjectAddress:
    """Return the address in a URI or an absolute local path. `%`, `#`, `?` and spaces in a key are literal.

    Raises: Unsupported — an unknown scheme, or a key that clients or servers would normalize to another one
    """
    scheme, _, rest = uri.partition("://")
    if scheme in S3_SCHEMES:
        bucket, _, key = rest.partition("/")
        if bucket:
            return ObjectAddress(f"{scheme}://{bucket}/", bucket, _plain_key(uri, key))
    path = uri.removeprefix("file://") if uri.startswith("file://") else uri.removeprefix("file:")
    if path.startswith("/"):
        return ObjectAddress(uri.removesuffix(path), "", "/" + _plain_key(uri, path[1:]))
    raise Unsupported(f"The location {uri!r} is in no object store this catalog speaks; use s3://bucket/key or file:///path.")


def _plain_key(uri: str, key: str) -> str:
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        raise Unsupported(f"The location {uri[:200]!r}… has a key of more than {MAX_KEY_BYTES} bytes, which no object has.")
    folder = key.removesuffix("/")
    if folder and UNSAFE_KEY.search(folder):
        raise Unsupported(f"The location {uri!r} has an empty, '.' or '..' part or a control character; use a key without them.")
    return folder
