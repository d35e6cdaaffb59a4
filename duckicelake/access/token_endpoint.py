"""OAuth tokens without HTTP: verification of tokens, client credentials and token exchange. In memory; callers pass the lakes' policies.

The authentication layer calls `get_bearer` for each request, on the event loop. `rest/routes/tokens.py` calls `issue`: on the event
loop if `is_quick`, otherwise on a thread for secrets. Source: RFC 6749, RFC 8693
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from duckicelake.access.clients import Client, SecretChecker
from duckicelake.access.grants import ALL_GRANTS, NO_GRANTS, BadGrant, Grants, format_grants, parse_grants
from duckicelake.access.policy import LakePolicy
from duckicelake.access.rate_limit import LoginThrottle
from duckicelake.access.sessions import WHOLE_SCOPES, Bearer, Session, TokenCache, join_grants, narrow, read_scope_grants
from duckicelake.access.tokens import Claims, TokenSigner, make_token, read_token
from duckicelake.errors import NotAuthorized

CLIENT_CREDENTIALS = "client_credentials"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
SECRET_REMEMBERED_S = 300
LONGEST_SESSION_S = 12 * 3600
"""The time after authentication in which a client may exchange tokens without showing its secret again."""

MOST_PROVEN = 10_000

Credentials = tuple[str, str]
Policies = Mapping[str, LakePolicy]
NO_POLICIES: Policies = {}
UNKNOWN_CLIENT = "The token's client is not known any more."


class OAuthRefusal(Exception):
    """A refused token request, with the error code of RFC 6749. `retry_after_s`: set after too many wrong secrets.

    `client_id`: the id in the request; None if no client has it.
    """

    client_id: str | None = None

    def __init__(self, code: str, description: str, retry_after_s: int | None = None) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A token request: its form, the credentials of Basic authentication, and the client's address."""

    form: Mapping[str, str] = field(repr=False)
    basic: Credentials | None = field(repr=False)
    peer: str


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token, its lifetime and its scope."""

    token: str = field(repr=False)
    lifetime_s: int
    scope: str


@dataclass(frozen=True, slots=True)
class AuthenticatedClient:
    """A client that has authenticated: by its secret at `since_s`, or by a token (with `scope`) that it got for it.

    `grants`: its grants in settings and all lakes. `until_s`: when it must show its secret again; None: it just did.
    """

    client: Client
    grants: Grants
    since_s: int
    until_s: int | None
    scope: str = ""


class Accounts:
    """The clients of one server, their tokens and sessions. Safe to share between threads.

    `tokens`: the cache of verified tokens; OIDC tokens are kept in it too.
    """

    def __init__(self, clients: Mapping[str, Client], signer: TokenSigner, lifetime_s: int) -> None:
        self._clients = clients
        self._signer = signer
        self._lifetime_s = lifetime_s
        self._checker = SecretChecker(clients, secrets.token_bytes(32))
        self._proven: dict[str, tuple[bytes, float, Client]] = {}
        self._throttle = LoginThrottle()
        self.tokens = TokenCache()

    def list_public_keys(self) -> list[Mapping[str, str]]:
        """Return the public keys that verify tokens, as JWKs."""
        return self._signer.list_public()

    def get_bearer(self, token: bytes, now_s: float) -> Bearer:
        """Return the bearer of a token of this catalog; the caller checks that a lake still has the account.

        Raises: NotAuthorized: the token is invalid or expired
        """
        known = self.tokens.find(token, now_s)
        if known is not None:
            return known
        claims = read_token(self._signer, token, now_s)
        client, scope = self._read_client(claims), _read_scope_of(claims)
        grants = client.grants if scope is None else client.grants.within(scope)
        return self.tokens.put(token, Bearer(Session(claims.client_id, grants, claims.expires_at_s), scope, claims.origin))

    def is_quick(self, request: TokenRequest, now_s: float, policies: Policies = NO_POLICIES) -> bool:
        """True if the answer needs no slow hashing: the request has no secret, or one that was verified lately."""
        credentials = find_credentials(request)
        return credentials is None or self._find_proven(credentials, now_s, policies) is not None

    def is_in_settings(self, request: TokenRequest) -> bool:
        """True if the client is in settings, so that no lake needs to be read."""
        return self._get_claimed_id(request) in self._clients

    def issue(self, request: TokenRequest, now_s: float, policies: Policies = NO_POLICIES) -> IssuedToken:
        """Return a token for a client of the settings or of a lake; `policies` are by lake name.

        Raises: OAuthRefusal
        """
        try:
            return self._answer(request, now_s, policies)
        except OAuthRefusal as refusal:
            said = self._get_claimed_id(request)
            is_known = said in self._clients or any(said in policy.accounts for policy in policies.values())
            refusal.client_id = said if is_known else None
            raise

    def _get_claimed_id(self, request: TokenRequest) -> str:
        """Return the client id in the request, which is not yet authenticated."""
        return (request.basic or ("",))[0] or request.form.get("client_id", "")

    def _answer(self, request: TokenRequest, now_s: float, policies: Policies) -> IssuedToken:
        grant_type = request.form.get("grant_type")
        if grant_type is None:
            raise OAuthRefusal("invalid_request", "The parameter grant_type is missing.")
        if grant_type not in (CLIENT_CREDENTIALS, TOKEN_EXCHANGE):
            raise OAuthRefusal("unsupported_grant_type", "Tokens are given for client_credentials, and exchanged for newer ones.")
        if grant_type == TOKEN_EXCHANGE:
            check_exchange(request.form)
        credentials = find_credentials(request)
        if credentials is not None:
            # The subject token of an authenticated client is not read: those of Trino are not even signed.
            client = self._authenticate(credentials, request.peer, now_s, policies)
            return self._issue(AuthenticatedClient(client, _compute_grants(client, policies), math.floor(now_s), None), request, now_s)
        if grant_type == CLIENT_CREDENTIALS:
            raise OAuthRefusal("invalid_client", "Say who you are: by Basic authentication, or by client_id and client_secret.")
        return self._exchange(request, now_s, policies)

    def _exchange(self, request: TokenRequest, now_s: float, policies: Policies) -> IssuedToken:
        try:
            claims = read_token(self._signer, request.form["subject_token"], now_s)
            client = self._read_client(claims)
            if claims.origin and not any(client.origin == known.origin for known in _list_accounts(client, policies)):
                raise NotAuthorized(UNKNOWN_CLIENT)
            grants = narrow(_compute_grants(client, policies), claims.scope)
        except BadGrant as error:
            raise OAuthRefusal("invalid_grant", "The token's scope is malformed; ask for a new one.") from error
        except NotAuthorized as error:
            raise OAuthRefusal("invalid_grant", error.message) from error
        if now_s >= claims.authenticated_at_s + LONGEST_SESSION_S:
            raise OAuthRefusal("invalid_grant", "The session is too old to go on without the client's secret.")
        until_s = claims.authenticated_at_s + LONGEST_SESSION_S
        return self._issue(AuthenticatedClient(client, grants, claims.authenticated_at_s, until_s, claims.scope), request, now_s)

    def _issue(self, proof: AuthenticatedClient, request: TokenRequest, now_s: float) -> IssuedToken:
        scope = read_scope(request.form.get("scope", ""), proof.grants) or proof.scope
        now = math.floor(now_s)
        until_s = min(now + self._lifetime_s, proof.until_s or now + self._lifetime_s)
        token = make_token(self._signer, Claims(proof.client.client_id, scope, proof.since_s, until_s, proof.client.origin), now)
        return IssuedToken(token, until_s - now, scope or format_grants(proof.client.grants) or "catalog")

    def _read_client(self, claims: Claims) -> Client:
        """Return the client of a token; for an account of a lake, one made of the claims alone."""
        if claims.origin:
            return Client(claims.client_id, "", NO_GRANTS, claims.origin)
        client = self._clients.get(claims.client_id)
        if client is None:
            raise NotAuthorized(UNKNOWN_CLIENT)
        return client

    def _authenticate(self, credentials: Credentials, peer: str, now_s: float, policies: Policies) -> Client:
        """Return the client with these credentials. Raises: OAuthRefusal."""
        client_id, secret = credentials
        proven = self._find_proven(credentials, now_s, policies)
        if proven is not None:
            return proven
        wait_s = self._throttle.compute_wait_s(peer, client_id, now_s)
        if wait_s:
            raise OAuthRefusal("invalid_client", "Too many wrong secrets came from there, or for that client; wait.", wait_s)
        client = self._checker.find(client_id, secret, [policy.accounts for policy in policies.values()])
        if client is None:
            self._throttle.note_failure(peer, client_id, now_s)
            raise OAuthRefusal("invalid_client", "The client is not known, or its secret is another.")
        self._throttle.note_success(peer, client_id)
        if len(self._proven) >= MOST_PROVEN:
            self._proven.clear()
        self._proven[client_id] = (self._checker.digest(client_id, secret), now_s + SECRET_REMEMBERED_S, client)
        return client

    def _find_proven(self, credentials: Credentials, now_s: float, policies: Policies) -> Client | None:
        """Return the client if it showed this secret lately and its account has not changed since; otherwise None."""
        digest, until_s, client = self._proven.get(credentials[0], (b"", 0.0, None))
        if client is None or now_s >= until_s or not secrets.compare_digest(digest, self._checker.digest(*credentials)):
            return None
        known = self._clients.get(credentials[0])
        return client if client in ([known] if known is not None else _list_accounts(client, policies)) else None


def _list_accounts(client: Client, policies: Policies) -> list[Client]:
    """Return the accounts of lakes with the client's id."""
    return [policy.accounts[client.client_id] for policy in policies.values() if client.client_id in policy.accounts]


