"""Keys that sign tokens: secrets (HS256), and pairs whose public halves everybody may have (EdDSA, RS256).

Law: a key has one algorithm for good; a token names the key, and neither chooses nor changes the algorithm.
"""

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from jwt.algorithms import OKPAlgorithm, RSAAlgorithm

from duckicelake.errors import CatalogError

SHORTEST_KEY_BYTES = 32
SHORTEST_RSA_BITS = 2048
THUMBPRINT = {"RSA": ("e", "kty", "n"), "OKP": ("crv", "kty", "x")}

Private = Ed25519PrivateKey | RSAPrivateKey
Public = Ed25519PublicKey | RSAPublicKey


class BadKey(CatalogError):
    """A key that signs nothing well; the message never shows it."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """One key: what it verifies with, and what it signs with, None when its other half is elsewhere.

    `told`: what everybody may know of it, as a JWK; None for a secret.
    """

    algorithm: Literal["HS256", "EdDSA", "RS256"]
    verifying: bytes | Public = field(repr=False)
    signing: bytes | Private | None = field(repr=False)
    told: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Signer:
    """The keys of tokens by their ids: one of them signs, each of them is believed."""

    keys: Mapping[str, TokenKey] = field(repr=False)
    signing_id: str

    def list_public(self) -> list[Mapping[str, str]]:
        """Return the public halves, as JWKs."""
        return [key.told for key in self.keys.values() if key.told is not None]


def make_signer(secrets: Sequence[str], pems: Sequence[str] = ()) -> Signer:
    """Return the signer of keys as settings name them, each kind with its newest first; a key's id follows from it.

    The first pair signs; without pairs, the first secret.
    Raises: BadKey: one is too short, of another kind, or the first pair has no private half
    """
    keys = dict(_make_pair(pem, number) for number, pem in enumerate(pems, 1))
    if keys and next(iter(keys.values())).signing is None:
        raise BadKey("The first of token_key_files signs, so it holds a private key, not a public one.")
    encoded = [secret.encode() for secret in secrets]
    if any(len(secret) < SHORTEST_KEY_BYTES for secret in encoded) or not (keys or encoded):
        raise BadKey(f"A key of tokens has at least {SHORTEST_KEY_BYTES} bytes; make one with `openssl rand -hex 32`.")
    keys |= {hashlib.sha256(b"kid " + secret).hexdigest()[:16]: TokenKey("HS256", secret, secret) for secret in encoded}
    return Signer(keys, next(iter(keys)))


def _make_pair(pem: str, number: int) -> tuple[str, TokenKey]:
    private, public = _load(pem, number)
    if isinstance(public, RSAPublicKey) and public.key_size < SHORTEST_RSA_BITS:
        raise BadKey(f"Key {number} of token_key_files has {public.key_size} bits; RSA keys of less than {SHORTEST_RSA_BITS} are guessed.")
    is_rsa = isinstance(public, RSAPublicKey)
    jwk: Mapping[str, Any] = RSAAlgorithm.to_jwk(public, as_dict=True) if is_rsa else OKPAlgorithm.to_jwk(public, as_dict=True)
    needed = {name: str(jwk[name]) for name in THUMBPRINT[str(jwk["kty"])]}
    thumbprint = hashlib.sha256(json.dumps(needed, separators=(",", ":"), sort_keys=True).encode()).digest()
    key_id, algorithm = urlsafe_b64encode(thumbprint).rstrip(b"=").decode(), "RS256" if is_rsa else "EdDSA"
    return key_id, TokenKey(algorithm, public, private, {**needed, "use": "sig", "alg": algorithm, "kid": key_id})


def _load(pem: str, number: int) -> tuple[Private | None, Public]:
    encoded = pem.encode()
    try:
        private = load_pem_private_key(encoded, None) if "PRIVATE KEY-----" in pem else None
        public = load_pem_public_key(encoded) if private is None else private.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise BadKey(f"Key {number} of token_key_files is no PEM file of one key without a password.") from error
    if not isinstance(private, Private | None) or not isinstance(public, Public):
        raise BadKey(f"Key {number} of token_key_files is neither Ed25519 nor RSA; make one with `openssl genpkey -algorithm ed25519`.")
    return private, public
