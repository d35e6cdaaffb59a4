"""What was planned and done, for people and for machines."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from duckicelake.pipeline.transfer.catalogs import Kind


class Verdict(StrEnum):
    """How a table, a view or a run ended."""

    planned = "planned"
    done = "done"
    there = "already-there"
    skipped = "skipped"
    failed = "failed"
    nothing = "nothing-to-do"


@dataclass(frozen=True, slots=True)
class Moved:
    """A table or a view, under its name in the target, and what became of it.

    `rows` None: they were not counted. `snapshots`: how many came along. `message` says why it was not done, or not compared.
    """

    subject: str
    kind: Kind
    verdict: Verdict
    how: str = ""
    rows: int | None = None
    snapshots: int = 0
    message: str = ""

    def describe(self) -> str:
        """What became of it, in a line."""
        counted = "" if self.rows is None else f", {self.rows} rows"
        counted += f", {self.snapshots} snapshots" if self.snapshots else ""
        told = f": {self.message}" if self.message else ""
        what = {Verdict.planned: f"would {self.how}", Verdict.done: f"{self.how}: done", Verdict.there: "there already"}
        return f"{self.subject}: {what.get(self.verdict, self.verdict)}{counted}{told}"


@dataclass(frozen=True, slots=True)
class TransferReport:
    """One run. `message` is set when it could not even be begun."""

    job: str
    run_id: str = ""
    source: str = ""
    target: str = ""
    moved: tuple[Moved, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        found = {one.verdict for one in self.moved}
        if self.message or Verdict.failed in found:
            return Verdict.failed
        return next((one for one in (Verdict.planned, Verdict.done) if one in found), Verdict.nothing)

    @property
    def status(self) -> int:
        """The status for the shell: 0 done, or nothing to do; 1 something could not be done."""
        return int(self.verdict is Verdict.failed)

    def format_json(self) -> str:
        """The report for machines."""
        fields: dict[str, Any] = {"status": self.verdict, **asdict(self)}
        return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"

    def describe(self) -> list[str]:
        """The report for people."""
        counts = {verdict: sum(one.verdict is verdict for one in self.moved) for verdict in Verdict}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing there"
        return [*(one.describe() for one in self.moved), f"{self.job}: {said} (run {self.run_id})"]
