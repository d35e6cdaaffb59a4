"""Clients that send too much, too slowly, or come too often: each is ended, the others go on, and memory stays where it is."""

import errno
import resource
import socket
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection

import psutil
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from duckicelake.commands import serve
from duckicelake.commands import serve as serving
from duckicelake.commands.serve import MAX_HEAD_BYTES, get_max_connections, set_stall_timeout
from tests.rest.serving import Server, serve_app
from tests.support.waiting import wait_for

MIB = 1024 * 1024
KEPT_BYTES = 32 * MIB
"""What a server may have grown by that was sent much more."""


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Say which headers came, when the whole body has."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await PlainTextResponse(" ".join(name.decode() for name, _ in scope["headers"]))(scope, receive, send)


@pytest.fixture(scope="module")
def server() -> Generator[Server]:
    """A server that answers anybody."""
    with serve_app(answer) as running:
        yield running


@contextmanager
def knock(server: Server, sent: bytes = b"") -> Generator[socket.socket]:
    """A connection, with what was sent on it at once."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as wire:
        wire.sendall(sent)
        yield wire


def read_all(wire: socket.socket) -> bytes:
    """What comes until the server ends the connection, however it does."""
    told = b""
    try:
        while more := wire.recv(65536):
            told += more
    except ConnectionError:
        pass
    return told


def pour(wire: socket.socket, start: bytes, piece: bytes, most: int) -> int:
    """Send the start, and then pieces until the server has enough; returns how much it took."""
    sent = 0
    try:
        wire.sendall(start)
        while sent < most:
            wire.sendall(piece)
            sent += len(piece)
    except ConnectionError:
        pass
    return sent


GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = 64 * 1024
FLOODS = [
    pytest.param(GET + b"a: ", b"b" * PIECE, id="one header"),
    pytest.param(GET, b"a: b\r\n" * (PIECE // 6), id="many headers"),
    pytest.param(GET, b"b" * PIECE, id="a header's name"),
    pytest.param(b"GET /", b"b" * PIECE, id="a path"),
    pytest.param(POST + b"1\r\nx\r\n0\r\na: ", b"b" * PIECE, id="a trailer"),
    pytest.param(POST + b"1\r\nx\r\n0\r\n", b"a: b\r\n" * (PIECE // 6), id="many trailers"),
    pytest.param(POST + b"1;", b"b" * PIECE, id="an extension of a chunk"),
]


@pytest.mark.parametrize(("start", "piece"), FLOODS)
def test_a_head_without_end_is_ended(server: Server, start: bytes, piece: bytes) -> None:
    """Long before it is much; no other client notices, and nothing of it stays."""
    before = psutil.Process().memory_info().rss
    with knock(server) as wire:
        assert pour(wire, start, piece, 256 * MIB) < 64 * MIB
    assert server.get("/").status == 200
    assert psutil.Process().memory_info().rss < before + KEPT_BYTES


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize(("length", "status"), [(MAX_HEAD_BYTES - 1024, b"200"), (MAX_HEAD_BYTES + 1, b"431")])
def test_a_head_may_be_so_large_and_no_larger(server: Server, length: int, status: bytes, pieces: int) -> None:
    """At once or piece by piece; who sends more is told so."""
    head = GET + b"connection: close\r\na: " + b"b" * length + b"\r\n\r\n"
    with knock(server) as wire:
        for number in range(pieces):
            wire.sendall(head[number * len(head) // pieces : (number + 1) * len(head) // pieces])
        assert read_all(wire).split(b" ", 2)[1] == status


def test_a_body_may_be_much_larger(server: Server) -> None:
    """Whole, or in many chunks; and what comes after it is no header."""
    assert server.ask("POST", "/", {"a": "b"}, b"x" * MIB).status == 200
    chunks = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    with knock(
        server, POST.replace(b"host: x", b"host: x\r\nconnection: close") + chunks * 16 + b"0\r\nauthorization: late\r\n\r\n"
    ) as wire:
        told = read_all(wire)
    assert told.startswith(b"HTTP/1.1 200")
    assert b"authorization" not in told


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads must come soon."""
    monkeypatch.setattr(serving, "HEAD_SECONDS", 0.3)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("first", "more"),
    [
        pytest.param(b"", b"\r\n", id="nothing"),
        pytest.param(b"GET /", b"a", id="half a line"),
        pytest.param(GET + b"\r\n" + GET, b"a", id="a request and half of another"),
        pytest.param(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx" + GET, b"a", id="a body and half a request"),
    ],
)
def test_a_head_that_does_not_come_is_not_waited_for(server: Server, first: bytes, more: bytes) -> None:
    """Not even when a byte comes now and then; a connection that has been answered stays for the next one."""
    kept = HTTPConnection("127.0.0.1", server.port, timeout=60)
    kept.connect()
    with closing(kept), knock(server, first) as slow:
        assert ask(kept) == 200
        slow.settimeout(0.05)
        wait_for(lambda: has_ended(slow, more), "the end of the connection")
        assert ask(kept) == 200


def ask(kept: HTTPConnection) -> int:
    """Ask once more on a connection, which is not opened again."""
    assert kept.sock is not None
    kept.request("GET", "/")
    answer = kept.getresponse()
    answer.read()
    return answer.status


def has_ended(wire: socket.socket, more: bytes) -> bool:
    """Send a little more; tell whether the server has ended the connection, which nothing that was sent gave it a reason to."""
    try:
        wire.sendall(more)
        told = wire.recv(65536)
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    assert not told.startswith(b"HTTP/1.1 4")
    return told == b""


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """No more than a few connections."""
    monkeypatch.setattr(serving, "MAX_CONNECTIONS", 8)
    yield 8


@pytest.mark.whole
def test_who_waits_longest_makes_room(server: Server, few: int) -> None:
    """Whoever has something to ask gets an answer, however many there are who ask for nothing."""
    with ExitStack() as opened:
        idle = [opened.enter_context(knock(server, GET + b"\r\n" if number % 2 else b"")) for number in range(few)]
        for number in range(3 * few):
            assert server.get("/").status == 200, number
        assert read_all(idle[0]) == b""
        late = [opened.enter_context(knock(server)) for _ in range(3 * few)]
        assert server.get("/").status == 200
        assert read_all(late[0]) == b""


def test_files_are_left_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process may open few, it keeps fewer connections; never none."""
    for files, most in ((1024, 768), (100, 1), (1_000_000, serve.MAX_CONNECTIONS)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert get_max_connections() == most


def test_who_does_not_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system ends the connection, though the client's side of it is alive."""
    monkeypatch.setattr(serving, "STALLED_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        set_stall_timeout(listening)
        with socket.create_connection(listening.getsockname()) as reader, listening.accept()[0] as writer:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            writer.settimeout(60)
            with pytest.raises(TimeoutError) as ended:
                writer.sendall(b"x" * 64 * MIB)
    assert ended.value.errno == errno.ETIMEDOUT, "not the test's own time"
