"""Tokens for clients that prove who they are.

Source: RFC 6749 (client credentials, errors), RFC 8693 (token exchange)
"""

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from duckicelake.access.bearers import Bearers
from duckicelake.access.clients import Client, SecretChecker
from duckicelake.access.grants import ALL_GRANTS, NO_GRANTS, BadGrant, Grants, format_grants, parse_grants
from duckicelake.access.guesses import Guesses
from duckicelake.access.policy import Policy
from duckicelake.access.sessions import WHOLE_SCOPES, Bearer, Session, join_grants, narrow, read_scope_grants
from duckicelake.access.token_keys import Signer
from duckicelake.access.tokens import Claims, make_token, read_token
from duckicelake.errors import NotAuthorized

CLIENT_CREDENTIALS = "client_credentials"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
SECRET_REMEMBERED_S = 300
LONGEST_SESSION_S = 12 * 3600
"""How long a client without its secret may go on exchanging its token for the next."""

MOST_KEPT = 10_000

Pair = tuple[str, str]
Policies = Mapping[str, Policy]
NO_POLICIES: Policies = {}
GONE = "The token's client is not known any more."


class OAuthRefusal(Exception):
    """What the token endpoint refuses, in the words of RFC 6749. `retry_after_s`: too many wrong secrets came before.

    `client_id`: who it was, or who somebody said to be; None when there is nobody of that name.
    """

    client_id: str | None = None

    def __init__(self, code: str, description: str, retry_after_s: int | None = None) -> None:
        super().__init__(description)
        self.code = code
        self.description = description
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """What a client asks for: the form, what came as Basic authentication, and where it comes from."""

    form: Mapping[str, str] = field(repr=False)
    basic: Pair | None = field(repr=False)
    peer: str


@dataclass(frozen=True, slots=True)
class Issued:
    """A token, how long it lives, and what it is good for."""

    token: str = field(repr=False)
    lifetime_s: int
    scope: str


@dataclass(frozen=True, slots=True)
class Proof:
    """Who asks for a token, what it may do anywhere, when it showed its secret, and how long it may go on without.

    `until_s` None: it has just shown it.
    """

    client: Client
    grants: Grants
    since_s: int
    until_s: int | None
    scope: str = ""


