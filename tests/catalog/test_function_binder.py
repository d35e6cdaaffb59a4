"""The process that tells what macros return: what it takes from its surroundings, and what is remembered of its end."""

import sys
from pathlib import Path

import pytest

from duckicelake.catalog import function_binder
from duckicelake.catalog.function_binder import MAX_WAITING, FunctionBinder
from duckicelake.errors import ServiceUnavailable

INTEGER = [{"columns": [["1", "INTEGER"]]}]


def test_it_imports_nothing_from_the_servers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would look there first for a module that is run by its name."""
    (tmp_path / "resource.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert FunctionBinder().bind("lake", [], [["SELECT 1"]]) == INTEGER


def test_several_statements_in_one_are_refused() -> None:
    """Types and aliases come from the lake's rows, which others than DuckDB may write."""
    binder = FunctionBinder()
    statements = ["CREATE TABLE t (i INTEGER); CREATE TABLE x (i INTEGER)"]
    answers = binder.bind("lake", statements, [["FROM x"], ["SELECT 1; SELECT 2"], ["FROM nope", "SELECT 1"]])
    assert [answer.keys() for answer in answers] == [{"error"}, {"error"}, {"columns"}]


def test_an_end_that_may_not_last_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine has no memory left: the next request asks again."""
    binder = FunctionBinder()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/bin/false")
        with pytest.raises(ServiceUnavailable, match="has failed; try again"):
            binder.bind("lake", [], [["SELECT 1"]])
    assert binder.bind("lake", [], [["SELECT 1"]]) == INTEGER
    monkeypatch.setattr(function_binder.subprocess, "run", None)
    assert binder.bind("lake", [], [["SELECT 1"]]) == INTEGER


def test_threads_that_wait_are_few() -> None:
    """Beyond them a request is told to come again."""
    binder = FunctionBinder()
    for _ in range(MAX_WAITING):
        assert binder._waiting.acquire(blocking=False)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ServiceUnavailable, match="is busy; try again"):
        binder.bind("lake", [], [["SELECT 1"]])
