"""Whose tokens were verified, remembered for as long as nobody has to look at them again."""

import hashlib
import secrets

from duckicelake.access.sessions import Bearer

MOST_REMEMBERED = 10_000


class Bearers:
    """Remembers bearers by a keyed hash of their tokens, so that no token stays in memory. Holds no more than so many of them."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        # a third of what an HMAC takes, for each request
        self._keyed = hashlib.blake2b(key=secrets.token_bytes(32), digest_size=32)
        self._most = most
        self._kept: dict[bytes, Bearer] = {}

    def find(self, token: bytes, now_s: float) -> Bearer | None:
        """Return whose a token is, if that is known and still holds."""
        bearer = self._kept.get(self._hash(token))
        return bearer if bearer is not None and now_s < bearer.session.expires_at_s else None

    def keep(self, token: bytes, bearer: Bearer) -> Bearer:
        """Remember whose a token is, and return that."""
        if len(self._kept) >= self._most:
            self._kept.clear()
        self._kept[self._hash(token)] = bearer
        return bearer

    def _hash(self, token: bytes) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(token)
        return keyed.digest()
