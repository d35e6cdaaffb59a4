"""What a commit costs with nothing of ours in it: one answer by FastAPI, one transaction by psycopg, the objects by obstore.

The least that this stack can do for a commit of one property and for a fast append of one file: the transaction writes the rows that
such a commit must write, into tables with the indexes of the lake's, and waits for the disk once. Real commits are measured beside it.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql

from bench.accounting import Meter
from bench.commits.bare import ANSWER
from bench.commits.client import create_table
from bench.commits.costs import measure_commits
from bench.commits.kinds import KINDS
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import ASK_SECONDS, READY_SECONDS, REQUEST_SECONDS, ROOT, Stand, find_port
from bench.statistics import percentile
from duckicelake.lake.read import read_iceberg_path
from duckicelake.store.objects import open_objects
from duckicelake.store_settings import read_store_settings

WARM_UP = 20
PROCESSES = ("server_cpu_ms", "postgres_cpu_ms")
PATH = "/v1/lake/namespaces/bench/tables/t"
COMMIT = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"owner": "somebody"}}]}
SCHEMA = "bench_floor"
SETS, APPENDS = KINDS
TABLES = {
    SETS: ("ducklake_snapshot", "ducklake_snapshot_changes", "ducklake_tag", "iceberg_audit", "iceberg_table", "iceberg_metadata_log"),
    APPENDS: ("ducklake_data_file", "ducklake_file_column_stats", "ducklake_table_stats", "iceberg_snapshot", "iceberg_file"),
}
LOCK = b"BEGIN; LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"
SELECT_HEAD = "SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)"
PREPARE = """
INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id) VALUES (0, now(), 1, 1, 1);
INSERT INTO ducklake_tag (begin_snapshot, object_id, key, value) VALUES (0, 1, 'owner', '');
INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes) VALUES (1, 0, 0, 0);
INSERT INTO iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id, token,
  updated_ms)
VALUES (1, '', 2, 0, 0, 0, 0, '', 0)
"""
WRITE_EVERY = """
WITH made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    VALUES (%(id)s, now(), 1, 1, 1)),
told AS (INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (%(id)s, 'altered_table:1')),
line AS (INSERT INTO iceberg_audit (request_id, operation, objects, lake_snapshot_id) VALUES ('1', 'updateTable', '{bench.t}', %(id)s)),
noted AS (UPDATE iceberg_table SET metadata_version = %(id)s, lake_snapshot_id = %(id)s, token = %(note)s WHERE table_id = 1),
"""
WRITE_TAG = """
ended AS (UPDATE ducklake_tag SET end_snapshot = %(id)s WHERE object_id = 1 AND key = 'owner' AND end_snapshot IS NULL),
tag AS (INSERT INTO ducklake_tag (begin_snapshot, object_id, key, value) VALUES (%(id)s, 1, 'owner', %(note)s))
"""
WRITE_FILE = """
file AS (
    INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
      file_size_bytes, row_id_start)
    VALUES (%(id)s, 1, %(id)s, %(note)s, false, 'parquet', 100, 9000, 0)),
stats AS (
    INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, value_count, null_count, min_value, max_value)
    SELECT %(id)s, 1, column_id, 100, 0, '0', '100' FROM generate_series(1, 10) AS n(column_id)),
counted AS (UPDATE ducklake_table_stats SET record_count = record_count + 100 WHERE table_id = 1),
snapshot AS (
    INSERT INTO iceberg_snapshot (table_id, lake_snapshot_id, commit_snapshot_id, client_snapshot_id, schema_id, summary)
    VALUES (1, %(id)s, %(id)s, %(id)s, 0, %(note)s)),
