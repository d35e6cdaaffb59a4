"""Bearers that are remembered: by no token, not beyond their time, and not without end."""

from duckicelake.access.grants import NO_GRANTS
from duckicelake.access.sessions import Bearer, Session, TokenCache


def bear(name: str, until_s: float = 100.0) -> Bearer:
    """A bearer."""
    return Bearer(Session(name, NO_GRANTS, until_s))


def test_a_bearer_is_known_by_its_token_until_its_time_is_over() -> None:
    """By that alone."""
    bearers, alice = TokenCache(), bear("alice")
    assert bearers.put(b"a token", alice) is alice
    assert bearers.find(b"a token", 99.9) is alice
    assert bearers.find(b"a token", 100.0) is None
    assert bearers.find(b"another", 1.0) is None


def test_no_token_stays_in_memory() -> None:
    """What is kept says nothing without this process's key, and is the same in no other."""
    one, two = TokenCache(), TokenCache()
    for bearers in (one, two):
        bearers.put(b"a token", bear("alice"))
    assert len({*one._bearers, *two._bearers}) == 2
    assert all(b"token" not in hashed for hashed in one._bearers)


def test_so_many_and_no_more_are_remembered() -> None:
    """Who is forgotten is verified again."""
    bearers = TokenCache(most=2)
    for name in (b"a", b"b", b"c"):
        bearers.put(name, bear(name.decode()))
    assert [bearers.find(name, 1.0) is not None for name in (b"a", b"b", b"c")] == [False, False, True]
