"""What `duckicelake check` warns of about single readers: one warning for each limit, with all the tables it concerns.

Warnings are no damage: they leave the exit status of the command as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from duckicelake.catalog.snapshot_building import TableReading
from duckicelake.lake.inspect import Finding
from duckicelake.translate.shape.reader_limits import READER_LIMITS, ReaderLimit, list_columns, read_published_table

MOST_TABLES, MOST_COLUMNS = 5, 3
"""How many tables a warning names, and how many columns of each."""


@dataclass(frozen=True, slots=True)
class AffectedTable:
    """A table, the columns in it that a limit concerns, and SQL that helps with the first of them."""

    name: str
    columns: Sequence[str]
    example: str


class ReaderWarnings:
    """Collects the tables that each limit concerns."""

    def __init__(self) -> None:
        self._affected: list[list[AffectedTable]] = [[] for _ in READER_LIMITS]

    def add(self, reading: TableReading) -> None:
        """Add a table that is published."""
        live = [file for file in reading.sources.files if file.end_snapshot is None]
        if live:
            oldest_row = min(file.begin_snapshot for file in live)
        else:
            oldest_row = reading.state.position.lake_snapshot_id
        has_files = any(file.key not in reading.sources.derived for file in live)
        table = read_published_table(reading.state, oldest_row, has_files=has_files)
        for limit, affected in zip(READER_LIMITS, self._affected, strict=True):
            columns = limit.find(table)
            if columns:
                example = limit.format_example(table, columns[0]) if limit.format_example else ""
                affected.append(AffectedTable(table.name, list_columns(table, columns), example))

    def list_findings(self) -> list[Finding]:
        """Return a warning for each limit that concerns some table."""
        return [format_warning(limit, affected) for limit, affected in zip(READER_LIMITS, self._affected, strict=True) if affected]


def format_warning(limit: ReaderLimit, affected: Sequence[AffectedTable]) -> Finding:
    """Return the warning of a limit: which tables and columns it concerns, and what to do."""
    shown = [format_table(table) for table in affected[:MOST_TABLES]]
    more = [f"{len(affected) - MOST_TABLES} more tables"] if len(affected) > MOST_TABLES else []
    problem = f"{limit.effect}: {', '.join([*shown, *more])}"
    example = affected[0].example
    return Finding("warning", limit.readers, problem, f"{limit.remedy}: {example}" if example else f"{limit.remedy}.")


def format_table(table: AffectedTable) -> str:
    """Return a table with its columns, at most three of them."""
    shown = [*table.columns[:MOST_COLUMNS], *(["…"] if len(table.columns) > MOST_COLUMNS else [])]
    return f"{table.name} ({', '.join(shown)})"
