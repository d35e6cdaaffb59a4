"""Results as tables for people and as JSON for machines."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Result:
    """One benchmark's figures: a row is what was measured under one circumstance; every row has the same keys.

    `facts` hold for all rows. Names end in their unit.
    """

    title: str
    rows: Sequence[Mapping[str, Cell]]
    facts: Mapping[str, Cell] = field(default_factory=dict[str, Cell])


def print_result(console: Console, result: Result) -> None:
    """Print one benchmark's table, with the facts below it."""
    table = Table(title=result.title, title_justify="left")
    names = list(result.rows[0])
    for name in names:
        numeric = not isinstance(result.rows[0][name], str)
        table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in result.rows:
        table.add_row(*(format_cell(row[name]) for name in names))
    console.print(table)
    for name, fact in result.facts.items():
        console.print(f"  {name.replace('_', ' ')}: {format_cell(fact)}", highlight=False)
    console.print()


def format_cell(cell: Cell) -> str:
    """Return a figure with as many digits as it is worth."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        digits = 3 if abs(cell) < 10 else 1 if abs(cell) < 1000 else 0
        return f"{cell:,.{digits}f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def write_json(path: Path, results: Mapping[str, Result]) -> None:
    """Write all results, with where and when they were measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    written = {"at": datetime.now(UTC).isoformat(), "machine": machine, "benchmarks": {name: asdict(r) for name, r in results.items()}}
    path.write_text(json.dumps(written, indent=2) + "\n", "utf-8")
