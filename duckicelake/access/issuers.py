"""OIDC issuers: their settings, discovery documents, key sets, and verification of their tokens.

`app` checks the settings at start. `rest/auth/oidc` fetches documents and key sets on a thread and parses them there; tokens are verified
on the event loop. Nothing here does I/O.
Law: only asymmetric keys verify an issuer's tokens, by the algorithms in settings; symmetric keys in a key set are ignored.
Source: OpenID Connect Discovery 1.0 §4.3; RFC 7517, RFC 7518 (keys as JSON); RFC 7519 §4.1, RFC 8725, RFC 9068 §4 (tokens);
OpenID Connect Core §3.1.3.7
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast
from urllib.parse import urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from duckicelake.access.grants import NO_GRANTS, BadGrant
from duckicelake.access.policy import ISSUER_NAME, format_issuer_name, parse_name
from duckicelake.access.sessions import Bearer, Session
from duckicelake.errors import CatalogError, NotAuthorized

WELL_KNOWN = "/.well-known/openid-configuration"
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
MOST_KEYS = 100
RSA_BITS = range(2048, 8193)

FITTING: Mapping[tuple[str, str], frozenset[str]] = {
    ("RSA", ""): frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    ("EC", "P-256"): frozenset({"ES256"}),
    ("EC", "P-384"): frozenset({"ES384"}),
    ("EC", "P-521"): frozenset({"ES512"}),
    ("OKP", "Ed25519"): frozenset({"EdDSA"}),
}
"""Algorithms by type and curve of a key."""

PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}

Public = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class BadIssuer(CatalogError):
    """An issuer whose settings, discovery document or key set are not acceptable."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """The settings of one issuer.

    `name`: prefix of its principals and roles in the catalog (`name:…`). `roles_claim`: empty for none. `roles`: roles of lakes by values
    of that claim. `clients`: accepted values of `azp`, empty for any.
    """

    name: str
    url: str
    audience: str
    algorithms: frozenset[str] = frozenset({"RS256", "ES256"})
    principal_claim: str = "sub"
    roles_claim: str = ""
    roles: Mapping[str, str] = field(default_factory=dict[str, str])
    clients: frozenset[str] = frozenset()
    clock_skew_s: int = 60
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class IssuerKey:
    """A public key and the algorithms that it may verify."""

    algorithms: frozenset[str]
    verifying: Public


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of an issuer by key id; keys may share an id, and the id may be empty."""

    keys: Mapping[str, Sequence[IssuerKey]]

    def has(self, key_id: str | None) -> bool:
        """True if the set has a key for a token with this key id, or without one."""
        return bool(self.keys) if key_id is None else key_id in self.keys

    def list_fitting(self, key_id: str | None, algorithm: str) -> list[IssuerKey]:
        """Return the keys that may have signed a token; without a key id, the only key for the algorithm."""
        every = [key for keys in self.keys.values() for key in keys] if key_id is None else self.keys.get(key_id, ())
        fitting = [key for key in every if algorithm in key.algorithms]
        return [] if key_id is None and len(fitting) > 1 else list(fitting)


def check_issuer(issuer: Issuer) -> None:
    """Raise BadIssuer if the settings of an issuer are not acceptable."""
    where = f"oidc_issuers: {issuer.name!r}"
    if ISSUER_NAME.fullmatch(issuer.name) is None:
        raise BadIssuer(f"{where} is no name; take small letters, digits, `_` and `-`, a letter first, and not `role`.")
    check_url(issuer.url, where, is_near=True)
    for claimed, role in issuer.roles.items():
        check_role(role, f"{where} has roles for {claimed[:100]!r} that")
    if not issuer.algorithms or issuer.algorithms - ALGORITHMS:
        raise BadIssuer(f"{where} signs by {sorted(issuer.algorithms)}; there are {', '.join(sorted(ALGORITHMS))}.")


