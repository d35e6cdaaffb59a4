"""Loads of a table that has not changed: 200 and 304, one and many connections, small and large bodies."""

import os
import signal
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from bench.accounting import Meter, find_tree, list_processes
from bench.report import Cell, Result
from bench.requests import Load, Outcome, run_load
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import Stand
from bench.statistics import percentile

TITLE = "Cached LoadTable: CPU-milliseconds per request"
MANY = 32
STOPPED_REQUESTS = 200
WATCH_CHECKS = "duckicelake_watch_checks_total"


@dataclass(frozen=True, slots=True)
class Case:
    """One circumstance under which the same table is loaded again and again."""

    name: str
    table: str
    connections: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    is_conditional: bool = False
    share: float = 1.0


OPEN_CASE = Case("200, 32 connections", "small_body", MANY)
CASES = (
    Case("200, 1 connection", "small_body", 1, share=0.5),
    OPEN_CASE,
    Case("304, 32 connections", "small_body", MANY, is_conditional=True),
    Case("200 gzipped, large body, 32 connections", "large_body", MANY, {"Accept-Encoding": "gzip"}, share=0.5),
)


GUARDED_CASES = (
    Case("200 with a token, 32 connections", "guarded_body", MANY),
    Case("200 with a token and keys, 32 connections", "guarded_body", MANY, {"X-Iceberg-Access-Delegation": "vended-credentials"}),
)


def measure_cached(stand: Stand, scale: Scale) -> Result:
    """Return what an answer costs that is ready, and what it asks of Postgres and of the store."""
    seed_table(stand, Growing("small_body", 1, 1))
    seed_table(stand, Growing("large_body", scale.large_body_snapshots, 1))
    rows = [_measure_case(stand, case, scale) for case in CASES]
    path = stand.table_path("small_body")
    with store_stopped(stand):
        stopped = run_load(_plan(stand, path, STOPPED_REQUESTS, MANY, {}), lambda run: run())
    return Result(TITLE, rows, {"answered_200_while_the_store_was_stopped": stopped.statuses.get("200", 0), "asked": STOPPED_REQUESTS})


def measure_guarded(stand: Stand, scale: Scale) -> Result:
    """Return what the same loads cost with a token, and with a token and keys, beside open ones: on new servers, by turns.

    A server costs more per request the longer it runs, and as the machine's other work goes, which medians of turns leave out.
    """
    seed_table(stand, Growing("guarded_body", 1, 1))
    rows: list[dict[str, Cell]] = []
    for turn in range(1, scale.turns + 1):
        stand.restart_server()
        rows.append({"turn": turn, **_measure_case(stand, replace(OPEN_CASE, table="guarded_body"), scale)})
        token = stand.guard_server()
        for case in GUARDED_CASES:
            rows.append({"turn": turn, **_measure_case(stand, replace(case, headers={**case.headers, **token}), scale)})
    stand.restart_server()
    costs = [[float(row["server_cpu_ms"] or 0) for row in rows if row["case"] == case.name] for case in (OPEN_CASE, *GUARDED_CASES)]
    open_ms, *guarded_ms = [percentile(each, 0.5) for each in costs]
    facts = {"with_a_token_over_open": guarded_ms[0] / open_ms, "with_a_token_and_keys_over_open": guarded_ms[1] / open_ms}
    return Result("Cached LoadTable with and without a token: CPU-milliseconds per request", rows, facts)


def measure_foreign(uri: str, pid: int | None, scale: Scale) -> Result:
    """Return what loads of one table cost a server that runs already; its CPU time only when `pid` names it."""
    address = urlsplit(uri)
    meter = Meter({} if pid is None else {"server": pid})
    rows: list[dict[str, Cell]] = []
    for connections in (1, MANY):
        load = Load(
            address.hostname or "127.0.0.1", address.port or 80, address.path, connections, scale.requests, scale.requests // 10, {}
        )
        rows.append(run_load(load, lambda run, load=load: _to_row(load, meter, run)))
    return Result(f"LoadTable of {uri}: CPU-milliseconds per request", rows)


def _to_row(load: Load, meter: Meter, run: Callable[[], Outcome]) -> dict[str, Cell]:
    before = meter.read_cpu_ms()
    outcome = run()
    after = meter.read_cpu_ms()
    return {
        "connections": load.connections,
        "statuses": format_statuses(outcome),
        "sent_bytes": outcome.body_bytes,
        **{f"{name}_cpu_ms": (after[name] - before[name]) / load.requests for name in before},
        "wall_p50_ms": outcome.p50_ms,
        "wall_p99_ms": outcome.p99_ms,
        "requests_per_second": load.requests / outcome.seconds,
    }


def format_statuses(outcome: Outcome) -> str:
    """Return how many answers had which status; status 0 stands for a connection that broke."""
    return " ".join(f"{count}×{status}" for status, count in sorted(outcome.statuses.items()))


def _measure_case(stand: Stand, case: Case, scale: Scale) -> dict[str, Cell]:
    path = stand.table_path(case.table)
    # what is asked for gzipped is weighed as it was
    plain = {name: text for name, text in case.headers.items() if name != "Accept-Encoding"}
    status, headers, body = stand.server.fetch(path, plain)
    assert status == 200, body
    sent = {"If-None-Match": headers["etag"]} if case.is_conditional else {}
    load = _plan(stand, path, int(scale.requests * case.share), case.connections, {**case.headers, **sent})

    def around(run: Callable[[], Outcome]) -> dict[str, Cell]:
        checks = stand.server.count(WATCH_CHECKS)
        row = _to_row(load, stand.meter, run)
        checks = stand.server.count(WATCH_CHECKS) - checks
        return {"case": case.name, **row, "json_bytes": len(body), "watch_queries_per_request": checks / load.requests}

    return run_load(load, around)


def _plan(stand: Stand, path: str, requests: int, connections: int, headers: Mapping[str, str]) -> Load:
    return Load("127.0.0.1", stand.server.port, path, connections, requests, requests // 10, headers)


@contextmanager
def store_stopped(stand: Stand) -> Generator[None]:
    """The store's processes stand still inside: a request that needs an object is not answered."""
    pids = [process.pid for process in find_tree(list_processes().values(), stand.pids["store"])]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
