"""The token endpoint's decisions: who gets a token, for how long, and for what."""

from collections.abc import Mapping

import jwt
import pytest

from duckicelake.access.clients import parse_clients
from duckicelake.access.grants import CHANGE, Rights
from duckicelake.access.rate_limit import MOST_FROM_ALL, MOST_FROM_ONE, WITHIN_S, LoginThrottle
from duckicelake.access.tokens import (
    ACCESS_TOKEN,
    LONGEST_SESSION_S,
    SECRET_REMEMBERED_S,
    TOKEN_EXCHANGE,
    Accounts,
    IssuedToken,
    OAuthRefusal,
    TokenRequest,
    make_signer,
)
from duckicelake.errors import NotAuthorized

NOW = 1_800_000_000.5
LIFETIME_S = 3600
CREDENTIALS = {"grant_type": "client_credentials"}
WRITER = ("writer", "w-secret")


def open_accounts(clients: str = "writer:w-secret|ns:a:rw|ns:b:r,admin:a-secret|*") -> Accounts:
    """Accounts of two clients."""
    return Accounts(parse_clients(clients), make_signer(["k" * 32]), LIFETIME_S)


def ask(form: Mapping[str, str], basic: tuple[str, str] | None = None, peer: str = "10.0.0.1") -> TokenRequest:
    """A request of a client."""
    return TokenRequest(form, basic, peer)


def exchange(token: str, **more: str) -> dict[str, str]:
    """The form that exchanges a token."""
    return {"grant_type": TOKEN_EXCHANGE, "subject_token": token, "subject_token_type": ACCESS_TOKEN, **more}


def refuse(accounts: Accounts, request: TokenRequest, now_s: float = NOW) -> str:
    """The word with which a request is refused."""
    with pytest.raises(OAuthRefusal) as caught:
        accounts.issue(request, now_s)
    return caught.value.code


def rights(accounts: Accounts, issued: IssuedToken, namespace: str, now_s: float = NOW) -> Rights:
    """What a token's bearer may do in a namespace."""
    return accounts.get_bearer(issued.token.encode(), now_s).session.rights_on((namespace,))


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(ask(CREDENTIALS, WRITER), id="basic"),
        pytest.param(ask({**CREDENTIALS, "client_id": "writer", "client_secret": "w-secret"}), id="form"),
        pytest.param(ask({**CREDENTIALS, "client_id": "writer", "client_secret": "w-secret"}, WRITER), id="both-alike"),
    ],
)
def test_a_client_gets_a_token_for_all_it_may_do(request_: TokenRequest) -> None:
    """By either way of saying who it is."""
    accounts = open_accounts()
    issued = accounts.issue(request_, NOW)
    assert issued.lifetime_s == LIFETIME_S
    assert issued.scope == "ns:a:rw ns:b:r"
    assert rights(accounts, issued, "a") == Rights.READ | CHANGE
    assert rights(accounts, issued, "b") == Rights.READ
    assert rights(accounts, issued, "c") == Rights.NONE


@pytest.mark.parametrize("scope", ["catalog", "sign", "PRINCIPAL_ROLE:ALL", ""])
def test_the_scopes_that_clients_send_by_themselves_mean_everything(scope: str) -> None:
    """Java and PyIceberg send `catalog`, Java's signer `sign`, DuckDB PRINCIPAL_ROLE:ALL."""
    issued = open_accounts().issue(ask({**CREDENTIALS, "scope": scope}, WRITER), NOW)
    assert issued.scope == "ns:a:rw ns:b:r"


def test_a_scope_narrows() -> None:
    """To what was asked for, and stays so when the token is exchanged."""
    accounts = open_accounts()
    issued = accounts.issue(ask({**CREDENTIALS, "scope": "catalog ns:a:r"}, WRITER), NOW)
    again = accounts.issue(ask(exchange(issued.token)), NOW + 60)
    for token in (issued, again):
        assert token.scope == "ns:a:r"
        assert rights(accounts, token, "a", NOW + 60) == Rights.READ
        assert rights(accounts, token, "b", NOW + 60) == Rights.NONE


