"""How long each job takes from its command to the first step that needs Spark, or whose end shows that Spark was there."""

import os
import subprocess
import sys
import time

from bench.accounting import Meter
from bench.jobs.verifying import CREATE, INSERT, TABLE
from bench.publishing import MASTER, SMALL_TABLE, read_children_ms
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import NAMESPACE, ROOT, Stand

ROWS = 1000
SMALL_FILES = 6
ENDED = "ended"
"""The step of a job that tells none when Spark is there: all of the job is more than its start."""
FIRST = {
    "verify": "list",
    "ingest": "list",
    "import": "publish",
    "export": "publish",
    "maintain": ENDED,
    "profile": "scan",
    "publish": "hand",
}
"""What each job says first when Spark is there: `import` and `export` have copied the rows then, `profile` has computed statistics,
and executors have made the manifests of `publish`."""


def measure_start(stand: Stand, scale: Scale) -> Result:
    """Return when each job on a small table begins and when it has ended, by turns: each a process with a Spark of its own."""
    rows = [_measure_turn(stand, job, turn) for turn in range(scale.job_turns) for job in FIRST]
    return Result(f"Start of a job; Spark is {MASTER}", rows)


def _prepare(stand: Stand, job: str, turn: int) -> list[str]:
    """Make a table, or files, on which there is something to do; the arguments of the job."""
    table, folder = f"{job}_{turn}", stand.home / f"{job}_{turn}"
    if job in ("ingest", "import"):
        stand.duckdb.execute(CREATE.replace(f"CREATE TABLE {TABLE}", "CREATE OR REPLACE TEMP TABLE source"))
        stand.duckdb.execute(INSERT.replace(f"INSERT INTO {TABLE}", "INSERT INTO temp.source"), [ROWS])
        (folder / "t").mkdir(parents=True)
        stand.duckdb.execute(f"COPY temp.source TO '{folder}/t/a.parquet' (FORMAT parquet)")
        if job == "ingest":
            return [job, str(folder), f"{NAMESPACE}.{table}"]
        return [job, str(folder), "--format", "hive", "--mode", "copy", "--into", table]
    if job == "publish":
        # Of few files the server makes the manifests itself.
        seed_table(stand, Growing(table, 1, SMALL_TABLE))
        return [job, f"{NAMESPACE}.{table}"]
    stand.duckdb.execute(CREATE.replace(TABLE, table))
    for _ in range(SMALL_FILES if job == "maintain" else 1):
        stand.duckdb.execute(INSERT.replace(f"INTO {TABLE}", f"INTO {table}"), [ROWS])
    return [job, *([str(folder)] if job == "export" else []), f"{NAMESPACE}.{table}"]


def _measure_turn(stand: Stand, job: str, turn: int) -> dict[str, Cell]:
    argv = [sys.executable, "-m", "duckicelake.cli", "pipeline", *_prepare(stand, job, turn), "--home", str(stand.home)]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")} | {"PYTHONPATH": str(ROOT)}
    began, children, steps = time.perf_counter(), read_children_ms(), list[tuple[str, float, float]]()
    argv += ["--master", MASTER]
    with subprocess.Popen(argv, env=kept, cwd=stand.home, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            steps.append((line.decode().strip(), time.perf_counter() - began, Meter({"job": process.pid}).read_cpu_ms()["job"]))
    if process.returncode:
        raise RuntimeError(f"the job failed: {steps}")
    ended, spent = time.perf_counter() - began, read_children_ms() - children
    # The kernel's sum lacks processes for which nobody waited, as Spark's workers in Python.
    spent = max(spent, *(cpu_ms for _, _, cpu_ms in steps))
    steps.append((ENDED, ended, spent))
    first, seconds, cpu_ms = next(step for step in steps if step[0].startswith(FIRST[job]))
    start: dict[str, Cell] = {"job": job, "turn": turn, "first_step": first, "first_step_cpu_ms": cpu_ms, "first_step_seconds": seconds}
    return start | {"ended_seconds": ended, "cpu_ms": spent}
