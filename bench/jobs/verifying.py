"""`verify` beside a scan by Spark that reads every value of the same table and keeps nothing."""

import tempfile
from functools import partial
from pathlib import Path

from bench.jobs.workshop import Spent, Workshop, open_workshop
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import NAMESPACE, Stand
from bench.statistics import percentile
from duckicelake.commands.jobs.session import open_duckdb
from duckicelake.pipeline.common.rest import parse_ident
from duckicelake.pipeline.verify.job import VerifyContext, VerifyOptions, VerifyVerdict, verify

TABLE = "verified"
CREATE = f"CREATE TABLE {TABLE} (id BIGINT, customer INTEGER, amount DECIMAL(12, 2), weight DOUBLE, seen_at TIMESTAMP, note VARCHAR)"
INSERT = f"""
INSERT INTO {TABLE}
SELECT i, (i * 7919 % 100_000)::INTEGER, (i % 1_000_000) / 100, i / 7, TIMESTAMP '2026-01-01' + to_seconds(i),
       'note ' || hash(i) % 1_000_000
  FROM range($1) r(i)
"""


def measure_verify(stand: Stand, scale: Scale) -> Result:
    """Return what `verify` costs, and a scan by Spark of all columns, by turns in one session. The first turn is the cold one.

    DuckDB's session is open too: `open_duckdb_cpu_ms` is what that took, once a run, and is not in the ratios.
    """
    stand.duckdb.execute(CREATE)
    stand.duckdb.execute(INSERT, [scale.job_rows])
    with tempfile.TemporaryDirectory(prefix="duckicelake-bench-") as scratch, open_workshop(stand, Path(scratch)) as shop:
        rows = [_measure_turn(shop, turn, scale.job_rows) for turn in range(scale.job_turns + 1)]
    ratios = {name: [_number(row[name]) for row in rows[1:]] for name in ("cpu_ratio", "wall_ratio")}
    facts: dict[str, Cell] = {"rows": scale.job_rows, **{f"{name}_median_warm": percentile(found, 0.5) for name, found in ratios.items()}}
    return Result("verify, and a scan of all columns by Spark (to noop)", rows, facts)


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)


def _measure_turn(shop: Workshop, turn: int, count: int) -> dict[str, Cell]:
    scan, _ = shop.measure(shop.spark.table(shop.name(TABLE)).write.format("noop").mode("overwrite").save)
    opening, duck = shop.measure(partial(open_duckdb, shop.facts, shop.home, read_only=True))
    desk = VerifyContext(shop.desk, lambda: duck, shop.facts.ducklake_metadata_schema)
    own, report = shop.measure(partial(verify, desk, VerifyOptions((parse_ident(f"{NAMESPACE}.{TABLE}"),))))
    [found] = report.findings
    assert (found.verdict, found.iceberg_rows) == (VerifyVerdict.same, count), report
    return {
        "turn": turn,
        **_to_row("scan", scan),
        **_to_row("verify", own),
        **_to_ratios(own, scan),
        "open_duckdb_cpu_ms": opening.engines_ms,
    }


def _to_row(name: str, spent: Spent) -> dict[str, Cell]:
    return {
        f"{name}_spark_cpu_ms": spent.spark_ms,
        f"{name}_driver_cpu_ms": spent.driver_ms,
        f"{name}_servers_cpu_ms": spent.servers_ms,
        f"{name}_wall_ms": spent.wall_ms,
    }


def _to_ratios(ours: Spent, theirs: Spent) -> dict[str, Cell]:
    return {"cpu_ratio": ours.engines_ms / theirs.engines_ms, "wall_ratio": ours.wall_ms / theirs.wall_ms}
