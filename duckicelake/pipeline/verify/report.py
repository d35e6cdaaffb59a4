"""Options of `verify`, and its report for people and machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import format_report
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.verify.checksums import GroupDifference


class VerifyVerdict(StrEnum):
    """The outcome of a comparison."""

    planned = "planned"
    same = "same"
    differs = "differs"
    expired = "expired"
    unknown = "could-not-look"
    nothing = "nothing-to-look-at"


@dataclass(frozen=True, slots=True)
class Finding:
    """One look at a table: its rows at one moment, or its files."""

    table: str
    what: str
    verdict: VerifyVerdict
    snapshot_id: int | None = None
    iceberg_rows: int = 0
    ducklake_rows: int = 0
    files: int = 0
    parts: tuple[GroupDifference, ...] = ()
    only_in_iceberg: tuple[str, ...] = ()
    only_in_ducklake: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    message: str = ""

    def describe(self) -> list[str]:
        """Return the finding in words: one line, and more when something is wrong."""
        where = f"{self.table} {self.what}".rstrip()
        if self.verdict is VerifyVerdict.planned:
            return [f"{where}: would be looked at"]
        if self.verdict is VerifyVerdict.expired:
            return [f"{where}: passed over: DuckLake has expired it"]
        if self.verdict is VerifyVerdict.unknown:
            return [f"{where}: could not look: {self.message}", *(f"  {problem}" for problem in self.problems)]
        if self.verdict is VerifyVerdict.same:
            is_rows = not self.what.startswith("files")
            return [f"{where}: {self.iceberg_rows} rows, the same" if is_rows else f"{where}: {self.files}, all as they are said to be"]
        if self.problems:
            return [f"{where}: {len(self.problems)} things are not as they are said to be", *(f"  {problem}" for problem in self.problems)]
        lines = [f"{where}: differs: {self.iceberg_rows} rows in Iceberg, {self.ducklake_rows} in DuckLake"]
        lines += [f"  {part.name}: {part.iceberg_rows} rows in Iceberg, {part.ducklake_rows} in DuckLake" for part in self.parts]
        lines += [f"  only in Iceberg: {row}" for row in self.only_in_iceberg]
        lines += [f"  only in DuckLake: {row}" for row in self.only_in_ducklake]
        return [*lines, f"  {self.message}"] if self.message else lines


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """One run. `message` is set when nothing could be looked at."""

    findings: tuple[Finding, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def verdict(self) -> VerifyVerdict:
        """The worst of all: a difference counts more than what could not be looked at. A look at nothing shows nothing to be the same."""
        found = {finding.verdict for finding in self.findings}
        if VerifyVerdict.differs in found:
            return VerifyVerdict.differs
        if VerifyVerdict.unknown in found or self.message:
            return VerifyVerdict.unknown
        if not found:
            return VerifyVerdict.nothing
        return VerifyVerdict.planned if VerifyVerdict.planned in found else VerifyVerdict.same

    @property
    def status(self) -> int:
        """The status for the shell: 0 same, or a lake without tables, 1 differs, 3 could not look."""
        return {VerifyVerdict.differs: 1, VerifyVerdict.unknown: 3}.get(self.verdict, 0)

    def format_json(self) -> str:
        """Return the report for machines."""
        return format_report("verify", self.verdict, self)

    def describe(self) -> list[str]:
        """Return the report for people."""
        counts = {verdict: sum(finding.verdict is verdict for finding in self.findings) for verdict in VerifyVerdict}
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) or "nothing to look at"
        return [*(line for finding in self.findings for line in finding.describe()), said]


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """One call of the job. No tables: all of them; neither a snapshot nor every one: as they are now."""

    tables: tuple[TableIdent, ...] = ()
    snapshot_id: int | None = None
    every_snapshot: bool = False
    files: bool = False
    examples: int = 5

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.snapshot_id is not None and (self.every_snapshot or len(self.tables) != 1):
            raise BadRequest("--snapshot needs one table, and not --every-snapshot")
        if self.examples < 0:
            raise BadRequest("--examples begins at 0")


def read_options(tables: Sequence[str] | None, snapshot_id: int | None, given: Mapping[str, Any]) -> VerifyOptions:
    """Return the command's arguments as options. Raises: BadRequest: they contradict each other, or a name is no table's."""
    idents = tuple(map(parse_ident, tables or ()))
    return VerifyOptions(idents, snapshot_id, given["every_snapshot"], given["files"], given["examples"])
