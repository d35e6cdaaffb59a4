"""`duckicelake serve`: the embedded stack, the lakes, the HTTP server with its workers, and logging.

The command line calls `serve` on the main thread. The server is uvicorn in this process, or several worker processes that end with it.
`Connection` runs on the event loop of a worker. The home gets the token key, the workers' metrics and, by a thread that waits until the
server responds, its address.

Law of `Connection`: what a client can occupy before its request is complete is limited in bytes, in time and in number.
"""

import gc
import json
import logging
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import sys
import threading
import time
from asyncio import BaseTransport, TimerHandle
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Literal, cast

import uvicorn
from pydantic import SecretStr
from rich.console import Console
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from duckicelake.app import build_app, open_accounts, open_worker_metrics
from duckicelake.commands.embedded import BACKENDS_PURPOSE, is_embedded, join_home, plan_stack
from duckicelake.commands.facts import build_shown_facts, forget_server, format_catalog_uri, read_facts, remember_server
from duckicelake.commands.prepare import prepare_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.commands.snippets import format_welcome
from duckicelake.config import LakeSettings, Settings, read_secret_file
from duckicelake.embedded.home import Home, HomeLock, check_free, find_holder, open_home, write_private
from duckicelake.embedded.processes import find_process
from duckicelake.embedded.stack import Report, start_stack

MAX_HEAD_BYTES = 64 * 1024
HEAD_SECONDS = 20.0
STALLED_MS = 60_000
"""How long a client may leave a response unread."""

MAX_CONNECTIONS = 4096
FILES_FOR_OTHERS = 256
"""Number of open files reserved for Postgres, the stores and the logs."""

TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(HttpToolsProtocol):
    """uvicorn's connection of a client, with limits.

    A head (target and headers, or the trailer of a body) that is too large gets 431. A head that does not arrive in time ends the
    connection. If there are too many connections, the one that has been idle longest is closed.
    """

    _unread_bytes: int = 0
    _since_s: float = 0.0
    _timer: TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """True if no request of this connection is in progress."""
        return self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]  none before the first

    def connection_made(self, transport: BaseTransport) -> None:
        """Start the timer for the first head, and close an idle connection if there are too many."""
        super().connection_made(cast(Any, transport))
        self._since_s = self.loop.time()
        self._expect_head()
        if len(self.connections) > get_max_connections():
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; refuse them if too many belong neither to a complete head nor to a body."""
        self._unread_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unread_bytes > MAX_HEAD_BYTES:
            self._refuse()
        elif self.waits and self._timer is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Start the handling of the request.

        Raises: ValueError: the head is too large; the parser reports it as its own error, and `send_400_response` is called
        """
        if self._unread_bytes > MAX_HEAD_BYTES and self._measure_head() > MAX_HEAD_BYTES:
            raise ValueError("The head of the request is too large.")
        self._unread_bytes = 0
        self._stop_expecting()
        super().on_headers_complete()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. A trailer after the body is dropped, because the application has its headers already."""
        if self.cycle is None or self.cycle.scope is not self.scope:  # pyright: ignore[reportUnnecessaryComparison]
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of a body, whose size `rest.layers.body_limit` checks."""
        self._unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Reset the counter for the next request's head."""
        self._unread_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note the time from which the connection is idle."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed or too large head."""
        if self._unread_bytes > MAX_HEAD_BYTES:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _measure_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _refuse(self) -> None:
        """Close the connection with 431, or without a response if another response is being sent."""
        if self.waits:
            self.transport.write(TOO_LARGE)
            self.transport.close()
        else:
            self.transport.abort()

    def _expect_head(self) -> None:
        self._timer = self.loop.call_later(HEAD_SECONDS, self._end_waiting)

    def _stop_expecting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_waiting(self) -> None:
        self._timer = None
        if self.waits:
            self.transport.close()

    def _make_room(self) -> None:
        waiting: list[Connection] = [each for each in self.connections if isinstance(each, Connection) and each is not self and each.waits]
        if not waiting:
            self.transport.write(TOO_MANY)
            self.transport.close()
            return
        longest = min(waiting, key=lambda each: each._since_s)
        longest.transport.close()
        # `close` takes effect later; remove the connection now, so that the next new connection does not count it.
        self.connections.discard(longest)


