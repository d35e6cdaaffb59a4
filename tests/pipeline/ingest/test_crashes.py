"""`ingest` killed (-9) at any step, and by others' writes, lost answers and expiry: running again has every row exactly once."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import pytest

from duckicelake.errors import BadRequest, CommitFailed, CommitStateUnknown, ServiceUnavailable
from duckicelake.pipeline.common.rest import Rest, open_rest
from duckicelake.pipeline.ingest import writing
from duckicelake.pipeline.ingest.job import begin
from duckicelake.pipeline.ingest.options import IngestMode, IngestOptions, IngestReport, Status
from tests.pipeline.ingest.doomed import Doom, run_doomed
from tests.pipeline.ingest.killed.leaving import check_left
from tests.pipeline.ingest.mill import TABLE, Mill

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]
SEED = 20261122
WRITE_SECONDS = 1.0
"""About how long a few rows are written."""
STEPS = [
    *("list", "count rows", "branch raw.trips__ingested", "branch raw.trips", "write raw.trips", "write raw.trips__ingested"),
    *("branch raw.trips__quarantine", "write raw.trips__quarantine", "publish", "published"),
]
"""What a run does to a table that is there, if rows are bad; a new table is made after the second step."""


def fill(mill: Mill) -> None:
    """Two files were taken; three more wait, two bad lines among them."""
    mill.write("a.csv", "id,name\n1,a\n2,b\n")
    mill.write("b.csv", "id,name\n3,c\n")
    mill.run()
    for number in range(3):
        mill.write(f"new{number}.csv", f"id,name\n{10 * number + 10},x\n{10 * number + 11},y\n" + ("bad,z\n" if number else ""))


def check_whole(mill: Mill) -> None:
    """Every row once, every file once in the ledger, no data file twice, nothing to do."""
    assert mill.rows(columns="id") == [(i,) for i in (1, 2, 3, 10, 11, 20, 21, 30, 31)]
    assert mill.rows("trips__quarantine", "raw") == [("bad,z",), ("bad,z",)]
    ledger = mill.rows("trips__ingested", "uri, rows, quarantined")
    assert [row[0].rpartition("/")[2] for row in ledger] == ["a.csv", "b.csv", "new0.csv", "new1.csv", "new2.csv"]
    assert sum(row[1] for row in ledger) == 11
    assert sum(row[2] for row in ledger) == 2
    for table in ("trips", "trips__ingested", "trips__quarantine"):
        files = mill.ask(f"SELECT data_file FROM ducklake_list_files('lake', '{table}', schema => 'raw')")
        assert len(files) == len(set(files))
    assert mill.run().status == Status.nothing_new


def kill(mill: Mill, step: int, delay_seconds: float = 0.0) -> list[str]:
    """Kill the job there; the steps that it told."""
    return run_doomed(Doom(asdict(mill.served.rest_catalog()), str(mill.folder), str(TABLE), step, delay_seconds))


def list_kinds(told: Sequence[str], mill: Mill) -> list[str]:
    """The steps without the folder's name."""
    return [step.removesuffix(f" {mill.folder}") for step in told]


def test_a_killed_job_is_run_again(mill: Mill) -> None:
    """While rows are written, or soon after, by lot: as if it had been run once, also to whoever looks into the store."""
    fill(mill)
    step, delay = STEPS.index("write raw.trips"), random.Random(SEED).uniform(0.0, WRITE_SECONDS)
    told = list_kinds(kill(mill, step, delay), mill)
    assert told == STEPS[: max(step + 1, len(told))]
    may_be = {"published": {Status.nothing_new}, "publish": {Status.nothing_new, Status.done}}
    assert mill.run().status in may_be.get(told[-1], {Status.done})
    check_whole(mill)
    check_left(mill)


def find_current(mill: Mill, table: str) -> int:
    """Where main of a table is."""
    return mill.served.server.get(f"namespaces/raw/tables/{table}").json["metadata"]["current-snapshot-id"]


