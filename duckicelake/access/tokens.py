"""OAuth tokens without HTTP: made, signed and verified; client credentials and token exchange. In memory; callers pass the lakes' policies.

The authentication layer calls `get_bearer` for each request, on the event loop. `rest/routes/tokens.py` calls `issue`: on the event
loop if `is_quick`, otherwise on a thread for secrets. A token carries no rights, only its client and scope; rights are read
when it is used.
Law: a key (HS256, EdDSA, RS256) has one algorithm forever; a token names its key by id, and neither chooses nor changes the algorithm.
Source: RFC 6749, RFC 8693
"""

import hashlib
import json
import math
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from duckicelake.access.clients import Client, SecretChecker
from duckicelake.access.grants import ALL_GRANTS, NO_GRANTS, BadGrant, Grants, format_grants, parse_grants
from duckicelake.access.policy import LakePolicy
from duckicelake.access.rate_limit import LoginThrottle
from duckicelake.access.sessions import WHOLE_SCOPES, Bearer, Session, TokenCache, join_grants, narrow, read_scope_grants
from duckicelake.errors import CatalogError, NotAuthorized

SHORTEST_KEY_BYTES = 32
SHORTEST_RSA_BITS = 2048
THUMBPRINT = {"RSA": ("e", "kty", "n"), "OKP": ("crv", "kty", "x")}

Private = Ed25519PrivateKey | RSAPrivateKey
Public = Ed25519PublicKey | RSAPublicKey


class BadKey(CatalogError):
    """A key that is not acceptable; the message never contains it."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key for verifying and signing; `signing` is None for a public key.

    `public_jwk`: the public key as a JWK; None for a secret.
    """

    algorithm: Literal["HS256", "EdDSA", "RS256"]
    verifying: bytes | Public = field(repr=False)
    signing: bytes | Private | None = field(repr=False)
    public_jwk: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class TokenSigner:
    """The keys of tokens by key id: one signs new tokens, each verifies tokens."""

    keys: Mapping[str, TokenKey] = field(repr=False)
    signing_id: str

    def list_public(self) -> list[Mapping[str, str]]:
        """Return the public keys as JWKs."""
        return [key.public_jwk for key in self.keys.values() if key.public_jwk is not None]


def make_signer(secrets: Sequence[str], pems: Sequence[str] = ()) -> TokenSigner:
    """Return the signer for the keys in settings, each list with its newest key first; a key's id is computed from the key.

    The first key pair signs; without pairs, the first secret.
    Raises: BadKey: a key is too short or of another kind, or the first pair has no private key
    """
    keys = dict(_make_pair(pem, number) for number, pem in enumerate(pems, 1))
    if keys and next(iter(keys.values())).signing is None:
        raise BadKey("The first of token_key_files signs, so it holds a private key, not a public one.")
    encoded = [secret.encode() for secret in secrets]
    if any(len(secret) < SHORTEST_KEY_BYTES for secret in encoded) or not (keys or encoded):
        raise BadKey(f"A key of tokens has at least {SHORTEST_KEY_BYTES} bytes; make one with `openssl rand -hex 32`.")
    keys |= {hashlib.sha256(b"kid " + secret).hexdigest()[:16]: TokenKey("HS256", secret, secret) for secret in encoded}
    return TokenSigner(keys, next(iter(keys)))


def _make_pair(pem: str, number: int) -> tuple[str, TokenKey]:
    private, public = _load_pem(pem, number)
    if isinstance(public, RSAPublicKey) and public.key_size < SHORTEST_RSA_BITS:
        raise BadKey(f"Key {number} of token_key_files has {public.key_size} bits; RSA keys of less than {SHORTEST_RSA_BITS} are guessed.")
    is_rsa = isinstance(public, RSAPublicKey)
    jwk: Mapping[str, Any] = RSAAlgorithm.to_jwk(public, as_dict=True) if is_rsa else OKPAlgorithm.to_jwk(public, as_dict=True)
    needed = {name: str(jwk[name]) for name in THUMBPRINT[str(jwk["kty"])]}
    thumbprint = hashlib.sha256(json.dumps(needed, separators=(",", ":"), sort_keys=True).encode()).digest()
    key_id, algorithm = urlsafe_b64encode(thumbprint).rstrip(b"=").decode(), "RS256" if is_rsa else "EdDSA"
    return key_id, TokenKey(algorithm, public, private, {**needed, "use": "sig", "alg": algorithm, "kid": key_id})