@pytest.mark.parametrize("scope", ["*", "ns:b:rw", "ns:c:r", "ns:*:r", "ns:a:*", "ns:a:r ns:c:r", "ns:a", "everything"])
def test_a_wider_scope_is_refused(scope: str) -> None:
    """And so is what is no scope; nothing is cut to size behind the client's back."""
    assert refuse(open_accounts(), ask({**CREDENTIALS, "scope": scope}, WRITER)) == "invalid_scope"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        pytest.param(ask({}), "invalid_request", id="no-grant-type"),
        pytest.param(ask({"grant_type": "password"}, WRITER), "unsupported_grant_type", id="other-grant-type"),
        pytest.param(ask(CREDENTIALS), "invalid_client", id="nobody"),
        pytest.param(ask({**CREDENTIALS, "client_id": "writer"}), "invalid_client", id="no-secret"),
        pytest.param(ask(CREDENTIALS, ("writer", "a-secret")), "invalid_client", id="another-secret"),
        pytest.param(ask(CREDENTIALS, ("nobody", "w-secret")), "invalid_client", id="unknown"),
        pytest.param(ask({**CREDENTIALS, "client_id": "admin", "client_secret": "a-secret"}, WRITER), "invalid_request", id="two-clients"),
        pytest.param(ask({"grant_type": TOKEN_EXCHANGE}, WRITER), "invalid_request", id="no-subject"),
        pytest.param(ask(exchange("x", requested_token_type="urn:x"), WRITER), "invalid_request", id="other-token-type"),
        pytest.param(ask(exchange("x.y.z")), "invalid_grant", id="no-token-of-ours"),
    ],
)
def test_refusals_have_rfc_6749s_words(request_: TokenRequest, code: str) -> None:
    """Each by its own word."""
    assert refuse(open_accounts(), request_) == code


def test_an_unsigned_subject_is_taken_from_a_proven_client_alone() -> None:
    """Trino's sessions: its claims say nothing, the client's own rights are what it gets."""
    accounts = open_accounts()
    unsigned = jwt.encode({"sub": "admin", "scope": "*", "exp": int(NOW) + 60}, None, "none")
    issued = accounts.issue(ask(exchange(unsigned), WRITER), NOW)
    assert rights(accounts, issued, "a") == Rights.READ | CHANGE
    assert rights(accounts, issued, "c") == Rights.NONE
    assert refuse(accounts, ask(exchange(unsigned))) == "invalid_grant"
    assert refuse(accounts, ask(exchange(unsigned), ("writer", "wrong"))) == "invalid_client"
    with pytest.raises(NotAuthorized):
        accounts.get_bearer(unsigned.encode(), NOW)


def test_an_exchange_never_widens() -> None:
    """A narrow token is good for narrow ones only."""
    accounts = open_accounts()
    issued = accounts.issue(ask({**CREDENTIALS, "scope": "ns:a:r"}, WRITER), NOW)
    for scope in ("ns:a:rw", "ns:b:r", "*"):
        assert refuse(accounts, ask(exchange(issued.token, scope=scope))) == "invalid_scope"


def test_an_expired_token_is_exchanged_for_nothing_without_the_secret() -> None:
    """Java sends the old one with its secret, and goes on."""
    accounts = open_accounts()
    issued = accounts.issue(ask(CREDENTIALS, WRITER), NOW)
    late = NOW + LIFETIME_S
    assert refuse(accounts, ask(exchange(issued.token)), late) == "invalid_grant"
    assert accounts.issue(ask(exchange(issued.token), WRITER), late).lifetime_s == LIFETIME_S


def test_a_chain_of_exchanges_ends() -> None:
    """A token that got into other hands is worth nothing half a day after its client last proved itself."""
    accounts, now_s = open_accounts(), NOW
    issued = accounts.issue(ask(CREDENTIALS, WRITER), now_s)
    while issued.lifetime_s == LIFETIME_S:
        now_s += LIFETIME_S // 2
        issued = accounts.issue(ask(exchange(issued.token)), now_s)
    assert NOW + LONGEST_SESSION_S - LIFETIME_S < now_s < NOW + LONGEST_SESSION_S
    with pytest.raises(NotAuthorized):
        accounts.get_bearer(issued.token.encode(), NOW + LONGEST_SESSION_S)


def test_a_session_ends_with_its_token() -> None:
    """Though it is remembered."""
    accounts = open_accounts()
    issued = accounts.issue(ask(CREDENTIALS, WRITER), NOW)
    assert accounts.get_bearer(issued.token.encode(), NOW) is accounts.get_bearer(issued.token.encode(), NOW + 3598)
    with pytest.raises(NotAuthorized):
        accounts.get_bearer(issued.token.encode(), NOW + LIFETIME_S)


