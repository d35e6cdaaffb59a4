"""`duckicelake pipeline publish` as users run it."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duckicelake.commands.jobs.reports import PREFIX
from tests.catalog.test_many_files import make_copies
from tests.cli.test_commands import settings_for
from tests.support.commands import run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_the_command_publishes_and_reports(served: Served, tmp_path: Path) -> None:
    """Configured by nothing but the server's own settings; the second time nobody asks for Spark."""
    make_copies(served.lake, 300)
    settings = settings_for(served.lake, port=str(served.server.port))
    done = run(tmp_path, "pipeline", "publish", "--report", "r.json", *CALM_OPTIONS, settings=settings)
    assert (done.status, "main.t: done: 1 manifests of 301 files" in done.out) == (0, True), done.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"], set(report["versions"])) == ("publish", "done", {"duckicelake", "pyspark"})
    again = run(tmp_path, "pipeline", "publish", settings=settings | {"JAVA_HOME": "/none", "PATH": ""})
    assert (again.status, "no large manifest to make, 1 were there" in again.out) == (0, True), again.err


def test_the_plan_needs_no_spark(served: Served, tmp_path: Path) -> None:
    """And writes nothing but the report."""
    make_copies(served.lake, 300)
    settings = settings_for(served.lake, port=str(served.server.port)) | {"JAVA_HOME": "/none", "PATH": ""}
    done = run(tmp_path, "pipeline", "publish", "main.t", "--dry-run", "--report", "r.json", settings=settings)
    assert (done.status, "main.t: planned: 1 manifests of 301 files" in done.out) == (0, True), done.err
    assert json.loads((tmp_path / "r.json").read_text())["tables"][0]["files"] == 301
    run(tmp_path, "pipeline", "publish", "main.t", "--dry-run", "--report", "r.prom", settings=settings)
    found = read_metrics(tmp_path / "r.prom")
    assert found["files", "main.t"] == 301
    assert found["status", "planned"] == found["parts", "planned"] == 1
    assert found["seconds", "plan"] > 0


def read_metrics(path: Path) -> dict[tuple[str, str], float]:
    """The metrics of a file, by name without our prefix and their label beside the command."""
    families = text_string_to_metric_families(path.read_text())
    found = [sample for family in families for sample in family.samples]
    assert {sample.labels["command"] for sample in found} == {"publish"}
    return {
        (sample.name.removeprefix(PREFIX), next((text for label, text in sample.labels.items() if label != "command"), "")): sample.value
        for sample in found
    }


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(["trips"], 2, "'trips' is no table", id="table"),
        pytest.param(["--report", "none/r.json"], 2, "--report none/r.json: no file", id="report"),
        pytest.param(["--conf", "x"], 2, "x", id="setting"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    """Before anything is opened."""
    done = run(tmp_path, "pipeline", "publish", *arguments)
    assert (done.status, message in done.err) == (status, True), done.err


def test_an_unknown_table_and_a_silent_catalog_are_told(served: Served, tmp_path: Path) -> None:
    """Nothing could be published: status 1, no trace."""
    none = run(tmp_path, "pipeline", "publish", "main.none", settings=settings_for(served.lake, port=str(served.server.port)))
    assert (none.status, "There is no table main.none" in none.err) == (1, True), none.err
    done = run(tmp_path, "pipeline", "publish", settings=settings_for(served.lake, port="1"))
    assert (done.status, "no catalog answers at 127.0.0.1:1" in done.err, "Traceback" in done.err) == (1, True, False), done.err
    run(tmp_path, "pipeline", "publish", "--report", "r.prom", settings=settings_for(served.lake, port="1"))
    assert read_metrics(tmp_path / "r.prom")["status", "failed"] == 1