@pytest.mark.long
@pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.long), "3"])
def test_others_may_write_meanwhile(mill: Mill, version: str) -> None:
    """DuckDB's rows that come between stay, and the files that were staged follow them: nothing is written twice."""
    fill(mill)
    mill.spark.session.sql(f"ALTER TABLE {mill.catalog}.raw.trips SET TBLPROPERTIES ('format-version' = '{version}')")
    pending = ["INSERT INTO raw.trips VALUES (99, 'duck')", "DELETE FROM raw.trips WHERE id = 2", "INSERT INTO raw.trips VALUES (2, 'b')"]

    def tell(step: str) -> None:
        if step == "publish" and pending:
            mill.duck.execute(pending.pop(0))

    done = mill.run(tell=tell)
    assert (done.attempts, done.rows_out) == (1, 6)
    assert not pending
    assert mill.find_summary("trips")["duckicelake.run-id"] == done.run_id
    assert done.snapshots == {f"raw.{name}": find_current(mill, name) for name in ("trips", "trips__ingested", "trips__quarantine")}
    assert len(mill.served.spark(mill.spark).read(("raw", "trips"))) == 10
    mill.duck.execute("DELETE FROM raw.trips WHERE id = 99")
    check_whole(mill)
    assert mill.list_refs("trips") == ["main"]


@pytest.mark.long
def test_a_column_that_comes_between_starts_anew(mill: Mill) -> None:
    """Files that were staged do not follow onto another table."""
    fill(mill)
    pending = ["ALTER TABLE raw.trips ADD COLUMN more INTEGER", "INSERT INTO raw.trips VALUES (99, 'duck', 1)"]

    def tell(step: str) -> None:
        while step == "publish" and pending:
            mill.duck.execute(pending.pop(0))

    assert mill.run(tell=tell).attempts == 2
    mill.duck.execute("DELETE FROM raw.trips WHERE id = 99")
    check_whole(mill)


@pytest.mark.long
def test_a_merge_starts_anew(mill: Mill) -> None:
    """What it did depends on rows that others may have changed."""
    fill(mill)
    for number in range(3):
        mill.write(f"new{number}.csv", "id,name\n" + (f"{number + 1},new\n" if number < 2 else ""))
    pending = ["DELETE FROM raw.trips WHERE id = 1"]

    def tell(step: str) -> None:
        if step == "publish" and pending:
            mill.duck.execute(pending.pop())

    assert mill.run(tell=tell, mode=IngestMode.upsert, key=("id",)).attempts == 2
    assert mill.rows() == [(1, "new"), (2, "new"), (3, "c")]


@pytest.mark.long
@pytest.mark.parametrize("when", ["branch raw.trips__ingested", "publish"])
def test_of_two_runs_at_once_one_takes_the_files(mill: Mill, when: str) -> None:
    """The other one finds nothing left, whenever it comes between."""
    fill(mill)
    others: list[IngestReport] = []

    def tell(step: str) -> None:
        if step == when and not others:
            others.append(mill.run())

    done = mill.run(tell=tell)
    assert [other.status for other in others] == [Status.done]
    assert (done.status, done.files, done.bytes, done.plan) == (Status.nothing_new, 0, 0, ())
    check_whole(mill)
    assert mill.list_refs("trips") == mill.list_refs("trips__ingested") == ["main"]


@pytest.mark.long
def test_a_target_that_never_rests_is_left_alone(mill: Mill) -> None:
    """After so many attempts the job says so; nothing was taken."""
    fill(mill)

    def tell(step: str) -> None:
        if step == "publish":
            mill.duck.execute("INSERT INTO raw.trips VALUES (99, 'duck')")

    with pytest.raises(CommitFailed, match="2 attempts; nothing was taken"):
        mill.run(tell=tell, attempts=2)
    mill.duck.execute("DELETE FROM raw.trips WHERE id = 99")
    assert mill.rows(columns="id") == [(1,), (2,), (3,)]
    mill.run()
    check_whole(mill)