class Accounts:
    """The clients of one server, their tokens and sessions. Safe to share between threads.

    `bearers`: those whose tokens were verified, of issuers too.
    """

    def __init__(self, clients: Mapping[str, Client], signer: Signer, lifetime_s: int) -> None:
        self._clients = clients
        self._signer = signer
        self._lifetime_s = lifetime_s
        self._checker = SecretChecker(clients, secrets.token_bytes(32))
        self._proven: dict[str, tuple[bytes, float, Client]] = {}
        self._guesses = Guesses()
        self.bearers = Bearers()

    def list_public_keys(self) -> list[Mapping[str, str]]:
        """Return the public halves of the keys that sign tokens, as JWKs."""
        return self._signer.list_public()

    def find_session(self, token: bytes, now_s: float) -> Session:
        """Return what settings let a bearer do. Raises: NotAuthorized: the token is worth nothing (any more)."""
        return self.find_bearer(token, now_s).session

    def find_bearer(self, token: bytes, now_s: float) -> Bearer:
        """Return whose a token is; whether a lake that keeps the account still knows it is another question.

        Raises: NotAuthorized: it is worth nothing (any more)
        """
        known = self.bearers.find(token, now_s)
        if known is not None:
            return known
        claims = read_token(self._signer, token, now_s)
        client, scope = self._read_client(claims), _read_scope_of(claims)
        grants = client.grants if scope is None else client.grants.within(scope)
        return self.bearers.keep(token, Bearer(Session(claims.client_id, grants, claims.expires_at_s), scope, claims.origin))

    def is_quick(self, request: TokenRequest, now_s: float, policies: Policies = NO_POLICIES) -> bool:
        """Tell whether the request's secret was proven lately, or there is none, so that answering takes no time."""
        pair = find_pair(request)
        return pair is None or self._find_proven(pair, now_s, policies) is not None

    def is_settings_own(self, request: TokenRequest) -> bool:
        """Tell whether settings name who asks, so that no lake has to be asked for the account."""
        return self._find_said(request) in self._clients

    def issue(self, request: TokenRequest, now_s: float, policies: Policies = NO_POLICIES) -> Issued:
        """Return a token, for a client of settings or one that a lake keeps; `policies` by the lakes' names.

        Raises: OAuthRefusal
        """
        try:
            return self._answer(request, now_s, policies)
        except OAuthRefusal as refusal:
            said = self._find_said(request)
            is_known = said in self._clients or any(said in policy.accounts for policy in policies.values())
            refusal.client_id = said if is_known else None
            raise

    def _find_said(self, request: TokenRequest) -> str:
        """Return who somebody says to be."""
        return (request.basic or ("",))[0] or request.form.get("client_id", "")

    def _answer(self, request: TokenRequest, now_s: float, policies: Policies) -> Issued:
        grant_type = request.form.get("grant_type")
        if grant_type is None:
            raise OAuthRefusal("invalid_request", "The parameter grant_type is missing.")
        if grant_type not in (CLIENT_CREDENTIALS, TOKEN_EXCHANGE):
            raise OAuthRefusal("unsupported_grant_type", "Tokens are given for client_credentials, and exchanged for newer ones.")
        if grant_type == TOKEN_EXCHANGE:
            check_exchange(request.form)
        pair = find_pair(request)
        if pair is not None:
            # whatever a proven client exchanges says nothing that is believed: Trino's are not even signed
            client = self._prove(pair, request.peer, now_s, policies)
            return self._issue(Proof(client, _find_all(client, policies), math.floor(now_s), None), request, now_s)
        if grant_type == CLIENT_CREDENTIALS:
            raise OAuthRefusal("invalid_client", "Say who you are: by Basic authentication, or by client_id and client_secret.")
        return self._exchange(request, now_s, policies)

    def _exchange(self, request: TokenRequest, now_s: float, policies: Policies) -> Issued:
        try:
            claims = read_token(self._signer, request.form["subject_token"], now_s)
            client = self._read_client(claims)
            if claims.origin and not any(client.origin == known.origin for known in _list_accounts(client, policies)):
                raise NotAuthorized(GONE)
            grants = narrow(_find_all(client, policies), claims.scope)
        except BadGrant as error:
            raise OAuthRefusal("invalid_grant", "The token's scope is malformed; ask for a new one.") from error
        except NotAuthorized as error:
            raise OAuthRefusal("invalid_grant", error.message) from error
        if now_s >= claims.authenticated_at_s + LONGEST_SESSION_S:
            raise OAuthRefusal("invalid_grant", "The session is too old to go on without the client's secret.")
        until_s = claims.authenticated_at_s + LONGEST_SESSION_S
        return self._issue(Proof(client, grants, claims.authenticated_at_s, until_s, claims.scope), request, now_s)

    def _issue(self, proof: Proof, request: TokenRequest, now_s: float) -> Issued:
        scope = read_scope(request.form.get("scope", ""), proof.grants) or proof.scope
        now = math.floor(now_s)
        until_s = min(now + self._lifetime_s, proof.until_s or now + self._lifetime_s)
        token = make_token(self._signer, Claims(proof.client.client_id, scope, proof.since_s, until_s, proof.client.origin), now)
        return Issued(token, until_s - now, scope or format_grants(proof.client.grants) or "catalog")

    def _read_client(self, claims: Claims) -> Client:
        """Return the client of a token; of one that a lake keeps, as the token says."""
        if claims.origin:
            return Client(claims.client_id, "", NO_GRANTS, claims.origin)
        client = self._clients.get(claims.client_id)
        if client is None:
            raise NotAuthorized(GONE)
        return client

    def _prove(self, pair: Pair, peer: str, now_s: float, policies: Policies) -> Client:
        """Return the client whose secret this is. Raises: OAuthRefusal."""
        client_id, secret = pair
        proven = self._find_proven(pair, now_s, policies)
        if proven is not None:
            return proven
        wait_s = self._guesses.find_wait(peer, client_id, now_s)
        if wait_s:
            raise OAuthRefusal("invalid_client", "Too many wrong secrets came from there, or for that client; wait.", wait_s)
        client = self._checker.find(client_id, secret, [policy.accounts for policy in policies.values()])
        if client is None:
            self._guesses.note(peer, client_id, now_s)
            raise OAuthRefusal("invalid_client", "The client is not known, or its secret is another.")
        self._guesses.note_right(peer, client_id)
        if len(self._proven) >= MOST_KEPT:
            self._proven.clear()
        self._proven[client_id] = (self._checker.digest(client_id, secret), now_s + SECRET_REMEMBERED_S, client)
        return client

    def _find_proven(self, pair: Pair, now_s: float, policies: Policies) -> Client | None:
        """Return the client that showed this secret lately, if it is known as it was then."""
        digest, until_s, client = self._proven.get(pair[0], (b"", 0.0, None))
        if client is None or now_s >= until_s or not secrets.compare_digest(digest, self._checker.digest(*pair)):
            return None
        known = self._clients.get(pair[0])
        return client if client in ([known] if known is not None else _list_accounts(client, policies)) else None


