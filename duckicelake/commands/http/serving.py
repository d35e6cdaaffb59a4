"""The HTTP server: uvicorn in this process, or in several workers that end with it."""

import gc
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from duckicelake.app import build_app, open_worker_metrics
from duckicelake.backends.home import Home
from duckicelake.backends.processes import find_running
from duckicelake.commands.http.connections import Connection, end_stalled
from duckicelake.commands.logs import configure_logging
from duckicelake.config import Settings

SHUTDOWN_SECONDS = 10
KEEP_ALIVE_SECONDS = 75
WORKER_ANSWER_SECONDS = 60
"""A worker that does not answer its parent for so long is ended. Importing, before it answers, takes seconds on a busy machine."""
ASK_SECONDS = 0.05
METRICS = "metrics"
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
COLLECT_AFTER = (50_000, 20, 50)
"""How many objects, and rounds of the younger generation, until Python looks for cycles."""


@dataclass(frozen=True, slots=True)
class AppFactory:
    """Builds the app inside the process that serves it; travels to workers by pickle, so that no secret is in their arguments."""

    settings: Settings
    parent_pid: int
    metrics_folder: Path

    def __call__(self) -> Any:
        """Return the ASGI app; in a worker, also see to it that the worker ends with its parent."""
        metrics = None
        if os.getpid() != self.parent_pid:
            metrics = open_worker_metrics(self.metrics_folder, self.parent_pid)
            configure_logging(self.settings.log_format, self.settings.log_level)
            threading.Thread(target=_end_with_parent, args=(self.parent_pid,), daemon=True).start()
        app = build_app(self.settings, metrics)
        calm_collector()
        return app


def serve_http(settings: Settings, home: Home, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the server answers.

    Raises: SystemExit: the app could not start
    """
    metrics_folder = home.path / METRICS / str(os.getpid())
    config = uvicorn.Config(
        AppFactory(settings, os.getpid(), metrics_folder),
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        loop="uvloop",
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_worker_healthcheck=WORKER_ANSWER_SECONDS,
    )
    listening = config.bind_socket()
    end_stalled(listening)
    host, port = listening.getsockname()[:2]
    url_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    threading.Thread(target=_announce_when_alive, args=(url_host, port, announce), daemon=True).start()
    if settings.workers > 1:
        with sharing_metrics(home, metrics_folder):
            Multiprocess(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def sharing_metrics(home: Home, folder: Path) -> Generator[None]:
    """Let workers that start within the block write their metrics to a new folder; remove it, and those of servers that were killed."""
    metrics_folders = home.make_folder(METRICS)
    for left in metrics_folders.iterdir():
        if find_running(int(left.name)) is None or left == folder:
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(mode=0o700)
    # prometheus_client decides by the environment, as it is imported
    os.environ[MULTIPROCESS_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[MULTIPROCESS_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def calm_collector() -> None:
    """Let Python look for cycles rarely: large tables are many small objects without any, and each look passes them all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _announce_when_alive(host: str, port: int, announce: Callable[[], None]) -> None:
    while not _is_alive(host, port):
        time.sleep(ASK_SECONDS)
    announce()


def _is_alive(host: str, port: int) -> bool:
    connection = HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end_with_parent(parent_pid: int) -> None:
    try:
        parent = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGTERM)
        return
    select.select([parent], [], [])
    os.kill(os.getpid(), signal.SIGTERM)
