"""Iceberg's own REST server, as tests run it: a process whose catalog is JDBC's, on SQLite in its memory."""

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rck.jars import fetch_kit
from tests.support.commands import find_port
from tests.support.trino.server import cache_folder
from tests.support.waiting import wait_for

ICEBERG = "1.11.0"
MAIN_CLASS = "org.apache.iceberg.rest.RESTCatalogServer"
JAVA = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
START_SECONDS, STOP_SECONDS = 120.0, 30.0
# A second connection would open a second, empty database.
ALONE = {"clients": "1"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A running server."""

    port: int

    @property
    def uri(self) -> str:
        """Where Iceberg clients find the catalog."""
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serve_reference(log: Path, properties: Mapping[str, str]) -> Generator[Reference]:
    """The server, with these properties of its catalog, until the end of the block."""
    kit, port = fetch_kit(cache_folder(), ICEBERG), find_port()
    named = {"rest.port": str(port), **ALONE, **properties}
    environ = {**os.environ, **{f"CATALOG_{name.replace('-', '__').replace('.', '_').upper()}": text for name, text in named.items()}}
    with (
        log.open("wb") as output,
        subprocess.Popen([*JAVA, "-cp", kit.classpath, MAIN_CLASS], env=environ, stdout=output, stderr=output) as process,
    ):
        try:
            wait_for(lambda: process.poll() is not None or answers(port), "Iceberg's own server", START_SECONDS)
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            yield Reference(port)
        finally:
            process.kill()
            process.wait(STOP_SECONDS)


def answers(port: int) -> bool:
    """Whether a catalog answers there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/config", timeout=10) as answer:
            return answer.status == 200
    except (OSError, urllib.error.URLError):
        return False
