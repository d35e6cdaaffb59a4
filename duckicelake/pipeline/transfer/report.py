"""What was planned and done, for people and for machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from duckicelake.pipeline.reports import Report, Verdict
from duckicelake.pipeline.transfer.catalogs import EntryKind


class ComparedAspect(StrEnum):
    """What of a table is compared with the source's."""

    snapshots = "snapshots"
    rows = "rows"
    checksums = "checksums"


@dataclass(frozen=True, slots=True)
class TransferResult:
    """A table or a view, under its name in the target, and what became of it.

    `rows` are the source's, `target_rows` those found in the target; None: they were not counted. `snapshots`: how many came along.
    `checked`: what was compared, the same or not. `message` says why it was not done, not compared, or is not the same.
    """

    subject: str
    kind: EntryKind
    verdict: Verdict
    how: str = ""
    rows: int | None = None
    snapshots: int = 0
    target_rows: int | None = None
    checked: tuple[ComparedAspect, ...] = ()
    source_checksum: str = ""
    target_checksum: str = ""
    message: str = ""

    def describe(self) -> str:
        """What became of it, in a line."""
        if self.verdict is Verdict.failed:
            return f"{self.subject}: {self.verdict}: {self.message}"
        counted = "" if self.rows is None else f", {self.rows} rows"
        counted += f", {self.snapshots} snapshots" if self.snapshots else ""
        told = f": {self.message}" if self.message else ""
        what = {Verdict.planned: f"would {self.how}", Verdict.done: f"{self.how}: done", Verdict.there: "there already"}
        return f"{self.subject}: {what.get(self.verdict, self.verdict)}{counted}{told}"


@dataclass(frozen=True, slots=True)
class TransferReport(Report):
    """One run. `message` is set when it could not even be begun."""

    job: str
    run_id: str = ""
    source: str = ""
    target: str = ""
    moved: tuple[TransferResult, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def parts(self) -> Sequence[TransferResult]:
        """The tables and views."""
        return self.moved

    def describe(self) -> list[str]:
        """The report for people."""
        counts = {verdict: sum(one.verdict is verdict for one in self.moved) for verdict in Verdict}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing there"
        return [*(one.describe() for one in self.moved), f"{self.job}: {said} (run {self.run_id})"]
