"""The servers under test: a Postgres and an S3 of our own in a temporary home, and `duckicelake serve` in front of them."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import duckdb
import psycopg

from bench.accounting import Meter
from duckicelake.commands.embedded import BACKENDS_PURPOSE, join_home
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.config import LakeSettings, read_settings
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import LOWEST_PORT, is_free, open_home, read_json
from duckicelake.embedded.stack import Stack, StackOptions, start_stack

ROOT = Path(__file__).parents[1]
READY_SECONDS = 120.0
STOP_SECONDS = 30.0
REQUEST_SECONDS = 900.0
ASK_SECONDS = 0.01
NAMESPACE = "bench"


@dataclass(slots=True)
class Server:
    """A running `duckicelake serve`; `start_seconds` is how long it took until `/readyz` was green."""

    process: subprocess.Popen[bytes]
    port: int
    start_seconds: float = 0.0

    def fetch(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers (lower-case names) and body of one answer, over a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            response = connection.getresponse()
            return response.status, {name.lower(): text for name, text in response.getheaders()}, response.read()
        finally:
            connection.close()

    def count(self, metric: str) -> float:
        """Return the sum of one metric over all its labels."""
        _, _, body = self.fetch("/metrics")
        lines = (line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#"))
        return sum(float(number) for series, _, number in lines if series.partition("{")[0] == metric)

    def stop(self) -> None:
        """End it in order, the hard way if it must be."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Stand:
    """A prepared home with Postgres, S3 and a server on it, and connections to its lake."""

    home: Path
    stack: Stack
    server: Server
    opened: ExitStack = field(default_factory=ExitStack)

    @property
    def lake(self) -> LakeSettings:
        """Where the lake is."""
        return join_home(read_settings({"home": self.home}), open_home(self.home)).lakes()[0]

    @property
    def pids(self) -> dict[str, int]:
        """The roots of the process trees: server, Postgres, store."""
        return {"server": self.server.process.pid, "postgres": read_pid(self.home, "postgres"), "store": read_pid(self.home, "s3")}

    @property
    def meter(self) -> Meter:
        """Reads their CPU time."""
        return Meter(self.pids)

    @cached_property
    def duckdb(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB with the lake attached and in use, and a namespace for the tables of the benchmarks."""
        lake = self.lake
        conn = connect_duckdb(open_home(self.home).make_folder("extensions"))
        self.opened.callback(conn.close)
        attach_lake(conn, LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema), find_s3_keys(lake))
        conn.execute(f"USE lake; CREATE SCHEMA IF NOT EXISTS {NAMESPACE}; USE lake.{NAMESPACE}")
        return conn

    @cached_property
    def postgres(self) -> psycopg.Connection:
        """A connection to the lake's tables that commits every statement."""
        lake = self.lake
        conn = psycopg.connect(lake.postgres_dsn.get_secret_value(), autocommit=True, options=f"-c search_path={lake.metadata_schema}")
        self.opened.callback(conn.close)
        return conn

    def restart_server(self) -> None:
        """Put a new server in the place of the old one, so that nothing is remembered."""
        self.server.stop()
        self.server = start_server(self.home, self.server.port)

    def guard_server(self) -> Mapping[str, str]:
        """Let the server ask for tokens from now on, and return the header that one of them makes."""
        self.server.stop()
        settings = {"DUCKICELAKE_REQUIRE_AUTH": "1", "DUCKICELAKE_OAUTH_CLIENTS": "bench:secret-of-bench|*"}
        self.server = start_server(self.home, self.server.port, settings)
        connection = HTTPConnection("127.0.0.1", self.server.port, timeout=REQUEST_SECONDS)
        form = "grant_type=client_credentials&client_id=bench&client_secret=secret-of-bench"
        connection.request("POST", "/v1/oauth/tokens", form, {"Content-Type": "application/x-www-form-urlencoded"})
        token = json.loads(connection.getresponse().read())["access_token"]
        connection.close()
        return {"Authorization": f"Bearer {token}"}

    def table_path(self, name: str) -> str:
        """Return where a table of the benchmarks is loaded from."""
        return f"/v1/{self.lake.name}/namespaces/{NAMESPACE}/tables/{name}"


@contextmanager
def open_stand(home: Path) -> Generator[Stand]:
    """Postgres and S3 on the home, started by this process, and a server that uses them; all stopped at the end."""
    with ExitStack() as running:
        stack = start_stack(home, StackOptions(purpose=BACKENDS_PURPOSE), lambda _: None)
        running.callback(stack.stop)
        stand = Stand(home, stack, start_server(home, find_port()))
        running.callback(lambda: stand.server.stop())
        running.enter_context(stand.opened)
        yield stand


@contextmanager
def temporary_home() -> Generator[Path]:
    """A folder for one run, removed at the end."""
    with tempfile.TemporaryDirectory(prefix="duckicelake-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder) / "home"


def start_server(home: Path, port: int, settings: Mapping[str, str] | None = None) -> Server:
    """Return a server on the home that is ready for work; it starts Postgres and S3 when nobody runs them there."""
    kept = dict(settings or {}) | {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")}
    log_path = open_home(home).make_folder("log") / "serve.log"
    began = time.perf_counter()
    with log_path.open("ab") as log:
        argv = [sys.executable, "-m", "duckicelake.cli", "serve", "--home", str(home), "--port", str(port)]
        process = subprocess.Popen(argv, env=kept | {"PYTHONPATH": str(ROOT)}, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    server = Server(process, port)
    while not is_ready(server):
        if process.poll() is not None or time.perf_counter() - began > READY_SECONDS:
            process.kill()
            raise RuntimeError(f"The server did not start:\n{log_path.read_text()}")
        time.sleep(ASK_SECONDS)
    server.start_seconds = time.perf_counter() - began
    return server


def is_ready(server: Server) -> bool:
    """Tell whether the server answers and reaches Postgres and S3."""
    try:
        return server.fetch("/readyz")[0] == 200
    except (OSError, HTTPException):
        return False


def read_pid(home: Path, name: str) -> int:
    """Return the process id of the home's `postgres` or `s3`, which must run."""
    found = read_json(home / "run" / f"{name}.json")
    assert found is not None, f"no {name} runs on {home}"
    return found["running"]["pid"]


def find_port() -> int:
    """Return a port that is free now, away from those that outgoing connections use."""
    return next(port for port in range(LOWEST_PORT - 5000 + os.getpid() % 4000, LOWEST_PORT) if is_free(port))


def read_snapshot_count(body: bytes) -> int:
    """Return how many snapshots a table load answers with."""
    return len(json.loads(body)["metadata"]["snapshots"])
