"""Limits kept in the memory of one server process: requests of each principal, and logins after wrong secrets.

The authentication layer asks `RateLimit` on the event loop; `access.tokens` asks `LoginThrottle` on several threads.
"""

import math
from collections import OrderedDict
from threading import Lock

MOST_CLIENTS = 10_000

ClientKey = tuple[str, str]


class RateLimit:
    """A limit of requests for each client: a burst, then a rate per second. Used by the event loop's thread only.

    Shape: for each client the time at which its whole burst is available again (generic cell rate algorithm)
    """

    def __init__(self, per_s: float, burst: int) -> None:
        self._apart_s = 1.0 / per_s
        self._ahead_s = (burst - 1) * self._apart_s
        self._used_until_s: dict[ClientKey, float] = {}
        self._most = MOST_CLIENTS

    def __len__(self) -> int:
        """Return the number of clients in memory."""
        return len(self._used_until_s)

    def take(self, who: ClientKey, now_s: float) -> float:
        """Count a request of a client and return 0, or return for how many seconds the client has to wait."""
        until_s = max(self._used_until_s.get(who, now_s), now_s)
        # The tolerance keeps rounding errors of floats from delaying a request.
        wait_s = until_s - now_s - self._ahead_s
        if wait_s > 1e-6:
            return wait_s
        if len(self._used_until_s) >= self._most:
            self._forget(now_s)
        self._used_until_s[who] = until_s + self._apart_s
        return 0.0

    def _forget(self, now_s: float) -> None:
        """Remove the clients whose whole burst is available; they start with the same burst again."""
        self._used_until_s = {who: until_s for who, until_s in self._used_until_s.items() if until_s > now_s}
        self._most = max(MOST_CLIENTS, 2 * len(self._used_until_s))


MOST_FROM_ONE, MOST_FROM_ALL, WITHIN_S = 10, 100, 60
MOST_LOGINS = 100_000
"""More entries than an attacker can add in `WITHIN_S`, so that no one can push out the failures that slow them."""

ANY_ADDRESS = None
"""The key of all addresses together: an attacker with many addresses, or with forged forwarding headers, is not faster."""

LoginKey = tuple[str | None, str]


class LoginThrottle:
    """Failed logins of the last minute, by address and client id, and by client id from all addresses. Safe to share between threads."""

    def __init__(self) -> None:
        self._failures: OrderedDict[LoginKey, list[float]] = OrderedDict()
        self._right: OrderedDict[LoginKey, None] = OrderedDict()
        self._lock = Lock()

    def compute_wait_s(self, peer: str, client_id: str, now_s: float) -> int:
        """Return for how many seconds a client has to wait before its next secret is checked, 0 for none."""
        here = self._wait((peer, client_id), MOST_FROM_ONE, now_s)
        # Wrong guesses from other addresses must not lock out an address where the right secret was shown before.
        return here if (peer, client_id) in self._right else max(here, self._wait((ANY_ADDRESS, client_id), MOST_FROM_ALL, now_s))

    def note_success(self, peer: str, client_id: str) -> None:
        """Record that the client showed its right secret from this address."""
        with self._lock:
            self._right[peer, client_id] = None
            self._right.move_to_end((peer, client_id))
            while len(self._right) > MOST_LOGINS:
                self._right.popitem(last=False)

    def note_failure(self, peer: str, client_id: str, now_s: float) -> None:
        """Record a wrong secret."""
        with self._lock:
            for who, most in (((peer, client_id), MOST_FROM_ONE), ((ANY_ADDRESS, client_id), MOST_FROM_ALL)):
                failures = self._failures.setdefault(who, [])
                failures[:] = [*failures[-most + 1 :], now_s]
                self._failures.move_to_end(who)
            while len(self._failures) > MOST_LOGINS:
                self._failures.popitem(last=False)

    def _wait(self, who: LoginKey, most: int, now_s: float) -> int:
        with self._lock:
            late = [at for at in self._failures.get(who, ()) if at > now_s - WITHIN_S]
        return 0 if len(late) < most else max(1, math.ceil(late[0] + WITHIN_S - now_s))
