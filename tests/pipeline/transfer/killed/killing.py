"""Jobs of two tables, `ns.a` and `ns.b`, that are killed (-9) and run again, and what is to be seen in between and afterwards."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.pipeline.dying import Moment, Span, is_told, run_module
from tests.pipeline.holding import check_cleared, list_files
from tests.pipeline.transfer.ferry import Ferry, describe, format_given

SEED = 20261122
STEPS = ("list", "copy ns.a", "publish ns.a", "compare ns.a", "copy ns.b", "publish ns.b", "compare ns.b")
"""What a run tells of two tables that it copies."""
REGISTERING = ("list", "register ns.a", "register ns.b")
"""The same where they are registered, and no row is compared: without Spark."""
LONG_KILLS = 20
LASTING, QUICK = tuple(map(Span, (2.0, 2.5, 0.15, 3.0, 0.8, 0.15, 0.0))), tuple(map(Span, (0.1, 0.1, 0.0)))
"""How long they last; the last one changes nothing, or is as the one before."""
ROWS = 60


@dataclass(frozen=True, slots=True)
class Taking:
    """What makes the source of an import, in the warehouse folder; what is asked of it; the steps that it tells."""

    fill: Callable[[Ferry], None]
    given: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: Sequence[str] = STEPS
    spans: Sequence[Span] = LASTING


@dataclass(frozen=True, slots=True)
class Blow:
    """When the process dies; `home` is where it has its scratch files."""

    home: Path
    moment: Moment


def fill_hadoop(ferry: Ferry) -> None:
    """Tables of the warehouse, one of them partitioned."""
    rows = f"SELECT id, id % 2 AS part FROM range({ROWS})"
    ferry.run(f"CREATE TABLE {{t}}.ns.a USING iceberg AS {rows}", f"CREATE TABLE {{t}}.ns.b USING iceberg PARTITIONED BY (part) AS {rows}")


def kill(ferry: Ferry, job: str, blow: Blow, steps: Sequence[str] = STEPS, **given: Any) -> None:
    """Kill the job there. Fail unless it told the steps until then, and no other."""
    doom = {"job": job, "catalog": asdict(ferry.served.rest_catalog()), "home": str(blow.home), "at": asdict(blow.moment)}
    asked = format_given(**{"place": str(ferry.folder), "tables": (), "mode": "copy"} | given)
    told = run_module("tests.pipeline.transfer.doomed", doom | {"given": asked})
    assert is_told(told, steps[: blow.moment.step + 1]), told


def check_taken(ferry: Ferry, taking: Taking, blow: Blow) -> None:
    """Fail unless nobody sees half of a table after the kill, and another run leaves each table once, and nothing else.

    The source has all of its files afterwards.
    """
    taking.fill(ferry)
    source = read_files(ferry.folder)
    kill(ferry, "import", blow, taking.steps, **taking.given)
    for name in ferry.list_here("ns"):
        assert ferry.ask_duckdb(f"SELECT count(*), count(DISTINCT id) FROM lake.ns.{name}") == [(ROWS, ROWS)]
    again = {"place": str(ferry.folder), "mode": "copy"} | taking.given | {"no_verify": False}
    report = ferry.bring("import", **again)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    assert ferry.list_here("ns") == ["a", "b"]
    for name in ferry.list_here("ns"):
        assert {one["summary"]["total-records"] for one in ferry.load_here("ns", name)["snapshots"]} == {str(ROWS)}
    check_cleared(ferry.served, *source)
    left = read_files(ferry.folder)
    assert {path: left.get(path) for path in source} == source


def read_files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for hints, which whoever writes there changes."""
    return {path: Path(path).read_bytes() for path in list_files(folder) if not path.endswith("/version-hint.text")}
