"""`/metrics` of a server with several workers: each scrape is the sum over all of them, whichever worker answers."""

import os
import signal
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.commands import Server, find_port, is_running, run, serving
from tests.support.waiting import wait_for

ENTRIES = "duckicelake_table_cache_entries"
TABLE = "/v1/lake/namespaces/main/tables/t"
EACH = 7
"""Requests to each worker."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """A server with two workers."""
    with serving(tmp_path_factory.mktemp("workers") / "home", find_port(), "--workers", "2") as running:
        done = run(running.home.parent, "duckdb", "--home", str(running.home), "-c", "CREATE TABLE t AS SELECT 7 AS i")
        assert done.status == 0, done.err
        yield running


def list_workers(server: Server) -> set[int]:
    """The processes that answer."""
    embedded = set(server.get_pids())
    children = psutil.Process(server.process.pid).children()
    return {child.pid for child in children if child.pid not in embedded and "spawn_main" in " ".join(child.cmdline())}


@contextmanager
def reach_all(server: Server) -> Generator[dict[int, HTTPConnection]]:
    """A connection to each worker: as many are opened as it takes."""
    workers = list_workers(server)
    reached: dict[int, HTTPConnection] = {}
    with ExitStack() as opened:

        def open_one() -> bool:
            connection = opened.enter_context(closing(HTTPConnection("127.0.0.1", server.port, timeout=60)))
            ask(connection, "/healthz")
            port = connection.sock.getsockname()[1]
            holder = next(
                pid for pid in workers for held in psutil.Process(pid).net_connections() if held.raddr and held.raddr.port == port
            )
            reached[holder] = connection
            return reached.keys() == workers

        wait_for(open_one, "a connection to each worker", 60)
        yield reached


def ask(connection: HTTPConnection, path: str) -> bytes:
    """The body of an answer, which must be 200."""
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200
    return body


def read_numbers(connection: HTTPConnection) -> dict[str, float]:
    """Each number that a scrape shows, by its name and labels."""
    text = ask(connection, "/metrics").decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    numbers = {
        sample.name + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items())): sample.value for sample in samples
    }
    assert len(numbers) == len(samples)
    return numbers


@pytest.mark.whole
def test_each_worker_shows_the_sum_over_all(server: Server) -> None:
    """Requests, times, the cache and the watch; when the server started and not one worker; no number by process."""
    wait_for(lambda: len(list_workers(server)) == 2, "two workers")
    with reach_all(server) as connections:
        for connection in connections.values():
            for _ in range(EACH):
                ask(connection, "/v1/config?warehouse=lake")
                ask(connection, TABLE)
        wait_for(lambda: {read_numbers(connection)[ENTRIES] for connection in connections.values()} == {2}, "what both keep")
        shown = [read_numbers(connection) for connection in connections.values()]
    started_s = psutil.Process(server.process.pid).create_time()
    for numbers in shown:
        assert numbers["duckicelake_requests_total operation=getConfig status=200"] == 2 * EACH
        assert numbers["duckicelake_request_seconds_count operation=getConfig"] == 2 * EACH
        assert numbers["duckicelake_request_seconds_bucket le=+Inf operation=getConfig"] == 2 * EACH
        assert numbers["duckicelake_table_cache_total outcome=hit"] == 2 * EACH - 2
        assert numbers["duckicelake_watch_checks_total warehouse=lake"] >= 2 * EACH - 2
        assert numbers["process_start_time_seconds"] == pytest.approx(started_s, abs=1)
        assert numbers["process_resident_memory_bytes"] > sum(psutil.Process(pid).memory_info().rss for pid in list_workers(server)) / 2
        assert not [name for name in numbers if "pid=" in name]
    assert shown[0]["process_start_time_seconds"] == shown[1]["process_start_time_seconds"]


@pytest.mark.long
def test_no_sum_falls_when_a_worker_is_killed(server: Server) -> None:
    """Its requests stay counted, its memory and the gauges it wrote do not; the folder goes with the server."""
    folder = server.home / "metrics" / str(server.process.pid)
    wait_for(lambda: len(list_workers(server)) == 2, "two workers")
    victim = next(iter(list_workers(server)))
    with reach_all(server) as connections:
        for connection in connections.values():
            ask(connection, "/v1/config?warehouse=lake")
            ask(connection, TABLE)
        wait_for(lambda: read_numbers(connections[victim])[ENTRIES] == 2, "what both keep")
        before = read_numbers(connections[victim])
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: not is_running(victim) and len(list_workers(server)) == 2, "a worker in its place", 60)
    server.wait_ready()
    with reach_all(server) as connections:
        shown = [read_numbers(connection) for connection in connections.values()]
    name = "duckicelake_requests_total operation=getConfig status=200"
    assert [numbers[name] for numbers in shown] == [before[name]] * 2
    assert [numbers[ENTRIES] for numbers in shown] == [1, 1]
    assert all(numbers["process_cpu_seconds_total"] >= before["process_cpu_seconds_total"] for numbers in shown)
    assert not list(folder.glob(f"gauge_*_{victim}.db"))
    assert list(folder.glob(f"counter_{victim}.db"))
    assert server.stop() == 0
    assert not folder.exists()


@pytest.mark.long
def test_files_of_a_killed_server_go_with_the_next_start(tmp_path: Path) -> None:
    """And those of servers that run stay."""
    home = tmp_path / "home"
    ended = home / "metrics" / str(2**22 + 1)
    ended.mkdir(parents=True)
    with serving(home, find_port(), "--workers", "2") as server:
        assert [path.name for path in (home / "metrics").iterdir()] == [str(server.process.pid)]
