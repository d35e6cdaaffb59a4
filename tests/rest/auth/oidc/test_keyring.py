"""An issuer's keys over time: asked for rarely, whatever comes, and good for a while without it. Only the clock is made up."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from duckicelake.access.issuers import Issuer
from duckicelake.errors import ServiceUnavailable
from duckicelake.rest.auth.oidc import FRESH_S, MAX_AGE_S, MAX_WAITING, MIN_INTERVAL_S, OVERDUE_S, IssuerKeyCache, fetch_keys
from tests.support.oidc.provider import DISCOVERY, KEYS
from tests.support.oidc.running import AUDIENCE, NAME, Issuing


@dataclass(slots=True)
class Ring:
    """A ring on a real issuer, at a time that the test says."""

    issuer: Issuing
    now_s: float = 1000.0
    ring: IssuerKeyCache = field(init=False)

    def __post_init__(self) -> None:
        self.ring = IssuerKeyCache(Issuer(NAME, self.issuer.url, AUDIENCE), fetch_keys, lambda: self.now_s)

    async def knows(self, key_id: str | None) -> bool:
        """Whether a token that names that key could be verified."""
        return (await self.ring.find(key_id)).has(key_id)

    async def settle(self) -> None:
        """Wait for what is under way."""
        fetching = self.ring._fetching
        if fetching is not None:
            await fetching


def play(issuer: Issuing, story: Callable[[Ring], Awaitable[Any]]) -> None:
    """Tell a story on an event loop."""

    async def told() -> None:
        ring = Ring(issuer)
        try:
            await story(ring)
        finally:
            await ring.ring.close()

    asyncio.run(told())


def test_strangers_with_made_up_keys_do_not_reach_the_issuer(issuer: Issuing) -> None:
    """One fetch for any number of them, at a time and within ten seconds."""

    async def story(ring: Ring) -> None:
        assert await ring.knows("key-1")
        for round_number in (1, 2, 3):
            assert not any(await asyncio.gather(*(ring.knows(f"made-up-{number}") for number in range(500))))
            assert not await ring.knows("made-up")
            assert issuer.count() == round_number
            assert await ring.knows("key-1")
            ring.now_s += MIN_INTERVAL_S

    play(issuer, story)


def test_a_rotated_key_is_known_with_its_first_token(issuer: Issuing) -> None:
    """One that has been withdrawn is forgotten with that; just after a fetch both wait for ten seconds."""

    async def story(ring: Ring) -> None:
        assert await ring.knows("key-1")
        issuer.rotate()
        assert not await ring.knows("key-2")
        ring.now_s += MIN_INTERVAL_S
        assert [await ring.knows(key_id) for key_id in ("key-2", "key-1", None)] == [True, False, True]

    play(issuer, story)


def test_keys_are_fetched_again_while_the_old_ones_serve(issuer: Issuing) -> None:
    """Nobody waits for that; what was withdrawn is forgotten then."""

    async def story(ring: Ring) -> None:
        assert await ring.knows("key-1")
        issuer.rotate()
        ring.now_s += FRESH_S - 1
        assert await ring.knows("key-1")
        await ring.settle()
        assert issuer.count() == 1
        ring.now_s += 1
        assert await ring.knows("key-1")
        await ring.settle()
        assert [await ring.knows(key_id) for key_id in ("key-1", "key-2")] == [False, True]

    play(issuer, story)


def test_a_server_that_nobody_asked_for_long_asks_first(issuer: Issuing) -> None:
    """A key that was withdrawn meanwhile opens nothing; an issuer that is away is waited for once."""

    async def story(ring: Ring) -> None:
        assert await ring.knows("key-1")
        issuer.rotate()
        ring.now_s += OVERDUE_S
        assert [await ring.knows(key_id) for key_id in ("key-1", "key-2")] == [False, True]
        issuer.stop()
        ring.now_s += OVERDUE_S
        assert await ring.knows("key-2")
        ring.now_s += MIN_INTERVAL_S
        assert await ring.knows("key-2")
        assert ring.ring.failed_count == 1
        await ring.settle()
        assert ring.ring.failed_count == 2

    play(issuer, story)


def test_an_issuer_that_is_away_is_waited_for_by_nobody(issuer: Issuing) -> None:
    """Without keys its tokens are 503; with some these serve for half a day and no longer; it is asked every ten seconds at most."""

    async def story(ring: Ring) -> None:
        issuer.stop()
        for _ in range(50):
            with pytest.raises(ServiceUnavailable, match="acme"):
                await ring.knows("key-1")
        assert ring.ring.failed_count == 1
        issuer.start()
        with pytest.raises(ServiceUnavailable):
            await ring.knows("key-1")
        ring.now_s += MIN_INTERVAL_S
        assert await ring.knows("key-1")
        issuer.stop()
        ring.now_s += MAX_AGE_S - 1
        assert await ring.knows("key-1")
        await ring.settle()
        assert not await ring.knows("key-2")
        ring.now_s += 1
        with pytest.raises(ServiceUnavailable):
            await ring.knows("key-1")
        assert (ring.ring.fetched_count, ring.ring.failed_count) == (1, 2)

    play(issuer, story)


@pytest.mark.parametrize(
    "answers",
    [
        {DISCOVERY: {"issuer": "https://evil.example.org", "jwks_uri": "https://evil.example.org/keys"}},
        {DISCOVERY: {"redirect": "/other"}},
        {DISCOVERY: "x" * 300_000},
        {KEYS: {"redirect": KEYS}},
        {KEYS: {"keys": [{"kty": "oct", "kid": "key-1", "k": "AAAA"}]}},
        {KEYS: []},
    ],
    ids=["liar", "led elsewhere", "endless", "keys elsewhere", "secrets", "no keys"],
)
def test_what_is_no_list_of_keys_changes_nothing(issuer: Issuing, answers: dict[str, Any]) -> None:
    """Neither at the start, when there are none, nor later, when there are."""

    async def story(ring: Ring) -> None:
        issuer.do(answers=answers)
        with pytest.raises(ServiceUnavailable):
            await ring.knows("key-1")
        issuer.do(answers={})
        ring.now_s += MIN_INTERVAL_S
        assert await ring.knows("key-1")
        issuer.do(answers=answers)
        ring.now_s += FRESH_S
        assert await ring.knows("key-1")
        await ring.settle()
        assert await ring.knows("key-1")
        assert (ring.ring.fetched_count, ring.ring.failed_count) == (1, 2)

    play(issuer, story)


def test_only_so_many_wait_for_a_silent_issuer(issuer: Issuing) -> None:
    """The others are answered at once, by what is known."""

    async def story(ring: Ring) -> None:
        issuer.do(answers={"silent": True})
        asked = [asyncio.create_task(ring.ring.find(f"made-up-{number}")) for number in range(MAX_WAITING + 50)]
        done, pending = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert all(isinstance(task.exception(), ServiceUnavailable) for task in done)
        assert len(pending) == MAX_WAITING
        issuer.do(answers={})
        found = await asyncio.gather(*pending)
        assert not any(keys.has("made-up-0") for keys in found)

    play(issuer, story)
