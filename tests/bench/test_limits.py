"""What the benchmarks must show: figures above their limits are told, those within are not."""

from bench.commits.limits import LIMITS, list_broken
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
    assert all(limit.most > 0 for limit in LIMITS)
