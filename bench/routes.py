"""Requests that a server forwards to another one: what a GET costs the server in between."""

import json
from collections.abc import Callable

from bench.accounting import Meter
from bench.cached import MANY, format_statuses
from bench.report import Cell, Result
from bench.requests import Load, Outcome, run_load
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import Server, Stand, find_port, read_pid, start_server, temporary_home

TITLE = "Forwarded GET: CPU-milliseconds per request"
TABLE = "routed_body"


def measure_routes(stand: Stand, scale: Scale) -> Result:
    """Return what the answers of one server cost another one that forwards them."""
    seed_table(stand, Growing(TABLE, 1, 1))
    with temporary_home() as home:
        route = {"other": {"uri": f"http://127.0.0.1:{stand.server.port}"}}
        router = start_server(home, find_port(), {"DUCKICELAKE_ROUTES": json.dumps(route)})
        try:
            # The router's own Postgres and S3 are process trees of their own, and not counted with it.
            roots = {"router": router.process.pid, "own_postgres": read_pid(home, "postgres"), "own_store": read_pid(home, "s3")}
            meter = Meter({**roots, "upstream": stand.server.process.pid, "postgres": stand.pids["postgres"], "store": stand.pids["store"]})
            table = stand.table_path(TABLE).partition("/namespaces")[2]
            cases = (("list of namespaces", ""), ("namespace", table.partition("/tables")[0]), ("table load", table))
            rows = [measure_case(router, meter, case, scale) for case in cases]
        finally:
            router.stop()
    return Result(TITLE, rows)


def measure_case(router: Server, meter: Meter, case: tuple[str, str], scale: Scale) -> dict[str, Cell]:
    """Return the cost of one kind of request over many connections."""
    load = Load("127.0.0.1", router.port, f"/v1/other/namespaces{case[1]}", MANY, scale.requests, scale.requests // 10, {})

    def around(run: Callable[[], Outcome]) -> dict[str, Cell]:
        before = meter.read_cpu_ms()
        outcome = run()
        after = meter.read_cpu_ms()
        costs = {f"{name}_cpu_ms": (after[name] - before[name]) / load.requests for name in ("router", "upstream")}
        rate = load.requests / outcome.seconds
        return {
            "case": case[0],
            "statuses": format_statuses(outcome),
            "sent_bytes": outcome.body_bytes,
            **costs,
            "requests_per_second": rate,
        }

    return run_load(load, around)
