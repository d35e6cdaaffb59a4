"""`duckicelake pipeline ingest` as users run it."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from duckicelake.commands.jobs import ingest as ingesting
from duckicelake.commands.jobs.ingest import IngestCall, report_ingest
from duckicelake.commands.jobs.reports import INTERRUPTED, Stop, hearing_a_stop, serving_until, taking_all_or_nothing
from duckicelake.commands.jobs.session import SparkSettings, cancelled_by_stops
from duckicelake.errors import BadRequest, CommitStateUnknown
from duckicelake.pipeline.common.reports import Interrupted
from duckicelake.pipeline.common.rest import Rest, parse_ident
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.common.staging import BRANCH_PREFIX, is_stale
from duckicelake.pipeline.ingest.job import FollowBroken, FollowOptions, FollowReport, follow
from duckicelake.pipeline.ingest.options import IngestMode, IngestOptions, Status
from tests.cli.test_commands import settings_for
from tests.pipeline.stopped import BusySpark, opening
from tests.support.commands import COMMAND, environment, run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS
from tests.support.waiting import wait_for

LATER = datetime.now(UTC) + timedelta(days=365)


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_the_command_takes_files_and_reports(served: Served, tmp_path: Path) -> None:
    """Configured by nothing but the server's own settings; the report is JSON."""
    (tmp_path / "trips.csv").write_text("id,day,fare\n1,2026-01-01,2.50\n2,2026-01-02,oops\n3,2026-02-01,7.25\n")
    settings = settings_for(served.lake, port=str(served.server.port))
    options = ["--schema", "id BIGINT NOT NULL, day DATE, fare DECIMAL(9,2)", "--partition-by", "month(day)", "--sort-by", "id desc"]
    done = run(tmp_path, "pipeline", "ingest", "trips.csv", "raw.trips", *options, *CALM_OPTIONS, "--report", "r.json", settings=settings)
    assert done.status == 0, done.err
    assert "raw.trips: 1 files, 3 rows = 2 in, 1 to raw.trips__quarantine" in done.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"], report["rows_in"], report["rows_out"], report["rows_quarantined"]) == (
        "ingest",
        "done",
        3,
        2,
        1,
    )
    assert set(report["versions"]) == {"duckicelake", "pyspark"}
    duck = served.lake.duckdb()
    assert duck.execute("SELECT id, day::VARCHAR, fare::VARCHAR FROM raw.trips ORDER BY 1").fetchall() == [
        (1, "2026-01-01", "2.50"),
        (3, "2026-02-01", "7.25"),
    ]
    metadata = served.server.get("namespaces/raw/tables/trips").json["metadata"]
    assert [field["transform"] for field in metadata["partition-specs"][-1]["fields"]] == ["month"]
    assert [field["direction"] for field in metadata["sort-orders"][-1]["fields"]] == ["desc"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_the_plan_is_printed(served: Served, tmp_path: Path) -> None:
    """What would be taken, made and written; nothing is."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    settings = settings_for(served.lake, port=str(served.server.port))
    done = run(tmp_path, "pipeline", "ingest", "a.csv", "a.b", "--dry-run", *CALM_OPTIONS, settings=settings)
    assert done.status == 0, done.err
    assert done.out == (
        "take 1 files of csv, 5 bytes\ncreate a.b (`id` int)\nappend the rows; bad ones go to a.b__quarantine, one commit for all\n"
    )
    assert served.server.get("namespaces/a").status == 404


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_the_report_of_a_run_that_failed_says_which_one(served: Served, tmp_path: Path) -> None:
    """One that was refused in its midst, and one that could not begin."""
    (tmp_path / "trips.csv").write_text("id\n1\noops\n")
    settings = settings_for(served.lake, port=str(served.server.port))
    call = ("pipeline", "ingest", "trips.csv", "raw.trips", "--report", "r.json")
    asked = ("--schema", "id BIGINT", "--max-quarantined", "0", *CALM_OPTIONS)
    for more, known in ((asked, (1, 1, True)), (("--uri", "http://127.0.0.1:1"), (0, 0, False))):
        failed = run(tmp_path, *call, *more, settings=settings)
        report = json.loads((tmp_path / "r.json").read_text())
        assert (failed.status, report["status"], report["message"] in failed.err) == (1, "failed", True), failed.err
        assert (report["attempts"], report["files"], bool(report["seconds"])) == known
        assert (is_stale(f"{BRANCH_PREFIX}{report['run_id']}_1", LATER), report["mode"]) == (True, "append")
        assert set(report["versions"]) == {"duckicelake", "pyspark"}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_file_that_cannot_be_read_is_told_once(served: Served, tmp_path: Path) -> None:
    """In the job's own words, which begin with it; Spark's of its tasks are not shown."""
    (tmp_path / "a.parquet").write_bytes(b"no Parquet, whatever its name says")
    settings = settings_for(served.lake, port=str(served.server.port))
    failed = run(tmp_path, "pipeline", "ingest", "a.parquet", "raw.trips", *CALM_OPTIONS, settings=settings)
    assert (failed.status, "ERROR" in failed.err, "\tat " in failed.err) == (1, False, False), failed.err
    assert f"duckicelake: file:{tmp_path}/a.parquet is not a Parquet file" in failed.err


@pytest.mark.parametrize("error", [TypeError("nobody thought of that"), MemoryError("nobody thought of that")], ids=["type", "memory"])
def test_what_nobody_foresaw_is_told_and_reported(error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a line without a trace, and with a report of the run."""
    options = IngestOptions("x.csv", parse_ident("a.b"))
    call = IngestCall(options, None, SparkSettings(), False, tmp_path / "r.json", None, None, lambda: None)

    def find() -> NoReturn:
        raise error

    assert report_ingest(call, find, Stop()) == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["message"]) == ("failed", f"{type(error).__name__}: nobody thought of that")
    assert capsys.readouterr().err == f"duckicelake: {report['message']}\n"


