"""Jobs that somebody ends, as users run them: what was done is told, the rest is told as stopped, and another run does it."""

import json
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from duckicelake.commands.jobs.reports import INTERRUPTED
from tests.cli.test_commands import settings_for
from tests.support.commands import COMMAND, Done, environment, run
from tests.support.readers import Served
from tests.support.spark import CALM_OPTIONS
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
TABLES = [f"main.t{number}" for number in range(3)]
SECONDS = 180


def run_stopped(folder: Path, arguments: Sequence[str], settings: Mapping[str, str], stop: tuple[str, int]) -> Done:
    """Run a command to its end, which gets a signal as soon as it has told a step."""
    step, number = stop
    out, err = folder / "out.txt", folder / "err.txt"
    with out.open("w") as told, err.open("w") as said:
        running = subprocess.Popen([*COMMAND, *arguments], cwd=folder, env=environment(settings), stdout=told, stderr=said)
        try:
            wait_for(lambda: f"{step}\n" in err.read_text() or running.poll() is not None, step, SECONDS)
            running.send_signal(number)
            running.wait(SECONDS)
        finally:
            running.kill()
            running.wait()
    return Done(running.returncode, out.read_text(), err.read_text())


def check_told(done: Done, parts: Sequence[Mapping[str, Any]], name: str, by: str) -> None:
    """The first table was done, the last one was not begun, every one is in the report, and nothing else is on the terminal."""
    assert done.status == INTERRUPTED, done.err
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1] == f"duckicelake: stopped by {by}; what was done stays done, and another run does the rest"
    assert [part[name] for part in parts] == TABLES
    assert parts[0]["message"] == ""
    assert parts[-1]["message"].startswith(f"stopped by {by} before: ")


def fill(served: Served) -> dict[str, str]:
    """Make the tables; the settings of a command that is to find them."""
    duck = served.lake.duckdb()
    for table in TABLES:
        duck.execute(f"CREATE TABLE {table.partition('.')[2]} AS SELECT i AS id FROM range(1000) r(i)")
    return settings_for(served.lake, port=str(served.server.port))


@pytest.mark.long
def test_an_export_that_is_interrupted(served: Served, tmp_path: Path) -> None:
    """While Spark copies a table: those that were copied are there, and another run passes them over."""
    settings = fill(served)
    call = ("pipeline", "export", "warehouse", *CALM_OPTIONS, "--report", "r.json")
    done = run_stopped(tmp_path, call, settings, (f"copy {TABLES[1]}", signal.SIGINT))
    moved = json.loads((tmp_path / "r.json").read_text())["moved"]
    check_told(done, moved, "subject", "Ctrl-C")
    assert (moved[0]["verdict"], moved[-1]["verdict"]) == ("done", "failed")
    assert f"{TABLES[0]}: copy: done, 1000 rows" in done.out
    again = run(tmp_path, *call, settings=settings)
    assert again.status == 0, again.err
    verdicts = [one["verdict"] for one in json.loads((tmp_path / "r.json").read_text())["moved"]]
    assert (verdicts[0], verdicts[-1]) == ("already-there", "done")


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "step", "parts", "verdicts", "seen"),
    [
        pytest.param(
            "verify", f"compare {TABLES[1]} now", "findings", ("same", "could-not-look"), f"{TABLES[0]} now: 1000 rows", id="verify"
        ),
        pytest.param(
            *("profile", f"compute {TABLES[1]}", "tables", ("done", "failed"), f"{TABLES[0]}: 1000 rows"),
            id="profile",
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_job_that_is_terminated(
    served: Served, tmp_path: Path, job: str, step: str, parts: str, verdicts: tuple[str, str], seen: str
) -> None:
    """While Spark looks at a table: what it has seen is told, and of the others that it could not look."""
    settings = fill(served)
    call = ("pipeline", job, *CALM_OPTIONS, "--report", "r.json")
    done = run_stopped(tmp_path, call, settings, (step, signal.SIGTERM))
    found = json.loads((tmp_path / "r.json").read_text())[parts]
    check_told(done, found, "table", "SIGTERM")
    assert (found[0]["verdict"], found[-1]["verdict"]) == verdicts
    assert seen in done.out


@pytest.mark.long
def test_an_import_that_is_interrupted(served: Served, tmp_path: Path) -> None:
    """The tables that came before are there, no other one is half there, and another run brings the rest."""
    settings = fill(served)
    assert run(tmp_path, "pipeline", "export", "warehouse", *CALM_OPTIONS, settings=settings).status == 0
    call = ("pipeline", "import", "warehouse", "--mode", "copy", "--into", "back", *CALM_OPTIONS, "--report", "r.json")
    done = run_stopped(tmp_path, call, settings, (f"copy back.{TABLES[1]}", signal.SIGTERM))
    moved = json.loads((tmp_path / "r.json").read_text())["moved"]
    check_told(done, [{**one, "subject": one["subject"].removeprefix("back.")} for one in moved], "subject", "SIGTERM")
    assert (moved[0]["verdict"], moved[-1]["verdict"]) == ("done", "failed")
    assert served.server.get("namespaces/back%1Fmain/tables/t0").status == 200
    assert served.server.get("namespaces/back%1Fmain/tables/t2").status == 404
    again = run(tmp_path, *call, settings=settings)
    assert again.status == 0, again.err


@pytest.mark.long
def test_a_round_of_maintenance_that_is_interrupted(served: Served, tmp_path: Path) -> None:
    """Without Spark: tables that were flushed are told, and so are those that were not."""
    settings = settings_for(served.lake, port=str(served.server.port)) | {"JAVA_HOME": "/none", "PATH": ""}
    duck = served.lake.duckdb()
    for table in TABLES:
        duck.execute(f"CREATE TABLE {table.partition('.')[2]} AS SELECT 1 AS id")
    call = ("pipeline", "maintain", "--report", "r.json")
    done = run_stopped(tmp_path, call, settings, (f"flush {TABLES[1]}", signal.SIGINT))
    steps = [step for step in json.loads((tmp_path / "r.json").read_text())["steps"] if step["subject"] in TABLES]
    check_told(done, steps, "subject", "Ctrl-C")
    assert (steps[0]["kind"], steps[0]["verdict"], steps[-1]["verdict"]) == ("flush", "done", "failed")
