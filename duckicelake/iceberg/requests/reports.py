"""Metrics reports of clients: what is kept of them. Pure; the REST route calls it.

Clients ignore how a report is answered, so nothing in it is refused but a body that is no report: members of the wrong type, and those that
are too long, are left out.

Source: Iceberg open-api/rest-catalog-open-api.yaml, ReportMetricsRequest
"""

import json
import re
from collections.abc import Mapping
from typing import cast

from duckicelake.iceberg.json_reader import LONG_MAX, as_object, get_text, is_text, is_whole

WHAT = "metrics report"
SCAN, COMMIT = "scan-report", "commit-report"
MAX_BYTES = 8192
"""What is kept of a report has at most so many bytes."""
LONGEST_FIRST = ("metadata", "projected-field-names", "filter")
"""Members that are left out, in this order, if a report is too large."""
MAX_FILTER_CHARACTERS, MAX_TEXT_CHARACTERS, MAX_NAME_CHARACTERS = 4096, 256, 64
MAX_FIELDS, MAX_METRICS, MAX_METADATA = 100, 64, 16
METRIC_NAME = re.compile(rf"[\w.:-]{{1,{MAX_NAME_CHARACTERS}}}", re.ASCII)
"""Metrics are never left out as a whole, so their names take one byte a character. Those of Iceberg's libraries are of this kind."""
NUMBERS, TEXTS = ("snapshot-id", "schema-id", "sequence-number"), ("operation",)
NANOSECONDS: Mapping[object, int] = {
    "nanoseconds": 1,
    "microseconds": 10**3,
    "milliseconds": 10**6,
    "seconds": 10**9,
    "minutes": 60 * 10**9,
    "hours": 3600 * 10**9,
    "days": 86_400 * 10**9,
}
"""The units that Java writes."""


def read_report_type(node: object) -> str:
    """Return the type of a report. Raises: BadRequest: it is none."""
    return get_text(as_object(node, WHAT), "report-type", WHAT)


def build_kept_report(node: object) -> dict[str, object]:
    """Return what is kept of a report, as a JSON object of bounded size.

    `filter` is the expression as JSON text. `metrics` are numbers by name, durations in nanoseconds.
    """
    report = as_object(node, WHAT)
    kept: dict[str, object] = {"report-type": report["report-type"]}
    kept |= {name: report[name] for name in NUMBERS if is_whole(report.get(name), LONG_MAX)}
    kept |= {name: report[name] for name in TEXTS if is_short(report.get(name))}
    written = None if report.get("filter") is None else format_filter(report["filter"])
    if written is not None:
        kept["filter"] = written
    names = report.get("projected-field-names")
    if isinstance(names, list):
        kept["projected-field-names"] = [name for name in cast("list[object]", names)[:MAX_FIELDS] if is_short(name)]
    kept["metrics"] = build_metrics(report.get("metrics"))
    kept["metadata"] = {name: value for name, value in list_members(report.get("metadata"), MAX_METADATA) if is_short(value)}
    for name in LONGEST_FIRST:
        if len(json.dumps(kept)) > MAX_BYTES:
            kept.pop(name, None)
    return kept


def is_short(value: object, most: int = MAX_TEXT_CHARACTERS) -> bool:
    """True for a text that is kept. Postgres stores no NUL."""
    return is_text(value) and len(cast("str", value)) <= most and "\0" not in cast("str", value)


def list_members(node: object, most: int) -> list[tuple[str, object]]:
    """Return the first members of a JSON object with short names; none of anything else."""
    if not isinstance(node, dict):
        return []
    members = cast("dict[str, object]", node)
    return [(name, members[name]) for name in list(members)[:most] if is_short(name, MAX_NAME_CHARACTERS)]


def format_filter(node: object) -> str | None:
    """Return an expression as JSON text, None if it is too long, or no text that Postgres stores."""
    try:
        written = json.dumps(node, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        return None
    return written if len(written) <= MAX_FILTER_CHARACTERS and is_text(written) and "\\u0000" not in written else None


def build_metrics(node: object) -> dict[str, int]:
    """Return counters and timers as numbers by name."""
    found = ((name, read_metric(metric)) for name, metric in list_members(node, MAX_METRICS) if METRIC_NAME.fullmatch(name))
    return {name: value for name, value in found if value is not None}


def read_metric(node: object) -> int | None:
    """Return the value of a counter, or a timer's total duration in nanoseconds; None for anything else."""
    if not isinstance(node, dict):
        return None
    metric = cast("dict[str, object]", node)
    if "value" in metric:
        value = metric["value"]
        return cast("int", value) if is_whole(value, LONG_MAX) and cast("int", value) >= 0 else None
    duration, unit = metric.get("total-duration"), metric.get("time-unit")
    if not is_whole(duration, LONG_MAX) or cast("int", duration) < 0 or not isinstance(unit, str) or unit not in NANOSECONDS:
        return None
    return min(cast("int", duration) * NANOSECONDS[unit], LONG_MAX)