def test_a_source_that_cannot_be_followed_is_reported_like_one_that_was(tmp_path: Path) -> None:
    """Whoever reads reports finds the same fields, with nothing taken."""
    call = ("pipeline", "ingest", "x.csv", "a.b", "--uri", "http://127.0.0.1:1", "--follow", "--report", "r.json")
    assert run(tmp_path, *call).status == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["batches"], report["failures"], report["rows_in"]) == ("failed", 0, 1, 0)
    assert "no catalog answers" in report["message"]
    assert is_stale(f"{BRANCH_PREFIX}{report['follow_id']}_1", LATER)


def test_a_followed_source_that_breaks_is_reported_with_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is the run's own, and says what broke it."""
    options, taken = IngestOptions("x.csv", parse_ident("a.b")), FollowReport("7", "a.b", "x.csv", "append", Status.done, 2, 3, failures=1)

    def run_follow(*_: object) -> FollowReport:
        raise FollowBroken(taken) from TypeError("nobody thought of that")

    monkeypatch.setattr(ingesting, "run_follow", run_follow)
    call = IngestCall(options, FollowOptions(), SparkSettings(), False, tmp_path / "r.json", "http://127.0.0.1:1", None, lambda: None)
    assert report_ingest(call, lambda: pytest.fail("the catalog is named"), Stop()) == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert report == json.loads(replace(taken, status=Status.failed, message="TypeError: nobody thought of that").format_json())


