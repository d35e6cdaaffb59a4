"""The client of one route, its circuit breaker, and all routes of a server by the name that a request gives.

The client sends requests to the upstream, once or twice, and knows whether a failed one may have arrived. After several failures in a row,
requests are refused at once for a while. `rest.layers.forwarding` sends the requests of clients, and `rest.routes.server` and `duckicelake
check` ask if a route can be used. All requests are sent on the event loop: that of the server, or of the command.

Law: a request that was not sent fails with `RouteUnavailable`, and may be repeated. A change that was sent and not answered fails with
`RouteStateUnknown`, never with an error by which a client would delete its files.
"""

import hashlib
import socket
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlencode

import aiohttp
from yarl import URL

from duckicelake.errors import (
    BadRouteAnswer,
    CatalogError,
    NotAuthorized,
    RouteLoop,
    RouteRefused,
    RouteStateUnknown,
    RouteTimeout,
    RouteUnavailable,
)
from duckicelake.gateway.answers import UpstreamConfig, parse_config
from duckicelake.gateway.authorization import Authorizer, OutgoingRequest, build_authorizer
from duckicelake.gateway.forwarding import (
    CONFIG,
    HOP,
    IDEMPOTENCY_KEY,
    ROOT,
    Headers,
    build_request_headers,
    build_url,
    find_header,
    get_base,
    is_loop,
    join_path,
    without,
)
from duckicelake.gateway.route import Route

OPEN_AFTER = 5
OPEN_S = 10.0

State = Literal["closed", "open", "probing"]


@dataclass(slots=True)
class Breaker:
    """The failures of one route in a row, and until when requests are refused. Used on the event loop only."""

    failure_count: int = 0
    open_until_s: float = 0.0
    is_probing: bool = False

    def get_state(self, now_s: float) -> State:
        """Return `open` while requests are refused, `probing` when the next one decides."""
        if self.failure_count < OPEN_AFTER:
            return "closed"
        return "open" if now_s < self.open_until_s or self.is_probing else "probing"

    def begin_probe(self) -> None:
        """Let one request probe the upstream; others are refused until it ends."""
        self.is_probing = True

    def end_probe(self) -> None:
        """Let another request probe, if this one found out nothing."""
        self.is_probing = False

    def count_failure(self, now_s: float) -> None:
        """Count an upstream that could not be reached, or did not answer."""
        self.failure_count += 1
        self.is_probing = False
        if self.failure_count >= OPEN_AFTER:
            self.open_until_s = now_s + OPEN_S

    def count_success(self) -> None:
        """Count an answer, with any status."""
        self.failure_count = 0
        self.is_probing = False


