"""Connections that are in nobody's way: how much comes before a request, how slowly, and how many there are of them.

Law: what is kept of a client before its request is there is bounded in bytes, in time and in number, whoever it is.
"""

import resource
import socket
from asyncio import BaseTransport, TimerHandle
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0
STALLED_MS = 60_000
"""How long a client may leave unread what it asked for."""

MOST_CONNECTIONS = 4096
FILES_FOR_OTHERS = 256
"""Open files that are left for Postgres, the stores and the logs."""

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(HttpToolsProtocol):
    """A client's connection, as uvicorn has it, with ends to what it may take.

    A head (target and headers, or the trailer of a body) that is too large is 431, one that does not come ends the connection; when
    there are too many, the one that has waited longest for its next request makes room.
    """

    _unread_bytes: int = 0
    _since_s: float = 0.0
    _timer: TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether nothing that it asked for is being answered."""
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]  none before the first

    def connection_made(self, transport: BaseTransport) -> None:
        """Begin; the first request has to come in time, and room for it is made."""
        super().connection_made(cast(Any, transport))
        self._since_s = self.loop.time()
        self._expect_head()
        if len(self.connections) > find_most_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what came, unless it is too much that is neither a request nor a part of its body."""
        self._unread_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread_bytes > MOST_HEAD_BYTES:
            self._refuse()
        elif self.waits and self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Let the request be answered.

        Raises: ValueError: its head is too large; the parser passes that on as its own, and `send_400_response` is called
        """
        if self._unread_bytes > MOST_HEAD_BYTES and self._measure_head() > MOST_HEAD_BYTES:
            raise ValueError("The head of the request is too large.")
        self._unread_bytes = 0
        self._stop_expecting()
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; what comes after the body is none any more: it would be looked at by nobody, or too late."""
        if self.cycle is None or self.cycle.scope is not self.scope:  # pyright: ignore[reportUnnecessaryComparison]
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body, of which another layer has the measure."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Look for the next request."""
        self._unread_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait from now on."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or too large a one."""
        if self._unread_bytes > MOST_HEAD_BYTES:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse(self) -> None:
        """End with 431, or without a word where another answer is on its way."""
        if self.waits:
            self.transport.write(TOO_LARGE)
            self.transport.close()
        else:
            self.transport.abort()

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_waiting)

    def _stop_expecting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        self._timer = None
        if self.waits:
            self.transport.close()

    def _make_room(self) -> None:
        waiting: list[Connection] = [each for each in self.connections if isinstance(each, Connection) and each is not self and each.waits]
        if not waiting:
            self.transport.write(TOO_MANY)
            self.transport.close()
            return
        longest = min(waiting, key=lambda each: each._since_s)
        longest.transport.close()
        # it is gone for the next one that looks, though its end comes later
        self.connections.discard(longest)


def find_most_connections() -> int:
    """Return how many connections a worker keeps: fewer than the files that it may open."""
    return max(1, min(MOST_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_FOR_OTHERS))


def end_stalled(listening: socket.socket) -> None:
    """Let connections that come in there end when their client does not read."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
