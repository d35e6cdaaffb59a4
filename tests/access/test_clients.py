"""Clients: how settings name them, and their secrets."""

import os

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from duckicelake.access.clients import BadClients, SecretChecker, parse_clients
from duckicelake.access.grants import ALL_GRANTS, parse_grants


def hash_secret(secret: str) -> str:
    """The secret as argon2id keeps it, made cheap."""
    return Argon2id(salt=os.urandom(16), length=32, iterations=1, lanes=1, memory_cost=64).derive_phc_encoded(secret.encode())


def test_the_grammar_of_the_settings_is_read() -> None:
    """Clients parted by commas or new lines, grants by `|`, comments and empty lines left out."""
    found = parse_clients("id:se:cret|ns:analytics:rw,admin:secret|*\n# a comment, with a comma\n\n  two:s2|ns:a:r|ns:b:w \n")
    assert {name: client.grants for name, client in found.items()} == {
        "id": parse_grants(["ns:analytics:rw"]),
        "admin": ALL_GRANTS,
        "two": parse_grants(["ns:a:r", "ns:b:w"]),
    }
    assert found["id"].secret == "se:cret"


def test_a_hash_may_stand_for_a_secret() -> None:
    """Its commas part no clients."""
    hashed = hash_secret("s3cret")
    found = parse_clients(f"one:{hashed}|ns:a:r,two:plain|*")
    assert found["one"].secret == hashed
    assert list(found) == ["one", "two"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("hunter2", id="alone"),
        pytest.param("id:hunter2", id="no-grant"),
        pytest.param("id:hunter2|", id="empty-grant"),
        pytest.param("id:|ns:a:r", id="empty-secret"),
        pytest.param("id:hunter2|ns:a:rx", id="unknown-right"),
        pytest.param("id:hunter2|*,id:hunter2|*", id="twice"),
        pytest.param("id:$argon2i$v=19$hunter2|*", id="other-hash"),
        pytest.param("id:$argon2id$v=19$m=99999999,t=1,p=1$aaaaaaaaaaaaaaaa$hunter2hunter2hunter2|*", id="hash-too-large"),
        pytest.param("i d:hunter2|*", id="space-in-id"),
    ],
)
def test_a_client_that_cannot_be_read_is_refused_without_its_secret(text: str) -> None:
    """The message says which one and never what its secret is."""
    with pytest.raises(BadClients) as caught:
        parse_clients(text)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize("kept", [pytest.param("right", id="plain"), pytest.param(hash_secret("right"), id="hashed")])
def test_a_secret_is_right_or_wrong(kept: str) -> None:
    """Only the exact one is right, and only with its own id."""
    checker = SecretChecker(parse_clients(f"me:{kept}|*,other:thing|*"), b"k" * 32)
    assert checker.find("me", "right") is not None
    for client_id, secret in (
        ("me", "wrong"),
        ("me", ""),
        ("me", "right "),
        ("nobody", "right"),
        ("other", "right"),
        ("me", kept + "x"),
        ("", ""),
    ):
        assert checker.find(client_id, secret) is None


def test_a_client_does_not_show_its_secret() -> None:
    """Not even when somebody prints it."""
    assert "hunter2" not in repr(parse_clients("me:hunter2|*"))
