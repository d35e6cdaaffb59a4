"""`duckicelake pipeline maintain` as users run it."""

import json
import os
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duckicelake.pipeline.common.rest import open_rest
from tests.cli.test_commands import settings_for
from tests.support.commands import COMMAND, environment, run
from tests.support.readers import Served
from tests.support.waiting import wait_for

SECONDS = 120


def set_property(served: Served, table: str, name: str, text: str) -> None:
    """Give a table in `main` a property."""
    update = {"action": "set-properties", "updates": {name: text}}
    change = {"identifier": {"namespace": ["main"], "name": table}, "requirements": [], "updates": [update]}
    open_rest(served.rest_catalog()).commit([change])


def fill(served: Served) -> None:
    """Three tables: one of many files, one of inlined rows, and one whose policy cannot be meant."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE many (id BIGINT)")
    for start in range(0, 100, 20):
        duck.execute(f"INSERT INTO many SELECT range FROM range({start}, {start + 20})")
    duck.execute("CREATE TABLE few AS SELECT 1 AS id")
    duck.execute("CREATE TABLE wrong AS SELECT 1 AS id")
    duck.close()
    set_property(served, "wrong", "duckicelake.maintain.min-files", "1")


def list_verdicts(report: Path) -> list[str]:
    """The verdicts of the last round's steps, none while the report is not whole."""
    try:
        return [step["verdict"] for step in json.loads(report.read_text())["steps"]]
    except (OSError, ValueError):
        return []


def test_the_plan_is_a_table(served: Served, tmp_path: Path) -> None:
    """Configured by nothing but the server's own settings, without Spark; what is wrong with one table is said in its line."""
    fill(served)
    (tmp_path / "p.toml").write_text('[default]\nsnapshot-age = "0s"\n[tables."main.few"]\nflush-rows = 2\n')
    settings = settings_for(served.lake, port=str(served.server.port)) | {"JAVA_HOME": "/none", "PATH": ""}
    call = ["--dry-run", "--policy", "p.toml", "--report", "r.json"]
    done = run(tmp_path, "pipeline", "maintain", *call, settings=settings)
    assert done.status == 1, done.err
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.out.splitlines() if line.startswith("│")]
    assert [line[:2] for line in lines if line[0]] == [["main.many", "compact"], ["main.wrong", ""], ["(the lake)", "expire"]], done.out
    assert lines[0][2] == "5"
    assert "min-files at 2" in done.out
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["job"], report["status"], report["tables"]) == ("maintain", "failed", 3)
    assert [step["verdict"] for step in report["steps"]] == ["planned", "failed", "planned"]
    assert set(report["versions"]) == {"duckicelake", "pyspark", "duckdb"}


@pytest.mark.whole
def test_a_service_goes_on_and_ends_when_it_is_asked_to(served: Served, tmp_path: Path) -> None:
    """A table that fails is told in each round; SIGTERM ends it with status 0."""
    fill(served)
    report = tmp_path / "r.json"
    settings = settings_for(served.lake, port=str(served.server.port))
    command = [*COMMAND, "pipeline", "maintain", "main.wrong", "main.few", "--watch", "1", "--report", str(report)]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            wait_for(lambda: list_verdicts(report) == ["failed"], "a round without work", SECONDS)
            running.send_signal(signal.SIGTERM)
            out, err = running.communicate(timeout=SECONDS)
        finally:
            running.kill()
    assert running.returncode == 0, err
    assert out.decode().count("main.few: flush: 1 inlined rows and deletes became files") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        pytest.param(["trips"], 2, "'trips' is no table", id="table"),
        pytest.param(["--watch", "0"], 2, "--watch begins at 1 second", id="watch"),
        pytest.param(["--watch", "9", "--dry-run"], 2, "choose one", id="dry watch"),
        pytest.param(["--policy", "none.toml"], 2, "--policy none.toml cannot be read", id="policy"),
        pytest.param(["--report", "none/r.json"], 2, "--report none/r.json: no file", id="report"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(tmp_path: Path, arguments: list[str], status: int, message: str) -> None:
    """Before anything is opened."""
    done = run(tmp_path, "pipeline", "maintain", *arguments)
    assert (done.status, message in done.err) == (status, True), done.err


def test_a_silent_catalog_is_told(served: Served, tmp_path: Path) -> None:
    """Nothing could be planned: status 1, no trace."""
    done = run(tmp_path, "pipeline", "maintain", settings=settings_for(served.lake, port="1"))
    assert (done.status, "no catalog answers at 127.0.0.1:1" in done.err, "Traceback" in done.err) == (1, True, False), done.err


def test_orphans_go_by_their_age(served_locally: Served, tmp_path: Path) -> None:
    """Below DATA_PATH and in a table's own location what nothing names goes when it is old; not in that of a table to leave alone."""
    duck = served_locally.lake.duckdb()
    duck.execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    duck.execute("CREATE TABLE u (id BIGINT)")
    set_property(served_locally, "u", "duckicelake.maintain.enabled", "false")
    location = served_locally.server.get("namespaces/main/tables/t").json["metadata"]["location"]
    folder = Path(location.removeprefix("file://")) / "data"
    before = {path for path in Path(served_locally.lake.data_path).rglob("*") if path.is_file()}
    old = datetime.now(UTC) - timedelta(hours=2)
    planted = [place / name for place in (Path(served_locally.lake.data_path), folder) for name in ("old.parquet", "young.parquet")]
    spared = Path(served_locally.server.get("namespaces/main/tables/u").json["metadata"]["location"].removeprefix("file://"))
    planted.append(spared / "data" / "old.parquet")
    for path in planted:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        if path.name == "old.parquet":
            os.utime(path, (old.timestamp(), old.timestamp()))
    (tmp_path / "p.toml").write_text('[default]\norphan-age = "1h"\n')
    settings = settings_for(served_locally.lake, port=str(served_locally.server.port))
    kept = {name: text for name, text in settings.items() if "_S3_" not in name} | {"DUCKICELAKE_STORE": "none"}
    done = run(tmp_path, "pipeline", "maintain", "--policy", "p.toml", settings=kept)
    assert done.status == 0, done.err
    assert "(the lake): orphans: 2 objects removed" in done.out
    assert [path for path in planted if path.exists()] == [
        path for path in planted if path.name == "young.parquet" or spared in path.parents
    ]
    assert all(path.exists() for path in before)
    assert duck.execute("SELECT count(*) FROM t").fetchall() == [(50,)]
