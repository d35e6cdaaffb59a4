"""Authentication at the upstream of a route: an Authorization header, or the signature of AWS, for each request.

`upstream` calls this on the event loop, for each request that it sends. Tokens are requested over the network, once, and shared by all
requests until a minute before they expire; the tokens of an exchange are kept by a hash of the caller's token. Keys of AWS' default chain
(environment, files, network) are found in a thread.
"""

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.session import Session as AwsSession

from duckicelake.errors import Forbidden, NotAuthorized, RouteRefused
from duckicelake.gateway.forwarding import Headers
from duckicelake.gateway.route import Route

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
EARLIER_S = 60.0
DEFAULT_LIFETIME_S = 3600.0
MOST_TOKENS = 1000
MAX_TOKEN_BYTES = 256 * 1024
BEARER = b"bearer "
SIGNED = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-SHA256")


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request that is ready but for its authorization. `caller`: the client's own Authorization header."""

    method: str
    url: str
    headers: Headers
    body: bytes = field(repr=False)
    caller: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the upstream and the time after which another one is requested."""

    text: str = field(repr=False)
    fresh_until_s: float


class Authorizer:
    """The account of a route at its upstream."""

    renews = False
    """True if a refused token may be replaced by a newer one."""

    def get_identity(self, caller: bytes | None) -> bytes:
        """Return a key for what only this caller may get; empty if all callers share the account."""
        return b""

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the headers to add. Raises: RouteRefused, Forbidden, NotAuthorized, aiohttp.ClientError."""
        return []

    def forget(self, request: OutgoingRequest) -> None:
        """Forget the token that the upstream refused."""


class FixedHeader(Authorizer):
    """The same Authorization header for every request: auth `bearer` and `basic`."""

    def __init__(self, value: str) -> None:
        self._headers: Headers = [(b"authorization", value.encode("latin-1"))]

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the header."""
        return self._headers


class Passthrough(Authorizer):
    """The caller's own Authorization header."""

    def get_identity(self, caller: bytes | None) -> bytes:
        """Return a hash of the caller's header."""
        return hash_caller(caller)

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the caller's header, if there is one."""
        return [] if request.caller is None else [(b"authorization", request.caller)]


class ClientCredentialsGrant(Authorizer):
    """A token for the client id and secret of the settings (RFC 6749, 4.4), for all callers."""

    renews = True

    def __init__(self, route: Route) -> None:
        self._route = route
        self._token: Token | None = None
        self._asking = asyncio.Lock()

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the header with a valid token."""
        if self._token is None or time.monotonic() >= self._token.fresh_until_s:
            async with self._asking:
                if self._token is None or time.monotonic() >= self._token.fresh_until_s:
                    self._token = await self._request(session)
        return build_bearer(self._token)

    def forget(self, request: OutgoingRequest) -> None:
        """Forget the token, unless a newer one was requested meanwhile."""
        if self._token is not None and build_bearer(self._token)[0] in request.headers:
            self._token = None

    async def _request(self, session: aiohttp.ClientSession) -> Token:
        client_id, _, secret = (self._route.secrets.credential or "").rpartition(":")
        form = {"grant_type": "client_credentials", "client_secret": secret, "scope": self._route.tokens.scope}
        form |= {"client_id": client_id} if client_id else {}
        status, token = await request_token(self._route, form | dict(self._route.tokens.parameters), session)
        if token is None:
            raise RouteRefused(f"The token endpoint of the route {self._route.name!r} answers {status} to the account of the settings.")
        return token


class Exchange(Authorizer):
    """A token for each caller, in exchange for the caller's own (RFC 8693)."""

    renews = True

    def __init__(self, route: Route) -> None:
        self._route = route
        self._tokens: dict[bytes, Token] = {}

    def get_identity(self, caller: bytes | None) -> bytes:
        """Return a hash of the caller's header."""
        return hash_caller(caller)

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the header with the caller's token at the upstream."""
        key = hash_caller(request.caller)
        token = self._tokens.get(key)
        if token is None or time.monotonic() >= token.fresh_until_s:
            token = await self._exchange(request.caller, session)
            if len(self._tokens) >= MOST_TOKENS:
                self._tokens.clear()
            self._tokens[key] = token
        return build_bearer(token)

    def forget(self, request: OutgoingRequest) -> None:
        """Forget the token that was exchanged for the caller's."""
        self._tokens.pop(hash_caller(request.caller), None)

    async def _exchange(self, caller: bytes | None, session: aiohttp.ClientSession) -> Token:
        if caller is None or caller[: len(BEARER)].lower() != BEARER:
            raise NotAuthorized(f"The route {self._route.name!r} exchanges the caller's token, and the request has none.")
        form = {
            "grant_type": EXCHANGE,
            "subject_token": caller[len(BEARER) :].strip().decode("latin-1"),
            "subject_token_type": ACCESS_TOKEN,
            "scope": self._route.tokens.scope,
        }
        client_id, _, secret = (self._route.secrets.credential or "").rpartition(":")
        form |= {"client_id": client_id, "client_secret": secret} if secret else {}
        status, token = await request_token(self._route, form | dict(self._route.tokens.parameters), session)
        if token is None:
            raise Forbidden(f"The token endpoint of the route {self._route.name!r} answers {status} to an exchange of the caller's token.")
        return token


