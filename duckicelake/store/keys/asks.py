"""What a client asks to have signed: which object or list, for what, and nothing that is not on the lists here.

Law: an object is named by every spelling that a server could take it for, and all of them must be the table's own; a
parameter, a header or a sub-resource that is not allowed by name is refused.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from duckicelake.errors import BadRequest, Forbidden
from duckicelake.store.keys.sigv4 import DATE, DATE_FORMAT, HASH, Wire
from duckicelake.store.place import MAX_KEY_BYTES, UNSAFE_KEY
from duckicelake.store.s3 import StoreSettings

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
"""Not among them: ACLs, tags, grants, locks, keys of others' encryption, redirections, other accounts."""

FORWARDED = ("x-forwarded-host", "x-forwarded-prefix")
"""SeaweedFS puts them before host and path when it checks a signature, so they are signed as empty."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of request that may be signed: its method, whether it is for an object, and its parameters."""

    purpose: Purpose
    methods: tuple[str, ...]
    required: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()

    def fits(self, method: str, names: frozenset[str], *, has_key: bool) -> bool:
        """Tell whether a request is of this kind. `x-id` names the operation, and means nothing."""
        is_its = method in self.methods and has_key == (self.purpose != "list")
        return is_its and self.required <= names and names <= self.required | self.optional | {"x-id"}


LISTING = ("list-type", "delimiter", "max-keys", "continuation-token", "start-after", "marker", "encoding-type", "fetch-owner")
FORMS = (
    Form("read", ("GET", "HEAD"), optional=frozenset({"partNumber"})),
    Form("list", ("GET",), frozenset({"prefix"}), frozenset(LISTING)),
    Form("write", ("PUT", "DELETE")),
    Form("write", ("PUT",), frozenset({"partNumber", "uploadId"})),
    Form("write", ("POST",), frozenset({"uploads"})),
    Form("write", ("POST", "DELETE"), frozenset({"uploadId"})),
    Form("write", ("GET",), frozenset({"uploadId"}), frozenset({"max-parts", "part-number-marker"})),
)


