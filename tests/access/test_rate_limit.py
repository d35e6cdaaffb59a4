"""How often somebody may ask."""

from hypothesis import given
from hypothesis import strategies as st

from duckicelake.access.rate_limit import MOST_CLIENTS, RateLimit

ALICE, BOB = ("", "alice"), ("", "bob")


def test_so_many_at_once_and_then_so_many_a_second() -> None:
    """Each by itself; what is refused costs nothing."""
    pace = RateLimit(per_s=2, burst=3)
    assert [pace.take(ALICE, 10.0) for _ in range(5)] == [0, 0, 0, 0.5, 0.5]
    assert pace.take(BOB, 10.0) == 0
    assert [pace.take(ALICE, 10.5) for _ in range(2)] == [0, 0.5]
    assert [pace.take(ALICE, 100.0) > 0 for _ in range(4)] == [False, False, False, True]


@given(st.lists(st.floats(0, 3), max_size=60), st.floats(0.5, 5), st.integers(1, 5))
def test_nobody_gets_more_in_any_time(gaps: list[float], per_s: float, burst: int) -> None:
    """Never more than the burst and what has come up since; and who waits as long as it is told is let through."""
    pace, now_s, taken = RateLimit(per_s, burst), 0.0, list[float]()
    for gap in gaps:
        now_s += gap
        wait_s = pace.take(ALICE, now_s)
        if wait_s:
            now_s += wait_s
            assert pace.take(ALICE, now_s) == 0
        taken.append(now_s)
    for first, start_s in enumerate(taken):
        for last, end_s in enumerate(taken[first:], 1):
            assert last <= burst + (end_s - start_s) * per_s + 1e-3


def test_those_that_wait_for_nothing_are_forgotten() -> None:
    """However many came by."""
    pace = RateLimit(per_s=1, burst=1)
    for number in range(MOST_CLIENTS + 5):
        pace.take(("", str(number)), float(number))
    assert len(pace) < 10
    assert pace.take(("", str(MOST_CLIENTS + 4)), float(MOST_CLIENTS + 4)) > 0
