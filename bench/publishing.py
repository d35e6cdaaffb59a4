"""Publishing tables with very many files: the server alone, and with the manifests that executors of Spark make."""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.loads import Measured, measure_load, restart_warm
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import NAMESPACE, ROOT, Stand

MASTER = "local[2]"
JOB_SECONDS = 3600
STEPS = ("plan", "make", "hand")


def measure_publish(stand: Stand, scale: Scale) -> Result:
    """Return what it costs to publish a table for the first time, by its number of files, all of one snapshot.

    `alone`: one load by a fresh server. `with_spark`: the job, whose call publishes the table, on another table like it; `executors`
    is the time of our code there, `spark` that of all processes of the job with their start.
    """
    rows = [_measure(stand, count) for count in scale.published_files]
    first, last = rows[0], rows[-1]
    new = _number(last["files"]) - _number(first["files"])
    grown = _number(last["executors_cpu_ms"]) - _number(first["executors_cpu_ms"])
    facts: dict[str, Cell] = {
        "executors_cpu_ms_per_file_first": _number(first["executors_cpu_ms"]) / _number(first["files"]),
        "executors_cpu_ms_per_new_file": grown / new if new else None,
        "with_spark_over_alone_wall_last": _number(last["with_spark_wall_ms"]) / _number(last["alone_wall_ms"]),
    }
    return Result(f"First publication by files, statistics of 10 columns each; Spark is {MASTER}", rows, facts)


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def _measure(stand: Stand, count: int) -> dict[str, Cell]:
    for kind in ("alone", "spark"):
        seed_table(stand, Growing(f"published_{kind}_{count}", 1, count))
    restart_warm(stand)
    alone = measure_load(stand, f"published_alone_{count}")
    restart_warm(stand)
    spent, told = _run_job(stand, f"published_spark_{count}")
    [table] = told["tables"]
    assert (table["verdict"], table["files"]) == ("done", count), told
    return {
        "files": count,
        **{f"alone_{name}_cpu_ms": cost for name, cost in alone.cpu_ms.items()},
        "alone_wall_ms": alone.wall_ms,
        **{f"with_spark_{name}_cpu_ms": cost for name, cost in spent.cpu_ms.items()},
        "executors_cpu_ms": table["cpu_seconds"] * 1000,
        "with_spark_wall_ms": spent.wall_ms,
        **{
            f"{step.split()[0]}_seconds": seconds
            for step, seconds in told["seconds"].items()
            if step.split()[0] in ("plan", "make", "hand")
        },
    }


def _run_job(stand: Stand, table: str) -> tuple[Measured, dict[str, Any]]:
    report = Path(stand.home) / "publish.json"
    argv = [sys.executable, "-m", "duckicelake.cli", "pipeline", "publish", f"{NAMESPACE}.{table}", "--home", str(stand.home)]
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")}
    before, children, began = stand.meter.read_cpu_ms(), read_children_ms(), time.perf_counter()
    done = subprocess.run(
        [*argv, "--master", MASTER, "--report", str(report)],
        env=kept | {"PYTHONPATH": str(ROOT)},
        cwd=stand.home,
        capture_output=True,
        text=True,
        timeout=JOB_SECONDS,
        check=False,
    )
    wall_ms, after = (time.perf_counter() - began) * 1000, stand.meter.read_cpu_ms()
    if done.returncode != 0:
        raise RuntimeError(f"the job failed: {done.stderr[-2000:]}")
    cpu_ms = {name: after[name] - before[name] for name in before} | {"spark": read_children_ms() - children}
    return Measured(cpu_ms, wall_ms, 0, b"", 0), json.loads(report.read_text())


def read_children_ms() -> float:
    """Return the CPU time of all processes that this one has waited for, and of those that they have."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000
