"""A standalone cluster of Spark on loopback: a master and two workers, each a process with a home, a time zone and a cache of its own."""

import os
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pyspark

from duckicelake.embedded.home import LOWEST_PORT, is_free
from duckicelake.pipeline.common.java import get_java_home
from tests.support.java import calm_java, jar_cache
from tests.support.shared_stack import ROOT
from tests.support.waiting import wait_for

WORKERS = 2
CALM_JAVA = f"{calm_java()} -XX:+UseSerialGC"
TIME_ZONE = "America/New_York"
"""What a job must not depend on."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the master listens, and what the workers have written."""

    master: str
    folder: Path

    def list_executors(self) -> list[Path]:
        """Return the folders of all executors that the workers have started."""
        return sorted(self.folder.glob("worker-*/app-*/*"))


@contextmanager
def start_cluster(folder: Path) -> Generator[Cluster]:
    """A master with its workers, all alive; ended with the block."""
    with ExitStack() as running:
        port, page = _find_ports(2)
        _start(running, folder / "master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        master = f"spark://127.0.0.1:{port}"
        wait_for(lambda: _count_workers(page) == 0, "the master", 120)
        for number in range(WORKERS):
            place = folder / f"worker-{number}"
            options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(place)]
            _start(running, place, "worker.Worker", *options, master)
        wait_for(lambda: _count_workers(page) == WORKERS, "the workers", 120)
        yield Cluster(master, folder)


def _find_ports(count: int) -> list[int]:
    first = LOWEST_PORT - 9000 + os.getpid() % 3000
    return [port for port in range(first, LOWEST_PORT) if is_free(port)][:count]


def _start(running: ExitStack, folder: Path, name: str, *arguments: str) -> None:
    folder.mkdir(parents=True)
    home = Path(pyspark.__file__).parent
    environ = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(get_java_home(os.environ, jar_cache())),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{CALM_JAVA} -Dspark.master.rest.enabled=false",
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TZ": TIME_ZONE,
        # Without it Java finds no file whose name has other letters than ASCII's.
        "LANG": "C.UTF-8",
    }
    argv = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    log = running.enter_context((folder / "log").open("wb"))
    process = subprocess.Popen(argv, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    running.callback(end, process)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force when it does not go."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _count_workers(page: int) -> int | None:
    """Return how many workers the master's page says are alive, None while there is no page."""
    connection = HTTPConnection("127.0.0.1", page, timeout=10)
    try:
        connection.request("GET", "/json/")
        return connection.getresponse().read().count(b'"state" : "ALIVE"')
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()
