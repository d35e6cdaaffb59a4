"""A gate before a catalog: lets through who proves to be somebody, byte by byte, and remembers who came how."""

import http.client
import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

HOPS = ("connection", "transfer-encoding", "content-length", "host", "accept-encoding", "expect")
"""Headers of one connection alone."""


@dataclass(frozen=True, slots=True)
class Came:
    """A request as it came; headers by their names in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_java(self) -> bool:
        """Tell whether Spark sent it, and not Python."""
        return "python" not in self.headers.get("user-agent", "").lower()

    @property
    def form(self) -> dict[str, str]:
        """What a form says."""
        return {name: values[0] for name, values in parse_qs(self.body.decode(), keep_blank_values=True).items()}


Answer = tuple[int, bytes, Mapping[str, str]]


@dataclass(slots=True)
class Gate:
    """A running gate: who was let through, and who was not."""

    uri: str
    passed: list[Came] = field(default_factory=list)
    refused: list[Came] = field(default_factory=list)


def format_answer(status: int, told: object) -> Answer:
    """JSON."""
    return status, json.dumps(told).encode(), {"content-type": "application/json"}


def refuse(status: int, message: str) -> Answer:
    """A refusal in Iceberg's shape."""
    return format_answer(status, {"error": {"message": message, "type": "NotAuthorizedException", "code": status}})


@contextmanager
def listening(answer: Callable[[Came], Answer]) -> Generator[str]:
    """An HTTP server that answers so, until the end of the block; yields where it is."""

    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def take(self) -> None:
            """Answer one request."""
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): text for name, text in self.headers.items()}
            status, content, more = answer(Came(self.command, self.path, headers, body))
            self.send_response(status)
            for name, text in {**more, "content-length": str(len(content))}.items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_GET = do_POST = do_HEAD = do_DELETE = take

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    class Listening(ThreadingHTTPServer):
        # Java keeps its connections.
        daemon_threads = True

    with Listening(("127.0.0.1", 0), Answering) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


@contextmanager
def gate_before(catalog: str, find_fault: Callable[[Came], str | None]) -> Generator[Gate]:
    """A gate before the catalog at a URI; `find_fault` says what is wrong with who asks."""

    def answer(came: Came) -> Answer:
        fault = find_fault(came)
        (gate.passed if fault is None else gate.refused).append(came)
        return forward(catalog, came) if fault is None else refuse(401, fault)

    gate = Gate("")
    with listening(answer) as gate.uri:
        yield gate


def forward(catalog: str, came: Came) -> Answer:
    """What the catalog answers to the same request, without the word of who asks."""
    connection = http.client.HTTPConnection(urlsplit(catalog).netloc, timeout=60)
    try:
        passed = {name: text for name, text in came.headers.items() if name not in (*HOPS, "authorization")}
        connection.request(came.method, came.target, came.body or None, passed)
        response = connection.getresponse()
        return response.status, response.read(), {name: text for name, text in response.getheaders() if name.lower() not in HOPS}
    finally:
        connection.close()
