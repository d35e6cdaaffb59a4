"""One table load, measured: CPU time per server, wall time, memory."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from socket import create_connection, create_server
from uuid import uuid4

from bench.accounting import MIB, read_peak, reset_peak
from bench.report import Cell
from bench.seed import Growing, find_tables, seed_table
from bench.stand import Stand, read_snapshot_count
from duckicelake.rest.cached_response import build_cached_response
from duckicelake.store.objects import open_objects
from duckicelake.store_settings import read_store_settings

WARM_UP = "warm_up"
BODY_TRIES = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """What one load cost."""

    cpu_ms: dict[str, float]
    wall_ms: float
    peak_bytes: int
    body: bytes
    snapshot_count: int

    @property
    def total_cpu_ms(self) -> float:
        """CPU time of all servers together."""
        return sum(self.cpu_ms.values())

    def to_row(self) -> dict[str, Cell]:
        """Return the figures under their names."""
        cpu = {f"{name}_cpu_ms": spent for name, spent in self.cpu_ms.items()}
        return {**cpu, "wall_ms": self.wall_ms, "body_bytes": len(self.body)}


def measure_load(stand: Stand, table: str) -> Measured:
    """Load a table once."""
    path, server = stand.table_path(table), stand.pids["server"]
    reset_peak(server)
    before, began = stand.meter.read_cpu_ms(), time.perf_counter()
    status, _, body = stand.server.fetch(path)
    wall_ms, after = (time.perf_counter() - began) * 1000, stand.meter.read_cpu_ms()
    if status != 200:
        raise RuntimeError(f"{path} was answered {status}: {body[:400].decode('utf-8', 'replace')}")
    cpu_ms = {name: after[name] - before[name] for name in before}
    return Measured(cpu_ms, wall_ms, read_peak(server), body, read_snapshot_count(body))


def measure_body(stand: Stand, body: bytes) -> float:
    """Return the CPU-milliseconds that a body of this size costs whatever is in it: to join, compress, store and send."""
    objects = open_objects(read_store_settings(stand.lake))
    uris = [f"{json.loads(body)['metadata']['location']}/bench/{uuid4()}" for _ in range(BODY_TRIES)]
    # the first one opens the connection
    objects.put_new(f"{uris[0]}-first", b"")

    def store_one(uri: str) -> None:
        metadata = b"".join((body[: len(body) // 2], body[len(body) // 2 :]))
        # the tag is of a digest that the history carries on
        build_cached_response(b"".join((b"{", metadata, b"}")), tagged=(b"{", b"}"))
        objects.put_new(uri, body)

    # memory costs a worker thread more than the main one, and the server works in such threads
    with ThreadPoolExecutor() as workers:
        began = time.process_time()
        for uri in uris:
            workers.submit(store_one, uri).result()
        stored_ms = (time.process_time() - began) * 1000 / BODY_TRIES
    return stored_ms + sum(measure_sending(body) for _ in range(BODY_TRIES)) / BODY_TRIES


def measure_sending(body: bytes) -> float:
    """Return the CPU-milliseconds that the sender of a body spends."""
    with create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as reader:
        received = reader.submit(receive_all, listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            began = time.thread_time()
            accepted.sendall(body)
            spent_ms = (time.thread_time() - began) * 1000
        assert received.result() == len(body)
    return spent_ms


def receive_all(address: tuple[str, int]) -> int:
    """Return how many bytes a server sends."""
    with create_connection(address) as connection:
        return sum(map(len, iter(lambda: connection.recv(1 << 16), b"")))


def restart_warm(stand: Stand) -> int:
    """Put a fresh server up, let it load one table of no interest, and return the bytes it then holds."""
    stand.restart_server()
    if not find_tables(stand.postgres, WARM_UP):
        seed_table(stand, Growing(WARM_UP, 1, 1))
    measure_load(stand, WARM_UP)
    server = stand.pids["server"]
    reset_peak(server)
    return read_peak(server)


def to_mib(size_bytes: int) -> float:
    """Return bytes as MiB."""
    return size_bytes / MIB