def get_max_connections() -> int:
    """Return the limit of connections of a worker, which is below its limit of open files."""
    return max(1, min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_FOR_OTHERS))


def set_stall_timeout(listening: socket.socket) -> None:
    """Make the kernel end accepted connections whose client does not read."""
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)


QUIET_LOGGERS = ("botocore", "boto3", "urllib3", "psycopg.pool", "asyncio")
"""Libraries whose messages below warning are dropped."""

SHOWN_NAMES = {"uvicorn.error": "uvicorn"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message, and the record's fields and traceback if there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is not None:
            line.update(fields)
        audit: dict[str, Any] | None = getattr(record, "audit", None)
        if audit is not None:
            line["audit"] = audit
        if record.exc_info is not None:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PlainNames(logging.Filter):
    """Renames loggers for operators: uvicorn logs everything, errors or not, as `uvicorn.error`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rename the record's logger, and return True."""
        record.name = SHOWN_NAMES.get(record.name, record.name)
        return True


def configure_logging(log_format: Literal["plain", "json"], log_level: str) -> None:
    """Log all records of this process from `log_level` up to stderr in that format."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    handler.addFilter(PlainNames())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(log_level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


SHUTDOWN_SECONDS = 10
KEEP_ALIVE_SECONDS = 75
"""A client that sends on a connection which the server is about to close gets a reset: clients wait less than this between requests."""
WORKER_ANSWER_SECONDS = 60
"""A worker that has responded to its parent before, and then does not for so long, is ended."""
POLL_SECONDS = 0.05
METRICS = "metrics"
MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
GC_THRESHOLDS = (50_000, 20, 50)
"""The thresholds of `gc.set_threshold`: new objects, then collections of the younger generation, before a collection."""


@dataclass(frozen=True, slots=True)
class AppFactory:
    """Builds the application in each worker. Workers get it by pickle, so no secret is in their command line."""

    settings: Settings
    parent_pid: int
    metrics_folder: Path

    def __call__(self) -> Any:
        """Return the ASGI application. In a worker, also start the thread that ends the worker with its parent."""
        metrics = None
        if os.getpid() != self.parent_pid:
            metrics = open_worker_metrics(self.metrics_folder, self.parent_pid)
            configure_logging(self.settings.log_format, self.settings.log_level)
            threading.Thread(target=_end_with_parent, args=(self.parent_pid,), daemon=True).start()
        app = build_app(self.settings, metrics)
        tune_garbage_collector()
        return app


def serve_http(settings: Settings, home: Home, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. `announce` is called once, when the server responds.

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
    set_stall_timeout(listening)
    host, port = listening.getsockname()[:2]
    url_host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    threading.Thread(target=_announce_when_alive, args=(url_host, port, announce), daemon=True).start()
    if settings.workers > 1:
        with sharing_metrics(home, metrics_folder):
            Workers(config, sockets=[listening]).run()
    else:
        uvicorn.Server(config).run(sockets=[listening])


class Workers(Multiprocess):
    """The workers of a server. One that dies is replaced at once, also while its parent waits for its answer to a health check.

    uvicorn's parent process keeps the worker's end of the pipe open, so it would wait `WORKER_ANSWER_SECONDS` for a dead worker. It would
    also end workers that import the server for so long, which on a busy machine all of them do, again and again: a worker has no limit
    for its first answer, and its parent does not wait for that.
    """

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._asked: set[Process] = set()
        self._started: set[Process] = set()

    def keep_subprocess_alive(self) -> None:
        """Replace the workers that have died, or do not respond any more."""
        for process in self.processes:
            process.child_conn.close()
        starting = [process for process in self.processes if self._is_starting(process)]
        self.processes = [process for process in self.processes if process not in starting]
        super().keep_subprocess_alive()
        self.processes += starting
        self._asked.intersection_update(self.processes)
        self._started.intersection_update(self.processes)

    def _is_starting(self, process: Process) -> bool:
        """Return True if a worker lives and has not responded yet."""
        if process in self._started or not process.process.is_alive():
            return False
        try:
            if process not in self._asked:
                process.parent_conn.send(b"ping")
                self._asked.add(process)
            if not process.parent_conn.poll():
                return True
            process.parent_conn.recv()
        except (OSError, EOFError):
            # It has died since.
            return False
        self._started.add(process)
        return False


@contextmanager
def sharing_metrics(home: Home, folder: Path) -> Generator[None]:
    """Create the folder for the workers' metrics and remove it after the block. Folders of killed servers are removed too."""
    metrics_folders = home.make_folder(METRICS)
    for left in metrics_folders.iterdir():
        if find_process(int(left.name)) is None or left == folder:
            shutil.rmtree(left, ignore_errors=True)
    folder.mkdir(mode=0o700)
    # prometheus_client reads this variable at import, in the workers.
    os.environ[MULTIPROCESS_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[MULTIPROCESS_VARIABLE]
        shutil.rmtree(folder, ignore_errors=True)


def tune_garbage_collector() -> None:
    """Make garbage collections rare: a large table is many small objects without cycles, and each collection visits them all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _announce_when_alive(host: str, port: int, announce: Callable[[], None]) -> None:
    while not _is_alive(host, port):
        time.sleep(POLL_SECONDS)
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


PURPOSE = "serve"


def serve(settings: Settings, console: Console) -> None:
    """Serve every lake of the settings until SIGTERM or SIGINT, then stop HTTP, S3 and Postgres in this order.

    Raises: CatalogError: a part cannot start; the parts that were started are stopped again
    """
    configure_logging(settings.log_format, settings.log_level)
    log = logging.getLogger("duckicelake.serve")
    check_free(settings.port, "the catalog", "--port", settings.host)
    with stopping_on_signals(), ExitStack() as running:
        home = open_home(settings.home)
        if is_embedded(settings):
            settings = _start_embedded(settings, home, running, log.info)
        settings = join_token_key(settings, home)
        open_accounts(settings)
        running.callback(forget_server, home)
        lakes = [prepare_lake(lake, home.make_folder("extensions"), log.info) for lake in settings.lakes()]
        serve_http(settings, home, lambda: _announce(settings, home, lakes, console))


def _start_embedded(settings: Settings, home: Home, running: ExitStack, report: Report) -> Settings:
    server = HomeLock(home, "server")
    server.acquire(PURPOSE)
    running.callback(server.release)
    holder = find_holder(home)
    if holder is not None and holder[1] == BACKENDS_PURPOSE:
        report(f"using the Postgres and S3 of `duckicelake backends up` (pid {holder[0]})")
    else:
        stack = start_stack(home.path, plan_stack(settings, PURPOSE), report)
        running.callback(stack.stop)
    return join_home(settings, home)


def join_token_key(settings: Settings, home: Home) -> Settings:
    """Return the settings with a token key that is stored in the home, so that all workers and later starts use the same key."""
    if not settings.require_auth or settings.token_keys is not None or settings.token_key_files:
        return settings
    kept = home.path / "token.key"
    if not kept.exists():
        write_private(kept, secrets.token_hex(32).encode())
    return settings.model_copy(update={"token_keys": SecretStr(read_secret_file(kept).strip())})


def _announce(settings: Settings, home: Home, lakes: list[LakeSettings], console: Console) -> None:
    uri = format_catalog_uri(settings)
    remember_server(home, uri)
    # Without a terminal the output is a log, which must not hold secrets.
    shown = [build_shown_facts(read_facts(lake, uri), settings, show_secrets=console.is_terminal) for lake in lakes]
    console.print(format_welcome(shown), highlight=False, markup=False, soft_wrap=True)