def test_a_client_that_is_gone_has_no_session() -> None:
    """Its tokens end when the server starts without it, and shrink with its rights."""
    issued = open_accounts().issue(ask(CREDENTIALS, WRITER), NOW)
    with pytest.raises(NotAuthorized):
        open_accounts("admin:a-secret|*").get_bearer(issued.token.encode(), NOW)
    assert rights(open_accounts("writer:other|ns:a:r"), issued, "a") == Rights.READ


def test_guessing_is_slowed() -> None:
    """After some wrong secrets even the right one has to wait; from elsewhere, and for others, it goes on."""
    accounts = open_accounts()
    for guess in range(MOST_FROM_ONE):
        assert refuse(accounts, ask(CREDENTIALS, ("writer", f"guess{guess}"))) == "invalid_client"
    with pytest.raises(OAuthRefusal) as caught:
        accounts.issue(ask(CREDENTIALS, WRITER), NOW + 1)
    assert caught.value.retry_after_s == WITHIN_S - 1
    assert accounts.issue(ask(CREDENTIALS, ("admin", "a-secret")), NOW + 1)
    assert accounts.issue(ask(CREDENTIALS, WRITER, "10.0.0.2"), NOW + 1)


def test_many_addresses_guess_no_faster_for_long() -> None:
    """An address may be anything behind some proxies: so many wrong secrets of one client a minute, and then it waits everywhere."""
    accounts = open_accounts()
    assert accounts.issue(ask(CREDENTIALS, WRITER, "10.0.0.3"), NOW - SECRET_REMEMBERED_S)
    for guess in range(MOST_FROM_ALL):
        assert refuse(accounts, ask(CREDENTIALS, ("writer", f"guess{guess}"), f"10.1.0.{guess}")) == "invalid_client"
    with pytest.raises(OAuthRefusal) as caught:
        accounts.issue(ask(CREDENTIALS, WRITER, "10.0.0.2"), NOW + 1)
    assert caught.value.retry_after_s == WITHIN_S - 1
    assert accounts.issue(ask(CREDENTIALS, ("admin", "a-secret"), "10.1.0.1"), NOW + 1)
    assert accounts.issue(ask(CREDENTIALS, WRITER, "10.0.0.3"), NOW + 1), "who was right there before is kept out by nobody's guesses"
    assert accounts.issue(ask(CREDENTIALS, WRITER, "10.0.0.2"), NOW + WITHIN_S)


def test_guesses_at_others_make_no_room() -> None:
    """What was wrong is remembered for its minute, whatever else is tried meanwhile."""
    guesses = LoginThrottle()
    for _ in range(MOST_FROM_ONE):
        guesses.note_failure("10.0.0.1", "writer", NOW)
    for number in range(20_000):
        guesses.note_failure("10.0.0.1", f"nobody{number}", NOW)
    assert guesses.compute_wait_s("10.0.0.1", "writer", NOW) == WITHIN_S
    assert guesses.compute_wait_s("10.0.0.1", "writer", NOW + WITHIN_S) == 0


def test_who_was_proven_lately_is_not_slowed_by_a_guesser() -> None:
    """A secret is remembered, as an HMAC, for five minutes: somebody else's guesses keep nobody out."""
    accounts = open_accounts()
    accounts.issue(ask(CREDENTIALS, WRITER), NOW)
    for guess in range(MOST_FROM_ONE + 1):
        refuse(accounts, ask(CREDENTIALS, ("writer", f"guess{guess}")))
    assert accounts.is_quick(ask(CREDENTIALS, WRITER), NOW + SECRET_REMEMBERED_S - 1)
    assert accounts.issue(ask(CREDENTIALS, WRITER), NOW + 1)
    assert not accounts.is_quick(ask(CREDENTIALS, WRITER), NOW + SECRET_REMEMBERED_S)
    assert not accounts.is_quick(ask(CREDENTIALS, ("writer", "wrong")), NOW)


def test_nothing_shows_a_secret() -> None:
    """Requests and tokens may be printed."""
    accounts = open_accounts()
    request = ask({**CREDENTIALS, "client_secret": "w-secret", "client_id": "writer"}, WRITER)
    issued = accounts.issue(request, NOW)
    assert "w-secret" not in repr(request)
    assert issued.token not in repr(issued)
