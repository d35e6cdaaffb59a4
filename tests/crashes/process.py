"""The server as a process of its own, which can be killed at any of its effects and started again in a moment."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from threading import Thread

import pytest
import uvicorn

from duckicelake.app import build_app
from duckicelake.commands.serve import KEEP_ALIVE_SECONDS
from duckicelake.config import Settings
from duckicelake.lake import connect
from duckicelake.store import objects
from tests.crashes.effects import Stage, build_connection, build_objects, watch_requests
from tests.rest.serving import Server

START_SECONDS = 300
STOP_SECONDS = 30


def run_server(settings: Settings, told: Connection) -> None:
    """Serve until SIGTERM, or until whoever started this is gone, with every effect told."""
    Thread(target=_end_with, args=(told,), daemon=True).start()
    stage = Stage()
    patch = pytest.MonkeyPatch()
    patch.setattr(connect, "LakeConnection", build_connection(stage))
    patch.setattr(objects, "Objects", build_objects(stage))
    app = watch_requests(build_app(settings), stage)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_keep_alive=KEEP_ALIVE_SECONDS)

    class Telling(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            told.send(listener.getsockname()[1])

    Telling(config).run(sockets=[listener])


def _end_with(told: Connection) -> None:
    with suppress(OSError):
        told.poll(None)
    os.kill(os.getpid(), signal.SIGTERM)


@dataclass(slots=True)
class Running:
    """A server's process, the server in it, and the wire that keeps it alive."""

    process: ForkServerProcess
    server: Server
    wire: Connection

    def kill(self) -> None:
        """End it as the kernel does: at once, wherever it is."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(STOP_SECONDS)
        assert self.process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        """End it in order, if it still runs."""
        if self.process.exitcode is None:
            self.process.terminate()
            self.process.join(STOP_SECONDS)
            assert self.process.exitcode is not None
        self.process.close()
        self.wire.close()


def start(settings: Settings) -> Running:
    """Start a server of these settings, and wait until it listens."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    hears, tells = context.Pipe()
    process = context.Process(target=run_server, args=(settings, tells))
    process.start()
    if not hears.poll(START_SECONDS):
        process.kill()
        raise AssertionError(f"the server did not start within {START_SECONDS} s")
    tells.close()
    return Running(process, Server(hears.recv()), hears)


@contextmanager
def running(settings: Settings) -> Generator[Running]:
    """A server of these settings until the end of the block, if nobody kills it before."""
    started = start(settings)
    try:
        yield started
    finally:
        started.stop()
