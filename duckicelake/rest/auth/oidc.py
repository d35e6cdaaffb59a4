"""Tokens of external OpenID issuers: their keys, fetched over HTTPS and cached, and the principal that such a token names.

`app` fetches the keys when the server starts, and `auth.authentication` calls `TokenIssuers` on the event loop; fetching runs in a thread.
The two documents of an issuer are fetched within `FETCH_S` or not at all.

Law: regardless of what clients send, an issuer is requested at most every `MIN_INTERVAL_S`, once at a time. A token with an unknown key
id is verified with the keys known then.
"""

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from time import monotonic
from typing import cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from duckicelake.access.issuers import (
    LOOPBACK,
    BadIssuer,
    Issuer,
    KeySet,
    build_discovery_url,
    check_algorithm,
    read_discovery,
    read_keys,
    read_unverified,
    verify_issuer_token,
)
from duckicelake.access.sessions import Bearer, TokenCache
from duckicelake.errors import CatalogError, ServiceUnavailable

FETCH_S = 5.0
MAX_DOCUMENT_BYTES = 256 * 1024
HEADERS = {"Accept": "application/json", "User-Agent": "duckicelake", "Connection": "close"}


class IssuerUnavailable(ServiceUnavailable):
    """An issuer does not respond, or does not return its keys."""


def fetch_keys(issuer: Issuer) -> KeySet:
    """Fetch and return the keys of an issuer. It takes at most `FETCH_S` after connecting.

    Raises: IssuerUnavailable, BadIssuer
    """
    until_s = monotonic() + FETCH_S
    keys_url = read_discovery(issuer, fetch_json(issuer, build_discovery_url(issuer), until_s))
    return read_keys(issuer, fetch_json(issuer, keys_url, until_s))


def fetch_json(issuer: Issuer, url: str, until_s: float) -> object:
    """Fetch and return a JSON document. Redirects are not followed. Raises: IssuerUnavailable, BadIssuer."""
    parts = urlsplit(url)
    try:
        with connect(issuer, parts, until_s) as connection:
            connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""), headers=HEADERS)
            response = connection.getresponse()
            body = response.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise IssuerUnavailable(f"The issuer {issuer.name!r} does not answer at {url} ({type(error).__name__}).") from error
    if response.status != 200:
        raise IssuerUnavailable(f"The issuer {issuer.name!r} answers {response.status} at {url}.")
    if len(body) > MAX_DOCUMENT_BYTES:
        raise BadIssuer(f"The issuer {issuer.name!r} answers with more than {MAX_DOCUMENT_BYTES} bytes at {url}.")
    try:
        return cast(object, json.loads(body))
    except (ValueError, RecursionError) as error:
        raise BadIssuer(f"The issuer {issuer.name!r} answers with no JSON at {url}.") from error


@contextmanager
def connect(issuer: Issuer, parts: SplitResult, until_s: float) -> Generator[HTTPConnection]:
    """Return a connection that is shut down at the deadline, even while data still arrives."""
    left_s = max(0.1, until_s - monotonic())
    connection = open_connection(issuer, parts, left_s)
    connection.connect()
    cutter = Timer(left_s, cut, (connection.sock,))
    cutter.daemon = True
    cutter.start()
    try:
        yield connection
    finally:
        cutter.cancel()
        connection.close()


def open_connection(issuer: Issuer, parts: SplitResult, timeout_s: float) -> HTTPConnection:
    """Return an unopened connection; through a proxy if the environment names one for the host."""
    host = parts.hostname or ""
    proxy = None if host in LOOPBACK or proxy_bypass(host) else getproxies().get(parts.scheme)
    through = urlsplit(proxy) if proxy else parts
    if parts.scheme == "http":
        return HTTPConnection(host, parts.port, timeout=timeout_s)
    context = ssl.create_default_context(cafile=issuer.ca_file)
    connection = HTTPSConnection(through.hostname or host, through.port, timeout=timeout_s, context=context)
    if proxy:
        connection.set_tunnel(host, parts.port or 443)
    return connection


def cut(sock: socket.socket) -> None:
    """Shut down a connection while another thread reads from it."""
    try:
        # SSLSocket.shutdown would remove the TLS layer while the other thread reads, so call the plain socket's method.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return


FRESH_S = 300.0
"""Age until which keys are used without a fetch. Older keys are still used, and a fetch begins in the background."""

OVERDUE_S = 2 * FRESH_S
"""Age after which a request waits for the fetch, unless the issuer was unavailable last time: the keys may be hours old."""

MAX_AGE_S = 12 * 3600.0
"""Age until which keys are used while their issuer is unavailable."""

MIN_INTERVAL_S = 10.0
MAX_WAITING = 100

Fetch = Callable[[Issuer], KeySet]
Clock = Callable[[], float]


class IssuerKeyCache:
    """Cache of one issuer's keys. Used on the event loop only."""

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
        """Return the issuer's keys, which may lack the key that a token names.

        Raises: ServiceUnavailable: no keys are known
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
        """Start a fetch of the keys and return the task, or the running one; None if the last fetch was too recent."""
        if self._fetching is not None:
            return self._fetching
        if self._clock() < self._tried_at_s + MIN_INTERVAL_S:
            return None
        self._tried_at_s = self._clock()
        self._fetching = asyncio.create_task(self._refetch())
        return self._fetching

    async def close(self) -> None:
        """Cancel a running fetch."""
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


class TokenIssuers:
    """The issuers of the settings, with their keys. Used on the event loop only."""

    def __init__(self, issuers: Sequence[Issuer], tokens: TokenCache, fetch: Fetch = fetch_keys) -> None:
        self._key_caches: Mapping[str, IssuerKeyCache] = {issuer.url: IssuerKeyCache(issuer, fetch) for issuer in issuers}
        self._tokens = tokens

    async def find_bearer(self, token: bytes, now_s: float) -> Bearer | None:
        """Return the principal of a token; None if the token names none of these issuers.

        Raises: NotAuthorized: the token is invalid. ServiceUnavailable: the issuer's keys are not known
        """
        unproven = read_unverified(token)
        key_cache = None if unproven is None else self._key_caches.get(unproven.issuer_url)
        if unproven is None or key_cache is None:
            return None
        check_algorithm(key_cache.issuer, unproven)
        keys = await key_cache.find(unproven.key_id)
        return self._tokens.put(token, verify_issuer_token(key_cache.issuer, keys, unproven, token, now_s))

    def begin(self) -> None:
        """Start to fetch all keys, so that the first request need not wait."""
        for key_cache in self._key_caches.values():
            key_cache.begin()

    async def close(self) -> None:
        """Cancel all running fetches."""
        for key_cache in self._key_caches.values():
            await key_cache.close()

    def count_fetches(self) -> dict[tuple[str, str], float]:
        """Return the number of fetches, by the issuer's name and the outcome."""
        key_caches = self._key_caches.values()
        done = {(key_cache.issuer.name, "done"): float(key_cache.fetched_count) for key_cache in key_caches}
        return done | {(key_cache.issuer.name, "failed"): float(key_cache.failed_count) for key_cache in key_caches}
