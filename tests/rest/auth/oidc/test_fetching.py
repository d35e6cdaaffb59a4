"""Documents of issuers over the wire: TLS that somebody vouches for, and an end to everything that comes slowly."""

import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import pytest

from duckicelake.access.issuers import Issuer
from duckicelake.embedded.object_store import CertificateFiles, prepare_certificates
from duckicelake.rest.auth.oidc import IssuerUnavailable, fetch_json, fetch_keys
from tests.support.oidc.provider import Provider


@contextmanager
def vouched(files: CertificateFiles) -> Generator[Provider]:
    """An OIDC server behind TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with Provider(0) as provider:
        provider.socket = context.wrap_socket(provider.socket, server_side=True)
        provider.url = provider.url.replace("http:", "https:")
        serving = Thread(target=provider.serve_forever, args=(0.02,))
        serving.start()
        try:
            yield provider
        finally:
            provider.shutdown()
            serving.join(30)


def test_an_issuer_is_believed_over_tls_that_somebody_vouches_for(tmp_path: Path) -> None:
    """By the authority that settings name; one whom nobody vouches for is away, and so is one by another name."""
    files = prepare_certificates(tmp_path, datetime.now(UTC))
    with vouched(files) as provider:
        assert fetch_keys(Issuer("acme", provider.url, "lake", ca_file=str(files.authority))).has("key-1")
        with pytest.raises(IssuerUnavailable, match="SSLCertVerificationError"):
            fetch_keys(Issuer("acme", provider.url, "lake"))
        other = provider.url.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(IssuerUnavailable):
            fetch_keys(Issuer("acme", other, "lake", ca_file=str(files.authority)))


@contextmanager
def dripping(start: bytes) -> Generator[str]:
    """A server that sends the start of an answer, and then a byte now and then, for as long as somebody listens."""
    ended = Event()

    def drip(listening: socket.socket) -> None:
        with listening.accept()[0] as wire:
            wire.recv(65536)
            wire.sendall(start)
            while not ended.wait(0.02):
                try:
                    wire.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = Thread(target=drip, args=(listening,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            serving.join(30)


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX-",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["header", "body", "chunks"],
)
def test_what_comes_without_end_is_cut_off(start: bytes) -> None:
    """However small the pieces are."""
    with dripping(start) as url:
        started_s = monotonic()
        with pytest.raises(Exception, match="acme"):
            fetch_json(Issuer("acme", url, "lake"), url, started_s + 0.3)
        assert monotonic() - started_s < 5


def test_nobody_listens_and_nobody_waits() -> None:
    """A name that is none, and a port where nothing is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(IssuerUnavailable, match="ConnectionRefusedError"):
        fetch_keys(Issuer("acme", f"http://127.0.0.1:{port}", "lake"))
