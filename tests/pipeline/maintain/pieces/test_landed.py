"""Compactions that are committed piece by piece: what landed is told, and of the rest why it did not."""

import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from duckicelake.commands.jobs.reports import INTERRUPTED, get_exit_status, hearing_a_stop
from duckicelake.commands.jobs.session import cancelled_by_stops
from duckicelake.pipeline.common.reports import RUN_ID, Verdict
from duckicelake.pipeline.maintain import compaction
from duckicelake.pipeline.maintain.compaction import ATTEMPTS, Landed, have_others_moved, list_landed
from tests.pipeline.maintain.keeper import Keeper
from tests.pipeline.maintain.overtaking import Commit, holding_files, meeting_commits
from tests.rest.serving import Answer
from tests.support.tiers import long_after
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

TRIES_OF_A_COMMIT = 5
"""Iceberg's: `commit.retry.num-retries` is 4."""
CONFLICT = 409, "CommitFailedException", "branch main has changed"


@pytest.fixture
def large(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> Keeper:
    """A keeper to whom a pair of small files is a piece."""
    monkeypatch.setattr(compaction, "GROUP_BYTES", 900)
    return keeper


def fill(keeper: Keeper, files: int) -> None:
    """Small files."""
    inserts = (f"INSERT INTO t SELECT range FROM range({40 * i}, {40 * i + 40})" for i in range(files))
    keeper.checker.run("CREATE TABLE t (id BIGINT)", *inserts)


def refuse(code: int, kind: str, message: str) -> Answer:
    """An answer to a commit that is not made."""
    error = {"error": {"message": message, "type": kind, "code": code}}
    return Answer(code, {"Content-Type": "application/json"}, json.dumps(error).encode())


def letting_first_pass(pieces: int) -> Commit:
    """The first commit passes, so many others are given up by Iceberg, and what comes after them passes too."""
    answers = iter([False, *[True] * (pieces * TRIES_OF_A_COMMIT)])
    return lambda send: refuse(*CONFLICT) if next(answers, False) else send()


@pytest.mark.long
def test_a_stop_has_no_other_piece_begun(large: Keeper) -> None:
    """Those that Iceberg goes on with are cancelled as soon as they come; what is in the table by then is told."""
    fill(large, 20)

    def meet(send: Callable[[], Answer]) -> Answer:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.by, "the signal to be heard")
        return send()

    spark = large.checker.spark.session
    with holding_files(large, 1) as held, hearing_a_stop() as stop, cancelled_by_stops(nullcontext(spark), stop):
        with meeting_commits(held, "t", meet) as meeting:
            report = meeting.run("main.t", min_files=2)
    [done] = report.steps
    assert (done.verdict, "could not rewrite" in done.message, "cancelled" in done.message) == (Verdict.failed, True, True), done
    assert (get_exit_status(report.status, stop), done.removed, done.added) == (INTERRUPTED, 2, 1), done
    assert large.count_files("t") == 19
    [rest] = large.run("main.t", min_files=2).steps
    assert (rest.verdict, large.count_files("t") < 19) == (Verdict.done, True), rest
    assert large.ask("SELECT count(*) FROM t") == [(800,)]


@pytest.mark.long
def test_what_cannot_be_committed_is_told_as_that(large: Keeper) -> None:
    """Nobody has overtaken it: the reason is told, at once."""
    fill(large, 6)

    with meeting_commits(large, "t", lambda _: refuse(403, "ForbiddenException", "the house is closed"), every=True) as meeting:
        [done] = meeting.run("main.t", min_files=2).steps
    assert (done.verdict, large.told.count("compact main.t"), done.removed) == (Verdict.failed, 1, 0), done
    assert ("3 of 3 pieces of main.t could not be committed" in done.message, "the house is closed" in done.message) == (True, True), done


