"""`import` killed (-9) while it registers tables or copies folders of Parquet files: run again, each is there once, and nothing else."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.pipeline.dying import Moment, draw
from tests.pipeline.transfer.ferry import Ferry
from tests.pipeline.transfer.killed.killing import LONG_KILLS, QUICK, REGISTERING, ROWS, SEED, Blow, Taking, check_taken, fill_hadoop

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
KINDS = ("hadoop registered", "jdbc registered", "hive copied")


def fill_jdbc(ferry: Ferry) -> None:
    """Tables of a catalog on SQLite."""
    rows = pa.table({"id": range(ROWS)})
    catalog = SqlCatalog("one", uri=find_database(ferry), warehouse=f"file://{ferry.folder}")
    catalog.create_namespace("ns")
    for name in "ab":
        catalog.create_table(f"ns.{name}", rows.schema).append(rows)
    catalog.close()


def find_database(ferry: Ferry) -> str:
    """Where that catalog is."""
    return f"sqlite:///{ferry.folder.parent / 'catalog.db'}"


def fill_hive(ferry: Ferry) -> None:
    """Folders with files, and values in the names of folders."""
    for name in "ab":
        for part in range(2):
            folder = ferry.folder / "ns.db" / name / f"part={part}"
            folder.mkdir(parents=True)
            pq.write_table(pa.table({"id": range(part, ROWS, 2)}), folder / "x.parquet")


def find_taking(kind: str, ferry: Ferry) -> Taking:
    """The import of that kind."""
    registering = {"mode": "register", "no_verify": True}
    takings = {
        "hadoop registered": Taking(fill_hadoop, registering, REGISTERING, QUICK),
        "jdbc registered": Taking(fill_jdbc, registering | {"place": find_database(ferry)}, REGISTERING, QUICK),
        "hive copied": Taking(fill_hive, {"form": "hive"}),
    }
    return takings[kind]


@pytest.mark.long
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])])
def test_a_killed_import_is_run_again(ferry: Ferry, tmp_path: Path, kind: str) -> None:
    """At a step chosen by lot, when it has begun with a table."""
    taking = find_taking(kind, ferry)
    check_taken(ferry, taking, Blow(tmp_path, Moment(random.Random(f"{SEED} {kind}").randrange(1, len(taking.steps)))))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize("kind", KINDS)
def test_an_import_may_be_killed_anywhere(ferry: Ferry, tmp_path: Path, kind: str, number: int) -> None:
    """At each step, and some time after it."""
    taking = find_taking(kind, ferry)
    check_taken(ferry, taking, Blow(tmp_path, draw(number, SEED, taking.spans)))
