"""Tokens that anybody can verify, from a running server."""

from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from duckicelake.app import build_app
from duckicelake.config import SettingsError
from tests.rest.auth.principals import guard
from tests.rest.serving import Server, make_settings
from tests.support.lakes import FreshLake

JWKS = "/v1/oauth/jwks"


def write_key(path: Path) -> Path:
    """A new key's file."""
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return path


def test_a_stranger_verifies_with_what_the_server_tells(lake: FreshLake, tmp_path: Path) -> None:
    """The keys are public, may be kept for a while, and verify the tokens of today and of the key before."""
    files = [write_key(tmp_path / name) for name in ("new.pem", "old.pem")]
    with guard(lake, token_key_files=files) as guarded:
        answer = guarded.server.get(JWKS)
        assert (answer.status, answer.headers["cache-control"]) == (200, "public, max-age=300")
        assert [key["alg"] for key in answer.json["keys"]] == ["EdDSA", "EdDSA"]
        token = guarded.token("reader")
        known = {key.key_id: key for key in jwt.PyJWKSet.from_dict(answer.json).keys}
        key = known[jwt.get_unverified_header(token)["kid"]]
        assert jwt.decode(token, key.key, ["EdDSA"], audience="duckicelake", issuer="duckicelake")["sub"] == "reader"
        assert guarded.get("reader", "namespaces/a/tables/t").status == 200
        forged = jwt.encode(
            jwt.decode(token, options={"verify_signature": False}) | {"sub": "admin"}, "k" * 32, "HS256", {"kid": key.key_id}
        )
        assert guarded.server.get("namespaces", {"Authorization": f"Bearer {forged}"}).error == (401, "NotAuthorizedException")


def test_secrets_have_no_public_half(lake: FreshLake) -> None:
    """Where HMAC signs, there is nothing to tell."""
    with guard(lake) as guarded:
        assert guarded.server.get(JWKS).json == {"keys": []}


def test_without_accounts_there_are_no_keys(standing: Server) -> None:
    """As there are no tokens."""
    assert standing.get(JWKS).error == (501, "UnsupportedOperationException")


def test_a_file_that_is_not_there_stops_the_start(lake: FreshLake, tmp_path: Path) -> None:
    """By its name."""
    with pytest.raises(SettingsError, match=r"none\.pem"):
        build_app(make_settings(lake, require_auth=True, oauth_clients="a:b|*", token_key_files=[tmp_path / "none.pem"]))
