"""A receiver of the webhook: an HTTP server that keeps what it gets, and answers as a test wants."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from threading import Thread
from typing import Any

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


@dataclass(frozen=True, slots=True)
class Post:
    """A request that came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def events(self) -> Sequence[Mapping[str, Any]]:
        """The events in it."""
        found = json.loads(self.body)
        return found if isinstance(found, list) else [found]

    @property
    def is_signed(self) -> bool:
        """True if its signature is right."""
        names = ("webhook-id", "webhook-timestamp")
        signed = ".".join(self.headers[name] for name in names).encode() + b"." + self.body
        key = base64.b64decode(SECRET.removeprefix("whsec_"))
        return self.headers["webhook-signature"] == "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@dataclass(slots=True)
class Receiver:
    """The server. `answer` returns the status for a request; it may wait, or do something first. 2xx is noted as acknowledged."""

    url: str = ""
    answer: Callable[[Post], int] = lambda _: 204
    posts: list[Post] = field(default_factory=list[Post])
    arrived: "Queue[None]" = field(default_factory=lambda: Queue[None]())
    acknowledged: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def take(self, count: int) -> list[Mapping[str, Any]]:
        """Wait until so many events have been acknowledged, and return all of them."""
        while len(self.acknowledged) < count:
            self.arrived.get(timeout=120)
        return self.acknowledged


@contextmanager
def receiving() -> Generator[Receiver]:
    """A receiver on loopback until the end of the block."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            post = Post(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            status = receiver.answer(post)
            # Kept before it is answered: who sent it may look at once.
            receiver.posts.append(post)
            if 200 <= status < 300:
                receiver.acknowledged.extend(post.events)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", receiver.url + "elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            receiver.arrived.put(None)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}/"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
