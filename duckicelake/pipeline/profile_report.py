"""Options of `profile`, the measures of a table, and their report for people, for machines, and as one HTML page with SVG plots.

A table's measures are its metadata at a snapshot, statistics that Spark computes by Iceberg's procedures and one scan, and sums over
its files that Postgres computes; reading the metadata is pure. The page loads nothing, runs no script, and escapes every name.
`pipeline.profile` calls this in the driver, with a new connection with autocommit for each table; `commands.jobs.profile` reads the
options and formats the page.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from duckicelake.errors import BadRequest
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.pipeline.common.reports import TablesReport, Verdict
from duckicelake.pipeline.common.rest import TableIdent, parse_ident
from duckicelake.pipeline.common.spark_sql import quote, quote_ident, quote_text
from duckicelake.pipeline.verify.checksums import VARIANT

SKETCH = "apache-datasketches-theta-v1"
POINTS = 300
"""As many snapshots as a line can show."""
_UNSKETCHED = ".`"
"""Iceberg's procedure takes these letters in a column's name for SQL."""


@dataclass(frozen=True, slots=True)
class Point:
    """A table at one of its snapshots."""

    at_ms: int
    snapshot_id: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table's metadata, read for what a profile needs of it at one snapshot."""

    metadata: Mapping[str, Any]
    snapshot: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        return self.snapshot["snapshot-id"]

    @property
    def schema(self) -> Schema:
        """The columns that the snapshot is read with."""
        wanted = self.snapshot.get("schema-id", self.metadata["current-schema-id"])
        return parse_schema(next(one for one in self.metadata["schemas"] if one["schema-id"] == wanted))

    @property
    def is_partitioned(self) -> bool:
        spec = next(one for one in self.metadata["partition-specs"] if one["spec-id"] == self.metadata["default-spec-id"])
        return any(item["transform"] != "void" for item in spec["fields"])

    @property
    def has_partition_statistics(self) -> bool:
        return any(one["snapshot-id"] == self.snapshot_id for one in self.metadata.get("partition-statistics", ()))

    @property
    def statistics_path(self) -> str:
        """Return where the statistics file of the snapshot is; empty when there is none."""
        return next((one["statistics-path"] for one in self._list_statistics()), "")

    @property
    def total(self) -> Point:
        """Return how big the table is."""
        return _measure(self.snapshot)

    @property
    def delete_files(self) -> int:
        return _count(self.snapshot, "total-delete-files")

    def list_columns(self) -> list[NestedField]:
        """Return the columns that have values to count and to order: no structs, lists, maps and variants."""
        return [item for item in self.schema.fields if isinstance(item.type, PrimitiveType) and item.type != VARIANT]

    def list_sketched(self) -> list[str]:
        """Return the names of the columns that get a sketch."""
        return [item.name for item in self.list_columns() if not set(_UNSKETCHED) & set(item.name)]

    def read_distinct(self) -> dict[int, int]:
        """Return the number of distinct values by field id, as the sketches of the snapshot estimate it."""
        blobs = [blob for one in self._list_statistics() for blob in one["blob-metadata"] if blob["type"] == SKETCH]
        estimates = [(blob["fields"], blob.get("properties", {}).get("ndv", "")) for blob in blobs]
        return {fields[0]: int(text) for fields, text in estimates if len(fields) == 1 and text.isdecimal()}

    def has_sketches(self) -> bool:
        """Return True if every column that can have a sketch has one, of this snapshot."""
        known, wanted = self.read_distinct(), set(self.list_sketched())
        return all(item.field_id in known for item in self.list_columns() if item.name in wanted)

    def list_growth(self) -> tuple[Point, ...]:
        """Return how big the table was at the snapshots of main, oldest first; of very many, some."""
        return thin(tuple(replace(_measure(one), at_ms=at_ms) for at_ms, one in self._list_main()))

    def _list_main(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the snapshots that main was at, each with when it came there: to an older one again, when it was rolled back."""
        by_id = {one["snapshot-id"]: one for one in self.metadata.get("snapshots", ())}
        for entry in self.metadata.get("snapshot-log", ()):
            found = by_id.get(entry["snapshot-id"])
            if found is not None and "total-records" in found.get("summary", {}):
                yield entry["timestamp-ms"], found

    def _list_statistics(self) -> Iterator[Mapping[str, Any]]:
        return (one for one in self.metadata.get("statistics", ()) if one["snapshot-id"] == self.snapshot_id)


def find_state(metadata: Mapping[str, Any], snapshot_id: int | None = None) -> MeasuredTable | None:
    """Return the table at a snapshot, else at its current one; None when it has none such, as a table to which nothing was ever written."""
    wanted = snapshot_id or metadata.get("current-snapshot-id")
    snapshot = next((one for one in metadata.get("snapshots", ()) if one["snapshot-id"] == wanted), None)
    return None if snapshot is None else MeasuredTable(metadata, snapshot)


def thin(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return at most POINTS of them, evenly chosen; the first and the last stay."""
    if len(points) <= POINTS:
        return points
    return tuple(points[number * (len(points) - 1) // (POINTS - 1)] for number in range(POINTS))


def _measure(snapshot: Mapping[str, Any]) -> Point:
    rows = _count(snapshot, "total-records") - _count(snapshot, "total-position-deletes")
    sizes = _count(snapshot, "total-data-files"), _count(snapshot, "total-files-size")
    return Point(snapshot["timestamp-ms"], snapshot["snapshot-id"], rows, *sizes)


def _count(snapshot: Mapping[str, Any], name: str) -> int:
    return int(snapshot.get("summary", {}).get(name, "0"))


SHOWN_LETTERS = 64
"""How much of the least and the greatest value of a column is shown."""
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Extremes:
    """Nulls, least and greatest value of one column; the least and the greatest value as text, None where there is no value."""

    nulls: int
    minimum: str | None
    maximum: str | None


def compute_statistics(spark: SparkSession, catalog: str, ident: TableIdent, state: MeasuredTable) -> str:
    """Have a file with sketches of the snapshot written and registered; returns where it is.

    Raises: what Spark raises
    """
    columns = ", ".join(quote_text(name) for name in state.list_sketched())
    where = f"snapshot_id => {state.snapshot_id}, columns => array({columns})"
    rows: list[Any] = spark.sql(_format_call(catalog, "compute_table_stats", ident, where)).collect()
    return rows[0]["statistics_file"] if rows else ""


def compute_partition_statistics(spark: SparkSession, catalog: str, ident: TableIdent, state: MeasuredTable) -> None:
    """Have the files and rows of each partition of the snapshot counted and registered. Raises: what Spark raises"""
    spark.sql(_format_call(catalog, "compute_partition_stats", ident, f"snapshot_id => {state.snapshot_id}")).collect()


def _format_call(catalog: str, procedure: str, ident: TableIdent, arguments: str) -> str:
    # Without the catalog, a namespace of a catalog's name would be taken for that one.
    table = quote_text(quote_ident(catalog, ident))
    return f"CALL {quote(catalog)}.system.{procedure}(table => {table}, {arguments})"


def read_extremes(spark: SparkSession, name: str, state: MeasuredTable) -> dict[int, Extremes]:
    """Return nulls, least and greatest value of each column at the snapshot, by field id, in one scan. Raises: what Spark raises"""
    columns = state.list_columns()
    rows = spark.read.option("versionAsOf", state.snapshot_id).table(name)
    found: Any = rows.agg(*_list_aggregates(columns)).first()
    return {item.field_id: Extremes(*found[3 * place : 3 * place + 3]) for place, item in enumerate(columns)}


def _list_aggregates(columns: Sequence[NestedField]) -> list[Column]:
    aggregates: list[Column] = []
    for place, item in enumerate(columns):
        column = F.col(quote(item.name))
        ends = [_show(end(column), item).alias(f"{name}{place}") for name, end in (("min", F.min), ("max", F.max))]
        aggregates += [F.count_if(column.isNull()).alias(f"nulls{place}"), *ends]
    return aggregates


def _show(value: Column, item: NestedField) -> Column:
    is_binary = str(item.type).startswith(("binary", "fixed"))
    text = F.hex(F.substring(value, 1, SHOWN_LETTERS)) if is_binary else value.cast("string")
    is_long = F.length(value if is_binary else text) > SHOWN_LETTERS
    return F.when(is_long, F.concat(F.substring(text, 1, SHOWN_LETTERS), F.lit(_CUT))).otherwise(text)


Row = TypeVar("Row")

# A size of n bits lies between 2^(n-1) and 2^n: exact, where a logarithm is not.
SELECT_SIZES = """
SELECT greatest(length(ltrim(file_size_bytes::bit(64)::text, '0')) - 1, 0) AS power, count(*)::bigint AS files,
       sum(file_size_bytes)::bigint AS bytes, sum(record_count)::bigint AS records
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
 GROUP BY power ORDER BY power
"""

# For a snapshot of a branch, the lake snapshot that set main to it has the rows, not that of its own number.
SELECT_LAKE_SNAPSHOT = """
SELECT coalesce(max(lake_snapshot_id), %(snapshot_id)s)::bigint FROM iceberg_move
 WHERE table_id = %(table_id)s AND snapshot_id = %(snapshot_id)s
"""

SELECT_COLUMNS = """
SELECT s.column_id, coalesce(sum(s.column_size_bytes), 0)::bigint AS bytes, count(s.column_size_bytes)::bigint AS sized_files,
       coalesce(sum(s.null_count), 0)::bigint AS nulls, count(s.null_count)::bigint AS files
  FROM ducklake_data_file f JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.table_id = f.table_id
 WHERE f.table_id = %(table_id)s AND f.begin_snapshot <= %(at)s AND (f.end_snapshot IS NULL OR f.end_snapshot > %(at)s)
 GROUP BY s.column_id
"""


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The data files of 2^power bytes and more, below twice that."""

    power: int
    files: int
    bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """Sums over the data files for one column; `files` is how many of them count its null values, `sized_files` its bytes."""

    column_id: int
    bytes: int
    sized_files: int
    nulls: int
    files: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The data files of a table at one lake snapshot: deletes and inlined rows are not among them."""

    sizes: tuple[SizeClass, ...] = ()
    columns: Mapping[int, ColumnSums] = field(default_factory=dict[int, ColumnSums])

    @property
    def files(self) -> int:
        return sum(one.files for one in self.sizes)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.sizes)


def read_files(conn: psycopg.Connection, table_id: int, snapshot_id: int) -> FileFacts:
    """Return what the files that a snapshot of main has are like."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        with conn.cursor(row_factory=scalar_row) as cursor:
            [at] = cursor.execute(SELECT_LAKE_SNAPSHOT, {"table_id": table_id, "snapshot_id": snapshot_id}).fetchall()
        asked = {"table_id": table_id, "at": at}
        sizes = _ask(conn, SizeClass, SELECT_SIZES, asked)
        columns = _ask(conn, ColumnSums, SELECT_COLUMNS, asked)
    return FileFacts(tuple(sizes), {one.column_id: one for one in columns})


def _ask(conn: psycopg.Connection, row: type[Row], query: LiteralString, asked: Mapping[str, int]) -> list[Row]:
    with conn.cursor(row_factory=class_row(row)) as cursor:
        return cursor.execute(query, asked).fetchall()


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
        label = f"{format_count(files)} files from {format_bytes(1 << power)} to {format_bytes(2 << power)}"
        bars.append(_plot_bar(MARGIN + place * step + 1, step - 2, (HEIGHT - 2 * MARGIN) * files / most, label))
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
    label = f"{title}, at most {show(max(map(measure, points)))}"
    return _frame(title, [line, _write_ends(_format_day(first), _format_day(last)), _write(MARGIN, 12, label)])


def _plot_bar(x: float, width: float, height: float, label: str) -> str:
    place = f'x="{x:.1f}" y="{HEIGHT - MARGIN - height:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}"'
    return f'<rect class="bar" {place}><title>{escape(label)}</title></rect>'


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