def check_role(role: str, where: str) -> None:
    """Raise BadIssuer unless the text is the normal spelling of a role's name."""
    try:
        is_known = parse_name(role, "role") == role
    except BadGrant as error:
        raise BadIssuer(f"{where} cannot exist: {error.message}") from error
    if not is_known:
        raise BadIssuer(f"{where} are written otherwise: {parse_name(role, 'role')}")


def check_url(url: str, where: str, *, is_near: bool) -> None:
    """Raise BadIssuer unless a URL is https, or http on this machine where that is allowed (`is_near`)."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise BadIssuer(f"{where} has a URL that is none.") from error
    is_plain = not (parts.query or parts.fragment or parts.username or parts.password) and url.isascii() and url.isprintable()
    if not host or not is_plain or " " in url:
        raise BadIssuer(f"{where} has a URL with a query, a fragment, a user, or without a host.")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in LOOPBACK and is_near):
        raise BadIssuer(f"{where} has a URL that is not of https: keys that come in the clear are anybody's. Only 127.0.0.1 needs none.")


def is_near(issuer: Issuer) -> bool:
    """True if the issuer is on this machine, so that its keys may be fetched by http from this machine."""
    return urlsplit(issuer.url).hostname in LOOPBACK


def build_discovery_url(issuer: Issuer) -> str:
    """Return the URL of an issuer's discovery document."""
    return issuer.url.rstrip("/") + WELL_KNOWN


def read_discovery(issuer: Issuer, document: object) -> str:
    """Return the URL of an issuer's key set. Raises: BadIssuer: the document is another issuer's, or its URL is not acceptable."""
    if not isinstance(document, dict):
        raise BadIssuer(f"The discovery document of the issuer {issuer.name!r} is no JSON object.")
    discovery = cast(dict[str, Any], document)
    if discovery.get("issuer") != issuer.url:
        raise BadIssuer(f"The issuer {issuer.name!r} says it is {str(discovery.get('issuer'))[:200]!r}, and settings say {issuer.url!r}.")
    keys_url = discovery.get("jwks_uri")
    if not isinstance(keys_url, str):
        raise BadIssuer(f"The issuer {issuer.name!r} does not say where its keys are (jwks_uri).")
    check_keys_url(keys_url, issuer)
    return keys_url


def check_keys_url(url: str, issuer: Issuer) -> None:
    """Raise BadIssuer unless keys may be fetched from a URL; it may have a query, unlike an issuer's URL."""
    check_url(url.partition("?")[0], f"The jwks_uri of the issuer {issuer.name!r}", is_near=is_near(issuer))
    if not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise BadIssuer(f"The jwks_uri of the issuer {issuer.name!r} is no URL.")


