"""The lists of expected failures, and what is made of them."""

from pathlib import Path

import pytest

from tests.outside.client_suite import ENVIRONMENTS, LOADERS, list_cases, list_loads
from tests.outside.flink_suite import STREAMS
from tests.outside.go_suite import read_results
from tests.outside.kafka_suite import SINKS
from tests.outside.matrix import CLIENTS, JOBS, format_loads, format_matrix
from tests.outside.results import EXPECTED, Result, judge, read_expected
from tests.support.shared_stack import ROOT

WHOSE = {"choice", "limit", "client", "set-up"}


@pytest.mark.parametrize("suite", [path.stem for path in sorted(EXPECTED.iterdir())])
def test_each_expected_failure_has_a_reason(suite: str) -> None:
    """A reason in words, whose it is, and no test twice. Pages that are named exist."""
    entries = read_expected(suite)
    names = [name for entry in entries for name in entry["tests"]]
    assert len(names) == len(set(names))
    for entry in entries:
        assert entry["whose"] in WHOSE and len(entry["reason"]) > 30
        link = entry.get("link", "https://")
        assert link.startswith("https://") or Path(ROOT / link).exists(), link


def test_a_failure_without_a_reason_and_a_reason_without_a_failure_are_found() -> None:
    """An entry covers the parameters and subtests of its test; an entry whose tests did not run says nothing."""
    results = {"a[1]": Result("failed", "x"), "b/c": Result("failed", "y"), "ab": Result("failed", "z"), "d": Result("passed")}
    verdict = judge(results, [{"tests": ["a", "b", "d", "e"]}])
    assert (verdict.unexpected, verdict.mended) == ({"ab": "z"}, ["d"])


def test_results_of_go_are_those_of_its_innermost_tests() -> None:
    """A test that fails because a subtest does is not counted beside it."""
    events = [
        {"Action": "run", "Test": "T/a"},
        {"Action": "output", "Test": "T/a", "Output": "wrong\n"},
        {"Action": "fail", "Test": "T/a"},
        {"Action": "pass", "Test": "T/b"},
        {"Action": "fail", "Test": "T"},
        {"Action": "fail"},
    ]
    assert read_results(events) == {"T/a": Result("failed", "wrong\n"), "T/b": Result("passed")}


def test_the_page_has_what_the_runs_found() -> None:
    """Paste what this test prints when a list of expected failures has changed."""
    assert set(CLIENTS) == {*ENVIRONMENTS, "flink", "trino"}
    known = {f"{client}/{case.name}" for client in ENVIRONMENTS for case in list_cases()}
    known |= {f"{client}/{case.name}" for client in LOADERS for case in list_loads(client)}
    known |= {name.rpartition("/")[0] for name in known}
    assert {name for entry in read_expected("clients") for name in entry["tests"]} <= known
    assert {name for entry in read_expected("flink") for name in entry["tests"]} <= {case.name for case in list_cases()} | {*STREAMS}
    assert {name for entry in read_expected("trino") for name in entry["tests"]} <= {case.name for case in list_cases()}
    assert {suite: set(jobs) for suite, jobs in JOBS.items()} == {"flink": set(STREAMS), "kafka": set(SINKS)}
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert format_matrix() in page, format_matrix()
    assert format_loads() in page, format_loads()
