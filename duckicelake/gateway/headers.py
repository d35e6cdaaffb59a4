"""Headers on their way to the upstream and back. Pure; names in lower case, as ASGI has them.

Source: RFC 9110, 7.6.1 (hop-by-hop headers) and 7.6.3 (Via)
"""

from collections.abc import Iterable, Mapping

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
