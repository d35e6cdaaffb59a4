"""Remote signing: parse the S3 request that a client wants signed, and sign it (Signature Version 4) with the server's credentials.

`catalog` checks between the two that the client may access every object that the request names. The credentials, from the settings or as
boto3 finds them, stay here.
`catalog.credentials.table_access` calls both on worker threads. A store other than AWS is probed once, before the first signature, to see
if it obeys unsigned headers. `duckicelake check --storage` only probes.
Law: a request names an object by every spelling that a server could read in it, and all of them must belong to the table; a
parameter, header or sub-resource that is not listed here is refused.
"""

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, Literal
from urllib.parse import SplitResult, quote, unquote_to_bytes, urlsplit

import boto3

from duckicelake.errors import BadRequest, Forbidden, NotServed, ServiceUnavailable
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.uris import MAX_KEY_BYTES, UNSAFE_KEY

SERVICE = "s3"
ALGORITHM = "AWS4-HMAC-SHA256"
DATE_FORMAT = "%Y%m%dT%H%M%SZ"
HASH, DATE, TOKEN = "x-amz-content-sha256", "x-amz-date", "x-amz-security-token"


@dataclass(frozen=True, slots=True)
class RootCredentials:
    """The server's own credentials for the store; `session_token` is set for temporary ones."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class CanonicalRequest:
    """A request to be signed: decoded path and query, and the signed headers by lower-case name."""

    method: str
    host: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def encoded_path(self) -> str:
        """The path in canonical encoding."""
        return quote(self.path, safe="/-_.~")

    @property
    def encoded_query(self) -> str:
        """The query in canonical encoding."""
        pairs = ((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in self.query)
        return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def sign(wire: CanonicalRequest, keys: RootCredentials, region: str) -> str:
    """Return the Authorization header of a request; its headers contain the date and the payload's hash.

    Source: AWS «Signature Version 4 for API requests»
    """
    headers = sorted({**wire.headers, "host": wire.host}.items())
    names = ";".join(name for name, _ in headers)
    canonical_headers = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in headers)
    canonical = "\n".join((wire.method, wire.encoded_path, wire.encoded_query, canonical_headers, names, wire.headers[HASH]))
    date = wire.headers[DATE]
    scope = f"{date[:8]}/{region}/{SERVICE}/aws4_request"
    text = "\n".join((ALGORITHM, date, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"{ALGORITHM} Credential={keys.access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}"


Purpose = Literal["read", "list", "write"]

MOST_SPELLINGS = 4
CLOCK_SKEW_S = 300
BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
BAD_VALUE = re.compile(r"[^\t\x20-\x7e]")
PAYLOAD = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD|STREAMING-UNSIGNED-PAYLOAD-TRAILER")
COPY_SOURCE = "x-amz-copy-source"
AMZ_HEADERS = frozenset(
    {
        *(HASH, DATE, COPY_SOURCE, "x-amz-copy-source-range", "x-amz-metadata-directive", "x-amz-user-agent"),
        *("x-amz-checksum-mode", "x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm", "x-amz-checksum-type", "x-amz-te"),
        *(f"x-amz-checksum-{kind}" for kind in ("crc32", "crc32c", "crc64nvme", "sha1", "sha256")),
        *("x-amz-trailer", "x-amz-decoded-content-length", "x-amz-server-side-encryption", "x-amz-storage-class"),
    }
)
"""The signed headers. Excluded: ACLs, tags, grants, locks, customer keys for encryption, redirects, other accounts."""

FORWARDED = ("x-forwarded-host", "x-forwarded-prefix")
"""SeaweedFS prepends them to host and path when it verifies a signature, so they are signed as empty."""


@dataclass(frozen=True, slots=True)
class AllowedForm:
    """A kind of request that may be signed, by methods and query parameters; a list is for a bucket, the others for an object."""

    purpose: Purpose
    methods: tuple[str, ...]
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    def fits(self, method: str, names: frozenset[str], *, has_key: bool) -> bool:
        """True if a request is of this kind. S3 ignores `x-id`, which names the operation."""
        is_its = method in self.methods and has_key == (self.purpose != "list")
        return is_its and self.required <= names and names <= self.required | self.optional | {"x-id"}


LISTING = ("list-type", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type", "fetch-owner")
ALLOWED_FORMS = (
    AllowedForm("read", ("GET", "HEAD"), optional=frozenset({"partNumber"})),
    AllowedForm("list", ("GET",), frozenset({"prefix"}), frozenset(LISTING)),
    AllowedForm("write", ("PUT", "DELETE")),
    AllowedForm("write", ("PUT",), frozenset({"partNumber", "uploadId"})),
    AllowedForm("write", ("POST",), frozenset({"uploads"})),
    AllowedForm("write", ("POST", "DELETE"), frozenset({"uploadId"})),
    AllowedForm("write", ("GET",), frozenset({"uploadId"}), frozenset({"max-parts", "part-number-marker"})),
)


@dataclass(frozen=True, slots=True)
class UnsignedRequest:
    """A request that a client wants signed."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class SignableRequest:
    """A request of an allowed kind, to be signed if the client may access every spelling of the object or prefix and of a copy source.

    `sent`: the names of the client's own headers.
    """

    purpose: Purpose
    spellings: tuple[str, ...]
    sources: tuple[str, ...]
    scheme: str
    wire: CanonicalRequest
    sent: frozenset[str]


