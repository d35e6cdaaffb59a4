"""Paths and headers on their way to the upstream and back. Pure.

`rest/layers/forwarding.py` and the modules of this package that send requests call this on the event loop.

Paths stay percent-encoded as the client wrote them. Names of headers are in lower case, as ASGI has them.

Law: the segments behind the prefix reach the upstream byte for byte (`%1F`, `%2F`, `%2E`, `+`), and so does the upstream's own prefix,
which its configuration may give percent-encoded already (Nessie: `main%7Cwarehouse`).

Source: RFC 9110, 7.6.1 (hop-by-hop headers) and 7.6.3 (Via)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
    }
)
NOT_SENT = HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"cookie",
    b"forwarded",
    b"authorization",
    b"via",
    b"expect",
    b"x-request-id",
    b"x-real-ip",
    # Some servers take the method, the path or the caller from these, so the request would be another than the one that was permitted.
    *(b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url"),
    *(b"remote-user", b"x-remote-user"),
}
NOT_SENT_PREFIXES = (b"x-forwarded-", b"x-amz-")
NOT_ANSWERED = HOP_BY_HOP | {
    b"set-cookie",
    b"server",
    b"date",
    b"x-request-id",
    b"alt-svc",
    b"strict-transport-security",
    b"www-authenticate",
}
MOST_HOPS = 8
HOP = b"duckicelake"
IDEMPOTENCY_KEY = b"idempotency-key"
DELEGATION = b"x-iceberg-access-delegation"


def build_request_headers(sent: Iterable[tuple[bytes, bytes]], added: Mapping[str, str], via: bytes, request_id: str) -> Headers:
    """Return the headers for the upstream, without Authorization. `added`: those of the settings, which replace the client's."""
    sent = list(sent)
    own = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in added.items()}
    dropped = NOT_SENT | own.keys() | list_connection_headers(sent)
    kept = [(name, value) for name, value in sent if name not in dropped and not name.startswith(NOT_SENT_PREFIXES)]
    hops = [value for name, value in sent if name == b"via"]
    return [*kept, *own.items(), (b"via", b", ".join([*hops, b"1.1 " + via])), (b"x-request-id", request_id.encode("latin-1"))]


def build_answer_headers(received: Iterable[tuple[bytes, bytes]], *, keeps_challenge: bool = False) -> Headers:
    """Return the headers of an answer for the client. `keeps_challenge`: the client itself authenticates at the upstream."""
    lowered = [(name.lower(), value) for name, value in received]
    dropped = NOT_ANSWERED | list_connection_headers(lowered)
    return [(name, value) for name, value in lowered if name not in dropped or (keeps_challenge and name == b"www-authenticate")]


def list_connection_headers(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the headers that the Connection header declares to be for one connection only."""
    named = (value.lower().split(b",") for name, value in headers if name == b"connection")
    return frozenset(part.strip() for parts in named for part in parts)


def is_loop(headers: Iterable[tuple[bytes, bytes]], via: bytes) -> bool:
    """True if the request has passed this route before, or too many servers of this kind."""
    hops = [hop.split() for name, value in headers if name == b"via" for hop in value.split(b",")]
    names = [hop[1] for hop in hops if len(hop) > 1]
    return via in names or sum(name.startswith(HOP) for name in names) >= MOST_HOPS


def without(headers: Iterable[tuple[bytes, bytes]], *names: bytes) -> Headers:
    """Return headers without those of some names."""
    return [(name, value) for name, value in headers if name not in names]


def find_header(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    """Return the first header of a name."""
    return next((value for name, value in headers if name == wanted), None)


ROOT = "/v1/"
CONFIG = "/v1/config"
SIGN_ANYWHERE = "aws/s3/sign"
"""The path at which older clients request signatures. It has no prefix upstream."""
COLLECTIONS = frozenset({"namespaces", "tables", "views", "transactions"})
"""The first segments behind a prefix in the specification."""


@dataclass(frozen=True, slots=True)
class ForwardedPath:
    """A path below `/v1/`. `prefix`: the client's first segment, percent-encoded; `rest`: what follows, without its slash."""

    prefix: str
    rest: str


def split_path(raw_path: str) -> ForwardedPath | None:
    """Return the parts of a path below `/v1/`, None for any other path."""
    if not raw_path.startswith(ROOT):
        return None
    prefix, _, rest = raw_path[len(ROOT) :].partition("/")
    return ForwardedPath(prefix, rest)


def join_path(base: str, prefix: str, rest: str) -> str:
    """Return the upstream's path. `base`: the path of its URI; `prefix`: as its configuration gives it, empty for none."""
    return f"{base.rstrip('/')}{ROOT}{prefix + '/' if prefix and rest != SIGN_ANYWHERE else ''}{rest}"


def build_url(uri: str, path: str, query: str) -> str:
    """Return the URL of a path, which replaces the path of `uri`."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{path}{'?' + query if query else ''}"


def get_base(uri: str) -> str:
    """Return the path of a URI without its trailing slash."""
    return urlsplit(uri).path.rstrip("/")


def rewrite_endpoint(value: str, uri: str, upstream_prefix: str, prefix: str | None) -> str | None:
    """Return a path or URL of the upstream as a path relative to this catalog's URI; None if it is not the upstream's.

    `uri`: the upstream's URI. `prefix` None: clients use the upstream's own. Clients send their token to such an endpoint, so a foreign one
    must not reach them.
    """
    theirs, asked = urlsplit(uri), urlsplit(value)
    if asked.scheme or asked.netloc:
        if (asked.scheme or theirs.scheme, asked.netloc) != (theirs.scheme, theirs.netloc):
            return None
        path = asked.path
    else:
        path = asked.path if asked.path.startswith("/") else f"{get_base(uri)}/{asked.path}"
    root = f"{get_base(uri)}{ROOT}"
    if not path.startswith(root) and not (asked.scheme or asked.netloc) and path.startswith(ROOT):
        # Relative to the catalog's URI, although it begins with a slash.
        path = get_base(uri) + path
    if not path.startswith(root) or "/../" in path + "/":
        return None
    rest, query = path[len(root) :], "?" + asked.query if asked.query else ""
    if prefix is None:
        return f"v1/{rest}{query}"
    if upstream_prefix and rest.startswith(f"{upstream_prefix}/"):
        rest = rest[len(upstream_prefix) + 1 :]
    elif upstream_prefix and rest != SIGN_ANYWHERE:
        return None
    return f"v1/{prefix}/{rest}{query}"
