"""A job killed (-9) anywhere and run again: every table is there once, whole, and nobody has ever seen less of it.

When the grace is over, nothing is left but what the tables name.
"""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.pipeline.dying import Moment, draw
from tests.pipeline.holding import check_holding, list_files, list_named
from tests.pipeline.transfer.ferry import Ferry, describe
from tests.pipeline.transfer.killed.killing import LASTING, LONG_KILLS, ROWS, SEED, STEPS, Blow, Taking, check_taken, fill_hadoop, kill

COPY_SECONDS = 1.0
"""About how long a small table is copied."""
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]


def fill_delta(ferry: Ferry) -> None:
    """Delta tables of two partitions."""
    for name in "ab":
        write_deltalake(ferry.folder / "ns" / name, pa.table({"id": range(ROWS), "part": ["x", None] * (ROWS // 2)}), partition_by=["part"])


def check_import(ferry: Ferry, blow: Blow) -> None:
    """Kill, look, run again."""
    check_taken(ferry, Taking(fill_hadoop), blow)


def check_delta_import(ferry: Ferry, blow: Blow) -> None:
    """Kill, look, run again."""
    check_taken(ferry, Taking(fill_delta, {"form": "delta"}), blow)


def check_export(ferry: Ferry, blow: Blow) -> None:
    """Kill, look, run again."""
    ferry.ask_duckdb("CREATE SCHEMA ns")
    for name in "ab":
        ferry.ask_duckdb(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")
    kill(ferry, "export", blow)
    made = [name for name in "ab" if ferry.metadata_folder("ns", name).joinpath("v1.metadata.json").exists()]
    assert ferry.list_there("ns") == made
    assert [ferry.run(f"SELECT count(*) AS n FROM {{t}}.ns.{name}") for name in made] == [[{"n": ROWS}]] * len(made)
    report = ferry.bring("export", str(ferry.folder), grace=0)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    assert ferry.list_there("ns") == ["a", "b"]
    folders = [ferry.metadata_folder("ns", name) for name in "ab"]
    own = list_named(*(f"{folder}/v1.metadata.json" for folder in folders))
    assert list_files(ferry.folder) - {f"{folder}/version-hint.text" for folder in folders} == own
    check_holding(ferry.served)


def check_jdbc_export(ferry: Ferry, blow: Blow) -> None:
    """Kill, look, run again."""
    ferry.ask_duckdb("CREATE SCHEMA ns")
    for name in "ab":
        ferry.ask_duckdb(f"CREATE TABLE ns.{name} AS SELECT range AS id FROM range({ROWS})")
    database = ferry.folder.parent / "catalog.db"
    sqlite3.connect(database).close()
    place, given = f"sqlite:///{database}", {"property": [f"warehouse={ferry.folder}", "catalog-name=one"]}
    kill(ferry, "export", blow, place=place, **given)
    report = ferry.bring("export", place, grace=0, **given)
    assert [(name, rows) for name, _, rows in describe(report)] == [("ns.a", ROWS), ("ns.b", ROWS)], report.describe()
    with closing(sqlite3.connect(database)) as conn:
        rows = conn.execute("SELECT table_name, metadata_location FROM iceberg_tables ORDER BY 1").fetchall()
    assert [name for name, _ in rows] == ["a", "b"]
    assert list_files(ferry.folder) == list_named(*(location for _, location in rows))
    check_holding(ferry.served)


def test_a_killed_import_is_run_again(ferry: Ferry, tmp_path: Path) -> None:
    """While the second table is copied, at a moment chosen by lot."""
    check_import(ferry, Blow(tmp_path, Moment(STEPS.index("copy ns.b"), random.Random(SEED).uniform(0.0, COPY_SECONDS))))


@pytest.mark.long
def test_a_killed_export_is_run_again(ferry: Ferry, tmp_path: Path) -> None:
    """At a step chosen by lot, when something is written of the first table and not all of the second one is known."""
    check_export(ferry, Blow(tmp_path, Moment(random.Random(SEED).randrange(STEPS.index("publish ns.a"), STEPS.index("compare ns.b")))))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize(
    "check", [check_import, check_delta_import, check_export, check_jdbc_export], ids=["import", "delta", "export", "jdbc"]
)
def test_a_job_may_be_killed_anywhere(ferry: Ferry, tmp_path: Path, check: object, number: int) -> None:
    """At each step, and some time after it."""
    assert callable(check)
    check(ferry, Blow(tmp_path, draw(number, SEED, LASTING)))
