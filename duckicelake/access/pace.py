"""How often somebody may ask: so many times at once, and then so many a second."""

MOST_KEPT = 10_000

Who = tuple[str, str]


class Pace:
    """Counts what each asks for, in memory; asked from one thread only.

    Shape: for each a moment before which nothing is left of what it may ask for (the generic cell rate algorithm)
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._apart_s = 1.0 / per_s
        self._ahead_s = (burst - 1) * self._apart_s
        self._used_until_s: dict[Who, float] = {}
        self._most = MOST_KEPT

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._used_until_s)

    def take(self, who: Who, now_s: float) -> float:
        """Take one of what somebody may ask for; returns after how many seconds there is one, 0 when there was."""
        until_s = max(self._used_until_s.get(who, now_s), now_s)
        # a moment's rounding is nobody's delay
        wait_s = until_s - now_s - self._ahead_s
        if wait_s > 1e-6:
            return wait_s
        if len(self._used_until_s) >= self._most:
            self._forget(now_s)
        self._used_until_s[who] = until_s + self._apart_s
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Forget those that may ask for everything again: nobody notices."""
        self._used_until_s = {who: until_s for who, until_s in self._used_until_s.items() if until_s > now_s}
        self._most = max(MOST_KEPT, 2 * len(self._used_until_s))
