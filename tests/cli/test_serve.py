"""`serve` as a process: what it starts, what it says, how it ends, and what a kill leaves."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from duckicelake.embedded.home import read_json
from tests.support.commands import Server, find_port, is_running, run, serving
from tests.support.waiting import wait_for

IDLE_MEMORY_BYTES = 700 * 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a home of its own, for tests that leave it running."""
    with serving(tmp_path_factory.mktemp("serve") / "home", find_port()) as running:
        yield running


def json_of(server: Server) -> dict[str, str]:
    """Return how to connect, as `connect --format json` says it."""
    done = run(server.home.parent, "connect", "--home", str(server.home), "--format", "json")
    assert done.status == 0, done.err
    return json.loads(done.out)


@pytest.mark.whole
def test_the_server_answers_and_says_how_to_connect(server: Server) -> None:
    """The catalog's config, health and readiness; then a welcome with the URI and a snippet per client."""
    assert server.fetch("/healthz")[0] == 200
    assert server.fetch("/readyz")[0] == 200
    status, config = server.fetch("/v1/config?warehouse=lake")
    assert (status, config["overrides"]["prefix"]) == (200, "lake")
    welcome = server.wait_announced()
    assert f"DuckIceLake is ready at http://127.0.0.1:{server.port}" in welcome
    assert "ATTACH 'ducklake:postgres:" in welcome
    assert "load_catalog('lake'" in welcome


@pytest.mark.whole
def test_the_json_form_has_exactly_the_promised_keys(server: Server) -> None:
    """Tools outside rely on the names, with a dot as they stand and as objects."""
    facts = json_of(server)
    assert list(facts) == [
        "catalog_uri",
        "warehouse",
        "prefix",
        "credential",
        "iceberg_path",
        "ducklake.attach",
        "ducklake.dsn",
        "ducklake.data_path",
        "ducklake.metadata_schema",
        "s3.endpoint",
        "s3.region",
        "s3.access_key_id",
        "s3.secret_access_key",
        "ducklake",
        "s3",
    ]
    server.wait_announced()
    assert facts["catalog_uri"] == f"http://127.0.0.1:{server.port}"
    assert (facts["warehouse"], facts["prefix"], facts["credential"]) == ("lake", "lake", None)
    assert (facts["ducklake.data_path"], facts["iceberg_path"]) == ("s3://lake/data/", "s3://lake/iceberg/")
    nested = json.loads(json.dumps(facts["s3"]))
    assert {f"s3.{name}": fact for name, fact in nested.items()} == {name: facts[name] for name in facts if name.startswith("s3.")}


@pytest.mark.whole
def test_what_is_written_through_the_command_is_read_by_other_clients(server: Server) -> None:
    """`smoke` writes with DuckDB and compares what PyIceberg and DuckDB's iceberg extension read."""
    done = run(server.home.parent, "smoke", "--home", str(server.home))
    assert done.status == 0, done.out + done.err
    assert done.out.count("same rows") == 2
    assert server.fetch("/v1/lake/namespaces")[1]["namespaces"] == [["main"]]


@pytest.mark.whole
def test_sql_runs_in_duckdb_with_the_lake_attached(server: Server) -> None:
    """From an argument, an option or standard input, one or several; a mistake is shown, ends them and makes the status 1."""
    arguments = ("duckdb", "--home", str(server.home))
    typed = run(server.home.parent, *arguments, text="CREATE OR REPLACE TABLE typed AS\nSELECT 41 AS i;\nUPDATE typed SET i = i + 1;")
    assert (typed.status, typed.err) == (0, "")
    shown = run(server.home.parent, *arguments, "-c", "SELECT i FROM lake.typed")
    assert "42" in shown.out
    several = run(server.home.parent, *arguments, "SELECT i + 1 FROM lake.typed; SELECT i + 2 FROM lake.typed;")
    assert ("43" in several.out, "44" in several.out, several.status) == (True, True, 0)
    wrong = run(server.home.parent, *arguments, "-c", "SELECT * FROM nowhere; SELECT 77")
    assert (wrong.status, "77" in wrong.out) == (1, False)
    assert "nowhere does not exist" in wrong.out


@pytest.mark.whole
def test_check_finds_the_served_lake_well(server: Server) -> None:
    """It uses the running servers."""
    done = run(server.home.parent, "check", "--home", str(server.home))
    assert (done.status, done.out.strip()) == (0, "lake: all is well")


@pytest.mark.whole
def test_a_second_server_on_one_home_is_refused(server: Server) -> None:
    """The first goes on."""
    done = run(server.home.parent, "serve", "--home", str(server.home), "--port", str(find_port()))
    assert done.status == 1
    assert f"in use by `duckicelake serve` (pid {server.process.pid})" in done.err
    assert server.fetch("/readyz")[0] == 200


