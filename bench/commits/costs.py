"""Commits, measured: CPU time per commit of server and Postgres, wall time, fsyncs, what the answer costs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.commits.client import Client
from bench.report import Cell
from bench.stand import Stand
from bench.statistics import percentile

Make = Callable[[], Sequence[Mapping[str, Any]]]
"""What makes the updates of one commit ready; its cost is the client's."""

WARM_UP = 10
"""Commits of each kind before those that are compared with others: the first ones of a server take twice as much."""
SELECT_FSYNCS = "SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal' AND backend_type = 'client backend'"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one commit cost."""

    cpu_ms: Mapping[str, float]
    wall_ms: float


def measure_commit(stand: Stand, client: Client, updates: Sequence[Mapping[str, Any]]) -> Spent:
    """Send one commit. What Postgres' background processes do for it later is not counted."""
    spent = _measure(stand, lambda: client.commit(updates))
    client.keep()
    return spent


def measure_unanswered(stand: Stand, client: Client, updates: Sequence[Mapping[str, Any]]) -> Spent:
    """Send one commit that is answered without a body."""
    spent = _measure(stand, lambda: client.commit_unanswered(updates))
    client.load("?snapshots=refs")
    return spent


def _measure(stand: Stand, act: Callable[[], None]) -> Spent:
    before, began = stand.meter.read_cpu_ms(), time.perf_counter()
    act()
    wall_ms, after = (time.perf_counter() - began) * 1000, stand.meter.read_cpu_ms()
    return Spent({name: after[name] - before[name] for name in before}, wall_ms)


def measure_commits(stand: Stand, client: Client, make: Make, commits: int) -> dict[str, Cell]:
    """Return the medians of so many commits, each made ready before it is measured."""
    for _ in range(max(2, commits // 10)):
        client.commit(make())
        client.keep()
    return _summarise([measure_commit(stand, client, make()) for _ in range(commits)])


def measure_by_turns(stand: Stand, clients: Sequence[tuple[Client, Make]], commits: int) -> list[dict[str, Cell]]:
    """Return the medians of so many commits of each client, and the server's of as many that are answered without a body.

    All of them go by turns, so that what else the machine does meets them all.
    """
    for client, make in clients:
        for _ in range(WARM_UP):
            client.commit(make())
            client.keep()
            measure_unanswered(stand, client, make())
    spent = [(list[Spent](), list[Spent]()) for _ in clients]
    for _ in range(commits):
        for (client, make), (answered, unanswered) in zip(clients, spent, strict=True):
            answered.append(measure_commit(stand, client, make()))
            unanswered.append(measure_unanswered(stand, client, make()))
    alone = [percentile([one.cpu_ms["server"] for one in unanswered], 0.5) for _, unanswered in spent]
    return [{**_summarise(answered), "server_unanswered_cpu_ms": cpu} for (answered, _), cpu in zip(spent, alone, strict=True)]


def _summarise(spent: Sequence[Spent]) -> dict[str, Cell]:
    cpu: dict[str, float] = {f"{name}_cpu_ms": percentile([one.cpu_ms[name] for one in spent], 0.5) for name in spent[0].cpu_ms}
    cpu["server_and_postgres_cpu_ms"] = cpu["server_cpu_ms"] + cpu["postgres_cpu_ms"]
    walls = [one.wall_ms for one in spent]
    return {"commits": len(spent), **cpu, "wall_p50_ms": percentile(walls, 0.5), "wall_p90_ms": percentile(walls, 0.9)}


def count_fsyncs(stand: Stand, client: Client, make: Make, commits: int) -> float:
    """Return how often Postgres waits for the disk in one commit; its processes tell the count when their clients leave."""
    stand.restart_server()
    client.connection = None
    client.load()
    before = read_fsyncs(stand)
    for _ in range(commits):
        client.commit(make())
        client.keep()
    stand.restart_server()
    client.connection = None
    return (read_fsyncs(stand) - before) / commits


def read_fsyncs(stand: Stand) -> int:
    """Return how often Postgres' processes for clients have let the disk sync its log."""
    row = stand.postgres.execute(SELECT_FSYNCS).fetchone()
    assert row is not None
    return row[0]
