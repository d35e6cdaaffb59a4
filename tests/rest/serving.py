"""The real application on a loopback port, and a client that sends exactly the bytes it is told to."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from threading import Event, Thread
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from duckicelake.app import build_app
from duckicelake.commands.serve import KEEP_ALIVE_SECONDS, Connection
from duckicelake.config import Settings
from tests.support.lakes import FreshLake

WAREHOUSE = "lake"
BASE = f"/v1/{WAREHOUSE}"
STOP_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        """Status and Iceberg type of a refusal, which must have Iceberg's shape and no trace in it."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "code"}
        assert error["code"] == self.status
        assert error["message"]
        assert "Traceback" not in error["message"]
        return self.status, error["type"]


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, asked over new connections."""

    port: int

    @property
    def uri(self) -> str:
        """Where Iceberg clients find the catalog."""
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> Answer:
        """Send the path as it is, percent signs and all; paths that do not start with `/` are taken below the warehouse."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path if path.startswith("/") else f"{BASE}/{path}", body, dict(headers or {}))
            response = connection.getresponse()
            answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
            assert "www-authenticate" in answer.headers or answer.status != 401, "RFC 9110 wants a challenge with each 401"
            return answer
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a GET."""
        return self.ask("GET", path, headers)

    def count(self, metric: str, **labels: str) -> float:
        """Return one number of /metrics, 0 when it was never counted."""
        wanted = {f'{name}="{value}"' for name, value in labels.items()}
        for line in self.get("/metrics").body.decode().splitlines():
            series, _, number = line.rpartition(" ")
            name, _, rest = series.partition("{")
            if name == metric and wanted <= set(rest.removesuffix("}").split(",")):
                return float(number)
        return 0.0


def make_settings(lake: FreshLake, **changed: Any) -> Settings:
    """The settings that serve one fresh lake as `lake`."""
    store = lake.store
    named: dict[str, Any] = {
        "warehouse": WAREHOUSE,
        "postgres_dsn": lake.dsn,
        "metadata_schema": lake.metadata_schema,
        "s3_endpoint": store.endpoint,
        "s3_region": store.region,
        "s3_access_key_id": store.access_key_id,
        "s3_secret_access_key": store.secret_access_key,
    }
    return Settings(**named | changed)


def serve(settings: Settings) -> AbstractContextManager[Server]:
    """The application of these settings, served until the end of the block."""
    return serve_app(build_app(settings))


@contextmanager
def serve_app(app: ASGIApp) -> Generator[Server]:
    """An application, served by the real uvicorn until the end of the block."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_config=None,
        access_log=False,
        http=Connection,
        ws="none",
        # uvicorn's five seconds end while a client on a busy machine sends its next request, which is then reset.
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
    )
    running = _QuickServer(config)
    thread = Thread(target=running.run, name="server")
    thread.start()
    try:
        yield Server(_find_port(running, thread))
    finally:
        running.stop()
        thread.join(STOP_SECONDS)
        assert not thread.is_alive()


class _QuickServer(uvicorn.Server):
    """uvicorn's server, which stops when it is told to. uvicorn looks every 0.1 s, and then waits 0.1 s for its connections.

    Thousands of tests start one, and each would take 0.15 s longer.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told = asyncio.Event()

    def stop(self) -> None:
        """End the server. Called on another thread than the server's."""
        self.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told.set)

    async def main_loop(self) -> None:
        """Return when the server shall end."""
        await self.on_tick(0)
        self._loop = asyncio.get_running_loop()
        self.listens.set()
        if not self.should_exit:
            await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer the requests that have begun, and end the application."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(0.002)
        for server in self.servers:
            await server.wait_closed()
        await self.lifespan.shutdown()


def _find_port(running: _QuickServer, thread: Thread) -> int:
    """Wait until the server listens, and return where."""
    while not running.listens.wait(0.1):
        assert thread.is_alive(), "the server did not start"
    return running.servers[0].sockets[0].getsockname()[1]


@asynccontextmanager
async def open_nothing(_: FastAPI) -> AsyncGenerator[None]:
    """The life of a server that opens no lake."""
    yield