@pytest.mark.whole
def test_a_busy_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    """No Postgres is made for a server that cannot listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(tmp_path, "serve", "--home", str(tmp_path / "home"), "--port", str(port))
    assert done.status == 1
    assert f"Port {port} for the catalog is in use" in done.err
    assert not (tmp_path / "home" / "postgres").exists()


def test_an_open_door_is_refused(tmp_path: Path) -> None:
    """Not on loopback and without authentication, `serve` says what would happen."""
    done = run(tmp_path, "serve", "--home", str(tmp_path / "home"), "--host", "0.0.0.0")
    assert done.status == 1
    assert "--insecure" in done.err


@pytest.mark.whole
def test_everything_that_serve_starts_is_small_when_idle(server: Server) -> None:
    """Proportional memory of the server, its Postgres and its S3, shared pages counted once."""
    started = [psutil.Process(server.process.pid), *psutil.Process(server.process.pid).children(recursive=True)]
    memory_bytes = sum(process.memory_full_info().pss for process in started)
    assert memory_bytes <= IDLE_MEMORY_BYTES, {process.name(): process.memory_full_info().pss >> 20 for process in started}


@pytest.mark.whole
def test_no_secret_stands_in_the_arguments_or_the_output(server: Server) -> None:
    """Neither in what `ps` shows nor in what the server prints where it is no terminal: that is a log."""
    keys = read_json(server.home / "keys.json") or {}
    del keys["s3_access_key_id"]
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    printed = server.wait_announced()
    assert "password=…" in printed
    assert not [name for name, secret in keys.items() if secret in shown or secret in printed]


@pytest.mark.whole
def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM between Postgres and readiness ends both in order, with status 0."""
    server = Server(tmp_path / "home", find_port())
    try:
        wait_for(lambda: server.find_pid("postgres") is not None and server.find_pid("s3") is not None, "both children", 60)
        pids = server.get_pids()
        assert server.stop() == 0
    finally:
        server.process.kill()
    assert not [pid for pid in pids if is_running(pid)]
    assert "DuckIceLake is ready" not in server.log()


@pytest.mark.long
def test_a_dead_postgres_turns_readiness_red_until_it_is_back(server: Server) -> None:
    """kill -9, again and again: readyz turns red, health stays green; then it recovers without a restart of the server."""

    def kill_and_look() -> bool:
        pid = server.find_pid("postgres")
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return server.fetch("/readyz")[0] == 503

    wait_for(kill_and_look, "a red light", 60)
    assert server.fetch("/healthz")[0] == 200
    wait_for(lambda: server.fetch("/readyz")[0] == 200, "a green light", 60)


@pytest.mark.whole
def test_sigterm_stops_http_then_s3_then_postgres(tmp_path: Path) -> None:
    """Each is gone before what it needs goes; the status is 0 and nothing is left."""
    with serving(tmp_path / "home", find_port(), "--workers", "2") as server:
        pids = server.get_pids()
        workers = [child.pid for child in psutil.Process(server.process.pid).children() if child.pid not in pids]
        assert len(workers) >= 2
        assert server.stop() == 0
    lines = server.log().splitlines()
    http = max(number for number, line in enumerate(lines) if "Finished server process" in line)
    s3, postgres = (next(n for n, line in enumerate(lines) if f"{name} is stopped" in line) for name in ("SeaweedFS", "Postgres"))
    assert http < s3 < postgres
    wait_for(lambda: not [pid for pid in (*pids, *workers) if is_running(pid)], "the end of all children")
    assert not (tmp_path / "home" / "server.json").exists()


@pytest.mark.whole
def test_after_a_kill_the_next_start_recovers(tmp_path: Path) -> None:
    """kill -9 of the server ends its children, and the next start finds the same lake on the same ports."""
    home, port = tmp_path / "home", find_port()
    with serving(home, port, "--workers", "2") as first:
        run(tmp_path, "duckdb", "--home", str(home), "-c", "CREATE TABLE kept AS SELECT 7 AS i")
        ports = read_json(home / "ports.json")
        family = [child.pid for child in psutil.Process(first.process.pid).children(recursive=True)]
        first.process.kill()
        first.process.wait()
        wait_for(lambda: not [pid for pid in family if is_running(pid)], "the end of all children")
    with serving(home, port) as second:
        assert read_json(home / "ports.json") == ports
        # a busy store that has just begun again may still say 503, after which clients ask again
        wait_for(lambda: second.fetch("/v1/lake/namespaces/main/tables/kept")[0] == 200, "the table to be there again")
