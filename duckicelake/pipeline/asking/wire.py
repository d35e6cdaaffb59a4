"""One request over HTTP, and its answer: JSON, or one of our errors."""

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, cast
from urllib.parse import urlsplit

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
"""Our catalog's word for a lake that somebody has to mend, with the status of what cannot be published."""

_MESSAGE_FIELDS = ("message", "Message", "error_description", "error")
"""Where messages are: Iceberg's, those of gateways, and OAuth's."""
_URL = re.compile(r"https?://[^\x00-\x20\x7f]+", re.IGNORECASE)
_HEADER, _HEADER_NAME = re.compile(r"[\t -~\x80-\xff]*"), re.compile("[!-9;-~]+")
_NO_URL = "the URL of the catalog, or of its server of tokens, cannot be read: write https://host:port/path"


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent; headers by their names in lower case."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: bytes | None = field(default=None, repr=False)

    @property
    def host(self) -> str:
        """Whom it is sent to."""
        return urlsplit(self.url).netloc.rpartition("@")[2]


class _SameServerRedirects(urllib.request.HTTPRedirectHandler):
    """What says who asks is for one server alone, and so is what is signed."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        ends = (urlsplit(url)[:2] for url in (req.full_url, newurl))
        if req.get_method() != "GET" or len(set(ends)) > 1:
            raise urllib.error.HTTPError(req.full_url, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def send_request(request: Request, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    """The JSON of the answer; None when it has none.

    Raises: CatalogError: a refusal; BadRequest: it cannot be sent; ServiceUnavailable: nobody answers, or no catalog
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
        raise BadRequest(f"the URL of {request.host} says who asks, and nobody is asked so: write that to properties")
    if not is_url:
        raise BadRequest(_NO_URL)
    found = request.headers.items()
    wrong = next((name for name, text in found if _HEADER_NAME.fullmatch(name) is None or _HEADER.fullmatch(text) is None), None)
    if wrong is not None:
        raise BadRequest(f"the header {wrong!r} has what no header can have: is there the end of a line in it?")


def _read_refusal(error: urllib.error.HTTPError) -> bytes:
    """What came of the body: the status says what is wrong, whether more comes or not."""
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
    """A URL without what may be secret in it; it may be none."""
    try:
        parts = urlsplit(place)
    except ValueError:
        return "what is no URL"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _read_error(body: bytes) -> Mapping[str, object]:
    """What is told of an error; nothing where that is no JSON."""
    try:
        said = as_object(json.loads(body), "a refusal")
    except (ValueError, BadRequest):
        return {}
    inner = said.get("error")
    return cast("dict[str, object]", inner) if isinstance(inner, dict) else said
