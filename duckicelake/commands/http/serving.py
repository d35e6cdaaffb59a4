"""The HTTP server: uvicorn in this process, or in several workers that end with it."""

import gc
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

import uvicorn
from uvicorn.supervisors import Multiprocess

from duckicelake.app import build_app
from duckicelake.commands.http.connections import Connection, end_stalled
from duckicelake.commands.logs import configure_logging
from duckicelake.config import Settings

SHUTDOWN_SECONDS = 10
KEEP_ALIVE_SECONDS = 75
WORKER_ANSWER_SECONDS = 60
"""A worker that does not answer its parent for so long is ended. Importing, before it answers, takes seconds on a busy machine."""
ASK_SECONDS = 0.05
COLLECT_AFTER = (50_000, 20, 50)
"""How many objects, and rounds of the younger generation, until Python looks for cycles."""


@dataclass(frozen=True, slots=True)
class AppFactory:
    """Builds the app inside the process that serves it; travels to workers by pickle, so that no secret is in their arguments."""

    settings: Settings
    parent_pid: int

    def __call__(self) -> Any:
        """Return the ASGI app; in a worker, also see to it that the worker ends with its parent."""
        if os.getpid() != self.parent_pid:
            configure_logging(self.settings.log_format, self.settings.log_level)
            threading.Thread(target=_end_with_parent, args=(self.parent_pid,), daemon=True).start()
        app = build_app(self.settings)
        calm_collector()
        return app


def serve_http(settings: Settings, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the server answers.

    Raises: SystemExit: the app could not start
    """
    config = uvicorn.Config(
        AppFactory(settings, os.getpid()),
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
        Multiprocess(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])


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
