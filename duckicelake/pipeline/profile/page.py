"""The report as one HTML page: it asks for nothing from anywhere, runs nothing, and takes no name for markup."""

from collections.abc import Iterable, Sequence
from html import escape

from duckicelake.pipeline.profile.plots import format_bytes, format_count, plot_growth, plot_sizes
from duckicelake.pipeline.profile.report import ColumnProfile, ProfileReport, TableProfile

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --bar: #2b7bba; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1, h2 { font-weight: 600; } h2 { margin-top: 2.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: .8rem 0; } .wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td { overflow-wrap: anywhere; }
svg { margin: .5rem 1rem .5rem 0; } svg text { font-size: 11px; fill: currentColor; }
.bar { fill: var(--bar); } .line { fill: none; stroke: var(--bar); stroke-width: 1.5; } .ground { stroke: var(--line); }
.told { opacity: .75; }
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
<p class="told">{told}</p>
{overview}
{tables}
</body>
</html>
"""


def format_page(report: ProfileReport) -> str:
    """The report for people, with plots."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    told = f"Run {report.run_id} at {report.at}, {versions}. Distinct values are estimates; {_UNKNOWN} is what was not measured."
    return _PAGE.format(
        run_id=escape(report.run_id),
        style=_STYLE,
        title=f"{len(report.tables)} tables: {escape(report.verdict)}",
        told=escape(told),
        overview=format_overview(report.tables),
        tables="\n".join(format_table(table, f"t{number}") for number, table in enumerate(report.tables)),
    )


def format_overview(tables: Sequence[TableProfile]) -> str:
    """All tables, a line each, with links to their sections."""
    rows = [_format_line(table, f"t{number}") for number, table in enumerate(tables)]
    return _format_rows(("Table", "Rows", "Data files", "Delete files", "Size", "Statistics"), rows, numbers=range(1, 5))


def _format_line(table: TableProfile, anchor: str) -> list[str]:
    total = table.total
    counts = [None, None] if total is None else [total.rows, total.files]
    cells = [
        *map(_show, [*counts, None if total is None else table.delete_files]),
        _UNKNOWN if total is None else format_bytes(total.bytes),
    ]
    return [f'<a href="#{anchor}">{escape(table.table)}</a>', *cells, escape(table.message or table.reason)]


def format_table(table: TableProfile, anchor: str) -> str:
    """One table: its columns, its files' sizes, and how it grew."""
    parts = [f'<h2 id="{anchor}">{escape(table.table)}</h2>', f'<p class="told">{escape(table.message or table.reason)}</p>']
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
    return list(map(escape, (column.name, column.type, _show(column.distinct), _show(column.nulls), *ends, size)))


def _format_rows(titles: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int]) -> str:
    """A table; `rows` are markup already, `numbers` are the places of cells to set right."""
    classes = [' class="number"' if place in set(numbers) else "" for place in range(len(titles))]
    head = "".join(f"<th{one}>{title}</th>" for one, title in zip(classes, titles, strict=True))
    body = ("".join(f"<td{one}>{cell}</td>" for one, cell in zip(classes, row, strict=True)) for row in rows)
    lines = "\n".join(f"<tr>{line}</tr>" for line in body)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{lines}\n</table></div>'


def _show(count: int | None) -> str:
    return _UNKNOWN if count is None else format_count(count)
