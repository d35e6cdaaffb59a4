"""Turns on tables, on an event loop whose clock the test sets."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack

import pytest

from duckicelake.rest.turns import TurnLimits, Turns, TurnTimeout

FIRST, SECOND = ("w", ("main",), "a"), ("w", ("main",), "b")
WAIT_S = 20.0


class SetClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is `now_s`."""

    now_s = 0.0

    def time(self) -> float:
        """Return the time that the test has set."""
        return self.now_s


def run(play: Callable[[SetClockLoop], Coroutine[None, None, None]]) -> None:
    """Run a test on such a loop."""
    with asyncio.Runner(loop_factory=SetClockLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SetClockLoop)
        runner.run(play(loop))


async def settle() -> None:
    """Return when whatever is due has run."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_time_is_for_all_tables() -> None:
    """Who has waited for the first turn waits only the rest of the time for the second, gives the first back, and never had the other."""

    async def play(loop: SetClockLoop) -> None:
        turns = Turns[str, str](TurnLimits(seconds=WAIT_S))

        async def take_both() -> None:
            async with turns.turn([SECOND, FIRST]):
                pass

        await turns.wait(FIRST)
        await turns.wait(SECOND)
        waiting = asyncio.create_task(take_both())
        await settle()
        loop.now_s = 0.75 * WAIT_S
        turns.release(FIRST)
        await settle()
        assert not waiting.done()
        loop.now_s = 1.25 * WAIT_S
        await settle()
        assert waiting.done()
        with pytest.raises(TurnTimeout):
            await waiting
        assert (turns.late_count, turns.waiting_count) == (1, 0)
        assert await turns.wait(FIRST) is None

    run(play)


@pytest.mark.parametrize("ends", [True, False], ids=["the commit ends", "the commit goes on"])
def test_the_wait_for_a_moved_ref_is_a_part_of_the_wait_for_the_turn(ends: bool) -> None:
    """Clients wait a minute for an answer: two waits of full length, and a commit after them, would be longer."""

    async def play(loop: SetClockLoop) -> None:
        turns = Turns[str, str](TurnLimits(seconds=WAIT_S))

        async def commit() -> None:
            async with turns.turn([FIRST], await turns.wait_for_refs(FIRST, {"main"})):
                pass

        with ExitStack() as moving:
            await turns.wait(FIRST)
            moving.enter_context(turns.moving_refs(FIRST, {"main"}))
            waiting = asyncio.create_task(commit())
            await settle()
            loop.now_s = 0.75 * WAIT_S
            if ends:
                moving.close()
            await settle()
            assert (waiting.done(), turns.waiting_count) == (False, 1)
            loop.now_s = 1.25 * WAIT_S
            await settle()
            with pytest.raises(TurnTimeout):
                waiting.result()
            assert (turns.late_count, turns.waiting_count) == (1, 0)

    run(play)
