"""Options of `profile`, and its report for people, for machines, and as one HTML page with SVG plots.

The page loads nothing, runs no script, and escapes every name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import TablesReport, Verdict
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.profile.measuring import Point, SizeClass


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


_STYLE = """
:root { color-scheme: light dark; --line: #8885; --bar: #2b7bba; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .8rem 0; } .wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; }
svg { margin: .5rem 1rem .5rem 0; } svg text { font-size: 11px; fill: currentColor; }
.bar { fill: var(--bar); } .line { fill: none; stroke: var(--bar); stroke-width: 1.5; } .ground { stroke: var(--line); }
.note { opacity: .75; }
"""
_UNKNOWN = "–"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Profile {run_id}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<p class="note">{note}</p>
{overview}
{tables}
</body>
</html>
"""


def format_page(report: ProfileReport) -> str:
    """Return the report for people, with plots."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    note = f"Run {report.run_id} at {report.at}, {versions}. Distinct values are estimates; {_UNKNOWN} is what was not measured."
    return _PAGE.format(
        run_id=escape(report.run_id),
        style=_STYLE,
        title=f"{len(report.tables)} tables: {escape(report.verdict)}",
        note=escape(note),
        overview=format_overview(report.tables),
        tables="\n".join(format_table(table, f"t{number}") for number, table in enumerate(report.tables)),
    )


def format_overview(tables: Sequence[TableProfile]) -> str:
    """Return all tables, a line each, with links to their sections."""
    rows = [_format_line(table, f"t{number}") for number, table in enumerate(tables)]
    return _format_rows(("Table", "Rows", "Data files", "Delete files", "Size", "Statistics"), rows, numbers=range(1, 5))


def _format_line(table: TableProfile, anchor: str) -> list[str]:
    total = table.total
    counts = [None, None] if total is None else [total.rows, total.files]
    cells = [
        *map(_show_count, [*counts, None if total is None else table.delete_files]),
        _UNKNOWN if total is None else format_bytes(total.bytes),
    ]
    return [f'<a href="#{anchor}">{escape(table.table)}</a>', *cells, escape(table.message or table.reason)]


def format_table(table: TableProfile, anchor: str) -> str:
    """Return one table: its columns, its files' sizes, and how it grew."""
    parts = [f'<h2 id="{anchor}">{escape(table.table)}</h2>', f'<p class="note">{escape(table.message or table.reason)}</p>']
    if table.columns:
        titles = ("Column", "Type", "Distinct", "Nulls", "Least", "Greatest", "Size")
        parts.append(_format_rows(titles, map(_format_column, table.columns), numbers=(2, 3, 6)))
    parts.append(plot_sizes(table.sizes))
    parts.append(plot_growth("Rows", table.growth, lambda point: point.rows, format_count))
    parts.append(plot_growth("Data files", table.growth, lambda point: point.files, format_count))
    parts.append(plot_growth("Size", table.growth, lambda point: point.bytes, format_bytes))
    return "\n".join(part for part in parts if part)


def _format_column(column: ColumnProfile) -> list[str]:
    ends = [_UNKNOWN if end is None else end for end in (column.minimum, column.maximum)]
    size = _UNKNOWN if column.bytes is None else format_bytes(column.bytes)
    return list(map(escape, (column.name, column.type, _show_count(column.distinct), _show_count(column.nulls), *ends, size)))


def _format_rows(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    """Return a table; `rows` are markup already, `numbers` are the places of cells to set right."""
    classes = [' class="number"' if place in set(numbers) else "" for place in range(len(titles))]
    head = "".join(f"<th{one}>{title}</th>" for one, title in zip(classes, titles, strict=True))
    body = ("".join(f"<td{one}>{cell}</td>" for one, cell in zip(classes, row, strict=True)) for row in rows)
    lines = "\n".join(f"<tr>{line}</tr>" for line in body)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{lines}\n</table></div>'


def _show_count(count: int | None) -> str:
    return _UNKNOWN if count is None else format_count(count)


WIDTH, HEIGHT, MARGIN = 360, 140, 22
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_STEP = 10


def format_bytes(count: int) -> str:
    """Return a number of bytes with three digits at most and its unit."""
    power = max(0, min((count.bit_length() - 1) // _STEP, len(_UNITS) - 1))
    shown = count / (1 << (_STEP * power))
    return f"{shown:.3g} {_UNITS[power]}" if shown < 1000 else f"{shown:.0f} {_UNITS[power]}"


def format_count(count: int) -> str:
    """Return a number with its thousands set apart."""
    return f"{count:,}"


def plot_sizes(sizes: Sequence[SizeClass]) -> str:
    """Return how many files there are of each size: a bar for each power of two from the smallest to the largest."""
    if not sizes:
        return ""
    counts = {one.power: one.files for one in sizes}
    powers = range(min(counts), max(counts) + 1)
    step, most = (WIDTH - 2 * MARGIN) / len(powers), max(counts.values())
    bars: list[str] = []
    for place, power in enumerate(powers):
        files = counts.get(power, 0)
        told = f"{format_count(files)} files from {format_bytes(1 << power)} to {format_bytes(2 << power)}"
        bars.append(_plot_bar(MARGIN + place * step + 1, step - 2, (HEIGHT - 2 * MARGIN) * files / most, told))
    ends = _write_ends(format_bytes(1 << powers[0]), format_bytes(2 << powers[-1]))
    return _frame("File sizes", [*bars, ends, _write(MARGIN, 12, f"File sizes, at most {format_count(most)} files of one")])


def plot_growth(title: str, points: Sequence[Point], measure: Callable[[Point], int], show: Callable[[int], str]) -> str:
    """Return one measure of a table over time: it stays what it is until the next snapshot."""
    if not points:
        return ""
    first, last = points[0].at_ms, points[-1].at_ms
    most = max(map(measure, points)) or 1
    corners: list[str] = []
    for point in points:
        x = MARGIN + (WIDTH - 2 * MARGIN) * ((point.at_ms - first) / (last - first) if last > first else 1.0)
        y = HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * measure(point) / most
        # Straight on until now, then up or down.
        corners.append(f"{'H' if corners else 'M'}{x:.1f}{'V' if corners else ','}{y:.1f}")
    line = f'<path class="line" d="{"".join(corners)}"/>'
    if len(points) == 1:
        line = f'<circle class="bar" r="3" cx="{WIDTH - MARGIN}" cy="{MARGIN}"/>'
    told = f"{title}, at most {show(max(map(measure, points)))}"
    return _frame(title, [line, _write_ends(_format_day(first), _format_day(last)), _write(MARGIN, 12, told)])


def _plot_bar(x: float, width: float, height: float, told: str) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - MARGIN - height:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
    return f'<rect class="bar" {place}><title>{escape(told)}</title></rect>'


def _frame(title: str, parts: Sequence[str]) -> str:
    ground = f'<path class="ground" d="M{MARGIN},{HEIGHT - MARGIN}H{WIDTH - MARGIN}"/>'
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'<svg {size} role="img" aria-label="{escape(title)}">{ground}{"".join(parts)}</svg>'


def _write_ends(left: str, right: str) -> str:
    return _write(MARGIN, HEIGHT - 4, left) + _write(WIDTH - MARGIN, HEIGHT - 4, right, "end")


def _write(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _format_day(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M}"