def parse_unsigned_request(store: StoreSettings, request: UnsignedRequest, now_s: float) -> SignableRequest:
    """Return purpose and objects of a request.

    Raises: BadRequest: it is malformed, for another store or region, or at another time. Forbidden: it is of no allowed kind
    """
    if BROKEN_ESCAPE.search(request.uri) or "#" in request.uri or not request.uri.isascii():
        raise BadRequest("The URI to be signed is not a percent-encoded one.")
    if request.region != store.region:
        raise BadRequest(f"The store is in the region {store.region!r}, and the request is for {request.region[:64]!r}.")
    try:
        parts = urlsplit(request.uri)
    except ValueError as error:
        raise BadRequest("The URI to be signed is none.") from error
    host, bucket, base, key = _parse_object(store, parts)
    query = _parse_query(parts.query)
    headers = _parse_headers(request.headers, now_s)
    form = _get_form(request.method, query, has_key=bool(key))
    sources = _list_source_spellings(headers[COPY_SOURCE]) if COPY_SOURCE in headers else ()
    if sources and request.method != "PUT":
        raise Forbidden("A source to copy from belongs to a PUT alone.")
    is_list = form.purpose == "list"
    spellings = _list_spellings(bucket, dict(query)["prefix"] if is_list else key, is_prefix=is_list)
    wire = CanonicalRequest(request.method, host, f"{base}/{key}" if key else base or "/", query, headers)
    return SignableRequest(form.purpose, spellings, sources, parts.scheme, wire, frozenset(name.lower() for name in request.headers))


def _get_form(method: str, query: Sequence[tuple[str, str]], *, has_key: bool) -> AllowedForm:
    names = frozenset(name for name, _ in query)
    form = next((form for form in ALLOWED_FORMS if form.fits(method, names, has_key=has_key)), None)
    if form is None or len(names) < len(query):
        what = " ".join(sorted(names)) or "no parameters"
        raise Forbidden(f"This is never signed: {method[:16]} of {'an object' if has_key else 'a bucket'} with {what[:200]}.")
    return form


def _format_home(store: StoreSettings) -> tuple[str, str]:
    """Return scheme and host of the store for path-style requests of clients."""
    if store.client_endpoint is None:
        return "https", f"s3.{store.region}.amazonaws.com"
    parts = urlsplit(store.client_endpoint)
    return parts.scheme, plain_host(parts)


def plain_host(parts: SplitResult) -> str:
    """Return the host of an endpoint without the default port of its scheme, as clients send it."""
    return parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ""))


