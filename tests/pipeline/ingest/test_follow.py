"""`ingest --follow`: what comes is taken once, batch by batch, whatever ends the process."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.pipeline.common.rest import Rest, open_rest
from duckicelake.pipeline.common.spark_session import JobContext
from duckicelake.pipeline.ingest.file_source import choose_files
from duckicelake.pipeline.ingest.job import FollowBroken, FollowOptions, FollowReport, check_followed, follow, read_follow
from duckicelake.pipeline.ingest.options import Batch, IngestMode, IngestOptions, Status
from duckicelake.pipeline.ingest.source import Taken
from tests.cli.test_commands import settings_for
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.support.commands import COMMAND, environment, run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS
from tests.support.waiting import wait_for

SECONDS = 120
CALL = {"follow": True, "dry_run": False, "poll": None, "settle": None, "batch_files": 5, "max_batches": None, "follow_for": None}


def until_there_is_no_more(pending: list[Callable[[], object]]) -> Callable[[float], bool]:
    """A wait that lets the next thing happen, and asks for the end when all has."""

    def wait(seconds: float) -> bool:
        if seconds and not pending:
            return True
        if seconds:
            pending.pop(0)()
        return False

    return wait


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_what_comes_is_taken_batch_by_batch(mill: Mill) -> None:
    """As many files at once as are allowed; each batch is a run, and its snapshots name it; the sums are those of all."""
    for number in range(3):
        mill.write(f"a{number}.csv", f"id,name\n{number},x\n")
    pending = [lambda: mill.write("b.csv", "id,name\n3,y\nbad,z\n")]
    done, looks = mill.follow(until_there_is_no_more(pending), batch_files=2)
    assert [(look.batches, look.files, look.last.files if look.last else 0) for look in looks] == [(1, 2, 2), (2, 3, 1), (3, 4, 1)]
    assert (done.status, done.rows_in, done.rows_out, done.rows_quarantined, done.failures) == (Status.done, 5, 4, 1, 0)
    assert mill.rows(columns="id") == [(0,), (1,), (2,), (3,)]
    summary = mill.find_summary("trips")
    assert (summary["duckicelake.follow-id"], summary["duckicelake.batch"]) == (done.follow_id, "3")
    assert len({row[0] for row in mill.rows("trips__ingested", "run_id")}) == 3
    report = json.loads(done.format_json())
    assert (report["job"], report["status"], report["last"]["rows_in"]) == ("ingest", "done", 2)


@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
@pytest.mark.long
def test_what_passes_is_waited_for_and_what_does_not_is_told(mill: Mill) -> None:
    """A catalog that is away, a pattern without a file: a later look takes it. A file that is another one now: the run ends."""
    away = [True]

    def connect() -> Rest:
        if away and away.pop():
            raise ServiceUnavailable("away")
        return open_rest(mill.served.rest_catalog())

    pending = [lambda: None, lambda: mill.write("a.csv", "id\n1\n"), lambda: mill.write("a.csv", "id\n1\n2\n")]
    done, looks = mill.follow(until_there_is_no_more(pending), connect, {"source": f"{mill.folder}/*.csv"})
    assert [(look.batches, look.failures, look.message) for look in looks[:3]] == [
        (0, 1, "away"),
        (0, 2, f"there is no {mill.folder}/*.csv"),
        (1, 2, ""),
    ]
    assert (done.status, done.batches, "was taken before" in done.message) == (Status.failed, 1, True)
    assert mill.rows() == [(1,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_stop_lets_the_batch_under_way_end(served: Served, tmp_path: Path) -> None:
    """SIGTERM while rows are written: the batch lands, the next file stays for another run, and the status is 0."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.csv").write_text("id\n1\n")
    settings = settings_for(served.lake, port=str(served.server.port))
    call = ["--follow", "--poll", "0.2", "--settle", "0", "--batch-files", "1", "--report", "r.json", *CALM_OPTIONS]
    command = [*COMMAND, "pipeline", "ingest", "files", "raw.trips", *call]
    log = tmp_path / "log"
    with (
        log.open("w") as told,
        subprocess.Popen(command, cwd=tmp_path, env=environment(settings), stdout=subprocess.PIPE, stderr=told, text=True) as running,
    ):
        try:
            wait_for(lambda: read_batches(tmp_path / "r.json") == 1, "the first batch", SECONDS)
            (files / "b.csv").write_text("id\n2\n")
            wait_for(lambda: log.read_text().splitlines().count("write raw.trips") == 2, "the second batch", SECONDS)
            (files / "c.csv").write_text("id\n3\n")
            running.send_signal(signal.SIGTERM)
            out, _ = running.communicate(timeout=SECONDS)
        finally:
            running.kill()
    assert running.returncode == 0, log.read_text()
    assert "batch 2: raw.trips: 1 files, 1 rows = 1 in, none quarantined" in out
    assert "raw.trips: 2 batches, 2 files, 2 rows = 2 in, none quarantined" in out
    assert read_batches(tmp_path / "r.json") == 2
    assert served.lake.duckdb().execute("SELECT id FROM raw.trips ORDER BY 1").fetchall() == [(1,), (2,)]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("ingest")
