"""`duckicelake pipeline profile` as users run it."""

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import settings_for
from tests.support.commands import run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_the_command_measures_and_reports(served: Served, tmp_path: Path) -> None:
    """Configured by nothing but the server's own settings; the second time nobody asks for Spark, and the page still has the plots."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE many AS SELECT range AS id, 'n' || range % 10 AS name FROM range(1000)")
    duck.execute("CREATE TABLE never (id BIGINT)")
    settings = settings_for(served.lake, port=str(served.server.port))
    call = ("pipeline", "profile", "--report", "r.json", "--html", "p.html")
    done = run(tmp_path, *call, *CALM_OPTIONS, settings=settings)
    assert done.status == 0, done.err
    assert "main.never: nothing was ever written to it" in done.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"], set(report["versions"])) == ("profile", "done", {"duckicelake", "pyspark"})
    assert [(one["name"], one["distinct"], one["maximum"]) for one in report["tables"][0]["columns"]] == [
        ("id", 1000, "999"),
        ("name", 10, "n9"),
    ]
    again = run(tmp_path, *call, settings=settings | {"JAVA_HOME": "/none", "PATH": ""})
    assert (again.status, "main.many: 1000 rows, 1 data files" in again.out) == (0, True), again.err
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "nothing-to-do"
    assert "main.many" in (tmp_path / "p.html").read_text()


def test_the_plan_needs_no_spark(served: Served, tmp_path: Path) -> None:
    """And writes nothing but the reports."""
    served.lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(30)")
    settings = settings_for(served.lake, port=str(served.server.port)) | {"JAVA_HOME": "/none", "PATH": ""}
    done = run(tmp_path, "pipeline", "profile", "main.t", "--dry-run", "--html", "p.html", settings=settings)
    assert (done.status, "statistics of columns at snapshot" in done.out) == (0, True), done.err
    page = (tmp_path / "p.html").read_text()
    assert ("<svg" in page, "main.t" in page) == (True, True)
    assert served.server.get("namespaces/main/tables/t").json["metadata"]["statistics"] == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(["trips"], 2, "'trips' is no table", id="table"),
        pytest.param(["--report", "x", "--html", "./x"], 2, "name two files", id="one file"),
        pytest.param(["--html", "none/p.html"], 2, "--html none/p.html: no file", id="page"),
        pytest.param(["--report", "none/r.json"], 2, "--report none/r.json: no file", id="report"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    """Before anything is opened."""
    done = run(tmp_path, "pipeline", "profile", *arguments)
    assert (done.status, message in done.err) == (status, True), done.err


def test_an_unknown_table_and_a_silent_catalog_are_told(served: Served, tmp_path: Path) -> None:
    """Nothing could be measured: status 1, no trace."""
    none = run(tmp_path, "pipeline", "profile", "main.none", settings=settings_for(served.lake, port=str(served.server.port)))
    assert (none.status, "There is no table main.none" in none.err) == (1, True), none.err
    done = run(tmp_path, "pipeline", "profile", settings=settings_for(served.lake, port="1"))
    assert (done.status, "no catalog answers at 127.0.0.1:1" in done.err, "Traceback" in done.err) == (1, True, False), done.err
