"""Access tokens: signed, short-lived, and worth no more than what their principal may do now."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import jwt

from duckicelake.access.token_keys import Signer, TokenKey
from duckicelake.errors import NotAuthorized

ISSUER = AUDIENCE = "duckicelake"
MOST_TOKEN_BYTES = 8192
CLOCK_SKEW_S = 5
CLAIMS = ("iss", "aud", "sub", "iat", "nbf", "exp", "jti", "auth_time", "scope")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says: whose it is, its scope (empty: all that its principal has), since when and until when.

    `origin`: the lake that keeps its client, and which of its secrets was shown; empty: settings name it.
    """

    client_id: str
    scope: str
    authenticated_at_s: int
    expires_at_s: int
    origin: str = ""


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
        "origin": claims.origin,
    }
    key = signer.keys[signer.signing_id]
    assert key.signing is not None
    return jwt.encode(told, key.signing, key.algorithm, headers={"kid": signer.signing_id})


def read_token(signer: Signer, token: bytes | str, now_s: float) -> Claims:
    """Return what a token says, if one of our keys signed it and it is its time.

    Raises: NotAuthorized: anything else; the message never repeats the token
    """
    try:
        key = _find_key(signer, token)
        told = jwt.decode(
            token,
            key.verifying,
            # the key's own algorithm and no other: a public key is never taken for a secret
            [key.algorithm],
            # its time is told by `now_s` below, not by a clock of the library
            options={"require": list(CLAIMS), "verify_exp": False, "verify_nbf": False, "verify_iat": False},
            audience=AUDIENCE,
            issuer=ISSUER,
        )
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise NotAuthorized("The token is not one that this catalog gave out; ask for a new one.") from error
    return _check_claims(told, now_s)


def _find_key(signer: Signer, token: bytes | str) -> TokenKey:
    if len(token) > MOST_TOKEN_BYTES:
        raise ValueError("too long")
    kid = jwt.get_unverified_header(token).get("kid")
    if not isinstance(kid, str) or kid not in signer.keys:
        raise ValueError("unknown key")
    return signer.keys[kid]


def _check_claims(told: Mapping[str, object], now_s: float) -> Claims:
    client_id, scope, origin = told["sub"], told["scope"], told.get("origin", "")
    times = [told[name] for name in ("iat", "nbf", "exp", "auth_time")]
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
