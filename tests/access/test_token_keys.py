"""Keys in pairs: who signs, who is believed, and that no key is taken for another kind."""

import base64
import hashlib
import hmac
import json
from functools import cache

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat, PublicFormat

from duckicelake.access.tokens import BadKey, Claims, TokenSigner, make_signer, make_token, read_token
from duckicelake.errors import NotAuthorized

SECRET = "k" * 32
NOW = 1_800_000_000
CLAIMS = Claims("reader", "ns:a:r", NOW - 10, NOW + 3600)
KINDS = {"EdDSA": "ed", "RS256": "rsa"}


@cache
def make_key(name: str) -> ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey:
    """A key by a name that begins with its kind, always the same one."""
    return rsa.generate_private_key(65537, 2048) if name.startswith("rsa") else ed25519.Ed25519PrivateKey.generate()


def private(name: str) -> str:
    """Its file."""
    return make_key(name).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public(name: str) -> str:
    """The file of its public half."""
    return make_key(name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def encode(part: object) -> bytes:
    """A part of a token."""
    return base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode()).rstrip(b"=")


def claims_of(signer: TokenSigner) -> dict[str, object]:
    """What a good token of a signer says."""
    return jwt.decode(make_token(signer, CLAIMS, NOW), options={"verify_signature": False})


@pytest.mark.parametrize("algorithm", KINDS)
def test_a_pair_signs_and_anybody_verifies(algorithm: str) -> None:
    """With the public half alone, as it is told; secrets are believed beside it, and sign nothing."""
    signer = make_signer([SECRET], [private(KINDS[algorithm])])
    token = make_token(signer, CLAIMS, NOW)
    assert jwt.get_unverified_header(token) == {"alg": algorithm, "kid": signer.signing_id, "typ": "JWT"}
    assert read_token(signer, token, NOW) == CLAIMS
    [told] = jwt.PyJWKSet.from_dict({"keys": [dict(key) for key in signer.list_public()]}).keys
    assert told.key_id == signer.signing_id
    options = {"verify_exp": False, "verify_iat": False, "verify_nbf": False}
    assert jwt.decode(token, told.key, [algorithm], audience="duckicelake", options=options)["sub"] == "reader"
    assert read_token(signer, make_token(make_signer([SECRET]), CLAIMS, NOW), NOW) == CLAIMS


def test_nothing_private_is_told() -> None:
    """Of a pair its public half, of a secret not even that it is there."""
    signer = make_signer([SECRET], [private("ed"), private("rsa"), public("rsa-old")])
    shown = [set(key) for key in signer.list_public()]
    assert shown == [
        {"kty", "crv", "x", "use", "alg", "kid"},
        {"kty", "n", "e", "use", "alg", "kid"},
        {"kty", "n", "e", "use", "alg", "kid"},
    ]
    assert "PRIVATE" not in repr(signer)
    assert SECRET not in repr(signer)
    assert make_signer([SECRET]).list_public() == []


def test_pairs_rotate() -> None:
    """The newest signs; an older one is believed while it is named, by its public half too, and not any more afterwards."""
    old, both, half, new = (
        make_signer([], pems)
        for pems in ([private("rsa")], [private("ed"), private("rsa")], [private("ed"), public("rsa")], [private("ed")])
    )
    token = make_token(old, CLAIMS, NOW)
    assert read_token(both, token, NOW) == read_token(half, token, NOW) == CLAIMS
    assert read_token(new, make_token(both, CLAIMS, NOW), NOW) == CLAIMS
    with pytest.raises(NotAuthorized):
        read_token(new, token, NOW)


def test_an_id_follows_from_the_key() -> None:
    """The same on every server, from either half."""
    assert make_signer([], [private("ed")]).signing_id == make_signer([], [private("rsa"), public("ed")]).list_public()[1]["kid"]


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("kind", ["ed", "rsa"])
def test_a_public_key_is_no_secret(kind: str, algorithm: str) -> None:
    """Whoever signs with HMAC and any spelling of the public half is not believed: the key says which algorithm."""
    signer = make_signer([SECRET], [private(kind)])
    half = make_key(kind).public_key()
    raw = half.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    jwk = json.dumps(dict(signer.list_public()[0]), separators=(",", ":")).encode()
    spelled = [public(kind).encode(), public(kind).strip().encode(), raw, jwk, b"", base64.b64encode(raw)]
    if isinstance(half, ed25519.Ed25519PublicKey):
        spelled.append(half.public_bytes_raw())
    head = {"alg": algorithm, "typ": "JWT", "kid": signer.signing_id}
    signed = encode(head) + b"." + encode(claims_of(signer))
    for key in spelled:
        digest = hmac.digest(key, signed, hashlib.new("sha" + algorithm[2:]).name)
        with pytest.raises(NotAuthorized):
            read_token(signer, signed + b"." + encode(digest), NOW)


