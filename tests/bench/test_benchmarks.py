"""Every benchmark runs, small, on servers of its own, and its figures can be true."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import IDLE, ON_A_STAND
from bench.cached import STOPPED_REQUESTS
from bench.scale import SMALL
from tests.support.readers import Served
from tests.support.shared_stack import ROOT

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("bench")]

RUN_SECONDS = 300
Figures = Mapping[str, Any]


def run_bench(out: Path, *arguments: str, seconds: int = RUN_SECONDS) -> Figures:
    """Run `python -m bench` and return the benchmarks of its JSON."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")}
    argv = [sys.executable, "-m", "bench", "--small", "--json", str(out), *arguments]
    done = subprocess.run(argv, cwd=ROOT, env=kept, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())["benchmarks"]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """What one small run of everything measured."""
    return run_bench(tmp_path_factory.mktemp("bench") / "out.json")


def test_every_benchmark_reports(figures: Figures) -> None:
    """One run covers all of them, and all rows of one have the same columns."""
    assert figures.keys() == {*ON_A_STAND, IDLE}
    for name, result in figures.items():
        assert result["rows"], name
        assert len({tuple(row) for row in result["rows"]}) == 1, name


def test_cached_loads_share_queries_and_need_no_store(figures: Figures) -> None:
    """Every request is answered as asked; many connections share a query; with the store stopped all is the same."""
    one, many, unchanged, large, *_ = figures["cached"]["rows"]
    assert one["statuses"] == f"{SMALL.requests // 2}×200"
    assert many["statuses"] == f"{SMALL.requests}×200"
    assert unchanged["statuses"] == f"{SMALL.requests}×304"
    assert large["sent_bytes"] < large["json_bytes"] / 3
    assert one["sent_bytes"] == one["json_bytes"] > 1500
    assert one["watch_queries_per_request"] == pytest.approx(1.0, abs=0.1)
    assert 0 < many["watch_queries_per_request"] < 0.5
    for row in (one, many, unchanged, large):
        assert 0.01 < row["server_cpu_ms"] < 20
        assert 0 < row["wall_p50_ms"] <= row["wall_p99_ms"]
    assert figures["cached"]["facts"]["answered_200_while_the_store_was_stopped"] == STOPPED_REQUESTS
    guarded = figures["guarded"]
    assert [row["statuses"] for row in guarded["rows"]] == [f"{SMALL.requests}×200"] * 3 * SMALL.turns
    open_row, token, keys = guarded["rows"]
    assert keys["json_bytes"] > open_row["json_bytes"] == token["json_bytes"]
    assert guarded["facts"]["with_a_token_over_open"] == pytest.approx(token["server_cpu_ms"] / open_row["server_cpu_ms"])


def test_first_loads_show_every_item(figures: Figures) -> None:
    """A curve has the snapshots and files that were asked for, and writing their objects costs the store something."""
    by_snapshots, by_files = figures["snapshots"]["rows"], figures["files"]["rows"]
    assert [row["snapshots"] for row in by_snapshots] == list(SMALL.snapshots)
    assert [row["items"] for row in by_files] == list(SMALL.files)
    assert {row["snapshots"] for row in by_files} == {1}
    for row in (*by_snapshots, *by_files):
        assert row["server_cpu_ms"] > 0.5
        assert row["store_cpu_ms"] > 0.1
        assert row["peak_mib_above_idle"] < 400
    assert by_snapshots[-1]["store_cpu_ms"] > by_snapshots[0]["store_cpu_ms"]
    assert by_snapshots[-1]["body_bytes"] > by_snapshots[0]["body_bytes"]


def test_later_and_inlined_loads_are_measured(figures: Figures) -> None:
    """A load after one more insert does work; one snapshot is published for each inlined insert."""
    assert [row["snapshots"] for row in figures["later"]["rows"]] == list(SMALL.later_snapshots)
    for row in figures["later"]["rows"]:
        assert row["server_cpu_ms"] > 0.5
        assert 0 < row["body_cpu_ms"] == pytest.approx(row["server_cpu_ms"] - row["without_body_cpu_ms"])
    [row] = figures["inlined"]["rows"]
    assert row["inserts"] == row["snapshots"] == SMALL.inlined_inserts
    assert row["server_cpu_ms"] > 1