@pytest.mark.whole
def test_another_catalog_is_not_told_the_account_of_the_settings(tmp_path: Path) -> None:
    """With `--uri` an account is what the call itself brings; here it is no pair, which is said when it is looked at."""
    (tmp_path / "duckicelake.toml").write_text('credential = "ours"\n')
    (tmp_path / ".env").write_text("DUCKICELAKE_CREDENTIAL=ours\n")
    (tmp_path / "theirs").write_text("theirs")
    ingest = ["pipeline", "ingest", "x.csv", "a.b", "--uri", "http://127.0.0.1:1"]
    assert "no catalog answers" in run(tmp_path, *ingest).err
    assert "the file theirs is no id:secret" in run(tmp_path, *ingest, "--credential-file", "theirs").err
    told = run(tmp_path, *ingest, settings={"DUCKICELAKE_CREDENTIAL": "theirs"})
    assert "DUCKICELAKE_CREDENTIAL is no id:secret" in told.err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(["trips"], 2, "'trips' is no table", id="table"),
        pytest.param(["a.b", "--mode", "replace"], 2, "--mode replace is none of append", id="mode"),
        pytest.param(["a.b", "--mode", "upsert"], 2, "upsert needs --key", id="key"),
        pytest.param(["a.b", "--partition-by", "week(x)"], 2, "no partition field", id="partition"),
        pytest.param(["a.b", "--option", "sep"], 2, "no NAME=VALUE", id="option"),
        pytest.param(["a.b", "--report", "none/r.json"], 2, "--report none/r.json: no file", id="report"),
        pytest.param(["a.b", "--uri", "http://127.0.0.1:1"], 1, "no catalog answers at 127.0.0.1:1", id="catalog"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    """Before Spark is started."""
    done = run(tmp_path, "pipeline", "ingest", "x.csv", *arguments)
    assert (done.status, message in done.err) == (status, True), done.err


def test_an_interrupt_ends_a_run_before_its_next_step() -> None:
    """What Spark is doing is cancelled; what is published, or nobody knows of, is told as it is."""
    spark, told = BusySpark(lambda: [7]), list[str]()
    before = signal.getsignal(signal.SIGINT)

    def interrupt(error: Exception | None, step: str) -> None:
        with hearing_a_stop() as stop, taking_all_or_nothing(stop), cancelled_by_stops(opening(spark), stop):
            tell = stop.interrupting(told.append)
            tell("write")
            os.kill(os.getpid(), signal.SIGINT)
            if error is not None:
                wait_for(lambda: stop.has_cancelled, "jobs to be cancelled")
                raise error
            tell(step)

    with pytest.raises(Interrupted, match=r"^stopped by Ctrl-C; nothing was taken$"):
        interrupt(None, "publish")
    assert spark.cancelled.wait(10)
    with pytest.raises(Interrupted):
        interrupt(BadRequest("a job was cancelled"), "")
    with pytest.raises(CommitStateUnknown):
        interrupt(CommitStateUnknown("silence"), "")
    interrupt(None, "published")
    assert told == ["write", "write", "write", "write", "published"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_waits_for_no_step() -> None:
    """Some take hours. Of SIGTERM one is as good as two."""
    with hearing_a_stop() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.by == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_ends_by_a_signal_that_came_before_it_began(number: signal.Signals) -> None:
    """It is not lost."""
    with hearing_a_stop() as stop:
        os.kill(os.getpid(), number)
        with pytest.raises(SystemExit), serving_until(stop):
            pass


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_an_interrupted_run_says_so_and_takes_nothing(served: Served, tmp_path: Path) -> None:
    """While rows are written: one line, no trace, and the next run takes the file."""
    rows = "".join(f"{number}\n" for number in range(3_000_000))
    (tmp_path / "a.csv").write_text(f"id\n{rows}")
    settings = settings_for(served.lake, port=str(served.server.port))
    command = [*COMMAND, "pipeline", "ingest", "a.csv", "raw.trips", *CALM_OPTIONS, "--report", "r.json"]
    log = tmp_path / "log"
    with log.open("w") as said, subprocess.Popen(command, cwd=tmp_path, env=environment(settings), stderr=said) as running:
        try:
            wait_for(lambda: "write raw.trips\n" in log.read_text(), "rows to be written", 180)
            running.send_signal(signal.SIGINT)
            running.wait(120)
        finally:
            running.kill()
    assert running.returncode == INTERRUPTED, log.read_text()
    assert "Traceback" not in log.read_text()
    assert log.read_text().splitlines()[-1] == "duckicelake: stopped by Ctrl-C; nothing was taken"
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["status"], report["attempts"], report["files"], bool(report["run_id"])) == ("failed", 1, 1, True)
    done = run(tmp_path, *command[len(COMMAND) :], settings=settings)
    assert "3000000 rows = 3000000 in" in done.out, done.err


def test_partitions_are_not_overwritten_batch_by_batch() -> None:
    """Files of one partition in two batches would leave the rows of the second."""
    options = IngestOptions("folder", parse_ident("a.b"), mode=IngestMode.overwrite_partitions)
    desk = JobContext(SimpleNamespace(), "c", lambda: Rest("", None), lambda _: None)
    report = follow(desk, options, FollowOptions(), lambda _: True, lambda _: None)
    assert report.status is Status.failed
    assert "each would overwrite what the ones before brought" in report.message
