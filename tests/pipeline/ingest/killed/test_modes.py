"""`ingest` of each mode killed (-9) at a step drawn by lot: run again, it has done what a run that nobody killed does beside it."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest

from duckicelake.pipeline.common.spark_sql import parse_partitions
from duckicelake.pipeline.ingest.options import Status
from tests.pipeline.ingest.doomed import Doom, run_doomed
from tests.pipeline.ingest.killed.leaving import check_left
from tests.pipeline.ingest.mill import TABLE, Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest"), pytest.mark.long]
SEED = 20261122
KILLS = 20
LONGEST_DELAY = 1.5
TWIN = "raw.twin"
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of the job, the files that the table has already, those that come, and its rows afterwards by id and one column.

    No files before: there is no table.
    """

    before: Mapping[str, str]
    files: Mapping[str, str]
    rows: Sequence[Row]
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    partition_by: str = ""
    columns: str = "id, name"
    bad: int = 1


CASES: Mapping[str, Case] = {
    "append": Case({"a": "id,name\n1,a\n"}, {"b": "id,name\n2,b\nbad,z\n", "c": "id,name\n3,c\n"}, [(1, "a"), (2, "b"), (3, "c")]),
    "first run": Case(
        {}, {"b": "id,name\n2,b\nbad,z\n", "c": "id,name\n3,c\n"}, [(2, "b"), (3, "c")], {"schema": "id BIGINT, name STRING"}
    ),
    "widen": Case(
        {"a": "id,n\n1,7\n"},
        {"b": "id,n,name\n2,70000000000,b\n", "c": "id,n,name\n3,8,\n"},
        [(1, 7, None), (2, 70_000_000_000, "b"), (3, 8, None)],
        {"evolve": "widen"},
        columns="id, n, name",
        bad=0,
    ),
    "upsert": Case(
        {"a": "id,name\n1,a\n2,b\n"},
        {"b": "id,name\n2,new\nbad,z\n", "c": "id,name\n3,c\n"},
        [(1, "a"), (2, "new"), (3, "c")],
        {"mode": "upsert", "key": "id"},
    ),
    "scd2": Case(
        {"a": "id,name,at\n1,a,2026-01-01\n2,b,2026-01-01\n"},
        {"b": "id,name,at\n2,new,2026-02-01\nbad,z,2026-02-01\n", "c": "id,name,at\n3,c,2026-02-01\n"},
        [(1, "a", True), (2, "b", False), (2, "new", True), (3, "c", True)],
        {"mode": "scd2", "key": "id", "order_by": "at"},
        columns="id, name, is_current",
    ),
    "overwrite-partitions": Case(
        {"a": "id,name\n1,a\n2,b\n3,b\n"},
        {"b": "id,name\n4,b\nbad,b\n", "c": "id,name\n5,c\n"},
        [(1, "a"), (4, "b"), (5, "c")],
        {"mode": "overwrite-partitions"},
        partition_by="name",
    ),
}
DRAWN = random.Random(SEED).sample(list(CASES) * 4, KILLS)


def fill(mill: Mill, case: Case) -> None:
    """Both tables have taken the first files, and the others wait."""
    for name, text in case.before.items():
        mill.write(f"{name}.csv", text)
    first = {name: text for name, text in case.asked.items() if name == "order_by"}
    first |= {"mode": case.asked["mode"], "key": case.asked["key"]} if case.asked.get("mode") == "scd2" else {}
    for table in (str(TABLE), TWIN) if case.before else ():
        options = make_doom(mill, table, first).read_options()
        partition_by = parse_partitions(case.partition_by) if case.partition_by else ()
        assert mill.run(**options, partition_by=partition_by).status is Status.done
    for name, text in case.files.items():
        mill.write(f"{name}.csv", text)


def make_doom(mill: Mill, table: str, asked: Mapping[str, str]) -> Doom:
    """A run of the job on a table."""
    return Doom(asdict(mill.served.rest_catalog()), str(mill.folder), table, step=0, **asked)  # pyright: ignore[reportArgumentType]


def look(mill: Mill, name: str, case: Case) -> list[list[Row]]:
    """What there is of a table, its ledger and its quarantine, but for what tells one run from another."""
    quarantine = mill.rows(f"{name}__quarantine", "* EXCLUDE (run_id, quarantined_at)") if case.bad else []
    ledger = [(row[0].rpartition("/")[2], *row[1:]) for row in mill.rows(f"{name}__ingested", "uri, rows, quarantined")]
    return [mill.rows(name), ledger, quarantine]


@pytest.mark.parametrize("number", range(KILLS), ids=[f"{number}-{name}" for number, name in enumerate(DRAWN)])
def test_a_job_may_be_killed_anywhere(mill: Mill, number: int) -> None:
    """At a step of those that the other run told, or some time into it; every second kill comes at once."""
    case, lot, told = CASES[DRAWN[number]], random.Random(SEED + number), list[str]()
    fill(mill, case)
    assert mill.run(tell=told.append, **make_doom(mill, TWIN, case.asked).read_options()).status is Status.done
    assert mill.rows("twin", case.columns) == case.rows
    step = lot.randrange(len(told))
    # After the last one nothing is done.
    delay = 0.0 if step == len(told) - 1 else lot.choice((0.0, lot.uniform(0.0, LONGEST_DELAY)))
    doom = make_doom(mill, str(TABLE), case.asked)
    killed = run_doomed(replace(doom, step=step, delay_seconds=delay))
    assert killed == [one.replace(TWIN, str(TABLE)) for one in told[: step + 1]]
    assert mill.run(**doom.read_options()).status is (Status.nothing_new if told[-1] in killed else Status.done)
    assert look(mill, "trips", case) == look(mill, "twin", case)
    for table in ("trips", "trips__ingested", *(("trips__quarantine",) if case.bad else ())):
        files = mill.ask(f"SELECT data_file FROM ducklake_list_files('lake', '{table}', schema => 'raw')")
        assert len(files) == len(set(files))
    assert mill.run(**doom.read_options()).status is Status.nothing_new
    check_left(mill)
