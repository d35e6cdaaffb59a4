"""A fake catalog that answers as a test tells it, and a server with routes to it but without a lake."""

import json
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from fastapi import FastAPI

from duckicelake.access.clients import parse_clients
from duckicelake.access.tokens import Accounts, make_signer
from duckicelake.gateway.route import Route
from duckicelake.gateway.upstream import Gateway
from duckicelake.rest.application import build_web
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import ServerContext
from duckicelake.rest.metrics import Metrics
from tests.rest.serving import Server, serve_app

LOADED = json.dumps({"metadata-location": "s3://b/m.json", "metadata": {"format-version": 2}, "config": {}}).encode()


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as the fake catalog received it; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """What the fake catalog sends. `cut_after`: it sends so many bytes of the body and resets the connection; None: all."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    cut_after: int | None = None


RESET = Reply(status=0)
"""The connection is reset without an answer."""
SILENCE = Reply(status=-1)
"""The connection stays open without an answer."""

Answering = Callable[[Seen], Reply]


class FakeCatalog:
    """A catalog of one thread per connection. `config` is its answer to /v1/config; `answer` decides about every other request.

    `tls` None: it speaks plain HTTP.
    """

    def __init__(self, answer: Answering, config: Mapping[str, Any], tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self._tls = tls
        self.config = Reply(body=json.dumps(config).encode())
        self.seen: list[Seen] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = f"http{'' if tls is None else 's'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._silent: list[socket.socket] = []
        Thread(target=self._accept, daemon=True).start()

    @property
    def asked(self) -> list[Seen]:
        """The requests but those for the configuration."""
        return [seen for seen in self.seen if not seen.path.startswith("/v1/config")]

    def close(self) -> None:
        """Stop for good; a silent connection ends."""
        self._listener.close()
        for each in self._silent:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection = connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        with suppress(OSError), connection.makefile("rb") as lines:
            while request := read_request(lines):
                self.seen.append(request)
                is_config = request.path.startswith("/v1/config") and self.config.body != b"null"
                if not self._send(connection, self.config if is_config else self.answer(request), request.method):
                    return
        connection.close()

    def _send(self, connection: socket.socket, reply: Reply, method: str) -> bool:
        if reply.status == -1:
            self._silent.append(connection)
            return False
        if reply.status:
            body = b"" if method == "HEAD" or reply.status in (204, 304) else reply.body
            headers = {"Content-Length": str(len(body)), **reply.headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            connection.sendall(f"HTTP/1.1 {reply.status} X\r\n{head}\r\n".encode() + body[: reply.cut_after])
            if reply.cut_after is None:
                return True
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        return False


def read_request(lines: Any) -> Seen | None:
    """The next request on a connection, None when it ends."""
    try:
        method, path, _ = lines.readline().decode("latin-1").split(" ", 2)
    except (ValueError, OSError):
        return None
    headers: dict[str, str] = {}
    while line := lines.readline().strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return Seen(method, path, headers, lines.read(int(headers.get("content-length", "0"))))


@contextmanager
def fake(
    answer: Answering = lambda _: Reply(), config: Mapping[str, Any] | None = None, tls: ssl.SSLContext | None = None
) -> Generator[FakeCatalog]:
    """A running fake catalog. `config` None: an empty configuration."""
    catalog = FakeCatalog(answer, {"defaults": {}, "overrides": {}} if config is None else config, tls)
    try:
        yield catalog
    finally:
        catalog.close()


@contextmanager
def routes(*each: Route, catch_all: str | None = None, clients: str = "") -> Generator[Server]:
    """A server with routes and without lakes. `clients`: those of the setting `oauth_clients`, then every request needs a token."""
    accounts = Accounts(parse_clients(clients), make_signer(["k" * 32]), 3600) if clients else None
    gateway = Gateway(each, catch_all, "test:0")
    context = ServerContext(ResponseCache(0), Metrics(), accounts, gateway=gateway)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        gateway.open()
        yield
        await gateway.close()

    with serve_app(build_web(context, lifespan)) as server:
        yield server
