"""Issuers: OIDC servers whose tokens are believed here, what they tell of themselves, and the keys they sign with.

Law: an issuer signs with keys in pairs alone, by the algorithms that settings name; a secret of its list is no key.
Source: OpenID Connect Discovery 1.0 §4.3; RFC 7517, RFC 7518 (keys as JSON)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from duckicelake.access.grants import BadGrant
from duckicelake.access.policy import ISSUER, parse_name
from duckicelake.errors import CatalogError

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
"""What keys can sign by, by their kind and curve."""

PUBLIC_MEMBERS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}

Public = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey


class BadIssuer(CatalogError):
    """An issuer that cannot be believed, as settings name it or by what it tells of itself."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """One issuer as settings name it, and how what its tokens claim is read.

    `name`: what its principals and roles are called by here (`name:…`). `roles_claim`: empty for none. `roles`: roles of a lake that
    some of its values mean. `clients`: those whom it may have given a token to (`azp`), empty: any.
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
    """A public key, and what it verifies by."""

    algorithms: frozenset[str]
    verifying: Public


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of an issuer by their ids; several may share one, and one may have none (empty)."""

    keys: Mapping[str, Sequence[IssuerKey]]

    def has(self, key_id: str | None) -> bool:
        """Tell whether a token that names this key, or none, could be verified."""
        return bool(self.keys) if key_id is None else key_id in self.keys

    def list_fitting(self, key_id: str | None, algorithm: str) -> list[IssuerKey]:
        """Return the keys that may have signed a token; of one that names none the only one there is."""
        every = [key for keys in self.keys.values() for key in keys] if key_id is None else self.keys.get(key_id, ())
        fitting = [key for key in every if algorithm in key.algorithms]
        return [] if key_id is None and len(fitting) > 1 else list(fitting)


def check_issuer(issuer: Issuer) -> None:
    """Raise BadIssuer unless settings name an issuer well."""
    where = f"oidc_issuers: {issuer.name!r}"
    if ISSUER.fullmatch(issuer.name) is None:
        raise BadIssuer(f"{where} is no name; take small letters, digits, `_` and `-`, a letter first, and not `role`.")
    check_url(issuer.url, where, is_near=True)
    for told, role in issuer.roles.items():
        check_role(role, f"{where} has roles for {told[:100]!r} that")
    if not issuer.algorithms or issuer.algorithms - ALGORITHMS:
        raise BadIssuer(f"{where} signs by {sorted(issuer.algorithms)}; there are {', '.join(sorted(ALGORITHMS))}.")


def check_role(role: str, where: str) -> None:
    """Raise BadIssuer unless a role can be called so."""
    try:
        is_known = parse_name(role, "role") == role
    except BadGrant as error:
        raise BadIssuer(f"{where} nobody can have: {error.message}") from error
    if not is_known:
        raise BadIssuer(f"{where} are written otherwise: {parse_name(role, 'role')}")


def check_url(url: str, where: str, *, is_near: bool) -> None:
    """Raise BadIssuer unless a URL is of https, or on this very machine, where that may be (`is_near`)."""
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
    """Tell whether an issuer is on this machine, so that its keys may be there too without https."""
    return urlsplit(issuer.url).hostname in LOOPBACK


def find_discovery_url(issuer: Issuer) -> str:
    """Return where an issuer tells about itself."""
    return issuer.url.rstrip("/") + WELL_KNOWN


def read_discovery(issuer: Issuer, document: object) -> str:
    """Return where an issuer's keys are. Raises: BadIssuer: it speaks of another issuer, or of keys where none may be."""
    if not isinstance(document, dict):
        raise BadIssuer(f"The issuer {issuer.name!r} tells nothing of itself: its configuration is no JSON object.")
    told = cast(dict[str, Any], document)
    if told.get("issuer") != issuer.url:
        raise BadIssuer(f"The issuer {issuer.name!r} says it is {str(told.get('issuer'))[:200]!r}, and settings say {issuer.url!r}.")
    keys_url = told.get("jwks_uri")
    if not isinstance(keys_url, str):
        raise BadIssuer(f"The issuer {issuer.name!r} does not say where its keys are (jwks_uri).")
    check_keys_url(keys_url, issuer)
    return keys_url


def check_keys_url(url: str, issuer: Issuer) -> None:
    """Raise BadIssuer unless keys may be fetched there; a query is an issuer's own affair."""
    check_url(url.partition("?")[0], f"The jwks_uri of the issuer {issuer.name!r}", is_near=is_near(issuer))
    if not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise BadIssuer(f"The jwks_uri of the issuer {issuer.name!r} is no URL.")


def read_keys(issuer: Issuer, document: object) -> KeySet:
    """Return the keys that verify tokens here; what is no such key is passed over. Raises: BadIssuer: there is none, or too many."""
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
    """Return a key with its id, None for one that verifies nothing here; never a private half, though one stood there."""
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
