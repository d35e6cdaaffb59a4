"""What is kept of a client's metrics report: bounded, and never a refusal for a member that is wrong."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.iceberg.requests.reports import MAX_BYTES, build_kept_report, read_report_type

SCAN = {
    "report-type": "scan-report",
    "table-name": "lake.main.t",
    "snapshot-id": 7,
    "filter": {"type": "eq", "term": "id", "value": "(1-digit-int)"},
    "schema-id": 0,
    "projected-field-ids": [1],
    "projected-field-names": ["id"],
    "metrics": {
        "total-planning-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": 2_644_235_116},
        "result-data-files": {"unit": "count", "value": 1},
        "total-file-size-in-bytes": {"unit": "bytes", "value": 45},
    },
    "metadata": {"engine-name": "spark"},
}
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.text("\0\ud800é", max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_a_scan_report_is_kept() -> None:
    """Ids of columns and the table's name, which the path says, are not."""
    assert build_kept_report(SCAN) == {
        "report-type": "scan-report",
        "snapshot-id": 7,
        "schema-id": 0,
        "filter": '{"type":"eq","term":"id","value":"(1-digit-int)"}',
        "projected-field-names": ["id"],
        "metrics": {"total-planning-duration": 2_644_235_116, "result-data-files": 1, "total-file-size-in-bytes": 45},
        "metadata": {"engine-name": "spark"},
    }


@pytest.mark.parametrize(
    ("metric", "kept"),
    [
        ({"count": 3, "time-unit": "milliseconds", "total-duration": 5}, {"m": 5_000_000}),
        ({"count": 3, "time-unit": "days", "total-duration": 2**62}, {"m": 2**63 - 1}),
        ({"count": 3, "time-unit": "fortnights", "total-duration": 5}, {}),
        ({"count": 3, "time-unit": [], "total-duration": 5}, {}),
        ({"unit": "count", "value": True}, {}),
        ({"unit": "count", "value": -1}, {}),
        ({"unit": "count", "value": 1.5}, {}),
        ({"unit": "count", "value": 2**63}, {}),
        ([], {}),
    ],
    ids=str,
)
def test_metrics_are_whole_numbers(metric: Any, kept: Any) -> None:
    """Durations in nanoseconds; what is none is left out."""
    assert build_kept_report({**SCAN, "metrics": {"m": metric}})["metrics"] == kept


@pytest.mark.parametrize("node", [None, [], {}, {"report-type": 1}, {"report-type": None}], ids=str)
def test_a_body_without_a_type_is_no_report(node: Any) -> None:
    """It is refused."""
    with pytest.raises(BadRequest):
        read_report_type(node)


@pytest.mark.whole
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from([name for name in SCAN if name != "report-type"]), ANY))
def test_hostile_reports_are_bounded_and_can_be_stored(changed: dict[str, Any]) -> None:
    """Whatever the members are: JSON that Postgres stores, without NUL, half characters and numbers that are none."""
    written = json.dumps(build_kept_report(SCAN | changed), allow_nan=False, ensure_ascii=False)
    assert len(written.encode()) <= MAX_BYTES
    assert "\\u0000" not in written


@pytest.mark.parametrize(
    "changed",
    [
        {"filter": ["x" * 5000]},
        {"projected-field-names": ["x" * 250] * 100},
        {"metadata": {str(number): "é" * 250 for number in range(1000)}},
        {"metrics": {"x" * 60 + str(number): {"value": 2**63 - 1} for number in range(1000)}},
        {"filter": ["é" * 2000], "projected-field-names": ["é" * 250] * 100, "metadata": {"é" * 60: "é" * 250}, "operation": "é" * 250},
    ],
    ids=lambda changed: "+".join(changed),
)
def test_large_reports_lose_their_largest_members(changed: dict[str, Any]) -> None:
    """The numbers stay."""
    kept = build_kept_report(SCAN | changed)
    assert len(json.dumps(kept)) <= MAX_BYTES
    assert kept["snapshot-id"] == 7
    assert kept["metrics"]


def test_metrics_have_plain_names() -> None:
    """A report of other names would take several times its limit."""
    many = {f"{number}{'é' * 60}": {"value": 2**63 - 1} for number in range(60)}
    kept = build_kept_report({**SCAN, "metrics": {**many, "a\n": {"value": 1}, "result-data-files": {"value": 1}}})
    assert kept["metrics"] == {"result-data-files": 1}


def test_a_deep_filter_is_left_out() -> None:
    """It costs no more than any other."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "filter" not in build_kept_report({**SCAN, "filter": deep})
