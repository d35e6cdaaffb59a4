"""What must hold of the figures, in CPU time and counts: wall time is the machine's, but for ratios of two things done in one run.

`--check` fails when it does not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from bench.report import Cell, Result


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that a figure of one benchmark may be: of the rows that `of` takes, or (None) of its facts.

    `least`: a fact and how much it has to be, else nothing is judged: little work takes as long as it takes to begin.
    """

    benchmark: str
    figure: str
    most: float
    of: Callable[[Mapping[str, Cell]], bool] | None = None
    least: tuple[str, int] | None = None


LIMITS = (
    Limit("cached", "server_cpu_ms", 0.40, lambda row: row["connections"] == 1),
    Limit("cached", "server_cpu_ms", 0.15, lambda row: row["case"] == "200, 32 connections"),
    Limit("guarded", "with_a_token_over_open", 2.0),
    Limit("guarded", "with_a_token_and_keys_over_open", 2.4),
    Limit("later", "without_body_the_last_row_over_the_first", 2.0),
    Limit("commits", "server_and_postgres_cpu_ms", 28.0, lambda row: row["commit"] == "set-properties"),
    Limit("commits", "server_and_postgres_cpu_ms", 52.0, lambda row: row["commit"] == "fast append"),
    Limit("commits", "fsyncs", 1.9, lambda row: True),
    Limit("commit_files", "peak_mib_above_idle", 250.0, lambda row: True),
    Limit("commit_files", "cpu_ms_per_file", 0.8, lambda row: int(row["files"] or 0) >= 1000),
    Limit("deletes", "the_same_files_of_the_most_over_of_the_fewest", 2.0),
)
"""Up to four times what a quiet machine measures: with twenty processes for each core the same work takes that much CPU time."""
JOB_LIMITS = (
    Limit("ingest", "wall_over_store_median_warm", 1.3, least=("rows", 10_000_000)),
    Limit("verify", "wall_ratio_median_warm", 2.0, least=("rows", 10_000_000)),
    Limit("compaction", "wall_ratio", 1.3, lambda row: True, least=("small_files", 10_000)),
    Limit("compaction", "bytes_ratio", 0.99, lambda row: row["beside"] != "small", least=("small_files", 1000)),
    # It is to be 1, of one run each: four pairs gave 0.78 to 1.00 (decision 050).
    Limit("publish", "with_spark_over_alone_wall_last", 1.1, least=("files_last", 1_000_000)),
    Limit("publish", "executors_cpu_new_over_first", 1.25, least=("files_last", 1_000_000)),
    Limit("job_start", "first_step_seconds", 15.0, lambda row: True),
)
"""What was asked of the jobs on two cores with nothing beside, and not a multiple of what was measured."""


def list_broken(results: Mapping[str, Result]) -> Iterator[str]:
    """Yield a sentence for each figure that is above its limit; what was not measured is not judged."""
    for limit in (*LIMITS, *JOB_LIMITS):
        result = results.get(limit.benchmark)
        if result is None or (limit.least is not None and int(result.facts.get(limit.least[0]) or 0) < limit.least[1]):
            continue
        sources = [result.facts] if limit.of is None else [row for row in result.rows if limit.of(row)]
        for source in sources:
            found = source.get(limit.figure)
            if isinstance(found, int | float) and found > limit.most:
                yield f"{limit.benchmark}: {limit.figure.replace('_', ' ')} is {found:.3f}, more than {limit.most}"
