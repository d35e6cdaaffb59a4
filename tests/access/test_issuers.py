"""What settings and issuers say of issuers: which of it is believed, and which keys are keys."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from jwt.algorithms import RSAAlgorithm

from duckicelake.access.issuers import (
    ALGORITHMS,
    MOST_KEYS,
    BadIssuer,
    Issuer,
    build_discovery_url,
    check_issuer,
    read_discovery,
    read_keys,
)

FAR = Issuer("acme", "https://login.example.org/realms/a", "lake", ALGORITHMS)
NEAR = Issuer("acme", "http://127.0.0.1:8080", "lake", ALGORITHMS)
RSA: dict[str, Any] = RSAKey.generate_key(2048, {"kid": "one"}).as_dict(private=False)


@pytest.mark.parametrize(
    "issuer",
    [
        *(
            Issuer("acme", url, "lake")
            for url in ("", "login.example.org", "ftp://login.example.org", "http://login.example.org", "https://")
        ),
        *(
            Issuer("acme", url, "lake")
            for url in ("https://a.org?x=y", "https://a.org#x", "https://u:p@a.org", "https://a.org:x", "https://ä.org")
        ),
        *(Issuer("acme", url, "lake") for url in ("http://127.0.0.1.example.org", "http://10.0.0.1", "https://[::1", "https://a.org/ b")),
        *(Issuer(name, FAR.url, "lake") for name in ("", "role", "Acme", "a:b", "a b", "1a", "a" * 33)),
        *(Issuer("acme", FAR.url, "lake", frozenset(told)) for told in ((), ("none",), ("RS256", "HS256"), ("ES256K",))),
        *(Issuer("acme", FAR.url, "lake", roles={"x": role}) for role in ("", "a b", "acme:%41", "role:x")),
    ],
)
def test_an_issuer_that_settings_name_badly_stops_the_start(issuer: Issuer) -> None:
    """Keys over the wire in the clear, secrets for keys, names that could be somebody else's."""
    with pytest.raises(BadIssuer, match="oidc_issuers"):
        check_issuer(issuer)


def test_an_issuer_of_https_or_of_this_machine_is_taken() -> None:
    """With the port and the path it has."""
    for issuer in (FAR, NEAR, Issuer("a-b_c", "http://localhost:1/x", "lake", roles={"Ä": "admins", "b": "acme:b%20c"})):
        check_issuer(issuer)
    assert build_discovery_url(FAR) == "https://login.example.org/realms/a/.well-known/openid-configuration"
    assert build_discovery_url(Issuer("a", "https://a.org/", "lake")) == "https://a.org/.well-known/openid-configuration"


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([], id="no object"),
        pytest.param({"jwks_uri": "https://login.example.org/keys"}, id="no issuer"),
        pytest.param({"issuer": FAR.url + "/", "jwks_uri": "https://login.example.org/keys"}, id="a slash more"),
        pytest.param({"issuer": "https://evil.example.org", "jwks_uri": "https://login.example.org/keys"}, id="another"),
        pytest.param({"issuer": FAR.url}, id="no keys"),
        pytest.param({"issuer": FAR.url, "jwks_uri": 1}, id="no url"),
        pytest.param({"issuer": FAR.url, "jwks_uri": "http://login.example.org/keys"}, id="in the clear"),
        pytest.param({"issuer": FAR.url, "jwks_uri": "http://127.0.0.1:5432/keys"}, id="our own machine"),
        pytest.param({"issuer": FAR.url, "jwks_uri": "file:///etc/passwd"}, id="a file"),
        pytest.param({"issuer": FAR.url, "jwks_uri": "https://a.org/keys?x=\r\ny"}, id="two lines"),
    ],
)
def test_a_lying_configuration_is_not_believed(told: object) -> None:
    """It is that of the configured issuer to the letter, and leads nowhere else than keys may be."""
    with pytest.raises(BadIssuer, match="acme"):
        read_discovery(FAR, told)


def test_keys_may_be_elsewhere() -> None:
    """As some large ones have it; on this machine only for an issuer that is there too."""
    url = "https://keys.example.org/certs?v=1"
    assert read_discovery(FAR, {"issuer": FAR.url, "jwks_uri": url}) == url
    near = "http://127.0.0.1:9090/keys"
    assert read_discovery(NEAR, {"issuer": NEAR.url, "jwks_uri": near}) == near


def test_only_public_keys_that_sign_are_keys() -> None:
    """Secrets, keys to encrypt with, short ones and broken ones are passed over; of a private key only its public half is taken."""
    short = {**RSAAlgorithm.to_jwk(generate_private_key(65537, 1024).public_key(), as_dict=True), "kid": "short"}
    private = RSAKey.generate_key(2048, {"kid": "private"}).as_dict(private=True)
    listed = [
        RSA,
        ECKey.generate_key("P-384", {"kid": "curve"}).as_dict(private=False),
        ECKey.generate_key("secp256k1", {"kid": "odd"}).as_dict(private=False),
        OKPKey.generate_key("Ed25519", {"kid": "ed"}).as_dict(private=False),
        OKPKey.generate_key("X25519", {"kid": "x"}).as_dict(private=False),
        OctKey.generate_key(256, {"kid": "secret", "alg": "HS256"}).as_dict(private=True),
        {**RSA, "kid": "enc", "use": "enc"},
        {**RSA, "kid": "ops", "key_ops": ["encrypt"]},
        {**RSA, "kid": "hs", "alg": "HS256"},
        {**RSA, "kid": 7},
        {"kid": "empty", "kty": "RSA"},
        {"kid": "broken", "kty": "RSA", "n": "!", "e": "AQAB"},
        {"kid": "kind", "kty": ["RSA"]},
        {**RSA, "kid": "pinned", "alg": "PS256"},
        {key: value for key, value in RSA.items() if key != "kid"},
        short,
        private,
        "nonsense",
    ]
    keys = read_keys(FAR, {"keys": listed})
    assert set(keys.keys) == {"one", "curve", "ed", "pinned", "", "private"}
    assert not any(hasattr(key.verifying, "private_bytes") for each in keys.keys.values() for key in each)
    assert [len(keys.list_fitting("pinned", algorithm)) for algorithm in ("PS256", "RS256")] == [1, 0]
    assert [len(keys.list_fitting("one", algorithm)) for algorithm in ("RS256", "PS512", "ES256", "HS256", "none")] == [1, 1, 0, 0, 0]
    assert [len(keys.list_fitting(None, algorithm)) for algorithm in ("RS256", "ES384")] == [0, 1]


@pytest.mark.parametrize(
    "told", [[], {}, {"keys": {}}, {"keys": []}, {"keys": [{"kty": "oct", "k": "AAAA"}]}, {"keys": [RSA] * (MOST_KEYS + 1)}]
)
def test_an_issuer_without_keys_is_none(told: object) -> None:
    """Nor is one with a heap of them."""
    with pytest.raises(BadIssuer):
        read_keys(FAR, told)


def test_keys_serve_the_algorithms_that_settings_name() -> None:
    """Others are nobody's, whatever the issuer offers."""
    narrow = Issuer("acme", FAR.url, "lake", frozenset({"ES256"}))
    with pytest.raises(BadIssuer, match="ES256"):
        read_keys(narrow, {"keys": [RSA]})