def _load_pem(pem: str, number: int) -> tuple[Private | None, Public]:
    encoded = pem.encode()
    try:
        private = load_pem_private_key(encoded, None) if "PRIVATE KEY-----" in pem else None
        public = load_pem_public_key(encoded) if private is None else private.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey(f"Key {number} of token_key_files is no PEM file of one key without a password.") from error
    if not isinstance(private, Private | None) or not isinstance(public, Public):
        raise BadKey(f"Key {number} of token_key_files is neither Ed25519 nor RSA; make one with `openssl genpkey -algorithm ed25519`.")
    return private, public


ISSUER = AUDIENCE = "duckicelake"
MOST_TOKEN_BYTES = 8192
CLOCK_SKEW_S = 5
CLAIMS = ("iss", "aud", "sub", "iat", "nbf", "exp", "jti", "auth_time", "scope")


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of a token; an empty scope means all rights of the client.

    `origin`: the lake that holds the account and the number of its secret; empty for a client of the settings.
    """

    client_id: str
    scope: str
    authenticated_at_s: int
    expires_at_s: int
    origin: str = ""


def make_token(signer: TokenSigner, claims: Claims, now_s: int) -> str:
    """Return a signed token."""
    payload = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": claims.client_id,
        "iat": now_s,
        "nbf": now_s,
        "exp": claims.expires_at_s,
        "jti": secrets.token_hex(12),
        "auth_time": claims.authenticated_at_s,
        "scope": claims.scope,
        "origin": claims.origin,
    }
    key = signer.keys[signer.signing_id]
    assert key.signing is not None
    return jwt.encode(payload, key.signing, key.algorithm, headers={"kid": signer.signing_id})


def read_token(signer: TokenSigner, token: bytes | str, now_s: float) -> Claims:
    """Return the claims of a token of this catalog.

    Raises: NotAuthorized: wrong signature, claims or time; the message never contains the token
    """
    try:
        key = _get_key(signer, token)
        payload = jwt.decode(
            token,
            key.verifying,
            # Only the algorithm of this key: otherwise a public key could be used as an HMAC secret.
            [key.algorithm],
            # `_check_claims` compares times with `now_s`, so the library must not read a clock.
            options={"require": list(CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            audience=AUDIENCE,
            issuer=ISSUER,
        )
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise NotAuthorized("The token is not one that this catalog gave out; ask for a new one.") from error
    return _check_claims(payload, now_s)


def _get_key(signer: TokenSigner, token: bytes | str) -> TokenKey:
    if len(token) > MOST_TOKEN_BYTES:
        raise ValueError("too long")
    kid = jwt.get_unverified_header(token).get("kid")
    if not isinstance(kid, str) or kid not in signer.keys:
        raise ValueError("unknown key")
    return signer.keys[kid]


def _check_claims(payload: Mapping[str, object], now_s: float) -> Claims:
    client_id, scope, origin = payload["sub"], payload["scope"], payload.get("origin", "")
    times = [payload[name] for name in ("iat", "nbf", "exp", "auth_time")]
    if not isinstance(client_id, str) or not isinstance(scope, str) or not isinstance(origin, str):
        raise NotAuthorized("The token is malformed; ask for a new one.")
    whole = [time for time in times if isinstance(time, int)]
    if len(whole) < len(times):
        raise NotAuthorized("The token is malformed; ask for a new one.")
    issued_at_s, not_before_s, expires_at_s, authenticated_at_s = whole
    if now_s >= expires_at_s:
        raise NotAuthorized("The token has expired; ask for a new one.")
    if now_s < max(issued_at_s, not_before_s) - CLOCK_SKEW_S:
        raise NotAuthorized("The token's time has not come; the clocks of the catalog's servers differ.")
    return Claims(client_id, scope, authenticated_at_s, expires_at_s, origin)


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
