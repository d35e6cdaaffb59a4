"""Options of `profile`, and its report for people and machines; the HTML page is made of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import TablesReport, Verdict
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.profile.measuring import SizeClass
from duckicelake.pipeline.profile.statistics import Point


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """One column; None is what was not measured.

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
        """Return the table in a line."""
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


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """One call of the job. No tables: all of them.

    `again` True: tables whose current snapshot has statistics get new ones. `partitions` True: partitioned tables get statistics of
    their partitions too.
    """

    tables: tuple[TableIdent, ...] = ()
    again: bool = False
    partitions: bool = False


def read_options(tables: Sequence[str] | None, given: Mapping[str, Any]) -> ProfileOptions:
    """Return the command's arguments as options.

    Raises: BadRequest: a name is no table's, or one file would be two
    """
    report, page = given["report"], given["html"]
    if report is not None and page is not None and Path(report).absolute() == Path(page).absolute():
        raise BadRequest(f"--report and --html are both {report}: name two files")
    return ProfileOptions(tuple(map(parse_ident, tables or ())), given["again"], given["partitions"])
