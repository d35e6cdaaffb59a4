"""What the benchmarks must show: figures above their limits are told, those within are not."""

import pytest

from bench.__main__ import WITH_SPARK
from bench.commits.limits import JOB_LIMITS, LIMITS, list_broken
from bench.report import Result


def test_a_figure_above_its_limit_is_named() -> None:
    """Each limit is of one figure, of some rows or of the facts."""
    row = {"commit": "set-properties", "server_and_postgres_cpu_ms": 99.5, "fsyncs": 1.0}
    fine = row | {"server_and_postgres_cpu_ms": 9.5}
    assert list(list_broken({"commits": Result("", [fine])})) == []
    [told] = list_broken({"commits": Result("", [fine, row])})
    assert told.startswith("commits: server and postgres cpu ms is 99.500, more than")
    [told] = list_broken({"later": Result("", [{}], {"without_body_the_last_row_over_the_first": 9.0})})
    assert told.startswith("later: without body the last row over the first is 9.000")


def test_what_was_not_measured_is_not_judged() -> None:
    """A run of some benchmarks is judged by these; a fact that could not be told breaks nothing."""
    assert list(list_broken({})) == []
    assert list(list_broken({"later": Result("", [{}], {"without_body_the_last_row_over_the_first": None})})) == []
    assert all(limit.most > 0 for limit in (*LIMITS, *JOB_LIMITS))


JOBS = {
    "ingest": Result("", [], {"rows": 10_000_000, "wall_over_store_median_warm": 1.31, "wall_over_folder_median_warm": 9.0}),
    "verify": Result("", [], {"rows": 10_000_000, "wall_ratio_median_warm": 2.01}),
    "compaction": Result(
        "",
        [{"beside": "small", "wall_ratio": 1.31, "bytes_ratio": 1.1}, {"beside": "small and large", "wall_ratio": 1.0, "bytes_ratio": 1.0}],
        {"small_files": 10_000},
    ),
    "publish": Result("", [], {"files_last": 1_000_000, "with_spark_over_alone_wall_last": 1.26, "executors_cpu_new_over_first": 1.26}),
    "job_start": Result("", [{"first_step_seconds": 15.1}]),
}


def test_every_job_that_is_measured_has_a_limit() -> None:
    """`--check` can fail over each."""
    assert {limit.benchmark for limit in JOB_LIMITS} == WITH_SPARK.keys()


@pytest.mark.parametrize(("job", "told"), [("ingest", 1), ("verify", 1), ("compaction", 2), ("publish", 2), ("job_start", 1)])
def test_jobs_that_are_slower_than_they_may_be_are_named(job: str, told: int) -> None:
    """Each by its own ratio, in one sentence."""
    found = list(list_broken({job: JOBS[job]}))
    assert len(found) == told, found
    assert all(one.startswith(f"{job}: ") for one in found)


def test_small_runs_of_jobs_are_not_judged_by_their_ratios() -> None:
    """Of little work most is the beginning; when a job begins does not hang on how much it has to do."""
    small = {
        job: Result("", result.rows, {**result.facts, "rows": 5000, "small_files": 40, "files_last": 600}) for job, result in JOBS.items()
    }
    assert [one.partition(":")[0] for one in list_broken(small)] == ["job_start"]
