"""What every reader is asked: whole tables, the past, filters and joins, in SQL that all of them understand."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from demo.load import TABLES, Step


@dataclass(frozen=True, slots=True)
class Source:
    """What a question reads of a table; `snapshot_id` None means now, no columns mean all."""

    table: str
    columns: tuple[str, ...] = ()
    where: str = ""
    snapshot_id: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A query over sources, each written `{name}` in it."""

    title: str
    sources: Mapping[str, Source]
    sql: str = "SELECT * FROM {it} it"
    section: str = field(default="Rows", kw_only=True)


def list_questions(steps: Iterable[Step]) -> Iterator[Question]:
    """All questions in order; `steps` are the snapshots of the flights to ask for."""
    for table in TABLES:
        yield Question(f"all {table}", {"it": Source(table)}, section="Whole tables")
    yield from _list_past(list(steps))
    yield from _list_filters()
    yield from _list_joins()


def _list_past(steps: list[Step]) -> Iterator[Question]:
    columns = ("month", "carrier", "dep_delay", "distance")
    totals = "count(*) AS n, count(dep_delay) AS departed, sum(distance) AS miles"
    counts = f"SELECT month, carrier, {totals} FROM {{it}} it GROUP BY month, carrier"
    for step in steps:
        source = Source("flights", columns, snapshot_id=step.lake_snapshot_id)
        yield Question(f"{step.lake_snapshot_id} {step.title}", {"it": source}, counts, section="Flights through time")
    sources = {
        "before": Source("flights", ("carrier",), snapshot_id=steps[0].lake_snapshot_id),
        "now": Source("flights", ("carrier",)),
    }
    changed = (
        "SELECT b.carrier, b.n AS before, a.n AS now FROM (SELECT carrier, count(*) AS n FROM {before} x GROUP BY carrier) b "
        "LEFT JOIN (SELECT carrier, count(*) AS n FROM {now} y GROUP BY carrier) a ON a.carrier = b.carrier"
    )
    yield Question("change by airline", sources, changed, section="Flights through time")


def _list_filters() -> Iterator[Question]:
    filters = {
        "to LAX in July": "month = 7 AND dest = 'LAX'",
        "ten hours late": "arr_delay > 600",
        "with a speed": "mph IS NOT NULL",
        "of 2014, inlined": "year = 2014",
        "early on 1 May": "scheduled >= '2013-05-01T00:00:00+00:00' AND scheduled < '2013-05-01T10:00:00+00:00'",
    }
    for title, where in filters.items():
        yield Question(title, {"it": Source("flights", where=where)}, section="Filters")


def _list_joins() -> Iterator[Question]:
    flights = Source("flights", ("carrier", "tailnum", "origin", "dest", "scheduled", "dep_delay", "distance"))
    totals = "count(*) AS n, count(f.dep_delay) AS departed, sum(f.dep_delay) AS minutes"
    joins = {
        "airlines": f"SELECT a.name, {totals} FROM {{flights}} f JOIN {{other}} a ON f.carrier = a.carrier GROUP BY a.name",
        "planes": f"SELECT p.manufacturer, p.inspections, {totals} FROM {{flights}} f JOIN {{other}} p ON f.tailnum = p.tailnum "
        "GROUP BY p.manufacturer, p.inspections",
        "weather": f"SELECT f.origin, w.visib, max(w.temp) AS warmest, {totals} FROM {{flights}} f JOIN {{other}} w "
        "ON f.origin = w.origin AND f.scheduled = w.time_hour GROUP BY f.origin, w.visib",
        "airports": f"SELECT a.tzone, max(a.altitude_ft) AS highest, {totals} FROM {{flights}} f LEFT JOIN {{other}} a ON f.dest = a.faa "
        "GROUP BY a.tzone",
    }
    for table, sql in joins.items():
        yield Question(f"flights with {table}", {"flights": flights, "other": Source(table)}, sql, section="Joins")
