"""What was made, for people and for machines."""

from dataclasses import dataclass

from duckicelake.pipeline.reports import TablesReport, Verdict


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


class PublishReport(TablesReport[Published]):
    """One run."""

    __slots__ = ()
    job = "publish"