def read_keys(issuer: Issuer, document: object) -> KeySet:
    """Return the usable keys of a key set and skip the others. Raises: BadIssuer: there is no usable key, or too many keys."""
    listed = cast(dict[str, Any], document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise BadIssuer(f"The issuer {issuer.name!r} has no list of keys.")
    entries = cast(list[object], listed)
    if len(entries) > MOST_KEYS:
        raise BadIssuer(f"The issuer {issuer.name!r} has {len(entries)} keys; more than {MOST_KEYS} are not read.")
    found: dict[str, list[IssuerKey]] = {}
    for entry in entries:
        key = _read_key(issuer, cast(dict[str, Any], entry)) if isinstance(entry, dict) else None
        if key is not None:
            found.setdefault(key[0], []).append(key[1])
    if not found:
        raise BadIssuer(f"The issuer {issuer.name!r} has no key that signs by {', '.join(sorted(issuer.algorithms))}.")
    return KeySet(found)


def _read_key(issuer: Issuer, jwk: dict[str, Any]) -> tuple[str, IssuerKey] | None:
    """Return a key id and a public key, None for a key that cannot verify tokens; a private half is never read."""
    kind, key_id, operations = jwk.get("kty"), jwk.get("kid", ""), jwk.get("key_ops", ["verify"])
    curve = "" if kind == "RSA" else jwk.get("crv")
    if not isinstance(kind, str) or not isinstance(key_id, str) or not isinstance(curve, str):
        return None
    algorithms = FITTING.get((kind, curve), frozenset()) & issuer.algorithms
    if "alg" in jwk:
        algorithms = frozenset(algorithm for algorithm in algorithms if algorithm == jwk["alg"])
    if not algorithms or jwk.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    public = _load(kind, {"kty": kind, **{name: jwk.get(name) for name in PUBLIC_MEMBERS[kind]}})
    if public is None or (isinstance(public, RSAPublicKey) and public.key_size not in RSA_BITS):
        return None
    return key_id, IssuerKey(algorithms, public)


def _load(kind: str, members: dict[str, Any]) -> Public | None:
    if not all(isinstance(member, str) for member in members.values()):
        return None
    load = {"RSA": RSAAlgorithm.from_jwk, "EC": ECAlgorithm.from_jwk, "OKP": OKPAlgorithm.from_jwk}[kind]
    try:
        key = load(members)
    except (PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey) else None


MOST_ISSUER_TOKEN_BYTES = 16 * 1024
MOST_ROLES = 1000
MOST_TIME_S = 10**12
VERIFIED_AGAIN_AFTER_S = 300
"""A token is verified again after this time, so that a key that its issuer withdrew stops working."""

TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""Accepted values of the header `typ`; tokens of other types serve other purposes, such as logout."""

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
class UnverifiedToken:
    """Issuer, key id and algorithm of a token, read before its signature is verified."""

    issuer_url: str
    key_id: str | None
    algorithm: str


def read_unverified(token: bytes) -> UnverifiedToken | None:
    """Return issuer, key id and algorithm of a token without verifying it; None if it is no token or names no issuer."""
    if len(token) > MOST_ISSUER_TOKEN_BYTES:
        return None
    try:
        decoded = jwt.decode_complete(token, options=cast(Any, UNVERIFIED))
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        return None
    header, claims = cast(Mapping[str, Any], decoded["header"]), cast(Mapping[str, Any], decoded["payload"])
    issuer_url, key_id, algorithm = claims.get("iss"), header.get("kid"), header.get("alg")
    if not isinstance(issuer_url, str) or not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        return None
    return UnverifiedToken(issuer_url, key_id, algorithm)


def check_algorithm(issuer: Issuer, unproven: UnverifiedToken) -> None:
    """Raise NotAuthorized for an algorithm that settings do not allow; the caller then need not fetch keys."""
    if unproven.algorithm not in issuer.algorithms:
        raise NotAuthorized("The token is signed by an algorithm that is not its issuer's here.")


def verify_issuer_token(issuer: Issuer, keys: KeySet, unproven: UnverifiedToken, token: bytes, now_s: float) -> Bearer:
    """Return the bearer of an issuer's token.

    Raises: NotAuthorized: wrong signature, audience, client, type or time; the message never contains the token
    """
    header, claims = _verify_signature(issuer, keys, unproven, token)
    if str(header.get("typ", "JWT")).lower() not in TYPES or "crit" in header:
        raise NotAuthorized("The token is of a kind that opens nothing here.")
    expires_at_s = _check_times(issuer, claims, now_s)
    _check_parties(issuer, claims)
    until_s = min(expires_at_s, now_s + VERIFIED_AGAIN_AFTER_S)
    return Bearer(Session(read_principal(issuer, claims), NO_GRANTS, until_s), roles=read_roles(issuer, claims), ends_at_s=expires_at_s)


def _verify_signature(issuer: Issuer, keys: KeySet, unproven: UnverifiedToken, token: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    check_algorithm(issuer, unproven)
    for key in keys.list_fitting(unproven.key_id, unproven.algorithm):
        try:
            decoded = jwt.decode_complete(
                token,
                key.verifying,
                # Only the algorithms of this key: the token's header must not choose one.
                list(key.algorithms),
                options=cast(Any, CHECKED_HERE),
                issuer=issuer.url,
            )
        except (jwt.InvalidTokenError, jwt.InvalidKeyError, ValueError, TypeError, RecursionError):
            continue
        return cast(Mapping[str, Any], decoded["header"]), cast(Mapping[str, Any], decoded["payload"])
    raise NotAuthorized("The token is not signed by a key that its issuer publishes; ask it for a new one.")


def _check_times(issuer: Issuer, claims: Mapping[str, Any], now_s: float) -> float:
    """Return the time of a token's expiry."""
    claimed: list[object] = [claims.get("exp"), claims.get("iat"), claims.get("nbf", claims.get("iat"))]
    times = [float(time) for time in claimed if is_time(time)]
    if len(times) < len(claimed):
        raise NotAuthorized(MALFORMED)
    expires_at_s, issued_at_s, not_before_s = times
    if now_s >= expires_at_s + issuer.clock_skew_s:
        raise NotAuthorized("The token has expired; ask its issuer for a new one.")
    if now_s < max(issued_at_s, not_before_s) - issuer.clock_skew_s:
        raise NotAuthorized("The token's time has not come; the clocks of its issuer and the catalog differ.")
    return expires_at_s


def is_time(claim: object) -> TypeGuard[int | float]:
    """True if a claim is a time in seconds since 1970."""
    return isinstance(claim, int | float) and not isinstance(claim, bool) and 0 <= claim < MOST_TIME_S


def _check_parties(issuer: Issuer, claims: Mapping[str, Any]) -> None:
    claim = claims.get("aud")
    audiences = cast(list[object], claim) if isinstance(claim, list) else [claim]
    if not all(isinstance(each, str) for each in audiences) or issuer.audience not in audiences:
        raise NotAuthorized("The token is for others than this catalog; ask its issuer for one with the audience of the catalog.")
    # RFC 9068 names the client `client_id`, OpenID Connect `azp`.
    party = claims.get("azp", claims.get("client_id"))
    if party is not None and not isinstance(party, str):
        raise NotAuthorized(MALFORMED)
    if issuer.clients and party not in issuer.clients:
        raise NotAuthorized("The token was given to a client that may not come in with it here.")


def read_principal(issuer: Issuer, claims: Mapping[str, Any]) -> str:
    """Return the catalog's name of the token's principal. Raises: NotAuthorized: the claim is missing, or is an unverified address."""
    claimed = get_claim(claims, issuer.principal_claim)
    if issuer.principal_claim == "email" and claims.get("email_verified") is not True:
        raise NotAuthorized("The token names an address that its issuer has not verified.")
    if not isinstance(claimed, str):
        raise NotAuthorized("The token does not name its principal by the claim that settings say.")
    try:
        return format_issuer_name(issuer.name, claimed)
    except BadGrant as error:
        raise NotAuthorized(error.message) from error


def read_roles(issuer: Issuer, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the catalog's names of the roles in a token; a claim that is not a list of strings, or too long, gives no roles."""
    claimed = get_claim(claims, issuer.roles_claim) if issuer.roles_claim else None
    listed = cast(list[object], claimed) if isinstance(claimed, list) else [] if claimed is None else [claimed]
    if len(listed) > MOST_ROLES or not all(isinstance(each, str) for each in listed):
        return ()
    names: dict[str, None] = {}
    for each in cast(list[str], listed):
        try:
            names[issuer.roles[each] if each in issuer.roles else format_issuer_name(issuer.name, each)] = None
        except BadGrant:
            continue
    return tuple(names)


def get_claim(claims: Mapping[str, Any], name: str) -> object:
    """Return a claim by its name, or else by the name as a dotted path; None if it is missing."""
    if name in claims:
        return claims[name]
    found: object = claims
    for step in name.split("."):
        found = cast(Mapping[str, object], found).get(step) if isinstance(found, dict) else None
    return found
