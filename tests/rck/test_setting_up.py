"""What the compatibility kit says when it cannot run, and how its answers are read; nothing is started here."""

from pathlib import Path

import pytest

from tests.rck.jars import KitMissing, fetch_kit
from tests.rck.known import SKIPPED, SKIPPED_ON_S3
from tests.rck.running import Result, format_properties, parse_results
from tests.rck.test_rck import check_known


def test_without_maven_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is fetched."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KitMissing, match="apt-get install maven"):
        fetch_kit(tmp_path / "cache", "1.11.0")
    assert not (tmp_path / "cache").exists()


def test_settings_reach_java_as_they_are() -> None:
    """Signs that Java's properties take for their own are written by number."""
    assert format_properties({"a b": "x=y:z\\\n"}) == "a\\u0020b=x\\u003dy\\u003az\\u005c\\u000a\n"


def test_results_are_read_line_by_line() -> None:
    """What Java prints besides is passed over."""
    lines = ["WARNING: x", "passed\ta\t", "failed\tb([1] true)\twhy not", "skipped\tc\tno use", "done"]
    assert parse_results(lines) == {"a": Result("passed", ""), "b([1] true)": Result("failed", "why not"), "c": Result("skipped", "no use")}


def test_known_tests_must_fail_and_others_must_not() -> None:
    """A list that nobody holds would hide what breaks, and what works again."""
    results = {"a": Result("failed", "why"), "b": Result("passed", "")}
    check_known(results, "failed", {"a": "known"})
    with pytest.raises(AssertionError, match="a: why"):
        check_known(results, "failed", {})
    with pytest.raises(AssertionError, match="no longer failed"):
        check_known(results, "failed", {"a": "known", "b": "known"})


def test_every_known_test_has_its_reason() -> None:
    """In one place."""
    reasons = [reason for known in (SKIPPED, SKIPPED_ON_S3) for tests in known.values() for reason in tests.values()]
    assert all(reasons)