CONFIG_FRESH_S = 60.0
MOST_CONFIGS = 1000
MAX_CONFIG_BYTES = 4 * 1024 * 1024
KEEPALIVE_S = 4.0
"""Shorter than the five seconds after which uvicorn and others close an idle connection: a commit on a closed one has an unknown state."""
READS = frozenset({"GET", "HEAD"})
WEAK_STATUSES = frozenset({502, 503, 504})
LOOP_DETECTED = 508
EXPIRED = frozenset({401, 419})
SKIPPED = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
IDENTITY = b"identity"
READABLE = frozenset({IDENTITY, b"gzip", b"x-gzip", b"deflate"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: its Authorization header, the request's id, and the Via headers of the servers it passed."""

    authorization: bytes | None = field(repr=False)
    request_id: str
    hops: Headers = field(default_factory=list[tuple[bytes, bytes]])


NOBODY = Caller(None, "")
"""The caller of this server's own requests."""


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """A request of a client. `rest`: its path behind the upstream's prefix, or behind `/v1/` if it is sent with an empty one.

    `changes`: it may change something, so that its outcome matters even without an answer.
    """

    method: str
    rest: str
    query: str
    headers: Headers
    body: bytes = field(repr=False)
    caller: Caller
    changes: bool = False


class BrokenOff(Exception):
    """A request that was sent, or partly, and has no answer."""

    def __init__(self, *, is_silent: bool = False) -> None:
        super().__init__()
        self._is_silent = is_silent

    def to_catalog_error(self, request: ForwardedRequest, route: Route) -> CatalogError:
        """Return the error for the client."""
        reason = f"did not answer within {route.limits.timeout_s:g} seconds" if self._is_silent else "broke off the connection"
        message = f"The catalog behind the route {route.name!r} {reason}."
        if request.changes:
            return RouteStateUnknown(f"{message} The change may be done or not; look before you repeat it.")
        return RouteTimeout(message)


class UpstreamAnswer:
    """An answer whose body is still on its way. The caller ends it with `close`, or reads it to its end."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]

    async def stream(self) -> AsyncIterator[tuple[bytes, bool]]:
        """Yield the body as it comes, each part with True if others follow; the last part may be empty.

        Raises: BrokenOff: the upstream broke off
        """
        content = self._response.content
        try:
            while not content.at_eof():
                part = await content.readany()
                yield part, not content.at_eof()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.close()
            raise BrokenOff from error

    async def read(self, most_bytes: int) -> bytes:
        """Return the body as it came, compressed or not. Raises: BadRouteAnswer: it is too large. BrokenOff: the upstream broke off."""
        parts: list[bytes] = []
        received_bytes = 0
        async for chunk, _ in self.stream():
            received_bytes += len(chunk)
            if received_bytes > most_bytes:
                self.close()
                raise BadRouteAnswer(f"The catalog behind the route answers with more than {most_bytes} bytes.")
            parts.append(chunk)
        return b"".join(parts)

    def unpack(self, body: bytes, most_bytes: int) -> bytes:
        """Return the body without its content coding. Raises: BadRouteAnswer: it is too large, or broken."""
        return decompress(body, find_header(self.headers, b"content-encoding"), most_bytes)

    @property
    def is_readable(self) -> bool:
        """True if this server can read the body's content coding; the client may have asked for another one."""
        coding = find_header(self.headers, b"content-encoding")
        return coding is None or coding.lower() in READABLE

    def close(self) -> None:
        """Give up the rest of the body, and the connection with it."""
        self._response.close()


class Upstream:
    """The catalog behind one route. `via`: the name of this server in the Via header."""

    def __init__(self, route: Route, via: bytes) -> None:
        self.route = route
        self._via = via
        self._authorizer: Authorizer = build_authorizer(route)
        self._session: aiohttp.ClientSession | None = None
        self._connector: aiohttp.TCPConnector | None = None
        self._configs: dict[bytes, tuple[float, UpstreamConfig]] = {}
        self._breaker = Breaker()
        self._config_query = "" if route.warehouse is None else urlencode({"warehouse": route.warehouse})

    @property
    def state(self) -> State:
        """The state of the circuit breaker."""
        return self._breaker.get_state(time.monotonic())

    @property
    def connection_count(self) -> int:
        """Number of connections in use."""
        return 0 if self._connector is None else len(self._connector._acquired)  # pyright: ignore[reportPrivateUsage]  no public count

    def open(self) -> None:
        """Open the client. No connection is made before the first request."""
        limits = self.route.limits
        # Also for a plain upstream: its token endpoint may have TLS.
        context = True if self.route.ca_file is None else ssl.create_default_context(cafile=self.route.ca_file)
        self._connector = aiohttp.TCPConnector(limit=limits.max_connections, keepalive_timeout=KEEPALIVE_S, ssl=context)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, connect=limits.connect_s, sock_read=limits.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            max_field_size=64 * 1024,
            max_line_size=64 * 1024,
        )
        # aiohttp itself repeats a DELETE on a broken connection, and a table of that name may have been created meanwhile.
        self._session._retry_connection = False  # pyright: ignore[reportPrivateUsage]  no public option

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def is_loop(self, headers: Headers) -> bool:
        """True if a request came from this route."""
        return is_loop(headers, self._via)

    async def get_config(self, caller: Caller) -> UpstreamConfig:
        """Return the upstream's configuration, at most a minute old; an older one while the upstream is away.

        Raises: RouteUnavailable, RouteRefused, RouteTimeout, RouteLoop, BadRouteAnswer
        """
        key = self._authorizer.get_identity(caller.authorization)
        known = self._configs.get(key)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        try:
            config = await self.request_config(self._config_query, caller)
        except (RouteUnavailable, RouteTimeout, BadRouteAnswer):
            if known is None:
                raise
            return known[1]
        if len(self._configs) >= MOST_CONFIGS:
            self._configs.clear()
        self._configs[key] = time.monotonic() + CONFIG_FRESH_S, config
        return config

    async def request_config(self, query: str, caller: Caller) -> UpstreamConfig:
        """Return the upstream's present configuration. Raises: as `get_config`."""
        headers: Headers = [(b"accept", b"application/json"), (b"accept-encoding", b"identity"), *caller.hops]
        answer = await self.send(ForwardedRequest("GET", CONFIG[len(ROOT) :], query, headers, b"", caller), "")
        body = await read_whole(answer, self.route, MAX_CONFIG_BYTES)
        if answer.status == LOOP_DETECTED:
            raise RouteLoop(f"The route {self.route.name!r} leads back to a server that forwards to it; correct the uri of one of them.")
        if answer.status in (401, 403):
            raise RouteRefused(f"The catalog behind the route {self.route.name!r} answers {answer.status} to /v1/config.")
        if answer.status != 200:
            raise BadRouteAnswer(f"The catalog behind the route {self.route.name!r} answers {answer.status} to /v1/config.")
        return parse_config(answer.unpack(body, MAX_CONFIG_BYTES))

    async def find_reason(self) -> str | None:
        """Return the reason why the upstream cannot be used, None if it can. Accounts of callers cannot be tried."""
        try:
            await self.request_config(self._config_query, NOBODY)
        except CatalogError as error:
            needs_caller = self.route.auth in ("passthrough", "exchange")
            return None if needs_caller and isinstance(error, RouteRefused | NotAuthorized) else error.message
        return None

    async def send(self, request: ForwardedRequest, prefix: str) -> UpstreamAnswer:
        """Send a request below a prefix and return its answer. `prefix`: the configuration's; empty if the request's path has one already.

        Raises: RouteUnavailable: it was not sent. RouteTimeout, RouteStateUnknown: there is no answer. RouteRefused: this server's account
        is not accepted. Forbidden, NotAuthorized: the caller's token is not
        """
        headers = build_request_headers(request.headers, self.route.headers, self._via, request.caller.request_id)
        url = build_url(self.route.uri, join_path(get_base(self.route.uri), prefix, request.rest), request.query)
        outgoing = OutgoingRequest(request.method, url, headers, request.body, request.caller.authorization)
        await self._pass_breaker(request)
        try:
            answer = await self._send_with_retry(request, outgoing)
        except (RouteUnavailable, RouteTimeout, RouteStateUnknown):
            self._breaker.count_failure(time.monotonic())
            raise
        finally:
            self._breaker.end_probe()
        self._breaker.count_success()
        return answer

    async def _pass_breaker(self, request: ForwardedRequest) -> None:
        """Return if the request may be sent. A request for the configuration probes an upstream that failed before.

        Raises: RouteUnavailable: the upstream failed several times in a row
        """
        state = self.state
        if state == "closed":
            return
        if state == "open":
            raise RouteUnavailable(f"The catalog behind the route {self.route.name!r} failed several times in a row; try again later.")
        if request.rest == CONFIG[len(ROOT) :]:
            self._breaker.begin_probe()
            return
        try:
            await self.request_config(self._config_query, request.caller)
        except (RouteTimeout, BadRouteAnswer) as error:
            raise RouteUnavailable(error.message) from error

    async def _send_with_retry(self, request: ForwardedRequest, outgoing: OutgoingRequest) -> UpstreamAnswer:
        is_repeatable = request.method in READS or find_header(request.headers, IDEMPOTENCY_KEY) is not None
        try:
            answer = await self._send_connected(request, outgoing)
        except BrokenOff as error:
            # A broken connection is worth another attempt; a silent upstream (RouteTimeout, RouteStateUnknown) would be silent again.
            if not is_repeatable:
                raise error.to_catalog_error(request, self.route) from error
            return await self._send_again(request, outgoing)
        if answer.status in WEAK_STATUSES and is_repeatable:
            answer.close()
            return await self._send_again(request, outgoing)
        return answer

    async def _send_connected(self, request: ForwardedRequest, outgoing: OutgoingRequest) -> UpstreamAnswer:
        try:
            return await self._send_authorized(request, outgoing)
        except RouteUnavailable:
            # Nothing was sent.
            return await self._send_authorized(request, outgoing)

    async def _send_again(self, request: ForwardedRequest, outgoing: OutgoingRequest) -> UpstreamAnswer:
        try:
            return await self._send_authorized(request, outgoing)
        except BrokenOff as error:
            raise error.to_catalog_error(request, self.route) from error
        except CatalogError as error:
            if request.changes:
                # The first attempt may have arrived, even if the second one was refused.
                raise BrokenOff().to_catalog_error(request, self.route) from error
            raise

    async def _send_authorized(self, request: ForwardedRequest, outgoing: OutgoingRequest) -> UpstreamAnswer:
        signed = await self._authorize(outgoing)
        answer = await self._send_once(request, signed)
        if answer.status in EXPIRED and self._authorizer.renews:
            answer.close()
            self._authorizer.forget(signed)
            answer = await self._send_once(request, await self._authorize(outgoing))
        if answer.status in EXPIRED and self.route.auth != "passthrough":
            answer.close()
            raise RouteRefused(f"The catalog behind the route {self.route.name!r} does not accept the account of this server's settings.")
        return answer

    async def _authorize(self, outgoing: OutgoingRequest) -> OutgoingRequest:
        try:
            added = await self._authorizer.authorize(outgoing, self._get_session())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise RouteUnavailable(f"The token endpoint of the route {self.route.name!r} cannot be reached ({describe(error)}).") from error
        if not added:
            return outgoing
        return replace(outgoing, headers=[*without(outgoing.headers, *(name for name, _ in added)), *added])

    async def _send_once(self, request: ForwardedRequest, outgoing: OutgoingRequest) -> UpstreamAnswer:
        try:
            response = await self._get_session().request(
                outgoing.method,
                URL(outgoing.url, encoded=True),
                headers=[(name.decode("latin-1"), decode_value(value)) for name, value in outgoing.headers],
                data=outgoing.body or (None if outgoing.method in READS or outgoing.method == "DELETE" else b""),
                allow_redirects=False,
                skip_auto_headers=SKIPPED,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            raise RouteUnavailable(f"The catalog behind the route {self.route.name!r} cannot be reached ({describe(error)}).") from error
        except TimeoutError as error:
            raise BrokenOff(is_silent=True).to_catalog_error(request, self.route) from error
        except aiohttp.ClientError as error:
            raise BrokenOff() from error
        return UpstreamAnswer(response)

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RouteUnavailable(f"The route {self.route.name!r} is not open: the server is starting or stopping.")
        return self._session


async def read_whole(answer: UpstreamAnswer, route: Route, most_bytes: int, *, changes: bool = False) -> bytes:
    """Return the whole body of an answer, as it came.

    Raises: RouteTimeout, RouteStateUnknown: the upstream broke off. BadRouteAnswer: the answer is too large
    """
    try:
        return await answer.read(most_bytes)
    except BrokenOff as error:
        message = f"The catalog behind the route {route.name!r} broke off its answer."
        raise (RouteStateUnknown if changes else RouteTimeout)(message) from error


def decompress(body: bytes, coding: bytes | None, most_bytes: int) -> bytes:
    """Return a body without its content coding. Raises: BadRouteAnswer: the coding is unknown, or the body too large or broken."""
    if coding is None or coding.lower() == IDENTITY:
        return body
    if coding.lower() not in READABLE:
        raise BadRouteAnswer("The catalog behind the route answers in a content coding that was not asked for.")
    try:
        unpacking = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
        unpacked = unpacking.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise BadRouteAnswer("The catalog behind the route answers with a compressed body that is broken.") from error
    if len(unpacked) > most_bytes or not unpacking.eof:
        raise BadRouteAnswer(f"The catalog behind the route answers with more than {most_bytes} bytes, or with half a body.")
    return unpacked


def decode_value(value: bytes) -> str:
    """Return a header's value as aiohttp takes it: it encodes text as UTF-8 again."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def describe(error: Exception) -> str:
    """Return the kind of a connection error, and the system's reason."""
    reason = getattr(error, "strerror", None)
    return f"{type(error).__name__}: {reason}" if reason else type(error).__name__


class Gateway:
    """The routes by name. `catch_all`: the route of every prefix and warehouse that has no other meaning here; None: there is none.

    `address`: where this server listens; a request that comes back to it over a route is a loop.
    """

    def __init__(self, routes: Sequence[Route], catch_all: str | None, address: str) -> None:
        self.upstreams = {route.name: Upstream(route, build_via(route, address)) for route in routes}
        self.catch_all = None if catch_all is None else self.upstreams[catch_all]

    def open(self) -> None:
        """Open the clients of all routes."""
        for upstream in self.upstreams.values():
            upstream.open()

    async def close(self) -> None:
        """Close all connections."""
        for upstream in self.upstreams.values():
            await upstream.close()


def build_via(route: Route, address: str) -> bytes:
    """Return the pseudonym of a route in Via headers. It is the same in all workers of a server, and another one on other servers."""
    named = "\0".join((socket.gethostname(), address, route.name, route.uri))
    return HOP + b"-" + hashlib.blake2b(named.encode(), digest_size=8).hexdigest().encode()
