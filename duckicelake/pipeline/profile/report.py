"""What was measured, for people and for machines; the page is made of the same."""

from dataclasses import dataclass

from duckicelake.pipeline.profile.state import Point
from duckicelake.pipeline.profile.survey import SizeClass
from duckicelake.pipeline.reports import TablesReport, Verdict


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """One column; None is what nobody told.

    `distinct` is an estimate: exact below some thousand values, of which what is empty is none. `nulls` are those of the files' statistics
    where these are exact, else counted by Spark, as are `minimum` and `maximum`. `bytes` are those in data files, compressed.
    """

    field_id: int
    name: str
    type: str
    distinct: int | None = None
    nulls: int | None = None
    minimum: str | None = None
    maximum: str | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class TableProfile:
    """One table at one snapshot, and what became of its statistics.

    `message` says why they were not computed, or nothing else was measured; `reason` why they are.
    """

    table: str
    verdict: Verdict
    reason: str = ""
    message: str = ""
    snapshot_id: int | None = None
    statistics_path: str = ""
    total: Point | None = None
    delete_files: int = 0
    columns: tuple[ColumnProfile, ...] = ()
    sizes: tuple[SizeClass, ...] = ()
    growth: tuple[Point, ...] = ()

    def describe(self) -> str:
        """The table in a line."""
        if self.verdict in (Verdict.failed, Verdict.skipped):
            return f"{self.table}: {self.verdict}: {self.message}"
        if self.total is None:
            return f"{self.table}: {self.reason}"
        size = f"{self.total.rows} rows, {self.total.files} data files, {self.total.bytes} bytes"
        return f"{self.table}: {size}: {self.reason}{f': {self.message}' if self.message else ''}"


class ProfileReport(TablesReport[TableProfile]):
    """One run."""

    __slots__ = ()
    job = "profile"
