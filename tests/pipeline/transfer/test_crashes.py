"""A job killed (-9) anywhere and run again: every table is there once, whole, and nobody has ever seen less of it.

When the grace is over, nothing is left but what the tables name.
"""

import random
import re
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.pipeline.ingest.doomed import run_module
from tests.pipeline.transfer.ferry import Ferry, describe, format_given, list_files, list_named

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261122
STEPS = ("list", "copy ns.a", "publish ns.a", "compare ns.a", "copy ns.b", "publish ns.b", "compare ns.b")
"""What a run tells of two tables."""
LONG_KILLS = 20
LONGEST_DELAY = 6.0
ROWS = 60


def kill(ferry: Ferry, job: str, home: Path, step: int, delay_seconds: float, **given: Any) -> list[str]:
    """Kill the job there; the steps that it told."""
    doom = {"job": job, "catalog": asdict(ferry.served.rest_catalog()), "home": str(home), "step": step, "delay_seconds": delay_seconds}
    asked = format_given(**{"place": str(ferry.folder), "tables": (), "mode": "copy"} | given)
    told = run_module("tests.pipeline.transfer.doomed", doom | {"given": asked})
    assert len(told) > step, "it ended before"
    return told


def check_lake(ferry: Ferry) -> None:
    """What lies in the lake's places is its tables', and nothing else, once what nothing names has been removed."""
    ferry.sweep()
    places = [ferry.served.server.get(f"namespaces/ns/tables/{name}").json["metadata-location"] for name in "ab"]
    found = list_files(Path(ferry.served.lake.iceberg_path))
    own = {path for path in found if re.search(r"/metadata/(v\d+\.metadata\.json|version-hint\.text)$", path)}
    assert {Path(path).parents[1] for path in own} == {Path(place.removeprefix("file://")).parents[1] for place in places}
    assert found == own | list_named(*places)
    assert ferry.served.lake.psycopg().execute("SELECT count(*) FROM iceberg_staged").fetchone() == (0,)


def check_import(ferry: Ferry, home: Path, step: int, delay_seconds: float) -> None:
    """Kill, look, run again."""
    ferry.run(*(f"CREATE TABLE {{t}}.ns.{name} USING iceberg AS SELECT id FROM range({ROWS})" for name in "ab"))
    kill(ferry, "import", home, step, delay_seconds)
    for name in ferry.list_here("ns"):
        assert ferry.ask_duckdb(f"SELECT count(*) FROM lake.ns.{name}") == [(ROWS,)]
    assert [(name, rows) for name, _, rows in describe(ferry.take())] == [("ns.a", ROWS), ("ns.b", ROWS)]
    assert ferry.list_here("ns") == ["a", "b"]
    assert [ferry.load_here("ns", name)["snapshots"][0]["summary"]["total-records"] for name in "ab"] == [str(ROWS)] * 2
    check_lake(ferry)


def check_delta_import(ferry: Ferry, home: Path, step: int, delay_seconds: float) -> None:
    """Kill, look, run again."""
    for name in "ab":
        write_deltalake(ferry.folder / "ns" / name, pa.table({"id": range(ROWS), "part": ["x", None] * (ROWS // 2)}), partition_by=["part"])
    kill(ferry, "import", home, step, delay_seconds, form="delta")
    for name in ferry.list_here("ns"):
        assert ferry.ask_duckdb(f"SELECT count(*), count(part) FROM lake.ns.{name}") == [(ROWS, ROWS // 2)]
    assert [(name, rows) for name, _, rows in describe(ferry.take(form="delta"))] == [("ns.a", ROWS), ("ns.b", ROWS)]
    assert ferry.list_here("ns") == ["a", "b"]
    assert [ferry.load_here("ns", name)["snapshots"][0]["summary"]["total-records"] for name in "ab"] == [str(ROWS)] * 2
    check_lake(ferry)


def check_export(ferry: Ferry, home: Path, step: int, delay_seconds: float) -> None:
    """Kill, look, run again."""
    ferry.ask_duckdb("CREATE SCHEMA ns")
    for name in "ab":
        ferry.ask_duckdb(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")
    kill(ferry, "export", home, step, delay_seconds)
    made = [name for name in "ab" if ferry.metadata_folder("ns", name).joinpath("v1.metadata.json").exists()]
    assert ferry.list_there("ns") == made
    assert [ferry.run(f"SELECT count(*) AS n FROM {{t}}.ns.{name}") for name in made] == [[{"n": ROWS}]] * len(made)
    report = ferry.bring("export", str(ferry.folder), grace=0)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    assert ferry.list_there("ns") == ["a", "b"]
    folders = [ferry.metadata_folder("ns", name) for name in "ab"]
    own = list_named(*(f"{folder}/v1.metadata.json" for folder in folders))
    assert list_files(ferry.folder) - {f"{folder}/version-hint.text" for folder in folders} == own


def check_jdbc_export(ferry: Ferry, home: Path, step: int, delay_seconds: float) -> None:
    """Kill, look, run again."""
    ferry.ask_duckdb("CREATE SCHEMA ns")
    for name in "ab":
        ferry.ask_duckdb(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")
    database = ferry.folder.parent / "catalog.db"
    sqlite3.connect(database).close()
    place, given = f"sqlite:///{database}", {"property": [f"warehouse={ferry.folder}", "catalog-name=one"]}
    kill(ferry, "export", home, step, delay_seconds, place=place, **given)
    report = ferry.bring("export", place, grace=0, **given)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    with closing(sqlite3.connect(database)) as conn:
        rows = conn.execute("SELECT table_name, metadata_location FROM iceberg_tables ORDER BY 1").fetchall()
    assert [name for name, _ in rows] == ["a", "b"]
    assert list_files(ferry.folder) == list_named(*(location for _, location in rows))


def test_a_killed_import_is_run_again(ferry: Ferry, tmp_path: Path) -> None:
    """When the second table is written, and nobody knows it yet."""
    check_import(ferry, tmp_path, STEPS.index("publish ns.b"), 0.0)


def test_a_killed_export_is_run_again(ferry: Ferry, tmp_path: Path) -> None:
    """At a step chosen by lot, when something is written of the first table and not all of the second one is known."""
    check_export(ferry, tmp_path, random.Random(SEED).randrange(STEPS.index("publish ns.a"), STEPS.index("compare ns.b")), 0.0)


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize(
    "check", [check_import, check_delta_import, check_export, check_jdbc_export], ids=["import", "delta", "export", "jdbc"]
)
def test_a_job_may_be_killed_anywhere(ferry: Ferry, tmp_path: Path, check: object, number: int) -> None:
    """At each step, and some time after it."""
    assert callable(check)
    delay = 0.0 if number < len(STEPS) else random.Random(SEED + number).uniform(0.0, LONGEST_DELAY)
    check(ferry, tmp_path, number % len(STEPS), delay)
