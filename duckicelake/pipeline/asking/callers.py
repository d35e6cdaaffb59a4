"""Who asks a REST catalog, by the properties that Iceberg's own clients read."""

import base64
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlencode

from duckicelake.errors import BadRequest, NotAuthorized
from duckicelake.iceberg.json_reader import as_object
from duckicelake.pipeline.asking.sigv4 import SigningKeys, load_signing_keys, sign_request
from duckicelake.pipeline.asking.wire import Request, send_request

TYPE, DELEGATE_TYPE, SIGV4_ENABLED = "rest.auth.type", "rest.auth.sigv4.delegate-auth-type", "rest.sigv4-enabled"
TOKEN, CREDENTIAL, SERVER = "token", "credential", "oauth2-server-uri"
DELEGATION = "header.X-Iceberg-Access-Delegation"
HEADER = "header."
_AUTHORIZATION = "authorization"
_RENEW_AFTER = 0.9
"""The part of a token's life after which there is a new one."""


class Authenticator(Protocol):
    """Somebody whom a catalog knows, or nobody."""

    def authorize(self, request: Request) -> Mapping[str, str]:
        """All headers of the request, those among them by which it is known who asks. Raises: CatalogError: he cannot say who he is."""
        ...

    def renew(self) -> bool:
        """After a refusal: whether he may be known the next time."""
        ...


@dataclass(frozen=True, slots=True)
class FixedAuthorization:
    """Says the same each time; nothing when he is nobody."""

    authorization: str | None = field(default=None, repr=False)

    def authorize(self, request: Request) -> Mapping[str, str]:
        """The header as it is, if there is one."""
        return request.headers if self.authorization is None else {**request.headers, _AUTHORIZATION: self.authorization}

    def renew(self) -> bool:
        """Never."""
        return False


ANONYMOUS = FixedAuthorization()


@dataclass(slots=True)
class OAuthClient:
    """Gets a token for id and secret, and another one before it ends."""

    server: str
    form: Mapping[str, str] = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    token: str | None = field(default=None, repr=False)
    ends_s: float | None = None

    def authorize(self, request: Request) -> Mapping[str, str]:
        """The token as a bearer's."""
        if self.token is None or (self.ends_s is not None and time.monotonic() >= self.ends_s):
            self._fetch()
        return {**request.headers, _AUTHORIZATION: f"Bearer {self.token}"}

    def renew(self) -> bool:
        """A token may have ended before its time."""
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
    """Signs each request with AWS's keys, whatever else tells who asks."""

    delegate: Authenticator
    keys: SigningKeys

    def authorize(self, request: Request) -> Mapping[str, str]:
        """What the delegate says goes along under another name, and is signed too."""
        told = dict(self.delegate.authorize(request))
        if _AUTHORIZATION in told:
            told[f"original-{_AUTHORIZATION}"] = told.pop(_AUTHORIZATION)
        return sign_request(Request(request.method, request.url, told, request.body), self.keys)

    def renew(self) -> bool:
        """As the delegate."""
        return self.delegate.renew()


def get_auth_type(properties: Mapping[str, str]) -> str:
    """What kind of caller the properties describe, in Iceberg's words."""
    if properties.get(SIGV4_ENABLED, "").lower() == "true":
        return "sigv4"
    inferred = "oauth2" if properties.get(CREDENTIAL) or properties.get(TOKEN) else "none"
    return properties.get(TYPE, inferred).lower()


def build_authenticator(properties: Mapping[str, str], uri: str) -> Authenticator:
    """Who asks the catalog at a URI. Raises: BadRequest: something is missing, or it is a kind that is not known here."""
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
    """Where tokens are given: at the catalog itself, unless something else is said; a path is below the catalog's."""
    server = properties.get(SERVER) or "v1/oauth/tokens"
    return server if "://" in server else f"{uri.rstrip('/')}/{server.lstrip('/')}"


def format_auth_properties(properties: Mapping[str, str], uri: str) -> dict[str, str]:
    """What Iceberg's client in Spark has to be told besides the properties, to ask as the same caller."""
    kind = get_auth_type(properties)
    if kind == "none":
        return {TYPE: kind}
    told = {TYPE: kind, DELEGATION: "vended-credentials,remote-signing"}
    if properties.get(CREDENTIAL) or properties.get(TOKEN):
        told |= {SERVER: get_token_endpoint(properties, uri), "scope": "catalog"}
    has_own = DELEGATION.lower() in map(str.lower, properties)
    return {name: text for name, text in told.items() if not (has_own and name == DELEGATION)}


def list_headers(properties: Mapping[str, str]) -> dict[str, str]:
    """What every request carries, by names in lower case."""
    return {name.removeprefix(HEADER).lower(): text for name, text in properties.items() if name.startswith(HEADER)}


def _get_property(properties: Mapping[str, str], name: str, kind: str) -> str:
    text = properties.get(name)
    if not text:
        raise BadRequest(f"{TYPE} {kind} needs {name}")
    return text
