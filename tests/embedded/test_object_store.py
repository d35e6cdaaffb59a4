"""A store that takes requests before it can answer them."""

import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from duckicelake.embedded.object_store import StoreAccess, build_readiness_check

BUCKETS = "<ListAllMyBucketsResult><Owner><ID>a</ID></Owner><Buckets/></ListAllMyBucketsResult>"
ERROR = "<ErrorResponse><Error><Type/><Code>{}</Code><Message>{}</Message></Error></ErrorResponse>"
EARLY = ERROR.format("InvalidParameterValue", "Server not initialized yet, please try again.")
REFUSED = ERROR.format("AccessDenied", "Access Denied")


class Door(BaseHTTPRequestHandler):
    """Lists no buckets, and gives no session, for the reason that is next."""

    reasons: list[str]

    def do_GET(self) -> None:
        self._say(200, BUCKETS)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._say(400, self.reasons.pop(0))

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _say(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def access() -> Generator[StoreAccess]:
    """A store that MinIO is like for a moment after its start, on loopback."""
    Door.reasons = [EARLY, EARLY, REFUSED]
    with ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield StoreAccess(
            f"http://127.0.0.1:{server.server_port}", "us-east-1", "key", "secret", "lake", "arn:aws:iam::000000000000:role/r"
        )
        server.shutdown()
        thread.join()


def test_a_store_is_up_when_it_is_initialized(access: StoreAccess) -> None:
    """A refusal is an answer, for those who ask for more to tell."""
    is_up = build_readiness_check(access)
    assert [is_up() for _ in range(3)] == [False, False, True]
