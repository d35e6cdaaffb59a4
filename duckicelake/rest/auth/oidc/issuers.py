"""The issuers whose tokens are believed, and whose a token of theirs is."""

from collections.abc import Mapping, Sequence

from duckicelake.access.issuers import Issuer, check_algorithm, read_unverified, verify_issuer_token
from duckicelake.access.sessions import Bearer, TokenCache
from duckicelake.rest.auth.oidc.fetching import fetch_keys
from duckicelake.rest.auth.oidc.keyring import Fetch, IssuerKeyCache


class TokenIssuers:
    """Each issuer of the settings with its keys; asked from the event loop only."""

    def __init__(self, issuers: Sequence[Issuer], tokens: TokenCache, fetch: Fetch = fetch_keys) -> None:
        self._key_caches: Mapping[str, IssuerKeyCache] = {issuer.url: IssuerKeyCache(issuer, fetch) for issuer in issuers}
        self._tokens = tokens

    async def find_bearer(self, token: bytes, now_s: float) -> Bearer | None:
        """Return whose a token is; None when it names none of these issuers.

        Raises: NotAuthorized: it is worth nothing. ServiceUnavailable: nobody can tell yet
        """
        unproven = read_unverified(token)
        key_cache = None if unproven is None else self._key_caches.get(unproven.issuer_url)
        if unproven is None or key_cache is None:
            return None
        check_algorithm(key_cache.issuer, unproven)
        keys = await key_cache.find(unproven.key_id)
        return self._tokens.put(token, verify_issuer_token(key_cache.issuer, keys, unproven, token, now_s))

    def begin(self) -> None:
        """Fetch all keys, so that the first to come need not wait."""
        for key_cache in self._key_caches.values():
            key_cache.begin()

    async def close(self) -> None:
        """Wait for no issuer any more."""
        for key_cache in self._key_caches.values():
            await key_cache.close()

    def count_fetches(self) -> dict[tuple[str, str], float]:
        """Return how often each issuer was asked for its keys, by its name and how that ended."""
        key_caches = self._key_caches.values()
        done = {(key_cache.issuer.name, "done"): float(key_cache.fetched_count) for key_cache in key_caches}
        return done | {(key_cache.issuer.name, "failed"): float(key_cache.failed_count) for key_cache in key_caches}
