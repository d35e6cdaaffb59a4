"""Tokens of issuers: which are believed, whose they are, and what roles they give."""

import base64
import hmac
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwt as other
from joserfc.jwk import ECKey, Key, RSAKey

from duckicelake.access.issuers import (
    MOST_ISSUER_TOKEN_BYTES,
    MOST_ROLES,
    VERIFIED_AGAIN_AFTER_S,
    Issuer,
    KeySet,
    check_algorithm,
    read_keys,
    read_unverified,
    verify_issuer_token,
)
from duckicelake.access.sessions import Bearer
from duckicelake.errors import NotAuthorized

NOW = 1_800_000_000
URL = "https://login.example.org"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
STRANGERS = RSAKey.generate_key(2048, {"kid": "one"})
CURVE = ECKey.generate_key("P-256", {"kid": "curve"})
ISSUER = Issuer("acme", URL, "lake", frozenset({"RS256", "ES256"}), roles_claim="groups", roles={"Lake Admins": "admins"})
KEYS = read_keys(ISSUER, {"keys": [key.as_dict(private=False) for key in (KEY, CURVE)]})
CLAIMS: dict[str, Any] = {"iss": URL, "sub": "alice", "aud": "lake", "iat": NOW, "exp": NOW + 600}
HEADER: dict[str, Any] = {"alg": "RS256", "kid": "one"}


def sign(claims: dict[str, Any], header: dict[str, Any] | None = None, key: Key = KEY) -> bytes:
    """A token of the issuer, with other claims; None takes one away."""
    told = {name: claim for name, claim in {**CLAIMS, **claims}.items() if claim is not None}
    return other.encode({**HEADER, **(header or {})}, told, key, algorithms=["RS256", "ES256"]).encode()


def forge(header: dict[str, Any], payload: bytes, signature: bytes = b"") -> bytes:
    """A token that no library would make."""
    parts = (json.dumps(header).encode(), payload, signature)
    return b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)


def sign_by_secret(secret: bytes) -> bytes:
    """A token whose signature is right if a public key is taken for a secret."""
    told = forge({**HEADER, "alg": "HS256"}, json.dumps(CLAIMS).encode()).rstrip(b".")
    return told + b"." + base64.urlsafe_b64encode(hmac.digest(secret, told, "sha256")).rstrip(b"=")


def read(token: bytes, now_s: float = NOW, issuer: Issuer = ISSUER, keys: KeySet = KEYS) -> Bearer:
    """What the catalog makes of a token."""
    unproven = read_unverified(token)
    if unproven is None or unproven.issuer_url != issuer.url:
        raise NotAuthorized("no issuer's")
    check_algorithm(issuer, unproven)
    return verify_issuer_token(issuer, keys, unproven, token, now_s)


def test_a_token_of_the_issuer_is_its_principals() -> None:
    """By a name that nobody else here can have; for as long as it holds, and looked at again now and then."""
    bearer = read(sign({"exp": NOW + 3600, "aud": ["other", "lake"], "azp": "spark", "nbf": NOW - 1, "jti": 7}, {"typ": "at+JWT"}))
    assert (bearer.session.client_id, bearer.origin, bearer.roles, bearer.scope) == ("acme:alice", "", (), None)
    assert bearer.session.grants.each == ()
    assert bearer.session.expires_at_s == NOW + VERIFIED_AGAIN_AFTER_S
    assert read(sign({"exp": NOW + 10})).session.expires_at_s == NOW + 10
    assert read(sign({}, {"alg": "ES256", "kid": "curve"}, CURVE)).session.client_id == "acme:alice"


@pytest.mark.parametrize(
    ("claims", "header"),
    [
        pytest.param({"aud": "another"}, {}, id="other audience"),
        pytest.param({"aud": None}, {}, id="no audience"),
        pytest.param({"aud": {"lake": 1}}, {}, id="odd audience"),
        pytest.param({"aud": ["lake", 1]}, {}, id="half odd audience"),
        pytest.param({"aud": "lakes"}, {}, id="longer audience"),
        pytest.param({"iss": URL + "/"}, {}, id="other issuer"),
        pytest.param({"iss": None}, {}, id="no issuer"),
        pytest.param({"iss": [URL]}, {}, id="several issuers"),
        pytest.param({"exp": NOW - 60}, {}, id="expired"),
        pytest.param({"exp": None}, {}, id="endless"),
        pytest.param({"exp": str(NOW + 60)}, {}, id="end in words"),
        pytest.param({"exp": True}, {}, id="end as a truth"),
        pytest.param({"exp": 10**400}, {}, id="end beyond numbers"),
        pytest.param({"exp": float("inf")}, {}, id="end at infinity"),
        pytest.param({"iat": None}, {}, id="never issued"),
        pytest.param({"iat": NOW + 61}, {}, id="issued in the future"),
        pytest.param({"iat": NOW + 61, "nbf": NOW}, {}, id="issued in the future for now"),
        pytest.param({"nbf": NOW + 61}, {}, id="not yet"),
        pytest.param({"nbf": "soon"}, {}, id="begin in words"),
        pytest.param({"nbf": True}, {}, id="begin as a truth"),
        pytest.param({"azp": 1}, {}, id="odd party"),
        pytest.param({"sub": None}, {}, id="nobody"),
        pytest.param({"sub": ""}, {}, id="empty name"),
        pytest.param({"sub": 7}, {}, id="number for a name"),
        pytest.param({"sub": ["alice"]}, {}, id="list for a name"),
        pytest.param({"sub": "a" * 600}, {}, id="endless name"),
        pytest.param({}, {"kid": "two"}, id="unknown key"),
        pytest.param({}, {"kid": "curve"}, id="another key"),
        pytest.param({}, {"kid": ""}, id="empty key id"),
        pytest.param({}, {"typ": "logout+jwt"}, id="a logout"),
        pytest.param({}, {"typ": "dpop+jwt"}, id="a proof"),
        pytest.param({"sub": "b" * MOST_ISSUER_TOKEN_BYTES}, {}, id="too long"),
    ],
)
def test_what_is_not_for_this_catalog_now_is_refused(claims: dict[str, Any], header: dict[str, Any]) -> None:
    """Signed as it may be."""
    with pytest.raises(NotAuthorized):
        read(sign(claims, header))


