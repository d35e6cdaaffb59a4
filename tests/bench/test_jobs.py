"""Every benchmark of a Spark job runs, small, on servers of its own, and its figures can be true."""

from pathlib import Path
from typing import Any

import pytest

from bench.commits.limits import JOB_LIMITS
from bench.jobs.compacting import CASES
from bench.jobs.ingesting import BESIDE
from bench.jobs.starting import FIRST
from bench.scale import SMALL
from tests.bench.test_benchmarks import run_bench

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("bench")]

RUN_SECONDS = 1800
"""Spark starts up to five times in one benchmark, beside whatever the machine has to do."""
TURNS = list(range(SMALL.job_turns + 1))
"""One more than is counted: the cold one."""


def measure(name: str, folder: Path) -> Any:
    """One benchmark, whose limits are all of figures that it has."""
    figures = run_bench(folder / "out.json", "--only", name, seconds=RUN_SECONDS)
    assert figures.keys() == {name}
    result = figures[name]
    assert len({tuple(row) for row in result["rows"]}) == 1
    for limit in (limit for limit in JOB_LIMITS if limit.benchmark == name):
        assert limit.least is None or limit.least[0] in result["facts"]
        places = [result["facts"]] if limit.of is None else list(filter(limit.of, result["rows"]))
        assert [place for place in places if not 0 < place[limit.figure] < 1000] == []
        assert places
    return result


def test_publication_is_measured(tmp_path: Path) -> None:
    """By the server alone, by a session that stands, and from the shell, which takes as much longer as Spark's start."""
    result = measure("publish", tmp_path)
    assert [row["files"] for row in result["rows"]] == list(SMALL.published_files)
    for row in result["rows"]:
        assert 0 < row["alone_wall_ms"] < row["command_wall_ms"] > row["with_spark_wall_ms"] > 0
        assert row["executors_cpu_ms"] > 0 < row["with_spark_servers_cpu_ms"]
        assert row["make_seconds"] > 0
    last = result["rows"][-1]
    assert result["facts"]["files_last"] == last["files"]
    assert result["facts"]["with_spark_over_alone_wall_last"] == pytest.approx(last["with_spark_wall_ms"] / last["alone_wall_ms"])


def test_verification_is_measured(tmp_path: Path) -> None:
    """Beside a scan by Spark of the same rows; the median is of warm turns."""
    result = measure("verify", tmp_path)
    assert [row["turn"] for row in result["rows"]] == TURNS
    for row in result["rows"]:
        assert row["wall_ratio"] == pytest.approx(row["verify_wall_ms"] / row["scan_wall_ms"])
        assert row["scan_spark_cpu_ms"] > 0 < row["verify_driver_cpu_ms"]
    assert result["facts"]["rows"] == SMALL.job_rows
    assert result["facts"]["wall_ratio_median_warm"] == pytest.approx(result["rows"][-1]["wall_ratio"])


def test_ingestion_is_measured(tmp_path: Path) -> None:
    """Beside Spark that writes the same rows to each of three places."""
    result = measure("ingest", tmp_path)
    assert [row["turn"] for row in result["rows"]] == TURNS
    for row in result["rows"]:
        for place in BESIDE:
            assert row[f"wall_over_{place}"] == pytest.approx(row["ingest_wall_ms"] / row[f"{place}_wall_ms"])
            assert row[f"cpu_over_{place}"] == pytest.approx(row["ingest_cpu_ms"] / row[f"{place}_cpu_ms"])
    assert result["facts"]["rows"] == SMALL.job_rows
    assert result["facts"]["wall_over_store_median_warm"] == pytest.approx(result["rows"][-1]["wall_over_store"])


def test_compaction_is_measured(tmp_path: Path) -> None:
    """Two tables each; all small files go, and what both rewrote is counted."""
    result = measure("compaction", tmp_path)
    assert [row["beside"] for row in result["rows"]] == list(CASES)
    for row in result["rows"]:
        for whose in ("ours", "theirs"):
            assert row[f"{whose}_removed_files"] >= 2 * SMALL.small_files > row[f"{whose}_added_files"] > 0
            assert row[f"{whose}_bytes"] > 0
        assert row["wall_ratio"] == pytest.approx(row["ours_wall_ms"] / row["theirs_wall_ms"])
        assert row["bytes_ratio"] == pytest.approx(row["ours_bytes"] / row["theirs_bytes"])
    assert result["facts"]["small_files"] == SMALL.small_files


def test_a_jobs_start_is_measured(tmp_path: Path) -> None:
    """Of each, from the command to the first step that shows it, and to its end."""
    rows = measure("job_start", tmp_path)["rows"]
    assert [(row["turn"], row["job"]) for row in rows] == [(turn, job) for turn in range(SMALL.job_turns) for job in FIRST]
    for row in rows:
        assert row["first_step"].startswith(FIRST[row["job"]])
        assert 0.5 < row["first_step_seconds"] <= row["ended_seconds"]
        assert 100 < row["first_step_cpu_ms"] <= row["cpu_ms"]
