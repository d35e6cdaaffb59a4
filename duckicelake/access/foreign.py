"""Tokens of issuers: whose they are, when an issuer's key signed them for this catalog and it is their time.

Source: RFC 7519 §4.1, RFC 8725 (what goes wrong with tokens), RFC 9068 §4, OpenID Connect Core §3.1.3.7
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import jwt

from duckicelake.access.grants import NO_GRANTS, BadGrant
from duckicelake.access.issuers import Issuer, KeySet
from duckicelake.access.policy import format_outside
from duckicelake.access.sessions import Bearer, Session
from duckicelake.errors import NotAuthorized

MOST_TOKEN_BYTES = 16 * 1024
MOST_ROLES = 1000
MOST_TIME_S = 10**12
LOOKED_AGAIN_S = 300
"""A token is verified anew after so long: a key that its issuer has withdrawn meanwhile is worth nothing then."""

TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""What tokens to come in with call themselves, when they do; others are for other purposes, logout for one."""

UNVERIFIED = {"verify_signature": False, "verify_exp": False, "verify_nbf": False, "verify_iat": False, "verify_aud": False}
CHECKED_HERE = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_sub": False,
    "verify_jti": False,
}
MALFORMED = "The token is malformed; ask its issuer for a new one."


@dataclass(frozen=True, slots=True)
class Unproven:
    """What a token says of itself before anything of it is believed: who issued it, and the key and algorithm it names."""

    issuer_url: str
    key_id: str | None
    algorithm: str


def peek(token: bytes) -> Unproven | None:
    """Return what a token says of itself; None when it names no issuer, or is no token."""
    if len(token) > MOST_TOKEN_BYTES:
        return None
    try:
        told = jwt.decode_complete(token, options=cast(Any, UNVERIFIED))
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        return None
    header, claims = cast(Mapping[str, Any], told["header"]), cast(Mapping[str, Any], told["payload"])
    issuer_url, key_id, algorithm = claims.get("iss"), header.get("kid"), header.get("alg")
    if not isinstance(issuer_url, str) or not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        return None
    return Unproven(issuer_url, key_id, algorithm)


def check_algorithm(issuer: Issuer, unproven: Unproven) -> None:
    """Raise NotAuthorized for an algorithm that the issuer has not; nobody is asked for keys then."""
    if unproven.algorithm not in issuer.algorithms:
        raise NotAuthorized("The token is signed by an algorithm that is not its issuer's here.")


def read_foreign(issuer: Issuer, keys: KeySet, unproven: Unproven, token: bytes, now_s: float) -> Bearer:
    """Return whose a token of an issuer is.

    Raises: NotAuthorized: no key of the issuer signed it, or it is for others, or not its time; the message never repeats the token
    """
    header, claims = _verify(issuer, keys, unproven, token)
    if str(header.get("typ", "JWT")).lower() not in TYPES or "crit" in header:
        raise NotAuthorized("The token is of a kind that opens nothing here.")
    expires_at_s = _check_times(issuer, claims, now_s)
    _check_parties(issuer, claims)
    until_s = min(expires_at_s, now_s + LOOKED_AGAIN_S)
    return Bearer(Session(read_principal(issuer, claims), NO_GRANTS, until_s), roles=read_roles(issuer, claims), ends_at_s=expires_at_s)


def _verify(issuer: Issuer, keys: KeySet, unproven: Unproven, token: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    check_algorithm(issuer, unproven)
    for key in keys.list_fitting(unproven.key_id, unproven.algorithm):
        try:
            told = jwt.decode_complete(
                token,
                key.verifying,
                # the algorithms of this key alone, whatever the token names
                list(key.algorithms),
                options=cast(Any, CHECKED_HERE),
                issuer=issuer.url,
            )
        except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError, TypeError, RecursionError):
            continue
        return cast(Mapping[str, Any], told["header"]), cast(Mapping[str, Any], told["payload"])
    raise NotAuthorized("The token is not signed by a key that its issuer tells of; ask it for a new one.")


def _check_times(issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> float:
    """Return when a token ends."""
    told: list[object] = [claims.get("exp"), claims.get("iat"), claims.get("nbf", claims.get("iat"))]
    times = [float(time) for time in told if is_time(time)]
    if len(times) < len(told):
        raise NotAuthorized(MALFORMED)
    expires_at_s, issued_at_s, not_before_s = times
    if now_s >= expires_at_s + issuer.clock_skew_s:
        raise NotAuthorized("The token has expired; ask its issuer for a new one.")
    if now_s < max(issued_at_s, not_before_s) - issuer.clock_skew_s:
        raise NotAuthorized("The token's time has not come; the clocks of its issuer and the catalog differ.")
    return expires_at_s


def is_time(told: object) -> TypeGuard[int | float]:
    """Tell whether a claim is a moment, in seconds."""
    return isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < MOST_TIME_S


def _check_parties(issuer: Issuer, claims: Mapping[str, Any]) -> None:
    told = claims.get("aud")
    audiences = cast(list[object], told) if isinstance(told, list) else [told]
    if not all(isinstance(each, str) for each in audiences) or issuer.audience not in audiences:
        raise NotAuthorized("The token is for others than this catalog; ask its issuer for one with the audience of the catalog.")
    # RFC 9068 has the client's id where OpenID Connect has the authorized party
    party = claims.get("azp", claims.get("client_id"))
    if party is not None and not isinstance(party, str):
        raise NotAuthorized(MALFORMED)
    if issuer.clients and party not in issuer.clients:
        raise NotAuthorized("The token was given to a client that may not come in with it here.")


def read_principal(issuer: Issuer, claims: Mapping[str, Any]) -> str:
    """Return what the token's principal is called here. Raises: NotAuthorized: the issuer does not name it, or only believes its name."""
    told = find_claim(claims, issuer.principal_claim)
    if issuer.principal_claim == "email" and claims.get("email_verified") is not True:
        raise NotAuthorized("The token names an address that its issuer has not verified.")
    if not isinstance(told, str):
        raise NotAuthorized("The token does not name its principal by the claim that settings say.")
    try:
        return format_outside(issuer.name, told)
    except BadGrant as error:
        raise NotAuthorized(error.message) from error


def read_roles(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the roles that a token gives, as they are called here; a claim that is no list of texts, or too long a one, gives none."""
    told = find_claim(claims, issuer.roles_claim) if issuer.roles_claim else None
    listed = cast(list[object], told) if isinstance(told, list) else [] if told is None else [told]
    if len(listed) > MOST_ROLES or not all(isinstance(each, str) for each in listed):
        return ()
    names: dict[str, None] = {}
    for each in cast(list[str], listed):
        try:
            names[issuer.roles[each] if each in issuer.roles else format_outside(issuer.name, each)] = None
        except BadGrant:
            continue
    return tuple(names)


def find_claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, or else by the path that the name's dots say; None when there is none."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        found = cast(Mapping[str, object], found).get(step) if isinstance(found, dict) else None
    return found
