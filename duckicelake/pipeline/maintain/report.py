"""What was planned and done, for people and for machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from duckicelake.pipeline.maintain.planning import Step, StepKind
from duckicelake.pipeline.reports import Report, Verdict

LAKE = "(the lake)"
"""What steps are about that concern no single table."""
_REMOVED = {StepKind.expire: "lake snapshots", StepKind.branches: "branches of dead runs", StepKind.forget: "snapshots"}


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step of one table or of the lake, and what became of it.

    `removed` and `added` count files, branches or snapshots of the table, lake snapshots, or objects of the store; `message` says why not,
    or not all. `snapshot_id`: the newest that a compaction made. `reason`: what there was to do, where that is known.
    """

    subject: str
    kind: StepKind | None
    verdict: Verdict
    reason: str = ""
    rows: int = 0
    bytes: int = 0
    removed: int = 0
    added: int = 0
    attempts: int = 0
    snapshot_id: int | None = None
    message: str = ""

    def describe(self) -> str:
        """The step in a line."""
        what = f"{self.subject}: {self.kind}" if self.kind else self.subject
        if self.verdict in (Verdict.failed, Verdict.skipped):
            there = f" ({self._describe_files()} at snapshot {self.snapshot_id})" if self.snapshot_id is not None else ""
            return f"{what}: {self.verdict}: {self.message}{there}"
        if self.verdict is Verdict.planned:
            return f"{what}: {self.reason}"
        if self.kind is StepKind.compact:
            return f"{what}: {self._describe_files()}{f': {self.message}' if self.message else ''}"
        if self.kind is StepKind.flush:
            return f"{what}: {self.rows} inlined rows and deletes became files"
        return f"{what}: {self.removed} {_REMOVED.get(self.kind, 'objects') if self.kind else 'objects'} removed"

    def _describe_files(self) -> str:
        return f"{self.removed} files with {self.bytes} bytes became {self.added}"


def report_found(subject: str, kind: StepKind, attempt: int) -> StepResult:
    """A step of which the answer was lost."""
    return StepResult(subject, kind, Verdict.done, "it was done after all", attempts=attempt)


def plan_of(subject: str, step: Step) -> StepResult:
    """A step that is not taken yet."""
    return StepResult(subject, step.kind, Verdict.planned, step.reason, step.rows, step.bytes, removed=step.files or len(step.versions))


@dataclass(frozen=True, slots=True)
class MaintainReport(Report):
    """One run, or one round of a service. `message` is set when it could not even be planned."""

    job = "maintain"
    run_id: str = ""
    steps: tuple[StepResult, ...] = ()
    tables: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def parts(self) -> Sequence[StepResult]:
        """The steps."""
        return self.steps

    def describe(self) -> list[str]:
        """The report for people."""
        return [*(step.describe() for step in self.steps), f"{self.tables} tables: {self.verdict} (run {self.run_id})"]
