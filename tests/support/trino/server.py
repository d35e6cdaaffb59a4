"""One Trino server for the whole test run; each test adds the catalog it reads."""

import itertools
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from trino.dbapi import Connection, connect
from trino.exceptions import TrinoQueryError

from tests.support.commands import find_port
from tests.support.trino.arrow import to_arrow
from tests.support.trino.jars import MAIN_CLASS, VERSION, TrinoJars, fetch_trino
from tests.support.trino.java import VECTOR_MODULE, find_java
from tests.support.waiting import wait_for

REASON = re.compile(r"ERROR|Caused by|^\d+\) ")
START_SECONDS = 180.0
STOP_SECONDS = 30.0

# The compiler's first tier alone: a server of a minute never earns back what the second one costs.
JAVA_OPTIONS = (
    *("-Xmx1G", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError", "-XX:-OmitStackTraceInFastThrow"),
    *(f"--add-modules={VECTOR_MODULE}", "--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"),
    *("-Dfile.encoding=UTF-8", "-Duser.timezone=UTC"),
)


class TrinoRefused(AssertionError):
    """Trino did not answer a query; the message has its name for the reason. `causes` are in its answer, and not in what it shows first."""

    def __init__(self, message: str, causes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.causes = tuple(causes)


@dataclass(frozen=True, slots=True)
class Trino:
    """The running server, and names for catalogs that no other test uses."""

    conn: Connection
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self, properties: Mapping[str, str]) -> str:
        """Make an Iceberg catalog known; returns the name to use in SQL."""
        name = f"lake{next(self._numbers)}"
        listed = ", ".join(f"\"{key}\" = '{text}'" for key, text in properties.items())
        self.arrow(f"CREATE CATALOG {name} USING iceberg WITH ({listed})")
        return name

    def arrow(self, sql: str) -> pa.Table:
        """The rows of a query.

        Raises: TrinoRefused: Trino cannot answer
        """
        with closing(self.conn.cursor()) as cursor:
            try:
                rows = cursor.execute(sql).fetchall()
            except TrinoQueryError as error:
                raise TrinoRefused(f"{error.error_name}: {error.message}", list_causes(error)) from None
            return to_arrow([(column[0], column[1]) for column in cursor.description or []], rows)


def list_causes(error: TrinoQueryError) -> list[str]:
    """What Trino says of a failure and of what that came from."""
    found, failure = list[str](), error.failure_info
    while failure:
        found.append(str(failure.get("message")))
        failure = failure.get("cause")
    return found


def cache_folder() -> Path:
    """Where jars are kept between runs, beside those of Spark."""
    return Path.home() / ".cache" / "duckicelake"


@contextmanager
def start_trino(scratch: Path) -> Generator[Trino]:
    """The server, until the end of the block."""
    java, jars, port = find_java(os.environ, cache_folder()), fetch_trino(cache_folder()), find_port()
    log_path = scratch / "server.log"
    with log_path.open("wb") as log:
        command = [*_until_we_end(), str(java), *JAVA_OPTIONS, *_write_settings(scratch, jars, port), MAIN_CLASS, VERSION]
        process = subprocess.Popen(command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        wait_for(lambda: _is_ready(process, port, log_path), "Trino", START_SECONDS)
        with closing(connect(host="127.0.0.1", port=port, user="tests", timezone="UTC", legacy_primitive_types=False)) as conn:
            yield Trino(conn)
    finally:
        _stop(process)


def _until_we_end() -> list[str]:
    # Linux then ends the server with this process, however that ends.
    return ["setpriv", "--pdeathsig", "KILL"]


def _write_settings(scratch: Path, jars: TrinoJars, port: int) -> list[str]:
    settings = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "http-server.log.enabled": "false",
        "discovery.uri": f"http://127.0.0.1:{port}",
        "catalog.management": "dynamic",
        "catalog.store": "memory",
        "plugin.dir": str(jars.plugins),
        "web-ui.enabled": "false",
    }
    (scratch / "config.properties").write_text("".join(f"{key}={text}\n" for key, text in settings.items()))
    (scratch / "log.properties").write_text("io.trino=WARN\nio.airlift=WARN\n")
    node = {
        "node.environment": "tests",
        "node.id": "tests",
        "node.data-dir": str(scratch / "state"),
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "config": str(scratch / "config.properties"),
        "log.levels-file": str(scratch / "log.properties"),
    }
    return [*(f"-D{key}={text}" for key, text in node.items()), "-cp", f"{jars.server}:{jars.server}/*"]


def _is_ready(process: "subprocess.Popen[bytes]", port: int, log_path: Path) -> bool:
    assert process.poll() is None, _find_errors(log_path)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/info", timeout=5) as response:
            return json.load(response)["starting"] is False
    except (OSError, urllib.error.HTTPError, ValueError):
        return False


def _find_errors(log_path: Path) -> str:
    lines = log_path.read_text(errors="replace").splitlines()
    return "\n".join(line for line in lines if REASON.search(line))[:4000] or "\n".join(lines[-10:])


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
