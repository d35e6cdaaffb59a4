"""A job's report as metrics of Prometheus, for the folder of node_exporter's textfile collector."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import time
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

SUFFIX = ".prom"
"""How a report's name ends that is to be written so."""
PREFIX = "duckicelake_job_"
Labels = tuple[tuple[str, str], ...]
PARTS = ("tables", "steps", "findings", "moved")
"""What reports call the list of what a run is made of."""
SIZES = "total"
"""What they call how big a table is."""
_NO_SUMS = ("snapshot_id", "at_ms")


def write_metrics(path: Path, report: Mapping[str, Any]) -> None:
    """Write what `--report` has as JSON; whoever reads the file finds all of it, or the one before.

    Numbers are gauges by command and table, those of several parts of a table added up; ends are counted by `verdict`, seconds by the first
    word of the step.
    Raises: OSError: it cannot be written
    """
    registry, job = CollectorRegistry(), str(report["job"])
    _add(registry, "ended_timestamp_seconds", "When the job last ended or was heard of.", {(): time()}, job)
    _add(registry, "status", "How it ended.", {(("status", str(report["status"])),): 1}, job)
    ends = Counter((("verdict", str(part["verdict"])),) for part in _list_parts(report))
    _add(registry, "parts", "How its parts ended.", ends, job)
    seconds: dict[Labels, float] = {}
    for step, spent in report.get("seconds", {}).items():
        label = (("step", str(step).partition(" ")[0]),)
        seconds[label] = seconds.get(label, 0.0) + spent
    _add(registry, "seconds", "How long its steps took.", seconds, job)
    sums: dict[str, dict[Labels, float]] = {}
    for name, table, number in _list_numbers(report):
        by_table, label = sums.setdefault(name, {}), (("table", table),)
        by_table[label] = by_table.get(label, 0.0) + number
    for name, by_table in sums.items():
        _add(registry, name, f"The report's `{name}`.", by_table, job)
    write_to_textfile(str(path), registry)


def _list_parts(report: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [part for name in PARTS if isinstance(report.get(name), list) for part in report[name]]


def _list_numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """The numbers of a run and of its parts: what each is called, and the table."""
    for part in (report, *_list_parts(report)):
        table = part.get("table") or part.get("subject") or ""
        sizes: Mapping[str, Any] = part.get(SIZES) or {}
        for name, number in {**part, **sizes}.items():
            if isinstance(number, int | float) and not isinstance(number, bool) and name not in _NO_SUMS:
                yield name, str(table), number


def _add(registry: CollectorRegistry, name: str, words: str, values: Mapping[Labels, float], job: str) -> None:
    """One metric; its values are by the labels beside the command's."""
    if not values:
        return
    gauge = Gauge(PREFIX + name, words, ["command", *(label for label, _ in next(iter(values)))], registry=registry)
    for labels, value in values.items():
        gauge.labels(job, *(text for _, text in labels)).set(value)
