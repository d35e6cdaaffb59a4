"""Many writers: how many commits a second one and eight of them make, each on its own table, and PyIceberg's appends."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import psycopg
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from bench.commits.client import Client, create_table
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import NAMESPACE, Stand
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.lake.writing.transaction import LOCK_LAKE

WRITERS = 8
WRITE_NOTHING = "SELECT pg_logical_emit_message(true, 'bench', '')"
"""What makes a transaction one that Postgres waits for the disk for."""
TEN_ROWS = """
SELECT i AS id, i AS customer, i::INTEGER AS quantity, i::DECIMAL(9, 2) AS price, i::DOUBLE AS weight, true AS active,
       DATE '2026-11-21' AS day, TIMESTAMP '2026-11-21 12:00:00' AS seen_at, 'a city' AS city, 'a note' AS note
  FROM range(10) r(i)
"""


def measure_writers(stand: Stand, scale: Scale) -> Result:
    """Return the rates of one and of eight writers, and of as many that do nothing but take the lake's lock and wait for the disk.

    What the cores of this machine allow is told beside: eight writers share them with the servers.
    """
    rows: list[dict[str, Cell]] = []
    for number in (1, WRITERS):
        clients = [create_table(stand, f"writers_{number}_{place}") for place in range(number)]
        for client in clients:
            client.commit(client.set_property())
        rows.append({"writers": number, **_measure(stand, clients, scale.commits)})
    first, last = (float(row["commits_per_second"] or 0) for row in rows)
    each_ms = sum(float(rows[-1][f"{name}_cpu_ms"] or 0) for name in ("server", "postgres", "store", "client"))
    facts: dict[str, Cell] = {
        "rate_of_the_last_over_the_first": last / first,
        "commits_per_second_by_cpu_alone": len(os.sched_getaffinity(0)) * 1000 / each_ms,
        "commits_per_second_of_the_lock_alone": _measure_lock(stand, scale.commits),
    }
    return Result("Writers of properties, each with its own table", rows, facts)


def _measure_lock(stand: Stand, commits: int) -> float:
    """Return how many transactions a second take the lake's lock and reach the disk, of as many writers: none commits faster."""
    lake = stand.lake
    dsn, options = lake.postgres_dsn.get_secret_value(), f"-c search_path={lake.metadata_schema}"

    def take(conn: psycopg.Connection) -> None:
        for _ in range(commits):
            with conn.transaction():
                conn.execute(LOCK_LAKE)
                conn.execute(WRITE_NOTHING)

    with ExitStack() as opened, ThreadPoolExecutor(WRITERS) as pool:
        conns = [opened.enter_context(psycopg.connect(dsn, autocommit=True, options=options)) for _ in range(WRITERS)]
        began = time.perf_counter()
        for done in [pool.submit(take, conn) for conn in conns]:
            done.result()
        return WRITERS * commits / (time.perf_counter() - began)


def _measure(stand: Stand, clients: Sequence[Client], commits: int) -> dict[str, Cell]:
    before, began, process = stand.meter.read_cpu_ms(), time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(clients)) as pool:
        for done in [pool.submit(_write, client, commits) for client in clients]:
            done.result()
    seconds, after, client_s = time.perf_counter() - began, stand.meter.read_cpu_ms(), time.process_time() - process
    made = commits * len(clients)
    cpu = {f"{name}_cpu_ms": (after[name] - before[name]) / made for name in before} | {"client_cpu_ms": client_s * 1000 / made}
    busy = sum(after.values()) - sum(before.values())
    return {"commits": made, **cpu, "commits_per_second": made / seconds, "cores_busy_with_servers": busy / 1000 / seconds}


def _write(client: Client, commits: int) -> None:
    for _ in range(commits):
        client.commit(client.set_property())


def measure_pyiceberg(stand: Stand, scale: Scale) -> Result:
    """Return what PyIceberg's append of ten rows costs end to end, warm: it writes data, manifests and lists itself."""
    keys = find_s3_keys(stand.lake)
    assert keys is not None
    create_table(stand, "pyiceberg_appends")
    catalog = load_catalog(
        "bench",
        **{
            "type": "rest",
            "uri": f"http://127.0.0.1:{stand.server.port}",
            "warehouse": stand.lake.name,
            "s3.endpoint": keys.endpoint,
            "s3.access-key-id": keys.access_key_id,
            "s3.secret-access-key": keys.secret_access_key,
        },
    )
    table = catalog.load_table(f"{NAMESPACE}.pyiceberg_appends")
    rows = stand.duckdb.execute(TEN_ROWS).to_arrow_table().cast(table.schema().as_arrow())
    assert isinstance(rows, pa.Table)
    for _ in range(3):
        table.append(rows)
    process, before, began = time.process_time(), stand.meter.read_cpu_ms(), time.perf_counter()
    for _ in range(scale.pyiceberg_appends):
        table.append(rows)
    seconds, after, client_s = time.perf_counter() - began, stand.meter.read_cpu_ms(), time.process_time() - process
    made = scale.pyiceberg_appends
    cpu = {f"{name}_cpu_ms": (after[name] - before[name]) / made for name in before}
    row: dict[str, Cell] = {"appends": made, **cpu, "client_cpu_ms": client_s * 1000 / made, "appends_per_second": made / seconds}
    all_cpu = sum(cpu.values()) + client_s * 1000 / made
    return Result("PyIceberg appends 10 rows", [row], {"appends_per_second_by_cpu_alone": 1000 / all_cpu})