def test_a_lost_answer_is_found_in_the_ledger(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit landed and nobody heard of it: it is not done again."""
    fill(mill)
    commit, lost = Rest.commit, []

    def lose(self: Rest, changes: Sequence[Any]) -> None:
        commit(self, changes)
        if len(changes) > 1 and not lost:
            lost.append(True)
            raise CommitStateUnknown("lost")

    monkeypatch.setattr(Rest, "commit", lose)
    assert mill.run().attempts == 1
    assert lost
    check_whole(mill)


@pytest.mark.long
def test_answers_that_never_come_are_found_in_the_ledger(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit landed, and a gateway says of each request that it has waited for too long: the run is done."""
    fill(mill)
    change, lost = Rest.change, list[bool]()

    def lose(self: Rest, changes: Sequence[Any]) -> None:
        with suppress(CommitFailed):
            change(self, changes)
        if len(changes) > 1:
            lost.append(True)
            raise ServiceUnavailable("the gateway waited for too long")

    with monkeypatch.context() as patched:
        patched.setattr(Rest, "change", lose)
        patched.setattr(writing, "PATIENCE_SECONDS", 0.0)
        done = mill.run()
    assert (done.status, done.attempts, done.rows_out, lost) == (Status.done, 1, 6, [True])
    check_whole(mill)


@pytest.mark.long
def test_a_run_of_which_nobody_knows_is_told_by_its_name(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its id is in the message and in what is known of it, with the rows that may be there by now; the next run finds out."""
    fill(mill)
    change, run = Rest.change, begin(IngestOptions(str(mill.folder), TABLE))

    def lose(self: Rest, changes: Sequence[Any]) -> None:
        if len(changes) > 1:
            raise ServiceUnavailable("the gateway waited for too long")
        change(self, changes)

    with monkeypatch.context() as patched:
        patched.setattr(Rest, "change", lose)
        patched.setattr(writing, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(CommitStateUnknown) as lost:
            mill.run(run=run)
    known = run.report
    assert lost.value.message == (
        "it is unknown whether the commit landed: the gateway waited for too long; "
        f"run {known.run_id} is in raw.trips__ingested if it did, and running again finds out"
    )
    assert (known.attempts, known.files, known.rows_in, known.rows_out, known.rows_quarantined) == (1, 3, 8, 6, 2)
    assert list(known.seconds)[-1] == "publish"
    done = mill.run()
    assert (done.status, done.run_id != known.run_id) == (Status.done, True)
    check_whole(mill)


@pytest.mark.long
def test_what_is_known_of_a_run_that_failed(mill: Mill) -> None:
    """Its id, the attempt, the files and the steps that were begun; no row is counted, for none is there."""
    fill(mill)
    run = begin(IngestOptions(str(mill.folder), TABLE))

    def tell(step: str) -> None:
        if step == "publish":
            raise BadRequest("somebody says no")

    with pytest.raises(BadRequest):
        mill.run(run=run, tell=tell)
    known = run.report
    assert (known.attempts, known.files, known.rows_in, list(known.seconds)[-1]) == (1, 3, 0, "write raw.trips__quarantine")
    assert mill.find_summary("trips")["duckicelake.run-id"] != known.run_id
    mill.run()
    check_whole(mill)


@pytest.mark.long
def test_a_late_request_changes_nothing(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a dead run asked for and comes after the next run is refused."""
    fill(mill)
    change = Rest.change
    late: list[Sequence[Any]] = []
    dead: list[bool] = []

    def keep(self: Rest, changes: Sequence[Any]) -> None:
        if len(changes) > 1 and not late:
            late.append(changes)
        if not dead:
            raise KeyboardInterrupt if len(changes) > 1 else OSError
        change(self, changes)

    monkeypatch.setattr(Rest, "change", keep)
    with pytest.raises(KeyboardInterrupt):
        mill.run()
    dead.append(True)
    assert len(mill.list_refs("trips")) == 2
    mill.run()
    with pytest.raises(CommitFailed):
        change(open_rest(mill.served.rest_catalog()), late[0])
    check_whole(mill)


@pytest.mark.long
def test_expiry_forgets_no_file(mill: Mill) -> None:
    """The ledger's rows are what counts, not the history."""
    fill(mill)
    mill.run()
    mill.duck.execute("CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMP + INTERVAL 1 DAY)")
    mill.duck.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    check_whole(mill)
