"""A job that registers folders, killed (-9) anywhere and run again: tables are whole or not there, and no file is touched."""

import random
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.pipeline.dying import Moment, Span, draw
from tests.pipeline.transfer.ferry import Ferry
from tests.pipeline.transfer.killed.killing import LONG_KILLS, ROWS, Blow, Taking, check_taken

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261126
STEPS = ("list", "register ns.a", "publish ns.a", "compare ns.a", "register ns.b", "publish ns.b", "compare ns.b")
"""What a run tells of two tables."""
SPANS = tuple(map(Span, (0.1, 0.3, 0.15, 2.0, 0.3, 0.15, 0.0)))
"""How long they last about; the last one changes nothing."""


def write_folders(form: str, ferry: Ferry) -> None:
    """Two tables of two files."""
    for name in "ab":
        place = ferry.folder / "ns" / name
        if form == "delta":
            write_deltalake(place, pa.table({"id": range(ROWS), "part": ["x", None] * (ROWS // 2)}), partition_by=["part"])
            continue
        for number, part in enumerate(("1", "__HIVE_DEFAULT_PARTITION__")):
            place.joinpath(f"part={part}").mkdir(parents=True)
            pq.write_table(pa.table({"id": range(number, ROWS, 2)}), place / f"part={part}" / "rows.parquet")


def check_registered(ferry: Ferry, form: str, blow: Blow) -> None:
    """Kill, look, run again, clear up; half of the rows lie in no partition."""
    check_taken(ferry, Taking(partial(write_folders, form), {"form": form, "mode": "register"}, STEPS), blow)
    for name in "ab":
        assert ferry.ask_duckdb(f"SELECT count(*), count(part) FROM lake.ns.{name}") == [(ROWS, ROWS // 2)]
        assert ferry.run(f"SELECT count(*) AS n, count(part) AS m FROM {{h}}.ns.{name}") == [{"n": ROWS, "m": ROWS // 2}]


@pytest.mark.long
@pytest.mark.parametrize("form", ["hive", pytest.param("delta", marks=pytest.mark.long)])
def test_a_killed_registration_is_run_again(ferry: Ferry, tmp_path: Path, form: str) -> None:
    """At a step chosen by lot, when the first table is begun and the second one is not done."""
    step = random.Random(SEED + len(form)).randrange(STEPS.index("register ns.a"), STEPS.index("compare ns.b"))
    check_registered(ferry, form, Blow(tmp_path, Moment(step)))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize("form", ["hive", "delta"])
def test_a_registration_may_be_killed_anywhere(ferry: Ferry, tmp_path: Path, form: str, number: int) -> None:
    """At each step, and some time after it."""
    check_registered(ferry, form, Blow(tmp_path, draw(number, SEED, SPANS)))