def _parse_object(store: StoreSettings, parts: SplitResult) -> tuple[str, str, str, str]:
    """Return host, bucket, the path before the key, and the key of a URI."""
    scheme, home = _format_home(store)
    host = plain_host(parts)
    path = _decode(parts.path.removeprefix("/"))
    bucket, _, rest = host.partition(".")
    if parts.scheme == scheme and host == home:
        bucket, _, key = path.partition("/")
        base = f"/{bucket}"
    elif store.client_endpoint is None and parts.scheme == scheme and rest == home:
        base, key = "", path
    else:
        raise BadRequest("The URI to be signed is not of this warehouse's store.")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise BadRequest("The URI to be signed names no bucket.")
    return host, bucket, base, key


def _decode(text: str) -> str:
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError as error:
        raise BadRequest("The URI to be signed is not UTF-8.") from error


def _parse_query(text: str) -> list[tuple[str, str]]:
    if "+" in text or ";" in text:
        raise BadRequest("The query to be signed is not percent-encoded.")
    pairs = [part.partition("=") for part in text.split("&") if part]
    return [(_decode(name), _decode(value)) for name, _, value in pairs]


def _parse_headers(headers: Mapping[str, Sequence[str]], now_s: float) -> dict[str, str]:
    """Return the headers to sign: those that have a meaning for the store."""
    found: dict[str, str] = {}
    for name, values in headers.items():
        lower, value = name.lower(), ",".join(values)
        if lower in found or not HEADER_NAME.fullmatch(lower) or BAD_VALUE.search(value):
            raise BadRequest(f"The header {name[:64]!r} to be signed is malformed, or comes twice.")
        if (lower.startswith("x-amz-") and lower not in AMZ_HEADERS) or lower.startswith("x-forwarded-"):
            raise Forbidden(f"The header {name[:64]!r} is never signed.")
        if lower in AMZ_HEADERS:
            found[lower] = value
    if not PAYLOAD.fullmatch(found.setdefault(HASH, "UNSIGNED-PAYLOAD")):
        raise Forbidden("A payload is signed by its hash, or not at all; turn off chunks that are signed each.")
    _check_date(found.setdefault(DATE, datetime.fromtimestamp(now_s, UTC).strftime(DATE_FORMAT)), now_s)
    return {**found, **dict.fromkeys(FORWARDED, "")}


