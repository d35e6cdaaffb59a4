"""Secrets take time to be looked at, and nobody else's."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import pytest

from duckicelake.access import clients
from duckicelake.access.tokens import Accounts, Policies, TokenRequest
from duckicelake.errors import TooManyRequests
from duckicelake.rest.routes import tokens
from duckicelake.rest.routes.tokens import MAX_CONCURRENT, SecretVerification
from tests.access.test_clients import hash_secret
from tests.rest.serving import Answer, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

STRANGERS = 60
"""More than there are threads that answer requests."""


def test_a_few_are_proven_at_once_and_no_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one address and of all of them; the next is told to come again, and who waits gets an answer."""
    monkeypatch.setattr(tokens, "MAX_QUEUED_PER_ADDRESS", 4)
    monkeypatch.setattr(tokens, "MAX_QUEUED", 6)
    leave, lock, running, most = Event(), Lock(), 0, 0

    def prove() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        leave.wait(30)
        with lock:
            running -= 1
        return most

    async def story() -> None:
        queue = SecretVerification()
        waiting = [asyncio.ensure_future(queue.run(peer, prove)) for peer in ("a", "a", "a", "a", "b", "b")]
        await asyncio.sleep(0)
        for peer in ("a", "b", "c"):
            with pytest.raises(TooManyRequests):
                await queue.run(peer, prove)
        leave.set()
        assert await asyncio.gather(*waiting) == [MAX_CONCURRENT] * 6
        waiting = [asyncio.ensure_future(queue.run("a", prove)) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(TooManyRequests):
            await queue.run("a", prove)
        assert await queue.run("c", prove) == MAX_CONCURRENT
        await asyncio.gather(*waiting)

    asyncio.run(story())


def test_who_shows_wrong_secrets_keeps_nobody_else_waiting(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many do so at the same time, and however long it takes: namespaces are made and listed as ever."""
    leave, arrived, is_quick = Event(), list[str](), Accounts.is_quick

    def note(accounts: Accounts, asked: TokenRequest, now_s: float, policies: Policies) -> bool:
        arrived.append(asked.peer)
        return is_quick(accounts, asked, now_s, policies)

    def verify(secret: str, hashed: str) -> bool:
        leave.wait(60)
        return False

    monkeypatch.setattr(Accounts, "is_quick", note)
    monkeypatch.setattr(clients, "_verify", verify)
    accounts = f"hashed:{hash_secret('right')}|*,plain:secret|*"
    with serve(make_settings(lake, require_auth=True, oauth_clients=accounts)) as server, ThreadPoolExecutor(STRANGERS) as strangers:

        def show(who: str, secret: str) -> Answer:
            form = f"grant_type=client_credentials&client_id={who}&client_secret={secret}"
            return server.ask("POST", "/v1/oauth/tokens", {}, form.encode())

        sent = {"Authorization": f"Bearer {show('plain', 'secret').json['access_token']}"}
        guesses = [strangers.submit(show, f"nobody{number}", "wrong") for number in range(STRANGERS)]
        try:
            wait_for(lambda: len(arrived) == 1 + STRANGERS, "the strangers")
            assert server.ask("POST", "namespaces", sent, b'{"namespace": ["quick"]}').status == 200
            assert server.get("namespaces/quick/tables", sent).json["identifiers"] == []
            assert not [guess for guess in guesses if guess.done()]
        finally:
            leave.set()
        assert {guess.result().status for guess in guesses} == {401}
