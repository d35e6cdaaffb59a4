"""A load generator in a process of its own: raw sockets, one request after the other on each connection.

`python -m bench.requests` reads one JSON line, warms up, prints `ready`, waits for a line, runs and prints one JSON line. So the
caller can read the servers' counters between warming up and running, and the generator's own CPU time is never theirs.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import uvloop

from bench.statistics import percentile

READY = "ready"
END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Load:
    """What to send: `requests` times the same bytes, over so many connections, after `warm_up` of them."""

    host: str
    port: int
    path: str
    connections: int
    requests: int
    warm_up: int
    headers: Mapping[str, str]

    def encode(self) -> bytes:
        """Return the request as it goes over the wire."""
        named = {"Host": f"{self.host}:{self.port}", **self.headers}
        head = "".join(f"{name}: {text}\r\n" for name, text in named.items())
        return f"GET {self.path} HTTP/1.1\r\n{head}\r\n".encode()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came back. `statuses` counts answers by status; times are wall time."""

    statuses: dict[str, int]
    body_bytes: int
    seconds: float
    p50_ms: float
    p99_ms: float


class Client(asyncio.Protocol):
    """One connection: sends the next request as soon as the answer to the last is complete."""

    def __init__(self, request: bytes, take: Callable[[], bool], done: Callable[[], None]) -> None:
        self._request, self._take, self._done = request, take, done
        self._buffer = bytearray()
        self._sent_at = 0.0
        self._is_done = False
        self.transport: asyncio.Transport | None = None
        self.seconds: list[float] = []
        self.statuses: dict[str, int] = {}
        self.body_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's
        self.transport = cast("asyncio.Transport", transport)

    def send(self) -> None:
        """Send the next request, or stop when enough were sent."""
        assert self.transport is not None
        if not self._take():
            self._finish()
            return
        self._sent_at = time.perf_counter()
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(END_OF_HEAD)
        if end < 0:
            return
        status, length = parse_head(bytes(self._buffer[:end]))
        if len(self._buffer) < end + len(END_OF_HEAD) + length:
            return
        self.seconds.append(time.perf_counter() - self._sent_at)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.body_bytes = length
        self._buffer.clear()
        self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._is_done:
            # what was asked and not answered counts as status 0
            self.statuses["0"] = self.statuses.get("0", 0) + 1
            self._finish()

    def _finish(self) -> None:
        self._is_done = True
        self._done()


def parse_head(head: bytes) -> tuple[str, int]:
    """Return an answer's status and the length of its body; a 304 has none."""
    lines = head.lower().split(b"\r\n")
    lengths = [int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")]
    return lines[0].split()[1].decode(), lengths[0] if lengths else 0


async def open_clients(load: Load, requests: int) -> Outcome:
    """Send so many requests over fresh connections and return what came back."""
    loop = asyncio.get_running_loop()
    left, running = requests, load.connections
    finished = loop.create_future()

    def take() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    def done() -> None:
        nonlocal running
        running -= 1
        if running == 0 and not finished.done():
            finished.set_result(None)

    made = [await loop.create_connection(lambda: Client(load.encode(), take, done), load.host, load.port) for _ in range(load.connections)]
    clients = [client for _, client in made]
    began = time.perf_counter()
    for client in clients:
        client.send()
    await finished
    seconds = time.perf_counter() - began
    for transport, _ in made:
        transport.abort()
    return summarise(clients, seconds)


def summarise(clients: list[Client], seconds: float) -> Outcome:
    """Return what all connections saw together."""
    statuses: dict[str, int] = {}
    for client in clients:
        for status, count in client.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    times = [seconds * 1000 for client in clients for seconds in client.seconds] or [0.0]
    return Outcome(statuses, max(client.body_bytes for client in clients), seconds, percentile(times, 0.5), percentile(times, 0.99))


def run_load(load: Load, around: Callable[[Callable[[], Outcome]], Any]) -> Any:
    """Start the generator, warm up, and return what `around` makes of the function that runs the load."""
    command = [sys.executable, "-m", "bench.requests"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        sending, receiving = process.stdin, process.stdout

        def run() -> Outcome:
            sending.write("go\n")
            return Outcome(**json.loads(receiving.readline()))

        try:
            sending.write(json.dumps(asdict(load)) + "\n")
            if receiving.readline().strip() != READY:
                raise RuntimeError(f"The load generator could not reach {load.host}:{load.port}.")
            return around(run)
        finally:
            process.kill()


def main() -> None:
    """Take a load from standard input and run it."""
    load = Load(**json.loads(sys.stdin.readline()))
    uvloop.run(open_clients(load, max(load.warm_up, load.connections)))
    print(READY, flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(uvloop.run(open_clients(load, load.requests)))), flush=True)


if __name__ == "__main__":
    main()