def test_a_token_names_the_key_that_signed_it() -> None:
    """Under another key's id, under none, or under one that nobody has, it is worth nothing, whatever it says of its algorithm."""
    signer = make_signer([SECRET], [private("rsa"), private("ed")])
    signing = {"RS256": make_key("rsa"), "EdDSA": make_key("ed"), "HS256": SECRET}
    own = dict(zip(("RS256", "EdDSA", "HS256"), signer.keys, strict=True))
    told = claims_of(signer)
    assert {alg: read_token(signer, jwt.encode(told, key, alg, {"kid": own[alg]}), NOW) for alg, key in signing.items()} == dict.fromkeys(
        own, CLAIMS
    )
    others = [None, "", "../../key.pem", "' OR 1=1 --", "http://127.0.0.1/key", public("rsa"), signer.signing_id.lower()]
    for algorithm, key in signing.items():
        for kid in (*(kid for alg, kid in own.items() if alg != algorithm), *others):
            headers = {} if kid is None else {"kid": kid}
            with pytest.raises(NotAuthorized):
                read_token(signer, jwt.encode(told, key, algorithm, headers), NOW)


@pytest.mark.parametrize("kind", ["ed", "rsa"])
@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "", "RS384", "PS256", "ES256", "eddsa", None, 7])
def test_a_header_chooses_no_algorithm(kind: str, algorithm: object) -> None:
    """Neither none nor a cousin: a good signature under another name is refused, and so is an empty one."""
    signer = make_signer([], [private(kind)])
    head, body, signature = make_token(signer, CLAIMS, NOW).encode().split(b".")
    changed = encode({"alg": algorithm, "typ": "JWT", "kid": signer.signing_id})
    key = make_key(kind)
    again = key.sign(changed + b"." + body) if isinstance(key, ed25519.Ed25519PrivateKey) else b"x" * 256
    for ending in (signature, b"", encode(again)):
        with pytest.raises(NotAuthorized):
            read_token(signer, changed + b"." + body + b"." + ending, NOW)
    assert read_token(signer, head + b"." + body + b"." + signature, NOW) == CLAIMS


@pytest.mark.parametrize("kind", ["ed", "rsa"])
def test_a_key_in_the_header_is_not_believed(kind: str) -> None:
    """`jwk`, `jku`, `x5u` and `x5c` are ignored."""
    signer, stranger = make_signer([], [private(kind)]), make_signer([], [private(f"{kind}-strange")])
    more = {"jwk": dict(stranger.list_public()[0]), "jku": "http://127.0.0.1/jwks", "x5u": "http://127.0.0.1/", "x5c": ["AA"]}
    for kid in (signer.signing_id, stranger.signing_id):
        token = jwt.encode(
            claims_of(signer), make_key(f"{kind}-strange"), next(a for a, k in KINDS.items() if k == kind), {**more, "kid": kid}
        )
        with pytest.raises(NotAuthorized):
            read_token(signer, token, NOW)


def other_kinds() -> dict[str, list[str]]:
    """Files that are no keys of tokens."""
    small = rsa.generate_private_key(65537, 1024)
    curve = ec.generate_private_key(ec.SECP256R1())
    locked = make_key("ed").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    plain = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return {
        "short": [small.private_bytes(*plain).decode()],
        "curve": [curve.private_bytes(*plain).decode()],
        "locked": [locked.decode()],
        "public-first": [public("ed"), private("rsa")],
        "public-alone": [public("rsa")],
        "empty": [""],
        "text": ["-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"],
        "none": [],
    }


@pytest.mark.parametrize("name", other_kinds())
def test_other_keys_are_refused(name: str) -> None:
    """Too short, of another kind, with a password, or nobody to sign; the refusal never shows the key."""
    with pytest.raises(BadKey) as caught:
        make_signer([], other_kinds()[name])
    assert "hunter2" not in caught.value.message
