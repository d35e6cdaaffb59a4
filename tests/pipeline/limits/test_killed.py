"""`verify` killed (-9) while it looks: it only reads, and leaves nothing behind."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.pipeline.dying import Moment, Span, draw
from tests.pipeline.maintain.doomed import kill
from tests.pipeline.verify.checker import open_checker
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
SEED = 20261125
STEPS = ["list tables", "compare main.t now"]
LONG_KILLS = 20
SPANS = (Span(0.8), Span(1.0, has_tasks=True))
"""From the first task on the second one lasts for some seconds."""
FILES_SPANS = (Span(0.5), Span(1.0))
NAME = "doomed"
COUNT_SESSIONS = b"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'doomed' AND datname = current_database()"
LOOK = b"""
SELECT (SELECT max(snapshot_id) FROM ducklake_snapshot), (SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'S', 'v')),
       (SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database WHERE locktype = 'advisory' AND datname = current_database()),
       (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'pg\\_temp\\_%')
"""


def check_kill(served: Served, spark: Spark, home: Path, moment: Moment, *, files: bool = False) -> None:
    """Kill it, and look for what is left: sessions, locks, tables, objects; another run goes as if nothing had been."""
    checker, conn = open_checker(served, spark), served.lake.psycopg()
    checker.run("CREATE TABLE t AS SELECT i AS id, 'n' || i AS name FROM range(1000000) r(i)", "INSERT INTO t VALUES (-1, 'inlined')")
    assert checker.verify().status == 0
    root = served.lake.data_path.removesuffix("data/")
    objects = checker.duck.execute(f"SELECT file FROM glob('{root}**') ORDER BY ALL").fetchall()
    named = replace(served, lake=replace(served.lake, dsn=make_conninfo(served.lake.dsn, application_name=NAME)))
    session = named.lake.duckdb(read_only=True)
    session.execute("SELECT count(*) FROM t").fetchall()
    assert conn.execute(COUNT_SESSIONS).fetchall() != [(0,)], "its sessions would not be known"
    session.close()
    before = conn.execute(LOOK).fetchall()
    told = kill(named, home, moment, "tests.pipeline.limits.doomed", {"files": files})
    steps = [STEPS[0], "look at files of main.t now"] if files else STEPS
    assert told[: moment.step + 1] == steps[: moment.step + 1]
    wait_for(lambda: conn.execute(COUNT_SESSIONS).fetchall() == [(0,)], "the end of its sessions")
    assert conn.execute(LOOK).fetchall() == before
    assert checker.duck.execute(f"SELECT file FROM glob('{root}**') ORDER BY ALL").fetchall() == objects
    assert checker.verify().status == 0


@pytest.mark.long
def test_a_killed_look_leaves_nothing(served: Served, spark: Spark, tmp_path: Path) -> None:
    """While both sides are read, some time after that began."""
    check_kill(served, spark, tmp_path, Moment(1, random.Random(SEED).uniform(0.0, 0.3), stage=0))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS))
def test_a_look_may_be_killed_anywhere(served: Served, spark: Spark, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    check_kill(served, spark, tmp_path, draw(number, SEED, SPANS))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS // 2))
def test_a_look_at_files_may_be_killed_anywhere(served: Served, spark: Spark, tmp_path: Path, number: int) -> None:
    """At each step, and some time after it."""
    check_kill(served, spark, tmp_path, draw(number, SEED, FILES_SPANS), files=True)