about AS (INSERT INTO iceberg_file (data_file_id, table_id, spec_id, partition) VALUES (%(id)s, 1, 0, '[]'))
"""
WRITE_LOG = "INSERT INTO iceberg_metadata_log (table_id, metadata_version, updated_ms) VALUES (1, %(id)s, 0)"
WRITE: Mapping[str, LiteralString] = {
    SETS: "".join((WRITE_EVERY, WRITE_TAG, WRITE_LOG)),
    APPENDS: "".join((WRITE_EVERY, WRITE_FILE, WRITE_LOG)),
}
OBJECTS = {SETS: (0, 1), APPENDS: (2, 4)}
"""How many objects are read, and how many written that were not there; one that was there is written anew."""

Spend = Callable[[], Mapping[str, float]]
"""Does a part once and returns the CPU-milliseconds it took server and Postgres."""


def measure_floor(stand: Stand, scale: Scale) -> Result:
    """Return the medians of the parts of both kinds of commit, their sums, and what commits cost beside them."""
    rows: list[dict[str, Cell]] = []
    facts: dict[str, Cell] = {}
    with answering() as ask:
        answer = _measure(ask, scale)
        for kind in WRITE:
            with writing_rows(stand, kind) as write_rows:
                parts = {"answer": answer, "transaction": _measure(write_rows, scale)}
            parts["objects"] = _measure(putting_objects(stand, *OBJECTS[kind]), scale)
            for part, cpu in parts.items():
                rows.append({"commit": kind, "part": part, **cpu})
            whole = sum(cpu[name] for cpu in parts.values() for name in PROCESSES)
            client = create_table(stand, f"floor_{kind.replace(' ', '_').replace('-', '_')}")
            client.commit(client.append())
            client.keep()
            found = measure_commits(stand, client, KINDS[kind](client), scale.commits)
            rows.append({"commit": kind, "part": "all that the server does", **{name: found[name] for name in PROCESSES}})
            name, real = kind.replace(" ", "_").replace("-", "_"), float(found["server_and_postgres_cpu_ms"] or 0)
            facts |= {f"{name}_by_the_libraries_alone_cpu_ms": whole, f"{name}_cpu_ms": real, f"{name}_over_the_floor": real / whole}
    return Result("Commits by the libraries alone, and by the server: CPU-milliseconds", rows, facts)


def _measure(spend: Spend, scale: Scale) -> dict[str, float]:
    spent = [spend() for _ in range(WARM_UP + scale.commits)][WARM_UP:]
    return {f"{name}_cpu_ms": percentile([one[name] for one in spent], 0.5) for name in ("server", "postgres")}


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
def writing_rows(stand: Stand, kind: str) -> Generator[Spend]:
    """What writes the rows of a commit in one transaction, under a lock, after one question: four journeys, one wait for the disk."""
    dsn, lake = stand.lake.postgres_dsn.get_secret_value(), stand.lake.metadata_schema
    with psycopg.connect(dsn, autocommit=True, options=f"-c search_path={SCHEMA}") as conn:
        conn.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(SCHEMA)))
        try:
            for name in (name for names in TABLES.values() for name in names):
                made = sql.SQL("CREATE TABLE {0} (LIKE {1}.{0} INCLUDING ALL)")
                conn.execute(made.format(sql.Identifier(name), sql.Identifier(lake)))
            conn.execute(PREPARE)

            def spend() -> Mapping[str, float]:
                before, began = stand.meter.read_cpu_ms()["postgres"], time.process_time()
                conn.execute(LOCK)
                row = conn.execute(SELECT_HEAD).fetchone()
                assert row is not None
                conn.execute(WRITE[kind], {"id": row[0] + 1, "note": "x" * 200})
                conn.commit()
                server_ms = (time.process_time() - began) * 1000
                return {"server": server_ms, "postgres": stand.meter.read_cpu_ms()["postgres"] - before}

            yield spend
        finally:
            conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(SCHEMA)))


def putting_objects(stand: Stand, read: int, new: int) -> Spend:
    """Return what reads and writes so many objects as large as a small table's metadata, and writes one that is there anew."""
    objects = open_objects(read_store_settings(stand.lake))
    folder = f"{read_iceberg_path(stand.postgres).rstrip('/')}/{SCHEMA}/{uuid4()}"
    hint, there = f"{folder}/hint", f"{folder}/there"
    etag = objects.replace(hint, b"0", None)
    objects.put_new(there, ANSWER)

    def spend() -> Mapping[str, float]:
        nonlocal etag
        began = time.process_time()
        for _ in range(read):
            objects.read(there)
        for _ in range(new):
            objects.put_new(f"{folder}/{uuid4()}", ANSWER)
        etag = objects.replace(hint, b"1", etag)
        return {"server": (time.process_time() - began) * 1000, "postgres": 0.0}

    return spend
