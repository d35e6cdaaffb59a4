"""`import` from a REST catalog of another maker, killed (-9) and run again: each table is there once, and nothing else."""

from pathlib import Path

import pytest

from tests.pipeline.dying import Moment, draw
from tests.pipeline.transfer.ferry import Ferry
from tests.pipeline.transfer.killed.killing import LONG_KILLS, QUICK, REGISTERING, ROWS, SEED, Blow, Taking, check_taken
from tests.pipeline.transfer.others.conftest import Abroad

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
KINDS = ("register", "copy")


def find_taking(abroad: Abroad, mode: str) -> Taking:
    """The import of that mode; a copy is compared, as it needs Spark anyway."""

    def fill(_: Ferry) -> None:
        rows = f"SELECT id, id % 2 AS part FROM range({ROWS})"
        abroad.run("CREATE NAMESPACE {o}.ns", *(f"CREATE TABLE {{o}}.ns.{name} USING iceberg AS {rows}" for name in "ab"))

    if mode == "copy":
        return Taking(fill, {"place": abroad.uri})
    return Taking(fill, {"place": abroad.uri, "mode": mode, "no_verify": True}, REGISTERING, QUICK)


@pytest.mark.long
def test_a_killed_import_is_run_again(abroad: Abroad, tmp_path: Path) -> None:
    """When the second table is about to be registered, without Spark in the process that is killed."""
    check_taken(abroad.ferry, find_taking(abroad, "register"), Blow(tmp_path, Moment(REGISTERING.index("register ns.b"))))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
@pytest.mark.parametrize("mode", KINDS)
def test_an_import_may_be_killed_anywhere(abroad: Abroad, tmp_path: Path, mode: str, number: int) -> None:
    """At each step, and some time after it."""
    taking = find_taking(abroad, mode)
    check_taken(abroad.ferry, taking, Blow(tmp_path, draw(number, SEED, taking.spans)))
