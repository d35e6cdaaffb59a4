"""Wrong secrets, counted by whom somebody says to be and from where: guessing is slowed."""

import math
from collections import OrderedDict
from threading import Lock

MOST_FROM_ONE, MOST_FROM_ALL, WITHIN_S = 10, 100, 60
MOST_KEPT = 100_000
"""More than anybody fills within that time, so that nobody makes room by guesses at others' secrets."""

EVERYWHERE = None
"""All addresses together: whoever has many of them, or writes them into a header that a proxy passes on, guesses no faster."""

Who = tuple[str | None, str]


class Guesses:
    """Remembers failures for a minute, by address and client's id, and of each client from everywhere. Safe to share between threads."""

    def __init__(self) -> None:
        self._failures: OrderedDict[Who, list[float]] = OrderedDict()
        self._right: OrderedDict[Who, None] = OrderedDict()
        self._lock = Lock()

    def find_wait(self, peer: str, client_id: str, now_s: float) -> int:
        """Return for how many seconds somebody has to wait before the next secret is looked at; 0: it is looked at now."""
        here = self._wait((peer, client_id), MOST_FROM_ONE, now_s)
        # guesses from elsewhere keep nobody out of where its secret was right before
        return here if (peer, client_id) in self._right else max(here, self._wait((EVERYWHERE, client_id), MOST_FROM_ALL, now_s))

    def note_right(self, peer: str, client_id: str) -> None:
        """Remember that a client showed its secret there."""
        with self._lock:
            self._right[peer, client_id] = None
            self._right.move_to_end((peer, client_id))
            while len(self._right) > MOST_KEPT:
                self._right.popitem(last=False)

    def note(self, peer: str, client_id: str, now_s: float) -> None:
        """Remember that a secret was wrong."""
        with self._lock:
            for who, most in (((peer, client_id), MOST_FROM_ONE), ((EVERYWHERE, client_id), MOST_FROM_ALL)):
                failures = self._failures.setdefault(who, [])
                failures[:] = [*failures[-most + 1 :], now_s]
                self._failures.move_to_end(who)
            while len(self._failures) > MOST_KEPT:
                self._failures.popitem(last=False)

    def _wait(self, who: Who, most: int, now_s: float) -> int:
        with self._lock:
            late = [at for at in self._failures.get(who, ()) if at > now_s - WITHIN_S]
        return 0 if len(late) < most else max(1, math.ceil(late[0] + WITHIN_S - now_s))
