"""Access tokens: signed, short-lived, and worth no more than what their principal may do now."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jwt

from duckicelake.errors import CatalogError, NotAuthorized

ALGORITHM = "HS256"
ISSUER = AUDIENCE = "duckicelake"
SHORTEST_KEY_BYTES = 32
MOST_TOKEN_BYTES = 8192
CLOCK_SKEW_S = 5
CLAIMS = ("iss", "aud", "sub", "iat", "nbf", "exp", "jti", "auth_time", "scope")


class BadKey(CatalogError):
    """A key that signs nothing well."""


@dataclass(frozen=True, slots=True)
class Signer:
    """The keys of tokens by their ids: the first one signs, each of them is believed."""

    keys: Mapping[str, bytes] = field(repr=False)
    signing_id: str


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says: whose it is, its scope (empty: all that its principal has), since when and until when."""

    client_id: str
    scope: str
    authenticated_at_s: int
    expires_at_s: int


def make_signer(keys: Sequence[str]) -> Signer:
    """Return the signer of keys as settings name them, the newest first; a key's id follows from it.

    Raises: BadKey: a key is too short to be one
    """
    encoded = [key.encode() for key in keys]
    if not encoded or any(len(key) < SHORTEST_KEY_BYTES for key in encoded):
        raise BadKey(f"A key of tokens has at least {SHORTEST_KEY_BYTES} bytes; make one with `openssl rand -hex 32`.")
    by_id = {hashlib.sha256(b"kid " + key).hexdigest()[:16]: key for key in encoded}
    return Signer(by_id, next(iter(by_id)))


def make_token(signer: Signer, claims: Claims, now_s: int) -> str:
    """Return a signed token."""
    told = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": claims.client_id,
        "iat": now_s,
        "nbf": now_s,
        "exp": claims.expires_at_s,
        "jti": secrets.token_hex(12),
        "auth_time": claims.authenticated_at_s,
        "scope": claims.scope,
    }
    return jwt.encode(told, signer.keys[signer.signing_id], ALGORITHM, headers={"kid": signer.signing_id})


def read_token(signer: Signer, token: bytes | str, now_s: float) -> Claims:
    """Return what a token says, if one of our keys signed it and it is its time.

    Raises: NotAuthorized: anything else; the message never repeats the token
    """
    try:
        key = _find_key(signer, token)
        told = jwt.decode(
            token,
            key,
            [ALGORITHM],
            # its time is told by `now_s` below, not by a clock of the library
            options={"require": list(CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            audience=AUDIENCE,
            issuer=ISSUER,
        )
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise NotAuthorized("The token is not one that this catalog gave out; ask for a new one.") from error
    return _check_claims(told, now_s)


def _find_key(signer: Signer, token: bytes | str) -> bytes:
    if len(token) > MOST_TOKEN_BYTES:
        raise ValueError("too long")
    kid = jwt.get_unverified_header(token).get("kid")
    if not isinstance(kid, str) or kid not in signer.keys:
        raise ValueError("unknown key")
    return signer.keys[kid]


def _check_claims(told: Mapping[str, object], now_s: float) -> Claims:
    client_id, scope = told["sub"], told["scope"]
    times = [told[name] for name in ("iat", "nbf", "exp", "auth_time")]
    if not isinstance(client_id, str) or not isinstance(scope, str):
        raise NotAuthorized("The token is malformed; ask for a new one.")
    whole = [time for time in times if isinstance(time, int)]
    if len(whole) < len(times):
        raise NotAuthorized("The token is malformed; ask for a new one.")
    issued_at_s, not_before_s, expires_at_s, authenticated_at_s = whole
    if now_s >= expires_at_s:
        raise NotAuthorized("The token has expired; ask for a new one.")
    if now_s < max(issued_at_s, not_before_s) - CLOCK_SKEW_S:
        raise NotAuthorized("The token's time has not come; the clocks of the catalog's servers differ.")
    return Claims(client_id, scope, authenticated_at_s, expires_at_s)
