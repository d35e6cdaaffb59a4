"""What another user of this machine can try on the stack's servers."""

import os
import socket
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer; status 0 when it hung up."""

    status: int
    body: bytes


def ask(port: int, method: str, path: str) -> Reply:
    """Send one HTTP request without any key."""
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body=b"stranger" if method in ("PUT", "POST") else None)
        response = connection.getresponse()
        return Reply(response.status, response.read())
    except (OSError, HTTPException):
        return Reply(0, b"")
    finally:
        connection.close()


def knock_with_tls(port: int, certificate: tuple[Path, Path] | None) -> bytes:
    """Open an HTTP/2 connection as a gRPC client does and return the first bytes of the answer; empty when refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(*certificate)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, context.wrap_socket(raw) as tls:
            tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
            return tls.recv(9)
    except OSError:
        return b""


def list_listening(pid: int) -> tuple[set[tuple[str, int]], set[str]]:
    """Return the TCP addresses and the unix sockets that a process listens on."""
    inodes = {os.readlink(link).removeprefix("socket:[").rstrip("]") for link in Path(f"/proc/{pid}/fd").iterdir() if is_socket(link)}
    addresses: set[tuple[str, int]] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            parts = line.split()
            if parts[3] == LISTENING and parts[9] in inodes:
                host, _, port = parts[1].partition(":")
                addresses.add((read_host(host), int(port, 16)))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    # The flag 00010000 marks a listening socket.
    return addresses, {line[7] for line in lines if len(line) > 7 and line[6] in inodes and line[3] == "00010000"}


def is_socket(link: Path) -> bool:
    """Say whether an open file is a socket; one that was closed meanwhile is none."""
    try:
        return os.readlink(link).startswith("socket:")
    except FileNotFoundError:
        return False


def read_host(text: str) -> str:
    """Return a host of /proc/net/tcp as an address; IPv6 stays hexadecimal, which no test expects."""
    return socket.inet_ntop(socket.AF_INET, bytes.fromhex(text)[::-1]) if len(text) == 8 else text
