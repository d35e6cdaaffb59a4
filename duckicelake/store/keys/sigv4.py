"""Signature Version 4, as S3 wants it: one request, signed by its header."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

SERVICE = "s3"
ALGORITHM = "AWS4-HMAC-SHA256"
DATE_FORMAT = "%Y%m%dT%H%M%SZ"
HASH, DATE, TOKEN = "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"


@dataclass(frozen=True, slots=True)
class RootKeys:
    """Keys that may do everything in the store; `session_token` for those that end by themselves."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Wire:
    """A request as it will be sent: path and query decoded, and the headers that are signed, by their names in lower case."""

    method: str
    host: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def encoded_path(self) -> str:
        """The path in its one canonical spelling."""
        return quote(self.path, safe="/-_.~")

    @property
    def encoded_query(self) -> str:
        """The query in its one canonical spelling."""
        pairs = ((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in self.query)
        return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def sign(wire: Wire, keys: RootKeys, region: str) -> str:
    """Return the Authorization header of a request that holds its date and its payload's hash.

    Source: AWS «Signature Version 4 for API requests»
    """
    headers = sorted({**wire.headers, "host": wire.host}.items())
    names = ";".join(name for name, _ in headers)
    told = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in headers)
    canonical = "\n".join((wire.method, wire.encoded_path, wire.encoded_query, told, names, wire.headers[HASH]))
    date = wire.headers[DATE]
    scope = f"{date[:8]}/{region}/{SERVICE}/aws4_request"
    text = "\n".join((ALGORITHM, date, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"{ALGORITHM} Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