def test_pieces_that_get_in_each_others_way_are_taken_again(large: Keeper) -> None:
    """Iceberg commits several at a time and gives each up after a few tries: nobody else was there, so the same run does the rest."""
    fill(large, 6)
    with meeting_commits(large, "t", letting_first_pass(2), every=True) as meeting:
        [done] = meeting.run("main.t", min_files=2).steps
    assert (done.verdict, done.attempts, done.message, large.told.count("compact main.t")) == (Verdict.done, 2, "", 2), done
    # Whether one file of a pair is left alone the second time is up to the order in which Iceberg reads them.
    assert (done.removed in {4, 6}, done.added, large.count_files("t")) == (True, done.removed // 2, 6 - done.added), done


@pytest.mark.long
def test_what_an_attempt_left_is_counted_with_the_next(large: Keeper) -> None:
    """One piece of two landed; what is left then is no longer too large to be committed at once."""
    fill(large, 4)
    with meeting_commits(large, "t", letting_first_pass(1), every=True) as meeting:
        [done] = meeting.run("main.t", min_files=2).steps
    assert (done.verdict, done.attempts, done.message) == (Verdict.done, 2, ""), done
    assert (done.removed > 3, done.removed - done.added) == (True, 4 - large.count_files("t")), done


@pytest.mark.long
def test_pieces_that_never_get_through_are_told(large: Keeper) -> None:
    """After the run's own tries: of what could not be committed, and why."""
    fill(large, 4)

    with meeting_commits(large, "t", lambda _: refuse(*CONFLICT), every=True) as meeting:
        [done] = meeting.run("main.t", min_files=2).steps
    assert (done.verdict, large.told.count("compact main.t"), done.removed) == (Verdict.failed, ATTEMPTS, 0), done
    assert ("2 of 2 pieces of main.t could not be committed" in done.message, CONFLICT[2] in done.message) == (True, True), done


@pytest.mark.long
def test_pieces_that_others_overtook_are_counted(large: Keeper) -> None:
    """Somebody deletes a row of one before any is committed: the others are done."""
    fill(large, 6)

    def meet(send: Callable[[], Answer]) -> Answer:
        large.checker.run("DELETE FROM t WHERE id = 3")
        return send()

    with meeting_commits(large, "t", meet) as meeting:
        [done] = meeting.run("main.t", min_files=2).steps
    assert (done.verdict, done.removed, done.added) == (Verdict.done, 4, 2), done
    assert done.message == "others overtook 1 of 3 pieces, which the next run takes"
    assert done.describe().endswith(done.message)


def tell(states: list[int], *mine: int) -> dict[str, Any]:
    """What a catalog says of a table that was at these; those that are a run's removed two files each for one."""
    counts = {"deleted-data-files": "2", "added-data-files": "1", "removed-files-size": "99"}
    # A client knows the last one of its own by another name too.
    names = [*states, *(-one for one in mine[-1:])]
    snapshots = [{"snapshot-id": one, "summary": {RUN_ID: "r"} | counts if abs(one) in mine else {}} for one in names]
    return {"snapshots": snapshots, "snapshot-log": [{"snapshot-id": one} for one in states]}


@pytest.mark.parametrize(
    ("after", "landed", "moved"),
    long_after(
        1,
        [
            pytest.param(tell([1, 2]), Landed((), 0, 0, 0), False, id="nothing came"),
            pytest.param(tell([1, 2, 3, 4], 3, 4), Landed((3, 4), 4, 2, 198), False, id="pieces"),
            pytest.param(tell([1, 2, 3, 4], 4), Landed((4,), 2, 1, 99), True, id="others too"),
            pytest.param(tell([1, 2, 3]), Landed((), 0, 0, 0), True, id="others alone"),
            pytest.param(tell([2]), Landed((), 0, 0, 0), True, id="expired"),
        ],
    ),
)
def test_a_tables_history_tells_of_pieces(after: dict[str, Any], landed: Landed, moved: bool) -> None:
    """By the run's name in the summaries of what main was at."""
    assert (list_landed(after, "r"), have_others_moved(tell([1, 2]), after, "r")) == (landed, moved)
