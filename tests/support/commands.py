"""The command line as users run it: a process of its own."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from duckicelake.embedded.home import LOWEST_PORT, is_free, read_json
from duckicelake.embedded.processes import find_process
from tests.support.copies import open_copies
from tests.support.shared_stack import ROOT
from tests.support.waiting import wait_for

RUN_SECONDS_MAX = 180
COMMAND = (sys.executable, "-m", "duckicelake.cli")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these settings and no others."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("DUCKICELAKE_")}
    return kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1"} | dict(settings)


def run(folder: Path, *arguments: str, settings: Mapping[str, str] | None = None, text: str = "") -> Done:
    """Run a command to its end in the folder, with text on its standard input."""
    with ExitStack() as files:
        given, out, err = (files.enter_context(TemporaryFile()) for _ in range(3))
        given.write(text.encode())
        given.seek(0)
        streams = given.fileno(), out.fileno(), err.fileno()
        status = open_copies(environment({})).run(folder, arguments, environment(settings or {}), streams, RUN_SECONDS_MAX)
        return Done(status, *(_read_text(file) for file in (out, err)))


class Server:
    """A running `duckicelake serve`."""

    def __init__(self, home: Path, port: int, *arguments: str) -> None:
        self.home, self.port = home, port
        self.log_path = home.parent / f"serve-{port}.log"
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", "--home", str(home), "--port", str(port), *arguments],
                cwd=home.parent,
                env=environment({}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        """Return everything it has printed."""
        return self.log_path.read_text()

    def fetch(self, path: str) -> tuple[int, Any]:
        """Return status and JSON of an answer; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as response:
                return response.status, _read(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error.read())
        except OSError:
            return 0, None

    def wait_ready(self) -> None:
        """Return when it is ready for work; fail with its log when it ends instead."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return self.fetch("/readyz")[0] == 200

        wait_for(is_ready, "the server", 120)

    def wait_announced(self) -> str:
        """Return what it says once it is ready."""
        wait_for(lambda: "Stop with Ctrl-C" in self.log(), "the welcome", 120)
        return self.log()

    def find_pid(self, name: str) -> int | None:
        """Return the process id of its `postgres` or `s3` while it runs."""
        found = read_json(self.home / "run" / f"{name}.json")
        return None if found is None else found["running"]["pid"]

    def get_pids(self) -> list[int]:
        """Return the process ids of its Postgres and S3, which must run."""
        pids = [pid for name in ("postgres", "s3") if (pid := self.find_pid(name)) is not None]
        assert len(pids) == 2
        return pids

    def stop(self) -> int:
        """End it as an operator does and return its status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(home: Path, port: int, *arguments: str) -> Generator[Server]:
    """A server that is ready; ended at the end, the hard way if it must be."""
    server = Server(home, port, *arguments)
    try:
        server.wait_ready()
        yield server
    finally:
        try:
            server.stop()
        finally:
            server.process.kill()


def find_port() -> int:
    """Return a port that is free now, away from those that outgoing connections use."""
    return find_ports(1)[0]


def find_ports(count: int) -> list[int]:
    """Return several ports that are free now, away from those that outgoing connections use."""
    return list(islice(filter(is_free, range(LOWEST_PORT - 5000 + os.getpid() % 4000, LOWEST_PORT)), count))


def is_running(pid: int) -> bool:
    """Say whether a process with that id exists."""
    return find_process(pid) is not None


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode("utf-8", "replace")


def _read_text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
