"""A server of Spark Connect on loopback, with a home and a cache of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from duckicelake.embedded.home import LOWEST_PORT, is_free
from duckicelake.pipeline.common.java import fetch_jars, get_java_home, iceberg_jars
from duckicelake.pipeline.common.spark_connect import EXTENSIONS
from tests.pipeline.cluster.standalone import CALM_JAVA, end
from tests.support.java import jar_cache
from tests.support.shared_stack import ROOT
from tests.support.spark import JARS
from tests.support.waiting import wait_for

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": f"{CALM_JAVA} -Duser.timezone=UTC",
    "spark.sql.extensions": EXTENSIONS,
    "spark.ui.enabled": "false",
    "spark.connect.grpc.binding.address": "127.0.0.1",
}
"""What `docs/pipeline/clusters.md` asks for, and what keeps a test small."""


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """Where it listens, its process, and what it has written."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it at once, as a machine does that fails."""
        self.process.kill()
        self.process.wait()


@contextmanager
def start_connect(
    folder: Path, *, conf: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> Generator[ConnectServer]:
    """A server that listens; ended with the block."""
    folder.mkdir(parents=True)
    home, java_home = Path(pyspark.__file__).parent, get_java_home(os.environ, jar_cache())
    jars = fetch_jars((*iceberg_jars(), *JARS), jar_cache() / "jars", [str(java_home / "bin" / "java")], lambda _: None)
    port = next(port for port in range(LOWEST_PORT - 6000 + os.getpid() % 3000, LOWEST_PORT) if is_free(port))
    settings = CONF | {"spark.connect.grpc.binding.port": str(port), "spark.local.dir": str(folder / "local")} | dict(conf or {})
    settings = {"spark.jars": ",".join(map(str, jars))} | settings
    known = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "TZ": "America/New_York",
    }
    pairs = [word for name, text in settings.items() for word in ("--conf", f"{name}={text}")]
    argv = [str(home / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *pairs]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*argv, "spark-internal"], cwd=folder, env=known | dict(environ or {}), stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
        try:
            wait_for(lambda: _listens(process, port), "the server of Spark Connect", 120)
            yield ConnectServer(port, process, log)
        finally:
            end(process)


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "it has ended"
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