@dataclass(frozen=True, slots=True)
class Told:
    """A request as the client tells it."""

    method: str
    uri: str
    region: str
    headers: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that may be signed for whoever owns what it names: each spelling of the object or prefix, and of a copy's source.

    `sent`: the headers that the client has already.
    """

    purpose: Purpose
    spellings: tuple[str, ...]
    sources: tuple[str, ...]
    scheme: str
    wire: Wire
    sent: frozenset[str]


def parse_ask(store: StoreSettings, told: Told, now_s: float) -> Ask:
    """Return what a request asks for.

    Raises: BadRequest: it is malformed, for another store or region, or at another time. Forbidden: nobody gets it signed
    """
    if BROKEN_ESCAPE.search(told.uri) or "#" in told.uri or not told.uri.isascii():
        raise BadRequest("The URI to be signed is not a percent-encoded one.")
    if told.region != store.region:
        raise BadRequest(f"The store is in the region {store.region!r}, and the request is for {told.region[:64]!r}.")
    try:
        parts = urlsplit(told.uri)
    except ValueError as error:
        raise BadRequest("The URI to be signed is none.") from error
    host, bucket, base, key = _find_object(store, parts)
    query = _parse_query(parts.query)
    headers = _parse_headers(told.headers, now_s)
    form = _find_form(told.method, query, has_key=bool(key))
    sources = _spell_source(headers[COPY_SOURCE]) if COPY_SOURCE in headers else ()
    if sources and told.method != "PUT":
        raise Forbidden("A source to copy from belongs to a PUT alone.")
    is_list = form.purpose == "list"
    spellings = _spell(bucket, dict(query)["prefix"] if is_list else key, is_prefix=is_list)
    wire = Wire(told.method, host, f"{base}/{key}" if key else base or "/", query, headers)
    return Ask(form.purpose, spellings, sources, parts.scheme, wire, frozenset(name.lower() for name in told.headers))


def _find_form(method: str, query: Sequence[tuple[str, str]], *, has_key: bool) -> Form:
    names = frozenset(name for name, _ in query)
    form = next((form for form in FORMS if form.fits(method, names, has_key=has_key)), None)
    if form is None or len(names) < len(query):
        what = " ".join(sorted(names)) or "no parameters"
        raise Forbidden(f"Nobody gets this signed: {method[:16]} of {'an object' if has_key else 'a bucket'} with {what[:200]}.")
    return form


def _home(store: StoreSettings) -> tuple[str, str]:
    """Return scheme and host of a store that has all its buckets in its paths, as clients reach it."""
    if store.client_endpoint is None:
        return "https", f"s3.{store.region}.amazonaws.com"
    parts = urlsplit(store.client_endpoint)
    return parts.scheme, plain_host(parts)


def plain_host(parts: SplitResult) -> str:
    """Return the host of an endpoint as clients name it: without the port that its scheme has anyway."""
    return parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ""))


def _find_object(store: StoreSettings, parts: SplitResult) -> tuple[str, str, str, str]:
    """Return host, bucket, what stands before keys in paths, and key of a URI."""
    scheme, home = _home(store)
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


def _parse_headers(told: Mapping[str, Sequence[str]], now_s: float) -> dict[str, str]:
    """Return the headers that are signed: those that mean something to the store."""
    found: dict[str, str] = {}
    for name, values in told.items():
        lower, value = name.lower(), ",".join(values)
        if lower in found or not HEADER_NAME.fullmatch(lower) or BAD_VALUE.search(value):
            raise BadRequest(f"The header {name[:64]!r} to be signed is malformed, or comes twice.")
        if (lower.startswith("x-amz-") and lower not in AMZ_HEADERS) or lower.startswith("x-forwarded-"):
            raise Forbidden(f"Nobody gets the header {name[:64]!r} signed.")
        if lower in AMZ_HEADERS:
            found[lower] = value
    if not PAYLOAD.fullmatch(found.setdefault(HASH, "UNSIGNED-PAYLOAD")):
        raise Forbidden("A payload is signed by its hash, or not at all; turn off chunks that are signed each.")
    _check_date(found.setdefault(DATE, datetime.fromtimestamp(now_s, UTC).strftime(DATE_FORMAT)), now_s)
    return {**found, **dict.fromkeys(FORWARDED, "")}


def _check_date(text: str, now_s: float) -> None:
    try:
        told_s = datetime.strptime(text, DATE_FORMAT).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise BadRequest("The header x-amz-date to be signed is malformed.") from error
    if abs(told_s - now_s) > CLOCK_SKEW_S:
        raise Forbidden(f"The header x-amz-date to be signed is more than {CLOCK_SKEW_S} seconds from now.")


def _spell(bucket: str, key: str, *, is_prefix: bool = False) -> tuple[str, ...]:
    """Return every URI that somebody who decodes too often could read in a key."""
    spelled = [key]
    while "%" in spelled[-1] and len(spelled) <= MOST_SPELLINGS:
        again = unquote_to_bytes(spelled[-1]).decode("utf-8", "surrogateescape")
        if again == spelled[-1]:
            break
        spelled.append(again)
    for each in spelled:
        plain = each.removesuffix("/") if is_prefix else each
        if len(spelled) > MOST_SPELLINGS or "\\" in each or re.search(UNSAFE_KEY, plain) or len(key.encode()) > MAX_KEY_BYTES:
            raise Forbidden(
                "Nobody gets a key signed that could mean another: with steps, empty parts, back-slashes or control characters."
            )
    return tuple(f"s3://{bucket}/{each}" for each in spelled)


def _spell_source(text: str) -> tuple[str, ...]:
    if "?" in text or BROKEN_ESCAPE.search(text):
        raise Forbidden("Nobody gets a source to copy from signed that names a version.")
    bucket, _, key = text.removeprefix("/").partition("/")
    return tuple(dict.fromkeys((*_spell(bucket, key), *_spell(_decode(bucket), _decode(key)))))
