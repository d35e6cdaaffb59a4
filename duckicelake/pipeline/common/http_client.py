"""Requests to REST catalogs: how a job authenticates (token, OAuth2, basic, SigV4), sends one request, and maps a refusal to an error.

The authentication follows the `rest.auth.*` properties of Iceberg's own clients. `common/rest.py` calls this in the driver;
`commands.jobs.transfer` also asks it for the properties of Spark's client. Keys may come from AWS's variables and files.
"""

import base64
import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Protocol, cast
from urllib.parse import urlencode, urlsplit

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError

from duckicelake.errors import (
    BadRequest,
    CatalogError,
    CommitFailed,
    Forbidden,
    NoSuchTable,
    NotAuthorized,
    ServiceUnavailable,
    Unsupported,
)
from duckicelake.iceberg.json_reader import as_object

TIMEOUT_SECONDS = 120.0
_FIRST_SERVER_ERROR, _NOT_SERVED = 500, 501
_REFUSALS: Mapping[int, type[CatalogError]] = {
    401: NotAuthorized,
    403: Forbidden,
    404: NoSuchTable,
    405: Unsupported,
    406: Unsupported,
    408: ServiceUnavailable,
    409: CommitFailed,
    # Iceberg's own, of tokens that ended
    419: NotAuthorized,
    429: ServiceUnavailable,
}
_DAMAGED = "DamagedLakeException"
"""Our catalog's error type for a damaged lake, which it sends with the status of what cannot be published."""

_MESSAGE_FIELDS = ("message", "Message", "error_description", "error")
"""Where messages are: Iceberg's, those of gateways, and OAuth's."""
_URL = re.compile(r"https?://[^\x00-\x20\x7f]+", re.IGNORECASE)
_HEADER, _HEADER_NAME = re.compile(r"[\t -~\x80-\xff]*"), re.compile("[!-9;-~]+")
_NO_URL = "the URL of the catalog, or of its server of tokens, cannot be read: write https://host:port/path"


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request; names of headers are in lower case."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """The host and port that the request is sent to."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