def _compute_grants(client: Client, policies: Policies) -> Grants:
    """Return the grants of a client in settings and in every lake that its account is valid in."""
    lakes = [policy for name, policy in policies.items() if not client.origin or client.origin.startswith(f"{name}/")]
    return join_grants(client.grants, *(policy.get_rights(client.client_id).grants for policy in lakes))


def _read_scope_of(claims: Claims) -> Grants | None:
    try:
        return read_scope_grants(claims.scope)
    except BadGrant as error:
        raise NotAuthorized("The token's scope is malformed; ask for a new one.") from error


def find_credentials(request: TokenRequest) -> Credentials | None:
    """Return the id and secret in a request's header or form, None without a secret. Raises: OAuthRefusal: header and form differ."""
    secret = request.form.get("client_secret")
    in_form = None if secret is None else (request.form.get("client_id", ""), secret)
    if in_form is not None and request.basic is not None and in_form != request.basic:
        raise OAuthRefusal("invalid_request", "The Authorization header and the body have different credentials; send one of them.")
    return request.basic or in_form


def check_exchange(form: Mapping[str, str]) -> None:
    """Raise OAuthRefusal unless the form has the parameters of a token exchange and requests an access token."""
    if not form.get("subject_token") or not form.get("subject_token_type"):
        raise OAuthRefusal("invalid_request", "An exchange needs subject_token and subject_token_type.")
    if form.get("requested_token_type", ACCESS_TOKEN) != ACCESS_TOKEN:
        raise OAuthRefusal("invalid_request", f"Only {ACCESS_TOKEN} is given out.")


def read_scope(requested: str, grants: Grants) -> str:
    """Return the scope of a new token: the requested one, empty if that was every right of the client.

    Raises: OAuthRefusal: it is malformed, or wider than the client's grants
    """
    words = [word for word in requested.split(" ") if word not in WHOLE_SCOPES]
    try:
        wanted = ALL_GRANTS if "*" in requested.split(" ") else parse_grants(words)
    except BadGrant as error:
        raise OAuthRefusal("invalid_scope", error.message) from error
    if not grants.covers(wanted):
        raise OAuthRefusal("invalid_scope", "The scope is wider than what the client may do.")
    return " ".join(words)