class AwsSignature(Authorizer):
    """AWS Signature Version 4 over each request, by botocore's signer. Keys of the default chain are found in a thread."""

    def __init__(self, route: Route) -> None:
        self._route = route
        secrets = route.secrets
        self._keys = None if secrets.access_key_id is None else Credentials(secrets.access_key_id, secrets.secret_access_key or "")

    async def authorize(self, request: OutgoingRequest, session: aiohttp.ClientSession) -> Headers:
        """Return the headers of the signature."""
        if self._keys is None:
            self._keys = await asyncio.to_thread(get_aws_keys)
        if self._keys is None:
            raise RouteRefused(f"No AWS keys are configured for the route {self._route.name!r}, and the default chain has none.")
        # Keys of the default chain may have to be refreshed over the network.
        frozen: Any = await asyncio.to_thread(self._keys.get_frozen_credentials)
        return sign(request, SigV4Auth(frozen, self._route.signing_name, self._route.region))


def get_aws_keys() -> Any:
    """Return the keys of AWS' default chain, None if there are none."""
    return cast(Any, AwsSession()).get_credentials()


def sign(request: OutgoingRequest, signer: SigV4Auth) -> Headers:
    """Return the headers that sign a request. Only its content type is signed with them, because proxies may change the others."""
    kept = {name.decode(): value.decode("latin-1") for name, value in request.headers if name == b"content-type"}
    digest = hashlib.sha256(request.body).hexdigest()
    signed = AWSRequest(request.method, request.url, {**kept, "X-Amz-Content-SHA256": digest}, request.body)
    signer.add_auth(signed)
    found = cast(Mapping[str, str], signed.headers)
    return [(name.lower().encode(), found[name].encode("latin-1")) for name in SIGNED if name in found]


async def request_token(route: Route, form: Mapping[str, str], session: aiohttp.ClientSession) -> tuple[int, Token | None]:
    """Return the status and the token of a token endpoint's answer; None if it refuses. Raises: aiohttp.ClientError, TimeoutError."""
    began_s = time.monotonic()
    async with session.post(route.token_uri, data=form, allow_redirects=False) as response:
        body = await response.content.read(MAX_TOKEN_BYTES)
        if response.status >= 500:
            raise aiohttp.ClientConnectionError(f"the token endpoint answers {response.status}")
        if response.status != 200:
            return response.status, None
    try:
        node: Any = json.loads(body)
        text = node["access_token"]
        lifetime_s = float(node.get("expires_in") or DEFAULT_LIFETIME_S)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 200, None
    return 200, Token(str(text), began_s + max(lifetime_s - EARLIER_S, lifetime_s / 2))


def build_bearer(token: Token) -> Headers:
    """Return the Authorization header of a token."""
    return [(b"authorization", b"Bearer " + token.text.encode("latin-1", "replace"))]


def hash_caller(caller: bytes | None) -> bytes:
    """Return a hash of a caller's Authorization header, so that no token stays in memory as a key."""
    return hashlib.blake2b(caller or b"", digest_size=32).digest()


def build_authorizer(route: Route) -> Authorizer:
    """Return the account of a route by its auth mode."""
    secrets = route.secrets
    if route.auth == "bearer":
        return FixedHeader(f"Bearer {secrets.token}")
    if route.auth == "basic":
        return FixedHeader("Basic " + base64.b64encode((secrets.credential or "").encode()).decode())
    if route.auth == "none":
        return Authorizer()
    if route.auth == "passthrough":
        return Passthrough()
    makers: Mapping[str, Callable[[Route], Authorizer]] = {"oauth2": ClientCredentialsGrant, "exchange": Exchange, "sigv4": AwsSignature}
    return makers[route.auth](route)
