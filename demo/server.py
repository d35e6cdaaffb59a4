"""A catalog to read from: one that runs already, or one with a lake of its own for as long as the demo takes."""

import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

from duckicelake.commands.embedded import join_home
from duckicelake.commands.facts import Facts, get_facts
from duckicelake.config import read_settings
from duckicelake.embedded.home import Home, is_free, open_home, read_json

START_SECONDS, STOP_SECONDS = 120.0, 60.0
PORTS = range(18181, 18281)
TRIES = 5
PORT_TAKEN = re.compile(r"Address already in use|Port \d+ for the catalog is in use")


class ServerFailed(Exception):
    """The catalog does not answer, or the demo's own server did not start."""


def find_server(home: Path | None, uri: str | None) -> tuple[Facts, Home]:
    """Return how to reach the lake of the settings and of a home; `uri` says where its catalog listens, if not there.

    Raises: ServerFailed: nobody listens there
    """
    settings = read_settings({"home": home})
    opened = open_home(settings.home)
    facts = get_facts(join_home(settings, opened), opened, None)
    if uri is not None:
        facts = replace(facts, catalog_uri=uri.rstrip("/"))
    if not _is_ready(facts.catalog_uri):
        raise ServerFailed(f"No catalog answers at {facts.catalog_uri}. Start one with scripts/serve, or leave --home and --uri out.")
    return facts, opened


@contextmanager
def start_server() -> Generator[tuple[Facts, Home]]:
    """A server on a new lake in a temporary home; both are gone at the end of the block.

    Raises: ServerFailed: it did not start, with what it said
    """
    with tempfile.TemporaryDirectory(prefix="duckicelake-demo-") as folder:
        home, log_path = Path(folder) / "home", Path(folder) / "server.log"
        server = _launch(home, log_path)
        try:
            yield find_server(home, None)
        finally:
            _stop(server)


def _launch(home: Path, log_path: Path) -> subprocess.Popen[bytes]:
    """Start the server and wait until it is ready; on another port if a program took the first one meanwhile. Raises: ServerFailed."""
    for tries_left in reversed(range(TRIES)):
        port = secrets.choice([port for port in PORTS if is_free(port)])
        with log_path.open("wb") as log:
            command = [sys.executable, "-m", "duckicelake.cli", "serve", "--home", str(home), "--port", str(port)]
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_ready(server, Home(home), log_path)
        except BaseException as error:
            _stop(server)
            if not tries_left or not isinstance(error, ServerFailed) or not PORT_TAKEN.search(str(error)):
                raise
        else:
            return server
    raise AssertionError


def _wait_ready(server: subprocess.Popen[bytes], home: Home, log_path: Path) -> None:
    """Wait for what the server itself says: somebody else may answer at its port."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        said = read_json(home.server_path)
        if said is not None and _is_ready(said["catalog_uri"]):
            return
        time.sleep(0.1)
    raise ServerFailed(f"The demo's server did not start:\n{log_path.read_text()}")


def _is_ready(uri: str) -> bool:
    try:
        with urllib.request.urlopen(f"{uri}/readyz", timeout=5):
            return True
    except (OSError, ValueError, HTTPException):
        return False


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
