"""`ingest --follow` in each mode, batch by batch, also killed (-9) in between: as if every file had been taken once, in order."""

import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

from duckicelake.pipeline.common.staging import is_start
from duckicelake.pipeline.ingest.options import Status
from tests.pipeline.ingest.doomed import Doom, run_doomed
from tests.pipeline.ingest.killed.leaving import check_left
from tests.pipeline.ingest.mill import TABLE, Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
SEED = 20261122
STEPS = ("list", "count rows", "branch raw.trips__ingested", "branch raw.trips", "write raw.trips", "write raw.trips__ingested")
BATCH = (*STEPS, "publish", "published")
"""What a batch tells of a table that is there."""
BATCHES = 3
"""So many of one file each are left when the first one was taken."""
LONG_KILLS = 20
LONGEST_DELAY = 1.5


@dataclass(frozen=True, slots=True)
class Case:
    """What is asked of the job, four files in the order in which they came, and the rows afterwards."""

    files: Sequence[str]
    rows: Sequence[tuple[Any, ...]]
    asked: Mapping[str, str] = field(default_factory=dict[str, str])
    columns: str = "id, name"


CASES: Mapping[str, Case] = {
    "append": Case(["1,a\n2,a\n", "3,b\n2,b\n", "1,c\n", "3,d\n"], [(1, "a"), (1, "c"), (2, "a"), (2, "b"), (3, "b"), (3, "d")]),
    # Without a column that says which is newer, a batch that came twice or late would show.
    "upsert": Case(
        ["1,a\n2,a\n", "2,b\n3,b\n", "1,c\n3,c\n4,c\n", "1,d\n4,d\n5,d\n"],
        [(1, "d"), (2, "b"), (3, "c"), (4, "d"), (5, "d")],
        {"mode": "upsert", "key": "id"},
    ),
    "scd2": Case(
        [
            "1,a,2026-01-01\n2,a,2026-01-01\n",
            "2,b,2026-02-01\n3,b,2026-02-01\n",
            "1,c,2026-03-01\n1,a,2026-04-01\n",
            "2,d,2026-05-01\n1,d,2026-05-01\n",
        ],
        [
            *((1, "a", False), (1, "a", False), (1, "c", False), (1, "d", True)),
            *((2, "a", False), (2, "b", False), (2, "d", True), (3, "b", True)),
        ],
        {"mode": "scd2", "key": "id", "order_by": "at"},
        "id, name, is_current",
    ),
}
DRAWN = random.Random(SEED).sample(list(CASES) * 7, LONG_KILLS)


def until_nothing_comes(seconds: float) -> bool:
    """A wait that goes on at once after a batch, and asks for the end when there was nothing to take."""
    return seconds > 0


def lay_out(mill: Mill, case: Case) -> dict[str, Any]:
    """The files, in their order, of which the first one is taken; the job's options."""
    for number, rows in enumerate(case.files):
        path = mill.write(f"f{number}.csv", ("id,name,at\n" if "order_by" in case.asked else "id,name\n") + rows)
        os.utime(path, (1_700_000_000 + number,) * 2)
    options = make_doom(mill, case, 0).read_options()
    done, _ = mill.follow(options=options, batch_files=1, max_batches=1)
    assert done.files == 1
    return options


def make_doom(mill: Mill, case: Case, step: int, delay_seconds: float = 0.0) -> Doom:
    """A run that takes what is left, file by file."""
    place = (asdict(mill.served.rest_catalog()), str(mill.folder), str(TABLE))
    return Doom(*place, step, delay_seconds, batches=BATCHES, **case.asked)  # pyright: ignore[reportArgumentType]


def kill(mill: Mill, case: Case, step: int, delay_seconds: float = 0.0) -> int:
    """Kill a run of three batches there; how many of them it has published."""
    told = [line.removesuffix(f" {mill.folder}") for line in run_doomed(make_doom(mill, case, step, delay_seconds))]
    assert told == list(BATCH * BATCHES)[: step + 1]
    return told.count("published")


def finish(mill: Mill, case: Case, options: Mapping[str, Any], left: range) -> None:
    """Follow to the end: the files that are left come, one after the other, and all are there once."""
    done, _ = mill.follow(until_nothing_comes, options=options, batch_files=1, max_batches=BATCHES + 1)
    assert left.start <= done.files <= left.stop - 1, done
    assert done.status is (Status.done if done.files else Status.nothing_new), done
    check_whole(mill, case)
    assert mill.run(**options).status is Status.nothing_new
    check_left(mill)


def check_whole(mill: Mill, case: Case) -> None:
    """The rows of a run that nobody killed; every file once in the ledger, each run in one snapshot but for the empty first one."""
    assert mill.rows(columns=case.columns) == case.rows
    ledger = mill.rows("trips__ingested", "uri, rows, run_id")
    assert [(row[0].rpartition("/")[2], row[1]) for row in ledger] == [(f"f{n}.csv", text.count("\n")) for n, text in enumerate(case.files)]
    metadata = mill.served.server.get("namespaces/raw/tables/trips").json["metadata"]
    told = Counter(one["summary"].get("duckicelake.run-id") for one in metadata["snapshots"] if not is_start(one))
    assert [told[row[2]] for row in ledger] == [1] * len(case.files)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["upsert", "scd2"])
def test_batches_are_merged_in_order(mill: Mill, mode: str) -> None:
    """Each on what the ones before left, and the sums are those of all."""
    case = CASES[mode]
    options = lay_out(mill, case)
    done, looks = mill.follow(until_nothing_comes, options=options, batch_files=1)
    assert [(look.batches, look.files) for look in looks] == [(1, 1), (2, 2), (3, 3)]
    assert (done.status, done.mode, done.rows_in) == (Status.done, mode, sum(text.count("\n") for text in case.files[1:]))
    assert done.rows_in == done.rows_out + done.rows_quarantined + done.rows_superseded
    check_whole(mill, case)


@pytest.mark.long
@pytest.mark.parametrize("mode", [pytest.param("append", marks=pytest.mark.long), "upsert"])
def test_a_killed_run_is_followed_by_another(mill: Mill, mode: str) -> None:
    """Killed (-9) in the midst of its second batch: no file is taken twice, and none is left out."""
    case = CASES[mode]
    options = lay_out(mill, case)
    assert kill(mill, case, len(BATCH) + 1 + random.Random(SEED).randrange(len(BATCH) - 2)) == 1
    finish(mill, case, options, range(2, 3))


@pytest.mark.long
@pytest.mark.parametrize("number", range(LONG_KILLS), ids=[f"{number}-{mode}" for number, mode in enumerate(DRAWN)])
def test_a_run_may_be_killed_anywhere(mill: Mill, number: int) -> None:
    """At a step of one of its batches, or some time into it, by lot; what is left is taken by the next."""
    case, lot = CASES[DRAWN[number]], random.Random(SEED + number)
    options = lay_out(mill, case)
    step = lot.randrange(BATCHES * len(BATCH))
    # After the last one nothing is done.
    delay = 0.0 if step == BATCHES * len(BATCH) - 1 else lot.choice([0.0, lot.uniform(0.0, LONGEST_DELAY)])
    landed = kill(mill, case, step, delay)
    # One that was killed while it published may be there.
    finish(mill, case, options, range(BATCHES - landed - (BATCH[step % len(BATCH)] == "publish"), BATCHES - landed + 1))
