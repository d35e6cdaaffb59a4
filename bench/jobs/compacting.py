"""`maintain` beside Iceberg's own `rewrite_data_files`, on tables with the same files."""

import tempfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from bench.jobs.workshop import Spent, Workshop, open_workshop
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import NAMESPACE, Stand
from duckicelake.commands.jobs.maintain import build_lake_settings, open_postgres, sweep
from duckicelake.commands.jobs.session import CATALOG, open_duckdb, to_catalog
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.lake_access import DuckLake, MaintainContext
from duckicelake.pipeline.maintain.planning import StepKind
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies

FILE_ROWS = 1000
"""Iceberg's writers look at a file's size after so many rows, so a target of one byte makes files of as many."""
TARGET_BYTES = 1 << 20
LARGE_ROWS = 1_000_000
"""In one file, far above the target."""
SORTED_FILES = 9
"""Of as many rows together, each a bit more than half of the target."""
WARM_UP_FILES = 20
CASES = ("small", "small and large", "small and sorted")
COLUMNS = "id, id % 97 AS customer, hash(id) AS noise, concat('note ', id % 1000) AS note"


def measure_compaction(stand: Stand, scale: Scale) -> Result:
    """Return what compaction costs each, by what is beside the small files: ones above the target, or sorted ones of half its size."""
    with tempfile.TemporaryDirectory(prefix="duckicelake-bench-") as scratch, open_workshop(stand, Path(scratch)) as shop:
        # The namespace is made with the first connection.
        assert stand.duckdb
        _measure_case(shop, "warm up", WARM_UP_FILES)
        rows = [_measure_case(shop, case, scale.small_files) for case in CASES]
    title = f"Compaction of {scale.small_files} small files to {TARGET_BYTES} bytes, two tables each; theirs is rewrite_data_files alone"
    return Result(title, rows, {"small_files": scale.small_files})


def _measure_case(shop: Workshop, case: str, files: int) -> dict[str, Cell]:
    """Ours, theirs, theirs, ours, each on a table of its own: whoever comes later has the warmer Java."""
    tables = [_fill(shop, f"{case.replace(' ', '_')}_{place}", case, files) for place in range(4)]
    first, *others, last = [work(shop, table) for work, table in zip((_run_ours, _run_theirs, _run_theirs, _run_ours), tables, strict=True)]
    mine, other = _add(first, last), _add(*others)
    return {
        "beside": case,
        **{f"ours_{key}": cell for key, cell in mine.items()},
        **{f"theirs_{key}": cell for key, cell in other.items()},
        **{f"{key}_ratio": mine[f"{key}{unit}"] / other[f"{key}{unit}"] for key, unit in (("cpu", "_ms"), ("wall", "_ms"), ("bytes", ""))},
    }


def _run_ours(shop: Workshop, table: str) -> dict[str, float]:
    spent, report = shop.measure(partial(_run_job, shop, table))
    [step] = [step for step in report.steps if step.kind is StepKind.compact]
    assert step.verdict is Verdict.done, report
    return _to_figures(spent, step.removed, step.added, step.bytes)


def _run_theirs(shop: Workshop, table: str) -> dict[str, float]:
    call = f"CALL {CATALOG}.system.rewrite_data_files(table => '{NAMESPACE}.{table}', options => map({_list_options()}))"
    spent, [row] = shop.measure(lambda: shop.spark.sql(call).collect())
    return _to_figures(spent, row["rewritten_data_files_count"], row["added_data_files_count"], row["rewritten_bytes_count"])


def _add(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    return {key: one[key] + other[key] for key in one}


def _list_options() -> str:
    return f"'target-file-size-bytes', '{TARGET_BYTES}', 'min-input-files', '5'"


def _to_figures(spent: Spent, removed: int, added: int, size: int) -> dict[str, float]:
    cost = {"cpu_ms": spent.engines_ms, "servers_cpu_ms": spent.servers_ms, "wall_ms": spent.wall_ms}
    return cost | {"removed_files": removed, "added_files": added, "bytes": size}


def _fill(shop: Workshop, table: str, case: str, files: int) -> str:
    """A table with so many small files, and with what is beside them."""
    name = shop.name(table)
    shop.spark.sql(f"CREATE TABLE {name} (id BIGINT, customer BIGINT, noise INT, note STRING)")
    shop.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.distribution-mode' = 'none', 'write.target-file-size-bytes' = '1')")
    _insert(shop, name, f"range(0, {files * FILE_ROWS}, 1, 2)")
    if case == "small and large":
        _set_target(shop, name, 1 << 30)
        _insert(shop, name, f"range(0, {LARGE_ROWS}, 1, 1)")
    elif case == "small and sorted":
        _set_target(shop, name, 1 << 30)
        shop.spark.sql(f"ALTER TABLE {name} WRITE LOCALLY ORDERED BY id")
        _insert(shop, name, f"range(0, {LARGE_ROWS}, 1, {SORTED_FILES})")
    _set_target(shop, name, TARGET_BYTES)
    return table


def _insert(shop: Workshop, name: str, rows: str) -> None:
    shop.spark.sql(f"INSERT INTO {name} SELECT {COLUMNS} FROM {rows}")


def _set_target(shop: Workshop, name: str, size: int) -> None:
    shop.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.target-file-size-bytes' = '{size}')")


def _run_job(shop: Workshop, table: str) -> Any:
    catalog, lake = to_catalog(shop.facts), build_lake_settings(shop.facts)
    desk = MaintainContext(
        connect=lambda: open_rest(catalog),
        open_postgres=partial(open_postgres, lake),
        lake=DuckLake(partial(open_duckdb, shop.facts, shop.home, read_only=False)),
        open_spark=lambda: nullcontext(shop.spark),
        catalog=CATALOG,
        sweep=partial(sweep, lake),
        progress=lambda _: None,
        pause=lambda _: None,
    )
    policies = MaintainPolicies({"target-size": TARGET_BYTES, "min-files": 5})
    return maintain(desk, MaintainOptions((parse_ident(f"{NAMESPACE}.{table}"),), policies))
