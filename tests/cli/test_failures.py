"""What users see when something fails: one message, no traceback, status 1."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pytest

from duckicelake import cli
from duckicelake.errors import BadRequest
from tests.cli.test_commands import settings_for
from tests.support.commands import COMMAND, environment, find_port, run
from tests.support.lakes import FreshLake

FAILURES = [
    pytest.param(BadRequest("no such privilege"), "no such privilege", id="ours"),
    pytest.param(duckdb.HTTPException("HTTP 403 for PUT\nmore"), "DuckDB: HTTP 403 for PUT", id="DuckDB"),
    pytest.param(duckdb.IOException('host=db password=geheim: "refused"'), "password=…", id="DuckDB's connection string"),
    pytest.param(
        psycopg.OperationalError("server closed the connection"), "Postgres does not answer: server closed", id="Postgres is gone"
    ),
    pytest.param(
        psycopg.errors.UndefinedTable('relation "x" does not exist'), 'Postgres: relation "x" does not exist', id="Postgres refuses"
    ),
    pytest.param(PermissionError(13, "Permission denied", "/srv/x"), "[Errno 13] Permission denied: '/srv/x'", id="file"),
    pytest.param(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "is not UTF-8", id="text"),
]


@pytest.mark.parametrize(("failure", "message"), FAILURES)
def test_a_failure_is_one_message(
    failure: Exception, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of every library that commands use: what it says is wrong, without its passwords and without a trace."""
    status, told = fail(failure, monkeypatch, capsys)
    assert status == 1
    assert told.startswith("duckicelake: ")
    assert message in told
    assert "geheim" not in told
    assert "Traceback" not in told
    assert len(told.splitlines()) == 1


def test_a_fault_of_ours_keeps_its_trace_in_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The message names the file, which only its owner can read, for a report."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    status, told = fail(ZeroDivisionError("division by zero"), monkeypatch, capsys)
    (kept,) = tmp_path.iterdir()
    assert (status, "ZeroDivisionError: division by zero" in told, str(kept) in told, "Traceback" in told) == (1, True, True, False)
    assert "Traceback (most recent call last)" in kept.read_text()
    assert kept.stat().st_mode & 0o077 == 0


def fail(failure: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Run the command line where a command raises that; return the status and what was printed."""

    def call(prog_name: str) -> None:
        raise failure

    def build() -> Callable[[str], None]:
        return call

    monkeypatch.setattr(cli, "build_cli", build)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert told.out == ""
    return ended.value.code, told.err


@pytest.mark.whole
def test_smoke_on_a_store_that_refuses(lake: FreshLake, tmp_path: Path) -> None:
    """A wrong secret key is one message that names what the store said."""
    wrong = settings_for(lake, s3_secret_access_key="wrong", port=str(find_port()))
    listening = "import socket; s = socket.create_server(('127.0.0.1', int(__import__('sys').argv[1]))); print(); s.accept()"
    with subprocess.Popen([sys.executable, "-c", listening, wrong["DUCKICELAKE_PORT"]], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()
            done = run(tmp_path, "smoke", "--home", str(tmp_path / "home"), settings=wrong)
        finally:
            server.kill()
    assert (done.status, done.err.startswith("duckicelake: DuckDB: "), "Traceback" in done.err) == (1, True, False), done.err


def test_sql_that_is_no_text(lake: FreshLake, tmp_path: Path) -> None:
    """Bytes on standard input that are not UTF-8."""
    done = subprocess.run(
        [*COMMAND, "duckdb", "--home", str(tmp_path / "home")],
        cwd=tmp_path,
        env=environment(settings_for(lake) | {"PYTHONUTF8": "1"}),
        input=b"SELECT '\xff';\n",
        capture_output=True,
        check=False,
        timeout=180,
    )
    assert (done.returncode, b"is not UTF-8" in done.stderr, b"Traceback" in done.stderr) == (1, True, False), done.stderr