class _SameServerRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections of GET to the same server only: credentials and signatures are for one server."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        ends = (urlsplit(url)[:2] for url in (req.full_url, newurl))
        if req.get_method() != "GET" or len(set(ends)) > 1:
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def send_request(request: Request, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    """Return the JSON of the answer; None when it has none.

    Raises: CatalogError: a refusal; BadRequest: it cannot be sent; ServiceUnavailable: no answer, or none of a catalog
    """
    _check_request(request)
    wire = urllib.request.Request(request.url, request.body, dict(request.headers), method=request.method)
    try:
        with urllib.request.build_opener(_SameServerRedirects).open(wire, timeout=timeout_seconds) as answer:
            content = answer.read()
    except urllib.error.HTTPError as error:
        raise _build_error(error.code, _read_refusal(error), error.headers.get("location")) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServiceUnavailable(f"no catalog answers at {request.host}: {error}. Is the server running?") from error
    try:
        return json.loads(content) if content else None
    except ValueError as error:
        # What was asked for may have been done.
        raise ServiceUnavailable(f"what answers at {request.host} sends no JSON: is it an Iceberg REST catalog?") from error


def _check_request(request: Request) -> None:
    """Raises: BadRequest: what Python would say of it may have something in it that is secret."""
    try:
        parts = urlsplit(request.url)
        is_url = _URL.fullmatch(request.url) is not None and bool(parts.hostname) and parts.port != 0
        is_url = is_url and (parts.path + parts.query).isascii()
    except ValueError as error:
        raise BadRequest(_NO_URL) from error
    if "@" in parts.netloc:
        raise BadRequest(f"the URL of {request.host} holds credentials, which are not sent from a URL: write them to properties")
    if not is_url:
        raise BadRequest(_NO_URL)
    found = request.headers.items()
    wrong = next((name for name, text in found if _HEADER_NAME.fullmatch(name) is None or _HEADER.fullmatch(text) is None), None)
    if wrong is not None:
        raise BadRequest(f"the header {wrong!r} has what no header can have: is there the end of a line in it?")


def _read_refusal(error: urllib.error.HTTPError) -> bytes:
    """Return as much of the body as can be read; the status alone already says what is wrong."""
    with error:
        try:
            return error.read()
        except (OSError, http.client.HTTPException):
            return b""


def _build_error(status: int, body: bytes, place: str | None) -> CatalogError:
    if place is not None:
        return BadRequest(f"the catalog is elsewhere: it sends to {_strip_secrets(place)}")
    told = _read_error(body)
    message = next((text for text in map(told.get, _MESSAGE_FIELDS) if isinstance(text, str) and text), f"the catalog answered {status}")
    if told.get("type") == _DAMAGED:
        return BadRequest(message)
    if status == _NOT_SERVED:
        return Unsupported(message)
    if status >= _FIRST_SERVER_ERROR:
        return ServiceUnavailable(message)
    return _REFUSALS.get(status, BadRequest)(message)


def _strip_secrets(place: str) -> str:
    """Return a URL without what may be secret in it; it may be none."""
    try:
        parts = urlsplit(place)
    except ValueError:
        return "what is no URL"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _read_error(body: bytes) -> Mapping[str, object]:
    """Return the error object of a response; empty if the body is no JSON."""
    try:
        said = as_object(json.loads(body), "a refusal")
    except (ValueError, BadRequest):
        return {}
    inner = said.get("error")
    return cast("dict[str, object]", inner) if isinstance(inner, dict) else said


REGION, SERVICE = "rest.signing-region", "rest.signing-name"
KEYS = ("rest.access-key-id", "rest.secret-access-key", "rest.session-token")


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Credentials, service and region of SigV4 signatures; AWS's library renews credentials that expire."""

    credentials: Any = field(repr=False)
    service: str
    region: str


def load_signing_keys(properties: Mapping[str, str]) -> SigningKeys:
    """Return the keys that the properties name, else those that AWS's tools find. Raises: BadRequest: there are none, or no region."""
    if bool(properties.get(KEYS[0])) != bool(properties.get(KEYS[1])):
        raise BadRequest(f"{KEYS[0]} and {KEYS[1]} belong together")
    make_session: Any = getattr(boto3, "Session")  # noqa: B009  boto3 makes its clients at run time, without types
    try:
        session = make_session(*map(properties.get, KEYS))
        found = session.get_credentials()
        region = properties.get(REGION) or session.region_name
    except (BotoCoreError, ValueError) as error:
        raise BadRequest(f"the keys that sign requests cannot be found: {error}") from error
    if found is None:
        raise BadRequest(f"there are no keys to sign requests with: set AWS_PROFILE, or write {KEYS[0]} and {KEYS[1]} to --properties")
    if not region:
        raise BadRequest(f"signatures are of a region: name it by {REGION}, or set AWS_REGION")
    return SigningKeys(found, properties.get(SERVICE) or "execute-api", region)


def sign_request(request: Request, keys: SigningKeys) -> Mapping[str, str]:
    """Return the headers of a request, all of them signed."""
    signed = AWSRequest(request.method, request.url, dict(request.headers), request.body or b"")
    SigV4Auth(keys.credentials.get_frozen_credentials(), keys.service, keys.region).add_auth(signed)
    return {name.lower(): text for name, text in signed.headers.items()}


TYPE, DELEGATE_TYPE, SIGV4_ENABLED = "rest.auth.type", "rest.auth.sigv4.delegate-auth-type", "rest.sigv4-enabled"
TOKEN, CREDENTIAL, SERVER = "token", "credential", "oauth2-server-uri"
DELEGATION = "header.X-Iceberg-Access-Delegation"
HEADER = "header."
_AUTHORIZATION = "authorization"
_RENEW_AFTER = 0.9
"""The part of a token's life after which there is a new one."""


class Authenticator(Protocol):
    """The identity under which requests are sent; anonymous for catalogs without authentication."""

    def authorize(self, request: Request) -> Mapping[str, str]:
        """Return all headers of the request, with those that authenticate it. Raises: CatalogError: there is no token to be had."""
        ...

    def renew(self) -> bool:
        """Return True if a request that was refused (401) may succeed when it is sent again."""
        ...


@dataclass(frozen=True, slots=True)
class FixedAuthorization:
    """Sends a fixed authorization header, or none."""

    authorization: str | None = field(default=None, repr=False)

    def authorize(self, request: Request) -> Mapping[str, str]:
        """Return the headers with the fixed one, if there is one."""
        return request.headers if self.authorization is None else {**request.headers, _AUTHORIZATION: self.authorization}

    def renew(self) -> bool:
        """Return False: a fixed header cannot be renewed."""
        return False


ANONYMOUS = FixedAuthorization()


@dataclass(slots=True)
class OAuthClient:
    """Gets a token for client id and secret, and a new one before it expires."""

    server: str
    form: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    token: str | None = field(default=None, repr=False)
    ends_s: float | None = None

    def authorize(self, request: Request) -> Mapping[str, str]:
        """Return the headers with a valid bearer token."""
        if self.token is None or (self.ends_s is not None and time.monotonic() >= self.ends_s):
            self._fetch()
        return {**request.headers, _AUTHORIZATION: f"Bearer {self.token}"}

    def renew(self) -> bool:
        """Drop the token: it may have been revoked before it expired."""
        self.token = None
        return True

    def _fetch(self) -> None:
        asked_s = time.monotonic()
        headers = {**self.headers, "content-type": "application/x-www-form-urlencoded"}
        request = Request("POST", self.server, headers, urlencode(self.form).encode())
        what = f"the answer of {request.host}"
        answer: Mapping[str, Any] = as_object(send_request(request), what)
        token, life_s = answer.get("access_token"), answer.get("expires_in")
        if not isinstance(token, str):
            raise NotAuthorized(f"{what} has no access_token")
        self.token, self.ends_s = token, asked_s + life_s * _RENEW_AFTER if isinstance(life_s, int | float) else None


@dataclass(frozen=True, slots=True)
class SigV4Authenticator:
    """Signs each request by SigV4, after another authenticator has added its headers."""

    delegate: Authenticator
    keys: SigningKeys

    def authorize(self, request: Request) -> Mapping[str, str]:
        """Return the signed headers; the delegate's authorization is sent as `original-authorization`, and signed too."""
        told = dict(self.delegate.authorize(request))
        if _AUTHORIZATION in told:
            told[f"original-{_AUTHORIZATION}"] = told.pop(_AUTHORIZATION)
        return sign_request(Request(request.method, request.url, told, request.body), self.keys)

    def renew(self) -> bool:
        """Return what the delegate returns."""
        return self.delegate.renew()


def get_auth_type(properties: Mapping[str, str]) -> str:
    """Return the value of `rest.auth.type` that the properties give or imply."""
    if properties.get(SIGV4_ENABLED, "").lower() == "true":
        return "sigv4"
    inferred = "oauth2" if properties.get(CREDENTIAL) or properties.get(TOKEN) else "none"
    return properties.get(TYPE, inferred).lower()


def build_authenticator(properties: Mapping[str, str], uri: str) -> Authenticator:
    """Return the authenticator for the catalog at a URI. Raises: BadRequest: a property is missing, or the type is unknown."""
    kind = get_auth_type(properties)
    if kind == "none":
        return ANONYMOUS
    if kind == "basic":
        names = ("rest.auth.basic.username", "rest.auth.basic.password")
        pair = ":".join(_get_property(properties, name, kind) for name in names)
        return FixedAuthorization(f"Basic {base64.b64encode(pair.encode()).decode()}")
    if kind == "oauth2":
        return _build_bearer(properties, uri)
    if kind != "sigv4":
        raise BadRequest(f"{TYPE} {kind} is none of none, basic, oauth2, sigv4")
    delegate = {name: text for name, text in properties.items() if name not in (TYPE, SIGV4_ENABLED)}
    other = properties.get(DELEGATE_TYPE, "oauth2").lower()
    if other == "sigv4":
        raise BadRequest(f"{DELEGATE_TYPE} cannot be sigv4 again")
    has_bearer = bool(properties.get(CREDENTIAL) or properties.get(TOKEN))
    inner = ANONYMOUS if other == "oauth2" and not has_bearer else build_authenticator({**delegate, TYPE: other}, uri)
    return SigV4Authenticator(inner, load_signing_keys(properties))


def _build_bearer(properties: Mapping[str, str], uri: str) -> Authenticator:
    credential = properties.get(CREDENTIAL)
    if not credential:
        return FixedAuthorization(f"Bearer {_get_property(properties, TOKEN, f'oauth2 without {CREDENTIAL}')}")
    client_id, colon, secret = (part.strip() for part in credential.partition(":"))
    pair = {"client_id": client_id, "client_secret": secret} if colon else {"client_secret": client_id}
    form = {"grant_type": "client_credentials", **pair, "scope": properties.get("scope", "catalog")}
    form |= {name: properties[name] for name in ("audience", "resource") if properties.get(name)}
    return OAuthClient(get_token_endpoint(properties, uri), form, list_headers(properties))


def get_token_endpoint(properties: Mapping[str, str], uri: str) -> str:
    """Return the URL of the token endpoint: below the catalog's URI unless `oauth2-server-uri` is absolute."""
    server = properties.get(SERVER) or "v1/oauth/tokens"
    return server if "://" in server else f"{uri.rstrip('/')}/{server.lstrip('/')}"


def format_auth_properties(properties: Mapping[str, str], uri: str) -> dict[str, str]:
    """Return the properties that Iceberg's client in Spark needs in addition, to authenticate in the same way."""
    kind = get_auth_type(properties)
    if kind == "none":
        return {TYPE: kind}
    told = {TYPE: kind, DELEGATION: "vended-credentials,remote-signing"}
    if properties.get(CREDENTIAL) or properties.get(TOKEN):
        told |= {SERVER: get_token_endpoint(properties, uri), "scope": "catalog"}
    has_own = DELEGATION.lower() in map(str.lower, properties)
    return {name: text for name, text in told.items() if not (has_own and name == DELEGATION)}


def list_headers(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of `header.*` properties, which every request carries, by names in lower case."""
    return {name.removeprefix(HEADER).lower(): text for name, text in properties.items() if name.startswith(HEADER)}


def _get_property(properties: Mapping[str, str], name: str, kind: str) -> str:
    text = properties.get(name)
    if not text:
        raise BadRequest(f"{TYPE} {kind} needs {name}")
    return text
