"""The rows of a difference over REST: the document of the command line, and the bounds of the process that reads them."""

import json
import os
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from duckicelake.app import DIFF_PROCESS
from duckicelake.errors import Unsupported
from duckicelake.lake.writing.migrate import migrate
from duckicelake.rest import diff_process
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.lake.branches.repository import make_branch
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

DIFF = "/management/v1/repositories/lake/diff?from=main&to=dev"


@pytest.mark.whole
def test_the_rows_are_those_of_the_command(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, inlined rows and a made table; refusals name the limits, and the process hands its own on."""
    monkeypatch.chdir(tmp_path)
    with closing(lake.duckdb()) as main:
        main.execute("CREATE TABLE t AS SELECT range AS id, 'ä' AS v FROM range(100)")
    with closing(make_branch(lake, "dev").duckdb()) as session:
        session.execute("DELETE FROM t WHERE id < 4")
        session.execute("INSERT INTO t VALUES (1000, 'inlined')")
        session.execute("CREATE TABLE made AS SELECT 1.50::DECIMAL(9, 2) AS d")
    printed = ask(settings_for(lake), "branch", "diff", "main", "dev", "--rows", "3", "--format", "json", "--home", str(tmp_path / "home"))
    with serve(make_settings(lake)) as server:
        answer = server.get(f"{DIFF}&rows=3")
        assert (answer.status, answer.json) == (200, json.loads(printed))
        rows = {each["name"]: each["rows"] for each in answer.json["tables"]}
        assert rows["main.t"] == {
            "added": [{"id": 1000, "v": "inlined"}],
            "deleted": [{"id": each, "v": "ä"} for each in range(3)],
            "more-added": False,
            "more-deleted": True,
        }
        for rows_wanted in ("0", "10001", "many"):
            refused = server.get(f"{DIFF}&rows={rows_wanted}")
            assert refused.error[0] == 400 and "rows" in refused.json["error"]["message"]
        assert "10000" in server.get(f"{DIFF}&rows=10001").json["error"]["message"]
        assert server.get(f"{DIFF}x&rows=1").error == (404, "NotFoundException")
        monkeypatch.setattr(diff_process, "MAX_BYTES", 100)
        assert server.get(f"{DIFF}&rows=3").error[0] == 400


def test_the_process_ends_with_what_it_was_started_for(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time for a lake; it shows no secrets, and ends when the client leaves, its time is over, or the server is gone."""
    lake.duckdb().execute("CREATE TABLE t (id INTEGER)")
    make_branch(lake, "dev")
    secret = lake.store.secret_access_key
    monkeypatch.setenv("DUCKICELAKE_S3_SECRET_ACCESS_KEY", secret)
    with closing(lake.psycopg()) as conn, serve(make_settings(lake)) as server:
        with conn.transaction():
            conn.execute("LOCK TABLE ducklake_snapshot IN ACCESS EXCLUSIVE MODE")
            with asking_rows(server):
                [pid] = wait_for(lambda: list_processes() or None, "the process that reads the rows")
                assert all(secret not in Path(f"/proc/{pid}/{name}").read_text() for name in ("cmdline", "environ"))
                busy = server.get(f"{DIFF}&rows=1")
                assert busy.error[0] == 503 and "another difference" in busy.json["error"]["message"]
            wait_for(lambda: not list_processes(), "the end of the process after its client")
            with monkeypatch.context() as patched:
                patched.setattr(diff_process, "MAX_SECONDS", 0.1)
                late = server.get(f"{DIFF}&rows=1")
            assert late.error[0] == 503 and "more than 0.1 seconds" in late.json["error"]["message"]
            assert not list_processes()
            check_orphan(lake)
        assert server.get(f"{DIFF}&rows=1").status == 200


def test_rows_of_a_lake_that_duckdb_cannot_attach_are_refused(lake: FreshLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line and over REST; without rows, there is a difference."""
    monkeypatch.chdir(tmp_path)
    migrate(lake.psycopg(), lake.metadata_schema)
    with pytest.raises(Unsupported, match="has DuckLake 1.1, which DuckDB"):
        ask(settings_for(lake), "branch", "diff", "main", "main", "--rows", "1", "--home", str(tmp_path / "home"))
    with serve(make_settings(lake)) as server:
        same = DIFF.replace("dev", "main")
        assert server.get(f"{same}&rows=1").error == (406, "UnsupportedOperationException")
        assert server.get(same).status == 200


def check_orphan(lake: FreshLake) -> None:
    """See that a process ends with the pipe of its server, whatever it waits for."""
    named = ("postgres_dsn", "metadata_schema", "s3_endpoint", "s3_region", "s3_access_key_id", "s3_secret_access_key")
    settings = make_settings(lake).lakes()[0].model_dump(include={*named, "name"})
    question = {"lake": {name: getattr(value, "get_secret_value", lambda v=value: v)() for name, value in settings.items()}}
    with Popen([sys.executable, "-m", DIFF_PROCESS], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(question | {"refs": ["main", "dev"], "rows": 1}).encode() + b"\n")
        process.stdin.close()
        try:
            assert process.wait(30) == 1
        finally:
            process.kill()


@contextmanager
def asking_rows(server: Server) -> Generator[None]:
    """Hold a connection on which rows were asked for."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request("GET", f"{DIFF}&rows=1")
        yield


def list_processes() -> list[str]:
    """Return the ids of the processes of this one that read differences."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    children = [pid for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in children if DIFF_PROCESS in Path(f"/proc/{pid}/cmdline").read_text()]
