"""Tokens: only our own, at their time, for us."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from duckicelake.access.tokens import BadKey, Claims, TokenSigner, make_signer, make_token, read_token
from duckicelake.errors import NotAuthorized

KEY, OTHER = "k" * 32, "o" * 32
NOW = 1_800_000_000
CLAIMS = Claims("reader", "ns:a:r", NOW - 10, NOW + 3600)


@pytest.fixture
def signer() -> TokenSigner:
    """One key."""
    return make_signer([KEY])


def forge(signer: TokenSigner, header: Mapping[str, Any] | None = None, key: bytes = KEY.encode(), **changed: Any) -> str:
    """A token with some claims and headers changed, signed again with HMAC."""
    told = jwt.decode(make_token(signer, CLAIMS, NOW), options={"verify_signature": False}) | changed
    head = {"alg": "HS256", "typ": "JWT", "kid": signer.signing_id, **(header or {})}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (head, {k: v for k, v in told.items() if v is not ...})
    ]
    signature = hmac.new(key, b".".join(parts), hashlib.sha256).digest()
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def test_a_token_says_what_was_put_in(signer: TokenSigner) -> None:
    """The positive control: our own token, and the same one forged with our own key."""
    assert read_token(signer, make_token(signer, CLAIMS, NOW), NOW) == CLAIMS
    assert read_token(signer, forge(signer), NOW) == CLAIMS


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"aud": "other"}, id="wrong-audience"),
        pytest.param({"aud": ...}, id="no-audience"),
        pytest.param({"iss": "evil"}, id="wrong-issuer"),
        pytest.param({"iss": ...}, id="no-issuer"),
        pytest.param({"exp": NOW - 1}, id="expired"),
        pytest.param({"exp": NOW}, id="expiring-now"),
        pytest.param({"exp": ...}, id="never-expiring"),
        pytest.param({"exp": "9999999999"}, id="expiry-as-text"),
        pytest.param({"exp": 1e300}, id="expiry-as-float"),
        pytest.param({"nbf": NOW + 60}, id="future"),
        pytest.param({"iat": NOW + 60}, id="issued-in-the-future"),
        pytest.param({"sub": 7}, id="subject-no-text"),
        pytest.param({"scope": ["*"]}, id="scope-no-text"),
        pytest.param({"scope": ...}, id="no-scope"),
        pytest.param({"auth_time": ...}, id="no-time-of-authentication"),
    ],
)
def test_claims_must_all_be_right(signer: TokenSigner, changed: dict[str, Any]) -> None:
    """Each of them is required and checked, even under a good signature."""
    with pytest.raises(NotAuthorized):
        read_token(signer, forge(signer, **changed), NOW)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param({"alg": "none"}, id="alg-none"),
        pytest.param({"alg": "None"}, id="alg-none-spelled"),
        pytest.param({"alg": "RS256"}, id="alg-of-another-kind"),
        pytest.param({"alg": "HS384"}, id="alg-not-ours"),
        pytest.param({"kid": "../../../etc/passwd"}, id="kid-path"),
        pytest.param({"kid": "' OR 1=1 --"}, id="kid-sql"),
        pytest.param({"kid": 7}, id="kid-number"),
        pytest.param({"kid": None}, id="kid-null"),
        pytest.param({"kid": ["a"]}, id="kid-list"),
        pytest.param({"crit": ["x"], "x": 1}, id="unknown-critical-header"),
    ],
)
def test_headers_choose_nothing(signer: TokenSigner, header: dict[str, Any]) -> None:
    """Neither the algorithm nor the key is the token's to choose."""
    with pytest.raises(NotAuthorized):
        read_token(signer, forge(signer, header), NOW)


def test_a_key_in_the_header_is_not_believed(signer: TokenSigner) -> None:
    """`jwk` and `jku` are ignored."""
    jwk = {"kty": "oct", "k": base64.urlsafe_b64encode(OTHER.encode()).decode()}
    with pytest.raises(NotAuthorized):
        read_token(signer, forge(signer, {"jwk": jwk, "jku": "http://127.0.0.1/jwks"}, OTHER.encode()), NOW)


def test_another_key_is_not_ours(signer: TokenSigner) -> None:
    """Whatever `kid` says."""
    with pytest.raises(NotAuthorized):
        read_token(signer, forge(signer, key=OTHER.encode()), NOW)


def test_no_signature_is_no_token(signer: TokenSigner) -> None:
    """As Trino's subject tokens come: the header says `none`, and the signature is empty."""
    unsigned = jwt.encode({"sub": "admin", "scope": "*", "exp": NOW + 60}, None, "none")
    cut = make_token(signer, CLAIMS, NOW).rpartition(".")[0] + "."
    for token in (unsigned, cut, "", ".", "..", "a.b.c", "x" * 9000, "é.é.é"):
        with pytest.raises(NotAuthorized):
            read_token(signer, token, NOW)


def test_an_rsa_token_is_not_read_as_hmac(signer: TokenSigner) -> None:
    """Confusing the two kinds of keys leads nowhere."""
    key = generate_private_key(65537, 2048)
    told = jwt.decode(make_token(signer, CLAIMS, NOW), options={"verify_signature": False})
    with pytest.raises(NotAuthorized):
        read_token(signer, jwt.encode(told, key, "RS256", headers={"kid": signer.signing_id}), NOW)


def test_keys_rotate() -> None:
    """The newest key signs; tokens of an older one are good until that goes."""
    old, both, new = make_signer([KEY]), make_signer([OTHER, KEY]), make_signer([OTHER])
    token = make_token(old, CLAIMS, NOW)
    assert read_token(both, token, NOW) == CLAIMS
    assert read_token(new, make_token(both, CLAIMS, NOW), NOW) == CLAIMS
    with pytest.raises(NotAuthorized):
        read_token(new, token, NOW)


@pytest.mark.parametrize("keys", [[], [""], ["short"], [KEY, "short"]])
def test_a_short_key_is_refused(keys: list[str]) -> None:
    """What can be guessed signs nothing."""
    with pytest.raises(BadKey):
        make_signer(keys)
