"""Publishing tables with very many files: the server alone, and with the manifests that executors of Spark make."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from bench.jobs.workshop import Workshop, open_workshop
from bench.loads import Measured, measure_load, restart_warm
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import NAMESPACE, ROOT, Stand
from duckicelake.commands.jobs.session import to_catalog
from duckicelake.pipeline.common.rest import RestCatalog, open_rest
from duckicelake.pipeline.publish import LakeLocation, PublishJobContext, publish, read_options

MASTER = "local[2]"
JOB_SECONDS = 3600
SMALL_TABLE = 600
"""So many files has the table that a session publishes first."""
STEPS = ("plan", "make", "hand")


def measure_publish(stand: Stand, scale: Scale) -> Result:
    """Return what it costs to publish a table for the first time, by its number of files, all of one snapshot.

    `alone`: one load by a fresh server. `with_spark`: the job, whose call publishes the table, on another table like it, in a session
    that has published a small one before; `executors` is the time of our code there. `command`: the same from the shell, Spark's start
    included.
    """
    rows = [_measure(stand, count) for count in scale.published_files]
    first, last = rows[0], rows[-1]
    new = _number(last["files"]) - _number(first["files"])
    grown = _number(last["executors_cpu_ms"]) - _number(first["executors_cpu_ms"])
    facts: dict[str, Cell] = {
        "files_last": last["files"],
        "executors_cpu_ms_per_file_first": _number(first["executors_cpu_ms"]) / _number(first["files"]),
        "executors_cpu_ms_per_new_file": grown / new if new else None,
        "executors_cpu_new_over_first": grown / new / (_number(first["executors_cpu_ms"]) / _number(first["files"])) if new else None,
        "with_spark_over_alone_wall_last": _number(last["with_spark_wall_ms"]) / _number(last["alone_wall_ms"]),
        "command_over_alone_wall_last": _number(last["command_wall_ms"]) / _number(last["alone_wall_ms"]),
    }
    return Result(f"First publication by files, statistics of 10 columns each; Spark is {MASTER}", rows, facts)


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def _measure(stand: Stand, count: int) -> dict[str, Cell]:
    for kind in ("alone", "spark", "command"):
        seed_table(stand, Growing(f"published_{kind}_{count}", 1, count))
    seed_table(stand, Growing(f"published_first_{count}", 1, SMALL_TABLE))
    restart_warm(stand)
    alone = measure_load(stand, f"published_alone_{count}")
    with tempfile.TemporaryDirectory(prefix="duckicelake-bench-") as scratch, open_workshop(stand, Path(scratch)) as shop:
        desk = _make_desk(shop)
        [first] = publish(desk, read_options([f"{NAMESPACE}.published_first_{count}"])).tables
        assert (first.verdict, first.files) == ("done", SMALL_TABLE), first
        restart_warm(stand)
        spent, told = shop.measure(lambda: publish(desk, read_options([f"{NAMESPACE}.published_spark_{count}"])))
    [table] = told.tables
    assert (table.verdict, table.files) == ("done", count), told
    restart_warm(stand)
    command, whole = _run_job(stand, f"published_command_{count}")
    return {
        "files": count,
        **{f"alone_{name}_cpu_ms": cost for name, cost in alone.cpu_ms.items()},
        "alone_wall_ms": alone.wall_ms,
        "with_spark_servers_cpu_ms": spent.servers_ms,
        "with_spark_spark_cpu_ms": spent.engines_ms,
        "executors_cpu_ms": table.cpu_seconds * 1000,
        "with_spark_wall_ms": spent.wall_ms,
        **_find_steps(told.seconds),
        **{f"command_{name}_cpu_ms": cost for name, cost in command.cpu_ms.items()},
        "command_wall_ms": command.wall_ms,
        **{f"command_{name}": seconds for name, seconds in _find_steps(whole["seconds"]).items()},
    }


def _find_steps(told: Mapping[str, float]) -> dict[str, Cell]:
    return {f"{step.split()[0]}_seconds": seconds for step, seconds in told.items() if step.split()[0] in STEPS}


def _make_desk(shop: Workshop) -> PublishJobContext:
    facts, catalog = shop.facts, to_catalog(shop.facts)
    keys = (facts.s3_endpoint, facts.s3_region, facts.s3_access_key_id, facts.s3_secret_access_key)
    place = LakeLocation(facts.ducklake_dsn, facts.ducklake_metadata_schema, RestCatalog(facts.catalog_uri, facts.warehouse, *keys))
    return PublishJobContext(lambda: open_rest(catalog), place, lambda: nullcontext(shop.spark), lambda _: None)


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
