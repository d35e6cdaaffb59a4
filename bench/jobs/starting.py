"""How long a job takes from its command to the first step after Spark's start."""

import os
import subprocess
import sys
import time

from bench.accounting import Meter
from bench.jobs.verifying import CREATE, INSERT, TABLE
from bench.publishing import MASTER, read_children_ms
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import NAMESPACE, ROOT, Stand

FIRST = "list"
"""What `verify` says when Spark is there: it lists tables."""
ROWS = 1000


def measure_start(stand: Stand, scale: Scale) -> Result:
    """Return when `verify` of a small table begins to look and when it has ended, by turns: each a process with a Spark of its own."""
    stand.duckdb.execute(CREATE.replace(TABLE, "started"))
    stand.duckdb.execute(INSERT.replace(f"INTO {TABLE}", "INTO started"), [ROWS])
    return Result(f"Start of a job; Spark is {MASTER}", [_measure_turn(stand, turn) for turn in range(scale.job_turns)])


def _measure_turn(stand: Stand, turn: int) -> dict[str, Cell]:
    argv = [sys.executable, "-m", "duckicelake.cli", "pipeline", "verify", f"{NAMESPACE}.started", "--home", str(stand.home)]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")} | {"PYTHONPATH": str(ROOT)}
    began, children, steps = time.perf_counter(), read_children_ms(), list[tuple[str, float, float]]()
    with subprocess.Popen([*argv, "--master", MASTER], env=kept, cwd=stand.home, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as job:
        assert job.stderr is not None
        for line in job.stderr:
            steps.append((line.decode().strip(), time.perf_counter() - began, Meter({"job": job.pid}).read_cpu_ms()["job"]))
    if job.returncode:
        raise RuntimeError(f"the job failed: {steps}")
    first, seconds, cpu_ms = next(step for step in steps if step[0].startswith(FIRST))
    ended = time.perf_counter() - began
    start: dict[str, Cell] = {"turn": turn, "first_step": first, "first_step_cpu_ms": cpu_ms, "first_step_seconds": seconds}
    return start | {"ended_seconds": ended, "cpu_ms": read_children_ms() - children}