def _check_date(text: str, now_s: float) -> None:
    try:
        sent_s = datetime.strptime(text, DATE_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise BadRequest("The header x-amz-date to be signed is malformed.") from error
    if abs(sent_s - now_s) > CLOCK_SKEW_S:
        raise Forbidden(f"The header x-amz-date to be signed is more than {CLOCK_SKEW_S} seconds from now.")


def _list_spellings(bucket: str, key: str, *, is_prefix: bool = False) -> tuple[str, ...]:
    """Return the URIs of a key after any number of decodings: a server may decode once more than it should."""
    spelled = [key]
    while "%" in spelled[-1] and len(spelled) <= MOST_SPELLINGS:
        again = unquote_to_bytes(spelled[-1]).decode("utf-8", "surrogateescape")
        if again == spelled[-1]:
            break
        spelled.append(again)
    for each in spelled:
        plain = each.removesuffix("/") if is_prefix else each
        if len(spelled) > MOST_SPELLINGS or "\\" in each or re.search(UNSAFE_KEY, plain) or len(key.encode()) > MAX_KEY_BYTES:
            raise Forbidden("No key is signed that could mean another: with steps, empty parts, back-slashes or control characters.")
    return tuple(f"s3://{bucket}/{each}" for each in spelled)


def _list_source_spellings(text: str) -> tuple[str, ...]:
    if "?" in text or BROKEN_ESCAPE.search(text):
        raise Forbidden("No source of a copy is signed that names a version.")
    bucket, _, key = text.removeprefix("/").partition("/")
    return tuple(dict.fromkeys((*_list_spellings(bucket, key), *_list_spellings(_decode(bucket), _decode(key)))))


PROBE_SECONDS = 3


class RequestSigner:
    """Signs requests; the caller has checked that they are allowed. Safe to share between threads."""

    def __init__(self, store: StoreSettings) -> None:
        self.store = store
        self._is_strict: bool | None = None
        self._session: Any = None

    def sign(self, request: SignableRequest) -> tuple[str, dict[str, str]]:
        """Return the URI to send the request to, and the headers to add to it.

        Raises: NotServed: the store obeys unsigned headers. ServiceUnavailable: it does not answer
        """
        self.check_strict(request.spellings[0].split("/")[2])
        keys = self._get_credentials()
        wire = request.wire if keys.session_token is None else _add_token(request.wire, keys.session_token)
        query = f"?{wire.encoded_query}" if wire.query else ""
        signed = {**wire.headers, "authorization": sign(wire, keys, self.store.region)}
        # PyIceberg's signer does not replace headers of the same name, so they are left out.
        headers = {name: value for name, value in signed.items() if name not in request.sent}
        return f"{request.scheme}://{wire.host}{wire.encoded_path}{query}", headers

    def check_strict(self, bucket: str) -> None:
        """Raise NotServed for a store that obeys unsigned headers: a client could then turn a signed PUT into a copy of any object.

        AWS refuses them. Other stores are probed once: a list with an unsigned header must be refused.
        """
        if self.store.endpoint is None:
            return
        if self._is_strict is None:
            plain, more = self._probe(bucket, {}), self._probe(bucket, {"x-amz-meta-unsigned": secrets.token_hex(4)})
            if plain != 200:
                raise ServiceUnavailable(f"The object store at {self.store.endpoint} does not let us list the bucket {bucket!r} ({plain}).")
            if more not in (200, 400, 403):
                raise ServiceUnavailable(
                    f"The object store at {self.store.endpoint} does not say what it makes of unsigned headers ({more})."
                )
            self._is_strict = more != 200
        if not self._is_strict:
            raise NotServed(
                f"The object store at {self.store.endpoint} obeys headers that are not signed, so a signature would open all of it; "
                "use vended keys (sts_role_arn), or keys of your own."
            )

    def _probe(self, bucket: str, unsigned: dict[str, str]) -> int:
        parts = urlsplit(self.store.endpoint or "")
        date = datetime.fromtimestamp(time.time(), UTC).strftime(DATE_FORMAT)
        query = (("list-type", "2"), ("max-keys", "1"), ("prefix", "signing-probe"))
        wire = CanonicalRequest("GET", plain_host(parts), f"/{bucket}", query, {HASH: "UNSIGNED-PAYLOAD", DATE: date})
        keys = self._get_credentials()
        wire = wire if keys.session_token is None else _add_token(wire, keys.session_token)
        headers = {**wire.headers, **unsigned, "authorization": sign(wire, keys, self.store.region)}
        opened = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(parts.netloc, timeout=PROBE_SECONDS)
        try:
            opened.request("GET", f"{wire.encoded_path}?{wire.encoded_query}", headers=headers)
            return opened.getresponse().status
        except (OSError, HTTPException) as error:
            raise ServiceUnavailable(f"The object store at {self.store.endpoint} does not answer ({type(error).__name__}).") from None
        finally:
            opened.close()

    def _get_credentials(self) -> RootCredentials:
        store = self.store
        if store.access_key_id is not None and store.secret_access_key is not None:
            return RootCredentials(store.access_key_id, store.secret_access_key)
        if self._session is None:
            make_session: Callable[[], Any] = getattr(boto3, "Session")  # noqa: B009  boto3 makes its clients at run time, without types
            self._session = make_session()
        found: Any = self._session.get_credentials()
        if found is None:
            raise ServiceUnavailable("The server has no keys for the object store, so it can sign nothing.")
        frozen: Any = found.get_frozen_credentials()
        return RootCredentials(frozen.access_key, frozen.secret_key, frozen.token)


def _add_token(wire: CanonicalRequest, token: str) -> CanonicalRequest:
    return CanonicalRequest(wire.method, wire.host, wire.path, wire.query, {**wire.headers, TOKEN: token})