def _list_accounts(client: Client, policies: Policies) -> list[Client]:
    """Return the accounts of that id which lakes keep."""
    return [policy.accounts[client.client_id] for policy in policies.values() if client.client_id in policy.accounts]


def _find_all(client: Client, policies: Policies) -> Grants:
    """Return what a client may do on namespaces, by settings and in any of the lakes that it is known in."""
    lakes = [policy for name, policy in policies.items() if not client.origin or client.origin.startswith(f"{name}/")]
    return join_grants(client.grants, *(policy.find_held(client.client_id).grants for policy in lakes))


def _read_scope_of(claims: Claims) -> Grants | None:
    try:
        return read_scope_grants(claims.scope)
    except BadGrant as error:
        raise NotAuthorized("The token's scope is malformed; ask for a new one.") from error


def find_pair(request: TokenRequest) -> Pair | None:
    """Return the id and the secret that a request holds, however it says them. Raises: OAuthRefusal: it says two."""
    told = request.form.get("client_secret")
    in_form = None if told is None else (request.form.get("client_id", ""), told)
    if in_form is not None and request.basic is not None and in_form != request.basic:
        raise OAuthRefusal("invalid_request", "The request says twice who asks, and not the same.")
    return request.basic or in_form


def check_exchange(form: Mapping[str, str]) -> None:
    """Raise OAuthRefusal unless the form holds what an exchange needs and asks for an access token."""
    if not form.get("subject_token") or not form.get("subject_token_type"):
        raise OAuthRefusal("invalid_request", "An exchange needs subject_token and subject_token_type.")
    if form.get("requested_token_type", ACCESS_TOKEN) != ACCESS_TOKEN:
        raise OAuthRefusal("invalid_request", f"Only {ACCESS_TOKEN} is given out.")


def read_scope(asked: str, grants: Grants) -> str:
    """Return the scope that a token gets: what was asked for, empty when that was everything.

    Raises: OAuthRefusal: it is malformed, or wider than what the client may do
    """
    words = [word for word in asked.split(" ") if word not in WHOLE_SCOPES]
    try:
        wanted = ALL_GRANTS if "*" in asked.split(" ") else parse_grants(words)
    except BadGrant as error:
        raise OAuthRefusal("invalid_scope", error.message) from error
    if not grants.covers(wanted):
        raise OAuthRefusal("invalid_scope", "The scope is wider than what the client may do.")
    return " ".join(words)
