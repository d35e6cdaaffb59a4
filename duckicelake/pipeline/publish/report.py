"""What was made, for people and for machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from duckicelake.pipeline.reports import Verdict, find_worst, format_report, to_status


@dataclass(frozen=True, slots=True)
class Published:
    """One table: how many manifests were made or are to be made, of how many files, and how many were there.

    `cpu_seconds` are those that executors' code took, Postgres' and Spark's own not counted. `message` says why nothing was made.
    """

    table: str
    verdict: Verdict
    manifests: int = 0
    files: int = 0
    bytes: int = 0
    there: int = 0
    attempts: int = 0
    cpu_seconds: float = 0.0
    message: str = ""

    def describe(self) -> str:
        """The table in a line."""
        if self.message:
            return f"{self.table}: {self.verdict}: {self.message}"
        there = f", {self.there} were there" if self.there else ""
        what = "no large manifest to make" if self.verdict is Verdict.nothing else f"{self.manifests} manifests of {self.files} files"
        return f"{self.table}: {self.verdict}: {what}{there}"


@dataclass(frozen=True, slots=True)
class PublishReport:
    """One run. `message` is set when it could not even begin."""

    run_id: str = ""
    at: str = ""
    tables: tuple[Published, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of all tables."""
        return find_worst((table.verdict for table in self.tables), self.message)

    @property
    def status(self) -> int:
        """The status for the shell: 0 done, or nothing to do; 1 something could not be done."""
        return to_status(self.verdict)

    def format_json(self) -> str:
        """The report for machines."""
        return format_report("publish", self.verdict, self)

    def describe(self) -> list[str]:
        """The report for people."""
        return [*(table.describe() for table in self.tables), f"{len(self.tables)} tables: {self.verdict} (run {self.run_id})"]
