"""What issuers tell of themselves, over HTTPS: two small documents, within a few seconds, or not at all."""

import json
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Timer
from time import monotonic
from typing import cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from duckicelake.access.issuers import LOOPBACK, BadIssuer, Issuer, KeySet, build_discovery_url, read_discovery, read_keys
from duckicelake.errors import ServiceUnavailable

FETCH_S = 5.0
MAX_DOCUMENT_BYTES = 256 * 1024
HEADERS = {"Accept": "application/json", "User-Agent": "duckicelake", "Connection": "close"}


class IssuerUnavailable(ServiceUnavailable):
    """An issuer does not answer, or not with its keys."""


def fetch_keys(issuer: Issuer) -> KeySet:
    """Return the keys of an issuer as it tells them now; slow, and never slower than `FETCH_S` once it has a connection.

    Raises: IssuerAway, BadIssuer
    """
    until_s = monotonic() + FETCH_S
    keys_url = read_discovery(issuer, fetch_json(issuer, build_discovery_url(issuer), until_s))
    return read_keys(issuer, fetch_json(issuer, keys_url, until_s))


def fetch_json(issuer: Issuer, url: str, until_s: float) -> object:
    """Return a document; where it leads on to another place, nobody follows. Raises: IssuerAway, BadIssuer."""
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
    """Return a connection that is cut off when the time is over, however slowly something comes."""
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
    """Return a connection that is not open yet; through a proxy where the environment names one for it."""
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
    """End a connection that somebody reads from."""
    try:
        # not that of an SSL socket, which takes its layer away under the reader
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return