def test_commits_are_measured(figures: Figures) -> None:
    """Properties and appends, with short and long histories; Postgres waits for the disk at least once in a commit."""
    assert [row["commit"] for row in figures["commits"]["rows"]] == ["set-properties", "fast append"]
    for row in figures["commits"]["rows"]:
        assert row["server_and_postgres_cpu_ms"] == pytest.approx(row["server_cpu_ms"] + row["postgres_cpu_ms"])
        assert row["server_cpu_ms"] > 0.5 < row["wall_p50_ms"] <= row["wall_p90_ms"]
        assert row["fsyncs"] >= 1
    [appends] = figures["pyiceberg"]["rows"]
    assert appends["appends"] == SMALL.pyiceberg_appends
    assert appends["client_cpu_ms"] > 1 < appends["server_cpu_ms"]


def test_commits_to_long_histories_are_measured_with_and_without_their_answers(figures: Figures) -> None:
    """What a commit grows by without its answer is told over the first row's commit, which is whole in both ratios."""
    rows, facts = figures["commit_growth"]["rows"], figures["commit_growth"]["facts"]
    assert [row["snapshots"] for row in rows] == [*SMALL.later_snapshots] * 2
    few, many = SMALL.later_snapshots
    for kind in ("set-properties", "fast append"):
        first, last = [row for row in rows if row["commit"] == kind]
        grown = last["server_unanswered_cpu_ms"] - first["server_unanswered_cpu_ms"]
        assert facts[f"{kind}_at_{many}_over_{few}"] == pytest.approx((first["server_cpu_ms"] + grown) / first["server_cpu_ms"])
        assert facts[f"{kind}_at_{many}_over_{few}_with_the_answer"] == pytest.approx(last["server_cpu_ms"] / first["server_cpu_ms"])


def test_what_the_libraries_take_of_a_commit_is_measured(figures: Figures) -> None:
    """Of each kind of commit three parts, each of which takes some, their sum, and what the server takes for the whole."""
    rows, facts = figures["floor"]["rows"], figures["floor"]["facts"]
    for kind, name in (("set-properties", "set_properties"), ("fast append", "fast_append")):
        *parts, real = [row for row in rows if row["commit"] == kind]
        assert [row["part"] for row in parts] == ["answer", "transaction", "objects"]
        assert all(row["server_cpu_ms"] > 0.01 for row in parts)
        whole = sum(row["server_cpu_ms"] + row["postgres_cpu_ms"] for row in parts)
        assert facts[f"{name}_by_the_libraries_alone_cpu_ms"] == pytest.approx(whole)
        assert facts[f"{name}_over_the_floor"] == pytest.approx((real["server_cpu_ms"] + real["postgres_cpu_ms"]) / whole)
        assert facts[f"{name}_over_the_floor"] > 1


def test_writers_and_big_commits_are_measured(figures: Figures) -> None:
    """Eight writers make eight times the commits of one; many files and many deletes are committed as asked for."""
    one, eight = figures["writers"]["rows"]
    assert (eight["writers"], eight["commits"]) == (8, 8 * one["commits"])
    assert figures["writers"]["facts"]["commits_per_second_of_the_lock_alone"] > 0
    assert [row["files"] for row in figures["commit_files"]["rows"]] == list(SMALL.commit_files)
    touched = [(row["files"], row["touched"]) for row in figures["deletes"]["rows"]]
    assert touched == [(files, count) for files in SMALL.deleted_from for count in SMALL.deleted]


def test_idle_memory_is_that_of_all_processes(figures: Figures) -> None:
    """The whole is its parts, and a Python server, a Postgres and an S3 cannot be smaller than this."""
    *parts, whole = figures[IDLE]["rows"]
    assert [row["part"] for row in parts] == ["server", "postgres", "s3"]
    assert sum(row["processes"] for row in parts) == whole["processes"] >= 6
    assert sum(row["rss_mib"] for row in parts) == pytest.approx(whole["rss_mib"], rel=0.1)
    assert 100 < whole["pss_mib"] <= whole["rss_mib"] < 1500
    assert 0.2 < figures[IDLE]["facts"]["warm_start_seconds"] < 120


def test_a_server_that_runs_already_is_measured(served: Served, tmp_path: Path) -> None:
    """`--uri` loads a table of any server; its CPU time counts when `--pid` names the process."""
    served.lake.duckdb().execute("CREATE TABLE measured AS SELECT 1 AS i")
    uri = f"{served.server.uri}/v1/lake/namespaces/main/tables/measured"
    rows = run_bench(tmp_path / "out.json", "--uri", uri, "--pid", str(os.getpid()))["foreign"]["rows"]
    assert [row["connections"] for row in rows] == [1, 32]
    for row in rows:
        assert row["statuses"] == f"{SMALL.requests}×200"
        assert 0.01 < row["server_cpu_ms"] < 20
    assert served.server.count("duckicelake_table_cache_total", outcome="hit") >= 2 * SMALL.requests
