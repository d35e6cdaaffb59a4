"""The certificates of the embedded S3: made once, renewed in time, good for both ends of a connection."""

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from duckicelake.embedded.object_store import LIFETIME, CertificateFiles, prepare_certificates

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def test_certificates_are_private_and_kept(tmp_path: Path) -> None:
    """A second start uses the same ones."""
    files = prepare_certificates(tmp_path, NOW)
    before = files.certificate.read_bytes()
    assert prepare_certificates(tmp_path, NOW + timedelta(days=30)) == files
    assert files.certificate.read_bytes() == before
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_certificates_are_renewed_before_they_end(tmp_path: Path) -> None:
    """In their last year they are made again."""
    files = prepare_certificates(tmp_path, NOW)
    before = files.certificate.read_bytes()
    prepare_certificates(tmp_path, NOW + LIFETIME - timedelta(days=100))
    assert files.certificate.read_bytes() != before


def test_the_authoritys_key_is_thrown_away(tmp_path: Path) -> None:
    """Nobody can sign another peer: only the peer's own key is on disk."""
    files = prepare_certificates(tmp_path, NOW)
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    keys = [path for path in tmp_path.iterdir() if b"PRIVATE KEY" in path.read_bytes()]
    assert keys == [files.key]
    peer = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    assert peer.public_key() != authority.public_key()
    peer.verify_directly_issued_by(authority)


def test_both_ends_know_each_other(tmp_path: Path) -> None:
    """TLS with both certificates checked works on 127.0.0.1."""
    files = prepare_certificates(tmp_path, datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = threading.Thread(target=echo_once, args=(listening, files))
        server.start()
        client = ssl.create_default_context(cafile=str(files.authority))
        client.load_cert_chain(files.certificate, files.key)
        with socket.create_connection(listening.getsockname()) as raw, client.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            tls.sendall(b"ping")
            assert tls.recv(4) == b"ping"
        server.join()


def echo_once(listening: socket.socket, files: CertificateFiles) -> None:
    """Send one message back to a client that shows a certificate of ours."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.authority))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(files.certificate, files.key)
    raw, _ = listening.accept()
    with context.wrap_socket(raw, server_side=True) as tls:
        tls.sendall(tls.recv(4))
