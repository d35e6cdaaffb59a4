"""What a run did, for people and for machines."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from time import monotonic
from typing import Any

from duckicelake.pipeline.jars import Progress

PUBLISHED = "published"
"""What is told when it is done."""


class Status(StrEnum):
    """How a run ended."""

    planned = "planned"
    done = "done"
    nothing_new = "nothing-new"
    failed = "failed"
    unknown = "unknown"


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Hears of each step before it is taken, passes the word on, and knows how long each one took."""

    listener: Progress
    marks: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def start_step(self, step: str) -> None:
        """A step begins, and the one before it ends, unless the listener raises."""
        begins = monotonic()
        self.listener(step)
        self.marks.append((step, begins))

    def read(self) -> dict[str, float]:
        """The seconds of each step until now; of one that was taken again, all of them."""
        ends = [*(began for _, began in self.marks[1:]), monotonic()]
        seconds: dict[str, float] = {}
        # one end too many when no step was ever told
        for (step, began), end in zip(self.marks, ends, strict=False):
            seconds[step] = round(seconds.get(step, 0.0) + end - began, 3)
        return seconds


@dataclass(frozen=True, slots=True)
class IngestReport:
    """One run. `rows_in` = `rows_out` + `rows_quarantined` + `rows_superseded`, always."""

    run_id: str
    table: str
    source: str
    mode: str
    status: Status
    files: int = 0
    bytes: int = 0
    rows_in: int = 0
    rows_out: int = 0
    rows_quarantined: int = 0
    rows_superseded: int = 0
    attempts: int = 0
    plan: tuple[str, ...] = ()
    snapshots: Mapping[str, int] = field(default_factory=dict[str, int])
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    def format_json(self) -> str:
        """The report for machines."""
        fields: dict[str, Any] = {"job": "ingest", **asdict(self)}
        return json.dumps(fields, indent=2) + "\n"


@dataclass(slots=True)
class Run:
    """A run under way: its report as far as it is known, which is what there is to tell when it fails."""

    report: IngestReport

    def note(self, **known: Any) -> None:
        """More of it is known."""
        self.report = replace(self.report, **known)
