"""What jobs leave for machines: a report of each as metrics, and one that cannot be written."""

import json
import os
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duckicelake.commands.jobs.reports import PREFIX, remove_old_report, write_metrics, write_report
from duckicelake.commands.jobs.start import start_publish
from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.ingest.job import FollowReport
from duckicelake.pipeline.ingest.options import IngestReport, Status
from duckicelake.pipeline.maintain.planning import MaintainReport, StepKind, StepResult
from duckicelake.pipeline.profile_report import Point, ProfileReport, TableProfile
from duckicelake.pipeline.publish import Published, PublishReport
from duckicelake.pipeline.transfer.catalogs import EntryKind
from duckicelake.pipeline.transfer.options import TransferReport, TransferResult
from duckicelake.pipeline.verify.job import Finding, VerifyReport
from duckicelake.pipeline.verify.job import VerifyVerdict as Found
from tests.cli.test_commands import settings_for
from tests.support.commands import run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS
from tests.support.tiers import long_after

SECONDS = {"write a.b": 1.0, "write c.d": 2.0}
NO_ROWS = TableProfile("c.d", Verdict.done)
TAKEN = IngestReport("r", "a.b", "s", "append", Status.done, rows_in=3, rows_out=2, seconds=SECONDS)


@pytest.mark.parametrize(
    ("report", "told"),
    [
        pytest.param(TAKEN, {"rows_in a.b": 3, "rows_out a.b": 2}, id="ingest"),
        pytest.param(FollowReport("f", "a.b", "s", "append").add(TAKEN), {"rows_in a.b": 3, "batches a.b": 1}, id="follow"),
        pytest.param(
            MaintainReport(
                "r", tuple(StepResult("a.b", kind, Verdict.done, rows=2) for kind in (StepKind.flush, StepKind.compact)), 1, SECONDS
            ),
            {"rows a.b": 4, "tables ": 1, "parts done": 2},
            id="maintain",
        ),
        pytest.param(
            VerifyReport((Finding("a.b", "now", Found.same, 7, 5, 5), Finding("c.d", "now", Found.differs)), SECONDS),
            {"iceberg_rows a.b": 5, "ducklake_rows a.b": 5, "parts same": 1, "parts differs": 1},
            id="verify",
        ),
        pytest.param(
            TransferReport(
                "import", "r", "there", "here", (TransferResult("a.b", EntryKind.table, Verdict.done, "copy", 3, 1, 2),), SECONDS, {}
            ),
            {"rows a.b": 3, "target_rows a.b": 2, "snapshots a.b": 1, "parts done": 1},
            id="import",
        ),
        pytest.param(
            PublishReport("r", "now", (Published("a.b", Verdict.done, 1, 9),), SECONDS, {}),
            {"manifests a.b": 1, "files a.b": 9},
            id="publish",
        ),
        pytest.param(
            ProfileReport("r", "now", (TableProfile("a.b", Verdict.done, total=Point(1, 2, 3, 4, 5)), NO_ROWS), SECONDS, {}),
            {"parts done": 2, "rows a.b": 3, "files a.b": 4, "bytes a.b": 5, "delete_files a.b": 0},
            id="profile",
        ),
    ],
)
def test_every_report_is_metrics_too(
    report: IngestReport | FollowReport | MaintainReport | VerifyReport | TransferReport | PublishReport | ProfileReport,
    told: dict[str, float],
    tmp_path: Path,
) -> None:
    """Numbers by table, ends by verdict, seconds by the first word of a step, and how all of it ended, by the command's name."""
    node = json.loads(report.format_json())
    write_metrics(tmp_path / "r.prom", node)
    samples = [one for family in text_string_to_metric_families((tmp_path / "r.prom").read_text()) for one in family.samples]
    assert {one.labels.pop("command") for one in samples} == {node["job"]}
    found = {f"{one.name.removeprefix(PREFIX)} {''.join(one.labels.values())}": one.value for one in samples}
    steps = {"seconds write": 3} if "seconds" in node else {}
    assert not {"at_ms a.b", "snapshot_id a.b"} & found.keys()
    assert found.items() >= {**told, **steps, f"status {node['status']}": 1}.items()
    assert found["ended_timestamp_seconds "] > 0


@pytest.mark.whole
@pytest.mark.parametrize(
    ("arguments", "status"),
    long_after(
        1,
        [
            (("maintain",), 1),
            (("profile",), 1),
            (("publish",), 1),
            (("export", "there"), 1),
            pytest.param(("verify",), 3, marks=[pytest.mark.spark, pytest.mark.xdist_group("pipeline"), pytest.mark.long]),
            pytest.param(
                ("ingest", "a.csv", "a.b", *CALM_OPTIONS),
                1,
                marks=[pytest.mark.spark, pytest.mark.xdist_group("pipeline"), pytest.mark.long],
            ),
        ],
    ),
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_report_that_cannot_be_written_is_told(served: Served, tmp_path: Path, arguments: tuple[str, ...], status: int) -> None:
    """By the status too, whatever was done: somebody waits for it."""
    (tmp_path / "a.csv").write_text("id\n1\n")
    settings = settings_for(served.lake, port=str(served.server.port))
    done = run(tmp_path, "pipeline", *arguments, "--dry-run", "--report", "/dev/full", settings=settings)
    assert (done.status, "--report /dev/full was not written" in done.err) == (status, True), done.out + done.err


GIVEN = {"tables": [], "conf": [], "master": "local[1]", "memory": "1g", "dry_run": True}


@pytest.mark.parametrize(("name", "is_kept"), [("r.json", False), ("r.prom", True)])
def test_a_run_that_begins_leaves_no_report_of_an_earlier_one(name: str, is_kept: bool, tmp_path: Path) -> None:
    """Of one that is killed nobody reads that it was done; metrics say themselves when they are from."""
    report, found = tmp_path / name, list[bool]()
    report.write_text('{"status": "done"}')

    def find() -> NoReturn:
        found.append(report.exists())
        raise BadRequest("no settings")

    assert start_publish({**GIVEN, "report": report}, find) == 1
    assert (found, report.exists()) == ([is_kept], True)


def test_whoever_reads_a_report_finds_all_of_it(tmp_path: Path) -> None:
    """The one that was there or the new one, and nothing beside it."""
    report = tmp_path / "r.json"
    report.write_text("the one before")
    with report.open() as reader:
        assert write_report(report, "x")
        assert (reader.read(), report.read_text()) == ("the one before", "x")
    assert os.listdir(tmp_path) == ["r.json"]


def test_what_is_no_file_of_its_own_is_written_to(tmp_path: Path) -> None:
    """As the terminal, under the name of a link; and so is what lies in somebody else's folder."""
    (tmp_path / "target").write_text("")
    link = tmp_path / "stdout"
    link.symlink_to(tmp_path / "target")
    remove_old_report(link)
    assert write_report(link, "x")
    assert (link.is_symlink(), (tmp_path / "target").read_text()) == (True, "x")


def test_a_report_in_a_folder_of_others_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing may be put beside it, nor taken away."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError("not yours")

    report = tmp_path / "r.json"
    report.write_text("the one before")
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    remove_old_report(report)
    assert report.read_text() == ""
    assert write_report(report, "x")
    assert report.read_text() == "x"
