"""The keys of one issuer, kept: fetched again now and then, and when a token names one that is not known.

Law: whatever strangers send, an issuer is asked at most every `MIN_INTERVAL_S`, by one request at a time; who names a key that is not
there is answered by what is known then.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from duckicelake.access.issuers import Issuer, KeySet
from duckicelake.errors import CatalogError, ServiceUnavailable
from duckicelake.rest.auth.oidc.fetching import FETCH_S

FRESH_S = 300.0
"""How long keys are taken as they are; after that they are still good while somebody fetches them anew."""

OVERDUE_S = 2 * FRESH_S
"""After that their issuer is waited for, unless it was away when it was last asked: nobody may have come for hours."""

MAX_AGE_S = 12 * 3600.0
"""How long keys are good for when their issuer is away."""

MIN_INTERVAL_S = 10.0
MAX_WAITING = 100

Fetch = Callable[[Issuer], KeySet]
Clock = Callable[[], float]


class IssuerKeyCache:
    """Keeps one issuer's keys; asked from the event loop only."""

    def __init__(self, issuer: Issuer, fetch: Fetch, clock: Clock = time.monotonic) -> None:
        self.issuer = issuer
        self.fetched_count = 0
        self.failed_count = 0
        self._fetch = fetch
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at_s = self._tried_at_s = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._waiting_count = 0
        self._is_unavailable = False
        self._log = logging.getLogger("duckicelake.issuers")

    async def find(self, key_id: str | None) -> KeySet:
        """Return the keys to verify a token with that names one, which may not be among them.

        Raises: ServiceUnavailable: none are known
        """
        keys = self._find_usable_keys()
        if keys is not None and keys.has(key_id) and (self._is_unavailable or self._clock() < self._fetched_at_s + OVERDUE_S):
            if self._clock() >= self._fetched_at_s + FRESH_S:
                self.begin()
            return keys
        fetching = self.begin()
        if fetching is not None and self._waiting_count < MAX_WAITING:
            await self._wait(fetching)
        keys = self._find_usable_keys()
        if keys is None:
            raise ServiceUnavailable(
                f"The issuer {self.issuer.name!r} cannot be asked for its keys now; its tokens open nothing until then."
            )
        return keys

    def begin(self) -> asyncio.Task[None] | None:
        """Fetch the keys, and return what is under way; None when that was tried a moment ago."""
        if self._fetching is not None:
            return self._fetching
        if self._clock() < self._tried_at_s + MIN_INTERVAL_S:
            return None
        self._tried_at_s = self._clock()
        self._fetching = asyncio.create_task(self._refetch())
        return self._fetching

    async def close(self) -> None:
        """Wait for nobody any more."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _find_usable_keys(self) -> KeySet | None:
        return self._keys if self._clock() < self._fetched_at_s + MAX_AGE_S else None

    async def _wait(self, fetching: asyncio.Task[None]) -> None:
        self._waiting_count += 1
        try:
            done, _ = await asyncio.wait([fetching], timeout=FETCH_S)
            self._is_unavailable = self._is_unavailable or not done
        finally:
            self._waiting_count -= 1

    async def _refetch(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._fetch, self.issuer)
            self._fetched_at_s, self._is_unavailable = self._clock(), False
            self.fetched_count += 1
        except CatalogError as error:
            self.failed_count += 1
            self._is_unavailable = True
            self._log.warning("%s", error.message)
        finally:
            self._fetching = None
