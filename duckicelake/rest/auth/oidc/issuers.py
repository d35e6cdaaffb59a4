"""The issuers whose tokens are believed, and whose a token of theirs is."""

from collections.abc import Mapping, Sequence

from duckicelake.access.bearers import Bearers
from duckicelake.access.foreign import check_algorithm, peek, read_foreign
from duckicelake.access.issuers import Issuer
from duckicelake.access.sessions import Bearer
from duckicelake.rest.auth.oidc.fetching import fetch_keys
from duckicelake.rest.auth.oidc.keyring import Fetch, KeyRing


class Issuers:
    """Each issuer of the settings with its keys; asked from the event loop only."""

    def __init__(self, issuers: Sequence[Issuer], bearers: Bearers, fetch: Fetch = fetch_keys) -> None:
        self._rings: Mapping[str, KeyRing] = {issuer.url: KeyRing(issuer, fetch) for issuer in issuers}
        self._bearers = bearers

    async def find_bearer(self, token: bytes, now_s: float) -> Bearer | None:
        """Return whose a token is; None when it names none of these issuers.

        Raises: NotAuthorized: it is worth nothing. ServiceUnavailable: nobody can tell yet
        """
        unproven = peek(token)
        ring = None if unproven is None else self._rings.get(unproven.issuer_url)
        if unproven is None or ring is None:
            return None
        check_algorithm(ring.issuer, unproven)
        keys = await ring.find(unproven.key_id)
        return self._bearers.keep(token, read_foreign(ring.issuer, keys, unproven, token, now_s))

    def begin(self) -> None:
        """Fetch all keys, so that the first to come need not wait."""
        for ring in self._rings.values():
            ring.begin()

    async def close(self) -> None:
        """Wait for no issuer any more."""
        for ring in self._rings.values():
            await ring.close()

    def count_fetches(self) -> dict[tuple[str, str], float]:
        """Return how often each issuer was asked for its keys, by its name and how that ended."""
        rings = self._rings.values()
        done = {(ring.issuer.name, "done"): float(ring.fetched_count) for ring in rings}
        return done | {(ring.issuer.name, "failed"): float(ring.failed_count) for ring in rings}
