"""How loads grow: first loads by snapshots, by files and by inlined inserts, and loads after one more insert."""

import time
from collections.abc import Sequence

from bench.loads import Measured, measure_body, measure_load, restart_warm, to_mib
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import COLUMNS, Growing, append_snapshots, seed_table
from bench.stand import Stand
from bench.statistics import is_linear, measure_growth, percentile

INLINED = "inlined"
INSERT = f"""
INSERT INTO {INLINED} VALUES ($1, 1, 2, 3.25, 0.5, true, DATE '2026-11-21', TIMESTAMP '2026-11-21 12:00:00', 'a city', 'a note')
"""


def measure_snapshots(stand: Stand, scale: Scale) -> Result:
    """Return what the first load of a table costs by its number of snapshots, one file each."""
    tables = [Growing(f"snapshots_{count}", count, 1) for count in scale.snapshots]
    return _measure_curve("First load by snapshots, one file each", stand, tables)


def measure_files(stand: Stand, scale: Scale) -> Result:
    """Return what the first load of a table costs by its number of files, all of one snapshot."""
    tables = [Growing(f"files_{count}", 1, count) for count in scale.files]
    return _measure_curve("First load by files of one snapshot, statistics of 10 columns each", stand, tables)


def _measure_curve(title: str, stand: Stand, tables: Sequence[Growing]) -> Result:
    for table in tables:
        seed_table(stand, table)
    idle = restart_warm(stand)
    loads = [measure_load(stand, table.name) for table in tables]
    counts = [table.snapshots * table.files for table in tables]
    curve = [(count, load.total_cpu_ms) for count, load in zip(counts, loads, strict=True)]
    steps = measure_growth(curve)
    rows = [
        {"items": step.items, **_to_curve_row(load, idle), "cpu_ms_per_item": step.per_item, "cpu_ms_per_new_item": step.marginal}
        for step, load in zip(steps, loads, strict=True)
    ]
    return Result(title, rows, {"is_linear": is_linear(curve), "server_idle_mib": to_mib(idle)})


def _to_curve_row(load: Measured, idle: int) -> dict[str, Cell]:
    return {**load.to_row(), "snapshots": load.snapshot_count, "peak_mib_above_idle": to_mib(load.peak_bytes - idle)}


def measure_later_loads(stand: Stand, scale: Scale) -> Result:
    """Return what a load costs that finds one new snapshot, as the mean of several.

    `without_body` is the server's CPU time without what its body costs by its size alone.
    """
    tables = [Growing(f"later_{count}", count, 1) for count in scale.later_snapshots]
    for table in tables:
        seed_table(stand, table)
    restart_warm(stand)
    rows = [_measure_later(stand, table, scale.later_inserts) for table in tables]
    first, last = rows[0]["without_body_cpu_ms"], rows[-1]["without_body_cpu_ms"]
    ratio = last / first if isinstance(first, float) and isinstance(last, float) and first else None
    return Result("Load after one more insert", rows, {"without_body_the_last_row_over_the_first": ratio})


def _measure_later(stand: Stand, table: Growing, inserts: int) -> dict[str, Cell]:
    measure_load(stand, table.name)
    loads = []
    for _ in range(inserts):
        append_snapshots(stand.postgres, Growing(table.name, 1, 1))
        loads.append(measure_load(stand, table.name))
    assert loads[-1].snapshot_count == table.snapshots + inserts
    cpu = {f"{name}_cpu_ms": sum(load.cpu_ms[name] for load in loads) / inserts for name in loads[0].cpu_ms}
    wall = percentile([load.wall_ms for load in loads], 0.5)
    body_ms = measure_body(stand, loads[-1].body)
    cpu |= {"body_cpu_ms": body_ms, "without_body_cpu_ms": cpu["server_cpu_ms"] - body_ms}
    return {"snapshots": table.snapshots, "loads": inserts, **cpu, "wall_p50_ms": wall, "body_bytes": len(loads[-1].body)}


def measure_inlined(stand: Stand, scale: Scale) -> Result:
    """Return what the first load costs after DuckDB inserted row by row."""
    idle = restart_warm(stand)
    stand.duckdb.execute(f"CREATE TABLE {INLINED} {COLUMNS}")
    began = time.perf_counter()
    for number in range(scale.inlined_inserts):
        stand.duckdb.execute(INSERT, [number])
    inserting = time.perf_counter() - began
    load = measure_load(stand, INLINED)
    assert load.snapshot_count == scale.inlined_inserts
    per_insert = load.total_cpu_ms / scale.inlined_inserts
    row = {"inserts": scale.inlined_inserts, **_to_curve_row(load, idle), "cpu_ms_per_insert": per_insert}
    return Result("First load of single-row inserts", [row], {"duckdb_inserting_seconds": inserting})