def test_a_run_that_breaks_tells_what_it_took(mill: Mill) -> None:
    """Over what nobody foresaw: under the id that its batches have, with their sums."""
    waited: list[float] = []

    def connect() -> Rest:
        if waited:
            raise TypeError("nobody thought of that")
        return open_rest(mill.served.rest_catalog())

    mill.write("a.csv", "id,name\n1,x\n")
    with pytest.raises(FollowBroken) as broken:
        mill.follow(lambda seconds: waited.append(seconds) or False, connect)
    report = broken.value.report
    assert str(broken.value.__cause__) == "nobody thought of that"
    assert (report.batches, report.files, report.rows_in, report.failures) == (1, 1, 1, 1)
    assert mill.find_summary("trips")["duckicelake.follow-id"] == report.follow_id


def test_a_look_that_nobody_can_be_told_of_counts() -> None:
    """Whoever hears of it is gone, as a terminal that was closed."""

    def connect() -> Rest:
        raise ServiceUnavailable("away")

    def hear(_: FollowReport) -> None:
        raise BrokenPipeError

    nothing: Any = None
    with pytest.raises(FollowBroken) as broken:
        follow(JobContext(nothing, "none", connect, list[str]().append), IngestOptions("files", TABLE), FollowOptions(), nothing, hear)
    assert isinstance(broken.value.__cause__, BrokenPipeError)
    assert (broken.value.report.message, broken.value.report.failures) == ("away", 2)


@pytest.mark.parametrize(
    ("error", "failures"),
    [
        pytest.param(ServiceUnavailable("away"), 5, id="catalog away"),
        pytest.param(OSError("broken"), 3, id="Spark broken"),
        pytest.param(BadRequest("wrong"), 1, id="wrong"),
    ],
)
def test_what_does_not_pass_ends_the_run(error: Exception, failures: int) -> None:
    """A catalog may stay away as long as it likes; what breaks Spark is tried three times; what is wrong is not tried again."""

    def connect() -> Rest:
        raise error

    looks: list[FollowReport] = []
    nothing: Any = None
    desk = JobContext(nothing, "none", connect, list[str]().append)
    done = follow(desk, IngestOptions("files", TABLE), FollowOptions(), lambda _: len(looks) == 5, looks.append)
    assert (done.status, done.failures, str(error) in done.message) == (Status.failed, failures, True)


def test_partitions_are_not_overwritten_batch_by_batch() -> None:
    """Each batch would overwrite what the ones before brought, so nothing is taken."""
    nothing: Any = None
    options, looks = IngestOptions("files", TABLE, mode=IngestMode.overwrite_partitions), list[FollowReport]()
    done = follow(JobContext(nothing, "none", nothing, nothing), options, FollowOptions(), nothing, looks.append)
    assert (done.status, done.batches, looks) == (Status.failed, 0, [])
    assert done.message.startswith("--follow takes files in batches, and each would overwrite what the ones before brought")
    with pytest.raises(BadRequest, match="--follow takes files in batches"):
        check_followed(options)


def read_batches(report: Path) -> int:
    """How many batches the report tells of; none while it is not whole."""
    try:
        return json.loads(report.read_text())["batches"]
    except (OSError, ValueError):
        return 0


def test_files_that_rest_come_first_that_changed_first() -> None:
    """A file that somebody may still write to waits, whatever its name; the others come in the order of their names."""
    files = [Taken(f"file:/{name}", 1, modified_ms) for name, modified_ms in (("a", 40), ("b", 90), ("c", 20), ("d", 30))]
    batch = Batch("run", 1, 2, settled_ms=50)
    assert [file.uri for file in choose_files(files, batch)] == ["file:/c", "file:/d"]
    assert [file.uri for file in choose_files(files[:3], batch)] == ["file:/a", "file:/c"]
    assert choose_files(files, None) == files


def test_limits_are_read() -> None:
    """Those of the command, and none for a run that does not follow."""
    assert read_follow(CALL) == FollowOptions(batch_files=5)
    assert read_follow(CALL | {"follow": False, "batch_files": None}) is None
    assert read_follow(CALL | {"max_batches": 3, "follow_for": 9.0}) == FollowOptions(batch_files=5, max_batches=3, seconds=9.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(
            pytest.param({"follow": False, "batch_files": None, name: 1}, f"--{option} belongs to --follow", id=f"{option} alone")
            for name in ("batch_files", "poll", "settle", "max_batches", "follow_for")
            for option in (name.replace("_", "-"),)
        ),
        pytest.param({"dry_run": True}, "choose one", id="dry run"),
        pytest.param({"poll": 0.0}, "--poll must be more than 0", id="poll"),
        pytest.param({"batch_files": 0}, "--batch-files must be", id="files"),
        pytest.param({"max_batches": 0}, "--max-batches must be", id="batches"),
        pytest.param({"settle": -1.0}, "--settle", id="settle"),
        pytest.param({"follow_for": -1.0}, "--follow-for", id="time"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    """With the option's name."""
    with pytest.raises(BadRequest, match=message):
        read_follow(CALL | given)


def test_a_wrong_call_says_what_is_wrong(tmp_path: Path) -> None:
    """Before Spark is started: status 2."""
    done = run(tmp_path, "pipeline", "ingest", "x.csv", "a.b", "--follow", "--dry-run")
    assert (done.status, "choose one" in done.err) == (2, True), done.err
    done = run(tmp_path, "pipeline", "ingest", "x.csv", "a.b", "--follow", "--mode", "overwrite-partitions")
    assert (done.status, "--follow takes files in batches" in done.err) == (2, True), done.err
