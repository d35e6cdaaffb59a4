"""What a commit costs with nothing of ours in it: one answer by FastAPI, one transaction by psycopg, two objects by obstore.

The least that this stack can do for a commit of one property, next to which `commits` is to be read.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from uuid import uuid4

import psycopg
from psycopg import sql

from bench.accounting import Meter
from bench.commits.bare import ANSWER
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import ASK_SECONDS, READY_SECONDS, REQUEST_SECONDS, ROOT, Stand, find_port
from bench.statistics import percentile
from duckicelake.app import read_store_settings
from duckicelake.lake.read import read_iceberg_path
from duckicelake.store.objects import open_objects

WARM_UP = 20
PATH = "/v1/lake/namespaces/bench/tables/t"
COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"owner": "somebody"}}]}
SCHEMA = "bench_floor"

Spend = Callable[[], Mapping[str, float]]
"""Does a part once and returns the CPU-milliseconds it took server and Postgres."""


def measure_floor(stand: Stand, scale: Scale) -> Result:
    """Return the medians of the parts, and their sum."""
    rows: list[dict[str, Cell]] = []
    with answering() as ask, writing_rows(stand) as write_rows:
        for part, spend in (("answer", ask), ("transaction", write_rows), ("two objects", putting_objects(stand))):
            spent = [spend() for _ in range(WARM_UP + scale.commits)][WARM_UP:]
            cpu: dict[str, Cell] = {f"{name}_cpu_ms": percentile([one[name] for one in spent], 0.5) for name in ("server", "postgres")}
            rows.append({"part": part, **cpu})
    whole = sum(float(row[name] or 0) for row in rows for name in ("server_cpu_ms", "postgres_cpu_ms"))
    return Result("A commit by the libraries alone: CPU-milliseconds", rows, {"server_and_postgres_cpu_ms": whole})


@contextmanager
def answering() -> Generator[Spend]:
    """What sends a commit to a server that does nothing with it."""
    port = find_port()
    argv = [sys.executable, "-m", "uvicorn", "bench.commits.bare:app", "--port", str(port), "--loop", "uvloop", "--http", "httptools"]
    with subprocess.Popen([*argv, "--no-access-log", "--log-level", "error"], cwd=ROOT, stdin=subprocess.DEVNULL) as process:
        try:
            connection, meter = _connect(port), Meter({"server": process.pid})

            def spend() -> Mapping[str, float]:
                before = meter.read_cpu_ms()["server"]
                connection.request("POST", PATH, json.dumps(COMMIT), {"content-type": "application/json"})
                if (answer := connection.getresponse().read()) != ANSWER:
                    raise RuntimeError(f"The bare server answered {answer[:400].decode('utf-8', 'replace')}")
                return {"server": meter.read_cpu_ms()["server"] - before, "postgres": 0.0}

            yield spend
            connection.close()
        finally:
            process.terminate()


def _connect(port: int) -> HTTPConnection:
    """Return a connection to a server that has just been started."""
    connection, ends = HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS), time.monotonic() + READY_SECONDS
    while True:
        try:
            connection.connect()
            return connection
        except OSError:
            if time.monotonic() > ends:
                raise
            time.sleep(ASK_SECONDS)


@contextmanager
def writing_rows(stand: Stand) -> Generator[Spend]:
    """What writes two rows in one transaction, under a lock, after one question: four journeys, one wait for the disk."""
    dsn = stand.lake.postgres_dsn.get_secret_value()
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={SCHEMA}") as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
        try:
            conn.execute("CREATE TABLE heads (id bigint PRIMARY KEY, made timestamptz); CREATE TABLE notes (id bigint, note text)")
            conn.execute("INSERT INTO heads VALUES (0, now())")

            def spend() -> Mapping[str, float]:
                before, began = stand.meter.read_cpu_ms()["postgres"], time.process_time()
                conn.execute("BEGIN; LOCK TABLE heads IN SHARE ROW EXCLUSIVE MODE")
                row = conn.execute("SELECT id FROM heads WHERE id = (SELECT max(id) FROM heads)").fetchone()
                assert row is not None
                conn.execute(
                    "WITH made AS (INSERT INTO heads VALUES (%(id)s, now())) INSERT INTO notes VALUES (%(id)s, %(note)s)",
                    {"id": row[0] + 1, "note": "x" * 200},
                )
                conn.commit()
                server_ms = (time.process_time() - began) * 1000
                return {"server": server_ms, "postgres": stand.meter.read_cpu_ms()["postgres"] - before}

            yield spend
        finally:
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(SCHEMA)))


def putting_objects(stand: Stand) -> Spend:
    """Return what writes a new object as large as a small table's metadata, and one that is there anew."""
    objects = open_objects(read_store_settings(stand.lake))
    folder = f"{read_iceberg_path(stand.postgres).rstrip('/')}/{SCHEMA}"
    hint = f"{folder}/hint"
    etag = objects.replace(hint, b"0", None)

    def spend() -> Mapping[str, float]:
        nonlocal etag
        began = time.process_time()
        objects.put_new(f"{folder}/{uuid4()}", ANSWER)
        etag = objects.replace(hint, b"1", etag)
        return {"server": (time.process_time() - began) * 1000, "postgres": 0.0}

    return spend
