"""What became of each test of a suite, compared with the failures that are expected of it."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPECTED = Path(__file__).parent / "expected"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test (`passed`, `failed` or `skipped`), and why when it did not pass."""

    outcome: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The differences between a run and what is expected of it."""

    unexpected: Mapping[str, str]
    mended: list[str]


def read_expected(suite: str) -> list[Mapping[str, Any]]:
    """Return the entries of a suite's file: tests that fail, the reason, and a link where there is one."""
    return tomllib.loads((EXPECTED / f"{suite}.toml").read_text()).get("expected", [])


def matches(test: str, name: str) -> bool:
    """True if the name is the test's, or that of a class, or of a test with parameters or subtests, of which this is one."""
    return test == name or test.startswith((f"{name}[", f"{name}/", f"{name}."))


def judge(results: Mapping[str, Result], entries: list[Mapping[str, Any]]) -> Verdict:
    """Return failures that no entry names, and names of which nothing failed although it ran."""
    failed = {test: result.reason for test, result in results.items() if result.outcome == "failed"}
    names = [name for entry in entries for name in entry["tests"]]
    unexpected = {test: reason for test, reason in failed.items() if not any(matches(test, name) for name in names)}
    ran = [name for name in names if any(matches(test, name) for test in results)]
    return Verdict(unexpected, [name for name in ran if not any(matches(test, name) for test in failed)])


def format_summary(suite: str, results: Mapping[str, Result], verdict: Verdict) -> str:
    """Return the counts, each unexpected failure with its reason, and the entries to take out."""
    counts = {outcome: sum(result.outcome == outcome for result in results.values()) for outcome in ("passed", "failed", "skipped")}
    lines = [f"{suite}: " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())]
    lines += [f"  failed, and not expected: {test}\n{_indent(reason)}" for test, reason in verdict.unexpected.items()]
    lines += [f"  expected to fail, and passed: {name} (take it out of expected/{suite}.toml)" for name in verdict.mended]
    return "\n".join(lines) + "\n"


def _indent(reason: str) -> str:
    return "\n".join(f"    {line}" for line in reason.splitlines()[-12:])