PEM = KEY.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize(
    "token",
    [
        pytest.param(sign({}, key=STRANGERS), id="other key by that name"),
        pytest.param(sign({})[:-8] + b"AAAAAAAA", id="other signature"),
        pytest.param(forge(HEADER, json.dumps({**CLAIMS, "sub": "admin"}).encode(), b"x" * 256), id="other claims"),
        pytest.param(forge({"alg": "none", "kid": "one"}, json.dumps(CLAIMS).encode()), id="unsigned"),
        pytest.param(forge({"alg": "None"}, json.dumps(CLAIMS).encode()), id="unsigned in other letters"),
        pytest.param(forge(HEADER, json.dumps(CLAIMS).encode()), id="without signature"),
        pytest.param(sign_by_secret(PEM), id="public key as a secret"),
        pytest.param(sign_by_secret(KEY.as_dict(private=False)["n"].encode()), id="modulus as a secret"),
        pytest.param(forge({**HEADER, "alg": "RS512"}, json.dumps(CLAIMS).encode(), b"x" * 256), id="algorithm not named"),
        pytest.param(forge({**HEADER, "jwk": STRANGERS.as_dict(private=False)}, json.dumps(CLAIMS).encode(), b"x"), id="key of its own"),
        pytest.param(forge({**HEADER, "kid": ["one"]}, json.dumps(CLAIMS).encode(), b"x"), id="odd key id"),
        pytest.param(forge({**HEADER, "alg": ["RS256"]}, json.dumps(CLAIMS).encode(), b"x"), id="odd algorithm"),
        pytest.param(forge(HEADER, b"[" * 5000, b"x"), id="deep"),
        pytest.param(forge(HEADER, b'{"iss": 1' + b"0" * 5000 + b"}", b"x"), id="a long number"),
        pytest.param(forge(HEADER, b"[]", b"x"), id="no claims"),
        pytest.param(b"..", id="dots"),
        pytest.param(b"\xff.\xff.\xff", id="bytes"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_the_issuer_did_not_sign_is_refused(token: bytes) -> None:
    """Whatever the token says about how it is to be verified."""
    with pytest.raises(NotAuthorized):
        read(token)


def test_what_must_be_understood_and_is_not_is_refused() -> None:
    """A header that says so."""
    private = KEY.private_key
    token = jwt.encode(CLAIMS, private, "RS256", headers={"kid": "one", "crit": ["exp"], "exp": 1})
    with pytest.raises(NotAuthorized):
        read(token.encode())


def test_a_token_of_another_issuer_is_not_this_ones() -> None:
    """Though its key signed it: several may share one."""
    token = sign({"iss": "https://other.example.org"})
    unproven = read_unverified(token)
    assert unproven is not None
    with pytest.raises(NotAuthorized):
        verify_issuer_token(ISSUER, KEYS, unproven, token, NOW)


def test_clocks_may_differ_as_much_as_settings_say() -> None:
    """And a token whose time is over is never remembered."""
    token = sign({"exp": NOW + 600})
    assert read(token, NOW + 659).session.expires_at_s == NOW + 600
    assert read(token, NOW - 60).session.client_id == "acme:alice"
    strict = Issuer("acme", URL, "lake", frozenset({"RS256"}), clock_skew_s=0)
    for now_s, issuer in ((NOW + 660, ISSUER), (NOW - 61, ISSUER), (NOW + 600, strict), (NOW - 1, strict)):
        with pytest.raises(NotAuthorized, match=r"expired|not come"):
            read(token, now_s, issuer)


def test_a_token_that_names_no_key_is_the_only_keys() -> None:
    """With several to choose from it is nobody's."""
    token = other.encode({"alg": "RS256"}, CLAIMS, KEY).encode()
    assert read(token).session.client_id == "acme:alice"
    two = read_keys(ISSUER, {"keys": [KEY.as_dict(private=False), {**STRANGERS.as_dict(private=False), "kid": "two"}]})
    with pytest.raises(NotAuthorized):
        read(token, keys=two)


def test_two_keys_of_one_name_are_both_tried() -> None:
    """As some issuers have it while they change keys."""
    both = read_keys(ISSUER, {"keys": [STRANGERS.as_dict(private=False), KEY.as_dict(private=False)]})
    assert read(sign({}), keys=both).session.client_id == "acme:alice"


def test_only_named_clients_come_in_where_settings_name_them() -> None:
    """By either claim; a token that tells nothing of its client is nobody's then."""
    narrow = Issuer("acme", URL, "lake", frozenset({"RS256"}), clients=frozenset({"spark"}))
    assert read(sign({"azp": "spark"}), issuer=narrow).session.client_id == "acme:alice"
    assert read(sign({"client_id": "spark"}), issuer=narrow).session.client_id == "acme:alice"
    for claims in ({}, {"azp": "web"}, {"azp": "web", "client_id": "spark"}, {"azp": ["spark"]}):
        with pytest.raises(NotAuthorized):
            read(sign(claims), issuer=narrow)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("auth0|5f7c", "acme:auth0|5f7c"),
        ("repo:org/x:ref:refs/heads/main", "acme:repo:org/x:ref:refs/heads/main"),
        ("Zoë Müller", "acme:Zo%C3%AB%20M%C3%BCller"),
        ("a,b%2C\n", "acme:a%2Cb%252C%0A"),
        ("role:admins", "acme:role:admins"),
    ],
)
def test_a_principal_is_named_in_one_way(told: str, name: str) -> None:
    """Escaped where it must be, so that no two have the same name."""
    assert read(sign({"sub": told})).session.client_id == name


def test_another_claim_may_name_the_principal() -> None:
    """At any depth; an address only if the issuer says that it is verified."""
    by_name = Issuer("acme", URL, "lake", frozenset({"RS256"}), principal_claim="user.name")
    assert read(sign({"user": {"name": "bob"}}), issuer=by_name).session.client_id == "acme:bob"
    assert read(sign({"user.name": "eve", "user": {"name": "bob"}}), issuer=by_name).session.client_id == "acme:eve"
    by_mail = Issuer("acme", URL, "lake", frozenset({"RS256"}), principal_claim="email")
    assert read(sign({"email": "a@b.c", "email_verified": True}), issuer=by_mail).session.client_id == "acme:a@b.c"
    for claims in ({"email": "a@b.c"}, {"email": "a@b.c", "email_verified": False}, {"email": "a@b.c", "email_verified": "true"}):
        with pytest.raises(NotAuthorized, match="verified"):
            read(sign(claims), issuer=by_mail)


@pytest.mark.parametrize(
    ("told", "roles"),
    [
        (None, ()),
        ([], ()),
        (["a", "b", "a"], ("acme:a", "acme:b")),
        ("a", ("acme:a",)),
        ("a b", ("acme:a%20b",)),
        (["Lake Admins", "admins"], ("admins", "acme:admins")),
        (["a", 1], ()),
        (["a", None], ()),
        ([["a"]], ()),
        ({"a": True}, ()),
        (True, ()),
        (7, ()),
        (["", "a", "x" * 600], ("acme:a",)),
        ([str(number) for number in range(MOST_ROLES + 1)], ()),
    ],
    ids=lambda told: str(told)[:30],
)
def test_a_claim_of_roles_gives_those_that_are_written_well(told: object, roles: tuple[str, ...]) -> None:
    """Never a local one, unless settings say which it means; of a malformed claim none."""
    assert read(sign({"groups": told})).roles == roles


def test_half_a_character_names_nobody() -> None:
    """JSON can say it, UTF-8 cannot."""
    half = {"kid": "one"}
    assert read(jwt.encode({**CLAIMS, "groups": ["\ud800", "a"]}, KEY.private_key, "RS256", half).encode()).roles == ("acme:a",)
    with pytest.raises(NotAuthorized, match="Unicode"):
        read(jwt.encode({**CLAIMS, "sub": "\ud800"}, KEY.private_key, "RS256", half).encode())


def test_roles_may_lie_deeper() -> None:
    """As Keycloak puts them; and there are none where settings name no claim."""
    deep = Issuer("acme", URL, "lake", frozenset({"RS256"}), roles_claim="realm_access.roles")
    assert read(sign({"realm_access": {"roles": ["a"]}}), issuer=deep).roles == ("acme:a",)
    assert read(sign({"realm_access": ["roles"]}), issuer=deep).roles == ()
    assert read(sign({"": ["a"], "groups": ["a"]}), issuer=Issuer("acme", URL, "lake", frozenset({"RS256"}))).roles == ()
