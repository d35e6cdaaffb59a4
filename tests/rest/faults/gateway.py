"""A gate before a real S3: passes every request on as it is, or answers writes as a store whose disk is full."""

from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

FULL = b'<?xml version="1.0"?><Error><Code>XMinioStorageFull</Code><Message>The disk is full.</Message></Error>'
DROPPED = {"connection", "transfer-encoding", "content-length"}


class Gateway(ThreadingHTTPServer):
    """Listens on a port of its own. While `is_full`, nothing can be written; `passed` counts the writes that went through."""

    daemon_threads = True

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.target = target
        self.is_full = False
        self.full_after: int | None = None
        self.passed = 0

    def takes_write(self) -> bool:
        """Tell whether there is room for one more object."""
        if self.is_full or (self.full_after is not None and self.passed >= self.full_after):
            return False
        self.passed += 1
        return True


class Passing(BaseHTTPRequestHandler):
    """Passes one request on, signature and all."""

    protocol_version = "HTTP/1.1"

    @property
    def _gateway(self) -> Gateway:
        assert isinstance(self.server, Gateway)
        return self.server

    def do_GET(self) -> None:
        self._pass_on(b"")

    do_HEAD = do_DELETE = do_GET

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self._gateway.takes_write():
            self._pass_on(body)
        else:
            self._answer(507, {"content-type": "application/xml"}, FULL)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _pass_on(self, body: bytes) -> None:
        connection = HTTPConnection(*self._gateway.target, timeout=30)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers.items()))
            response = connection.getresponse()
            headers = {name: value for name, value in response.getheaders() if name.lower() not in DROPPED}
            length = response.getheader("content-length") if self.command == "HEAD" else None
            self._answer(response.status, headers, response.read(), length)
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def gate_to(endpoint: str) -> Generator[Gateway]:
    """A gate before the S3 at that URL, open at first."""
    parts = urlsplit(endpoint)
    with Gateway((str(parts.hostname), parts.port or 80)) as gateway:
        thread = Thread(target=gateway.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield gateway
        finally:
            gateway.shutdown()
            thread.join()
