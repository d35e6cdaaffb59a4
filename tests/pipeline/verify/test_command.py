"""`duckicelake pipeline verify` as users run it."""

import json
from pathlib import Path

import pytest

from tests.cli.test_commands import settings_for
from tests.support.commands import run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS


@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_the_command_compares_and_reports(served: Served, tmp_path: Path) -> None:
    """Configured by nothing but the server's own settings; the status says how it ended, and the report is JSON."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE lines AS SELECT i AS id FROM range(40) r(i)")
    duck.execute("CREATE TABLE times AS SELECT TIME '12:00:00' AS at")
    settings = settings_for(served.lake, port=str(served.server.port))
    done = run(tmp_path, "pipeline", "verify", *CALM_OPTIONS, "--report", "r.json", settings=settings)
    assert done.status == 3, done.err
    assert "main.lines now: 40 rows, the same\nmain.times now: could not look: column at is time" in done.out
    assert done.out.endswith("1 same, 1 could-not-look\n")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"]) == ("verify", "could-not-look")
    assert [step for step in report["seconds"] if "main." in step] == ["compare main.lines now", "compare main.times now"]
    assert [(finding["table"], finding["verdict"]) for finding in report["findings"]] == [
        ("main.lines", "same"),
        ("main.times", "could-not-look"),
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(["trips"], 2, "'trips' is no table", id="table"),
        pytest.param(["--snapshot", "7"], 2, "--snapshot needs one table", id="snapshot"),
        pytest.param(["--conf", "x"], 2, "no NAME=VALUE", id="conf"),
        pytest.param(["--examples", "many"], 2, "examples", id="option"),
        pytest.param(["--report", "none/r.json"], 3, "--report none/r.json: no file", id="report"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    """Before anything is opened."""
    done = run(tmp_path, "pipeline", "verify", *arguments)
    assert (done.status, message in done.err) == (status, True), done.err


def test_a_silent_catalog_is_no_difference(served: Served, tmp_path: Path) -> None:
    """Nobody could look: status 3."""
    settings = settings_for(served.lake, port="1")
    done = run(tmp_path, "pipeline", "verify", "--report", "r.json", settings=settings)
    assert done.status == 3, done.err
    assert "no catalog answers at 127.0.0.1:1" in done.err
    assert json.loads((tmp_path / "r.json").read_text())["status"] == "could-not-look"


@pytest.mark.parametrize("obstacle", ["postgres", "java"])
def test_what_is_no_comparison_is_no_difference(served: Served, tmp_path: Path, obstacle: str) -> None:
    """No Postgres, no Java: status 3, and a message instead of a trace."""
    settings = settings_for(served.lake, port=str(served.server.port))
    if obstacle == "postgres":
        settings |= {"DUCKICELAKE_POSTGRES_DSN": "postgresql://127.0.0.1:1/none?connect_timeout=2"}
    else:
        (tmp_path / "file").touch()
        settings |= {"JAVA_HOME": "", "PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")}
    done = run(tmp_path, "pipeline", "verify", settings=settings)
    assert done.status == 3, done.err
    assert "Traceback" not in done.err
    assert "duckicelake: " in done.err


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_the_plan_is_printed(served: Served, tmp_path: Path) -> None:
    """What would be looked at."""
    served.lake.duckdb().execute("CREATE TABLE lines AS SELECT i AS id FROM range(40) r(i)")
    settings = settings_for(served.lake, port=str(served.server.port))
    done = run(tmp_path, "pipeline", "verify", "--dry-run", *CALM_OPTIONS, settings=settings)
    assert (done.status, done.out) == (0, "main.lines now: would be looked at\n1 planned\n"), done.err
