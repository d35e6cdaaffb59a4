"""Access tokens of the catalog itself, and the keys that sign them: secrets (HS256) and key pairs (EdDSA, RS256).

A token carries no rights, only its client and scope; rights are read when it is used.
Law: a key has one algorithm forever; a token names its key by id, and neither chooses nor changes the algorithm.
"""

import hashlib
import json
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
