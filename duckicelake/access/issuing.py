"""Tokens for clients that prove who they are.

Source: RFC 6749 (client credentials, errors), RFC 8693 (token exchange)
"""

import math
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from duckicelake.access.clients import Client, SecretChecker
from duckicelake.access.grants import ALL_GRANTS, BadGrant, Grants, format_grants, parse_grants
from duckicelake.access.sessions import WHOLE_SCOPES, Session, narrow
from duckicelake.access.token_keys import Signer
from duckicelake.access.tokens import Claims, make_token, read_token
from duckicelake.errors import NotAuthorized

CLIENT_CREDENTIALS = "client_credentials"
TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
SECRET_REMEMBERED_S = 300
LONGEST_SESSION_S = 12 * 3600
"""How long a client without its secret may go on exchanging its token for the next."""

MOST_FAILURES, FAILURES_WITHIN_S = 10, 60
MOST_KEPT = 10_000

Pair = tuple[str, str]


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
    """Who asks for a token, when it showed its secret, and how long it may go on without: None when it has just shown it."""

    client_id: str
    grants: Grants
    since_s: int
    until_s: int | None
    scope: str = ""


class Accounts:
    """The clients of one server, their tokens and sessions. Safe to share between threads."""

    def __init__(self, clients: Mapping[str, Client], signer: Signer, lifetime_s: int) -> None:
        self._clients = clients
        self._signer = signer
        self._lifetime_s = lifetime_s
        self._checker = SecretChecker(clients, secrets.token_bytes(32))
        self._proven: dict[str, tuple[bytes, float]] = {}
        self._failures: OrderedDict[Pair, list[float]] = OrderedDict()
        self._sessions: dict[bytes, Session] = {}
        self._lock = Lock()

    def list_public_keys(self) -> list[Mapping[str, str]]:
        """Return the public halves of the keys that sign tokens, as JWKs."""
        return self._signer.list_public()

    def find_session(self, token: bytes, now_s: float) -> Session:
        """Return the session of a bearer. Raises: NotAuthorized: the token is worth nothing (any more)."""
        session = self._sessions.get(token)
        if session is not None and now_s < session.expires_at_s:
            return session
        claims = read_token(self._signer, token, now_s)
        session = Session(claims.client_id, self._read_grants(claims), claims.expires_at_s)
        if len(self._sessions) >= MOST_KEPT:
            self._sessions.clear()
        self._sessions[token] = session
        return session

    def is_quick(self, request: TokenRequest, now_s: float) -> bool:
        """Tell whether the request's secret was proven lately, or there is none, so that answering takes no time."""
        pair = find_pair(request)
        return pair is None or self._is_proven(pair, now_s)

    def issue(self, request: TokenRequest, now_s: float) -> Issued:
        """Return a token. Raises: OAuthRefusal."""
        try:
            return self._answer(request, now_s)
        except OAuthRefusal as refusal:
            said = refusal.client_id or request.form.get("client_id") or (request.basic or ("",))[0]
            refusal.client_id = said if said in self._clients else None
            raise

    def _answer(self, request: TokenRequest, now_s: float) -> Issued:
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
            client = self._prove(pair, request.peer, now_s)
            return self._issue(Proof(client.client_id, client.grants, math.floor(now_s), None), request, now_s)
        if grant_type == CLIENT_CREDENTIALS:
            raise OAuthRefusal("invalid_client", "Say who you are: by Basic authentication, or by client_id and client_secret.")
        return self._exchange(request, now_s)

    def _exchange(self, request: TokenRequest, now_s: float) -> Issued:
        try:
            claims = read_token(self._signer, request.form["subject_token"], now_s)
            grants = self._read_grants(claims)
        except NotAuthorized as error:
            raise OAuthRefusal("invalid_grant", error.message) from error
        if now_s >= claims.authenticated_at_s + LONGEST_SESSION_S:
            raise OAuthRefusal("invalid_grant", "The session is too old to go on without the client's secret.")
        until_s = claims.authenticated_at_s + LONGEST_SESSION_S
        return self._issue(Proof(claims.client_id, grants, claims.authenticated_at_s, until_s, claims.scope), request, now_s)

    def _issue(self, proof: Proof, request: TokenRequest, now_s: float) -> Issued:
        scope = read_scope(request.form.get("scope", ""), proof.grants) or proof.scope
        now = math.floor(now_s)
        until_s = min(now + self._lifetime_s, proof.until_s or now + self._lifetime_s)
        token = make_token(self._signer, Claims(proof.client_id, scope, proof.since_s, until_s), now)
        return Issued(token, until_s - now, format_grants(narrow(proof.grants, scope)))

    def _read_grants(self, claims: Claims) -> Grants:
        client = self._clients.get(claims.client_id)
        if client is None:
            raise NotAuthorized("The token's client is not known any more.")
        try:
            return narrow(client.grants, claims.scope)
        except BadGrant as error:
            raise NotAuthorized("The token's scope is malformed; ask for a new one.") from error

    def _prove(self, pair: Pair, peer: str, now_s: float) -> Client:
        """Return the client whose secret this is. Raises: OAuthRefusal."""
        client_id, secret = pair
        if self._is_proven(pair, now_s):
            return self._clients[client_id]
        self._check_pace((peer, client_id), now_s)
        client = self._checker.find(client_id, secret)
        if client is None:
            self._note_failure((peer, client_id), now_s)
            raise OAuthRefusal("invalid_client", "The client is not known, or its secret is another.")
        self._proven[client_id] = (self._checker.digest(client_id, secret), now_s + SECRET_REMEMBERED_S)
        return client

    def _is_proven(self, pair: Pair, now_s: float) -> bool:
        digest, until_s = self._proven.get(pair[0], (b"", 0.0))
        return now_s < until_s and secrets.compare_digest(digest, self._checker.digest(*pair))

    def _check_pace(self, who: Pair, now_s: float) -> None:
        with self._lock:
            late = [at for at in self._failures.get(who, ()) if at > now_s - FAILURES_WITHIN_S]
        if len(late) >= MOST_FAILURES:
            wait_s = max(1, math.ceil(late[0] + FAILURES_WITHIN_S - now_s))
            raise OAuthRefusal("invalid_client", "Too many wrong secrets came from there; wait.", wait_s)

    def _note_failure(self, who: Pair, now_s: float) -> None:
        with self._lock:
            failures = self._failures.setdefault(who, [])
            failures[:] = [*failures[-MOST_FAILURES + 1 :], now_s]
            self._failures.move_to_end(who)
            while len(self._failures) > MOST_KEPT:
                self._failures.popitem(last=False)


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
