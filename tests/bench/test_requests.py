"""The load generator against servers whose answers are known."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bench.requests import END_OF_HEAD, Load, Outcome, open_clients, parse_head

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
UNCHANGED = b"HTTP/1.1 304 Not Modified\r\netag: 1\r\n\r\n"


def run_against(answer: Answer, connections: int, requests: int) -> Outcome:
    """Send requests to a server that answers this way."""

    async def serve_and_load() -> Outcome:
        handlers: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(reader, writer)
            writer.close()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            handlers.add(asyncio.create_task(handle(reader, writer)))

        async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            outcome = await open_clients(Load("127.0.0.1", port, "/", connections, requests, 0, {}), requests)
            await asyncio.gather(*handlers)
        return outcome

    return asyncio.run(serve_and_load())


def answering(*parts: bytes) -> Answer:
    """A server that sends these parts, one after the other, for every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await read_request(reader):
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)

    return answer


async def read_request(reader: asyncio.StreamReader) -> bool:
    """Wait for a request; False when the client has gone."""
    try:
        await reader.readuntil(END_OF_HEAD)
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    return True


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-LENGTH: 12\r\netag: 3", ("200", 12), id="body"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\netag: 3", ("304", 0), id="no body"),
    ],
)
def test_a_head_tells_status_and_length(head: bytes, expected: tuple[str, int]) -> None:
    """Names of headers have no case; an answer without a length has no body."""
    assert parse_head(head) == expected


@pytest.mark.parametrize(
    ("parts", "status", "length"),
    [
        pytest.param((OK + b"12345",), "200", 5, id="at once"),
        pytest.param((OK[:20], OK[20:] + b"12", b"345"), "200", 5, id="in pieces"),
        pytest.param((UNCHANGED,), "304", 0, id="unchanged"),
    ],
)
def test_every_request_is_sent_and_answered(parts: tuple[bytes, ...], status: str, length: int) -> None:
    """As many answers are counted as requests were asked for, over all connections together."""
    outcome = run_against(answering(*parts), 4, 50)
    assert outcome.statuses == {status: 50}
    assert outcome.body_bytes == length
    assert 0 < outcome.p50_ms <= outcome.p99_ms < outcome.seconds * 1000


def test_a_broken_connection_is_no_answer() -> None:
    """What was sent and never answered is counted as such, and the run ends."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    assert run_against(hang_up, 3, 10).statuses == {"0": 3}
