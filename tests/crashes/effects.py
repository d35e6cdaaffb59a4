"""Every effect of a request, named: objects put and removed, statements that change something, COMMIT, the answer.

Only the processes of these tests look through it: the server knows nothing of it.
"""

import json
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.lake.connect import LakeConnection
from duckicelake.store.objects import Objects

STOP_HEADER = b"x-stop-at"
EFFECTS_HEADER = b"x-effects"
CHANGES = re.compile(r"\s*(?:--[^\n]*\s*)*(BEGIN|LOCK|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|WITH)\b\s*(.{0,60})", re.DOTALL)
READ_ONLY = "READ ONLY"
OBJECT_NAME = re.compile(r"(?:snap|v)?[-0-9a-f]*[0-9][-0-9a-f]{7,}|^v\d+|\d+")


@dataclass(slots=True)
class Stage:
    """Counts the effects of the request that is watched, and stops before one of them: whoever listens says when to go on."""

    names: list[str] = field(default_factory=list[str])
    stop_at: int | None = None
    port: int = 0
    watching: bool = False
    lock: Lock = field(default_factory=Lock)

    def watch(self, stop_at: int | None, port: int) -> None:
        """Begin again, with the next request."""
        self.names, self.stop_at, self.port, self.watching = [], stop_at, port, True

    def effect(self, name: str) -> None:
        """Take note of an effect that is about to be."""
        if not self.watching:
            return
        with self.lock:
            self.names.append(name)
            stops = len(self.names) - 1 == self.stop_at
        if stops:
            self._stop(name)

    def _stop(self, name: str) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as wire:
            wire.sendall(name.encode())
            wire.shutdown(socket.SHUT_WR)
            wire.recv(1)


def name_statement(query: Any) -> str | None:
    """Return a statement's name, None when it only reads."""
    text = query.as_string(None) if isinstance(query, Composable) else query.decode() if isinstance(query, bytes) else str(query)
    found = CHANGES.match(text)
    if found is None or (found[1] == "WITH" and not re.search(r"\b(INSERT|UPDATE|DELETE)\b", text)):
        return None
    return " ".join(f"{found[1]} {found[2]}".split())


def build_connection(stage: Stage) -> type[LakeConnection]:
    """Return a connection that tells its statements."""

    class TellingCursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> "TellingCursor":
            name = name_statement(query)
            reads = name is not None and name.startswith("BEGIN") and READ_ONLY in name
            if isinstance(self.connection, TellingConnection) and (reads or str(name).startswith("BEGIN")):
                self.connection.reads = reads
            if name is not None and not name.startswith("BEGIN"):
                stage.effect(name)
            commits = isinstance(query, bytes) and query.endswith(b"COMMIT")
            if commits:
                stage.effect("before COMMIT")
            super().execute(query, params, **options)
            if commits:
                stage.effect("after COMMIT")
            return self

        def executemany(self, query: Any, params_seq: Any, *, returning: bool = False) -> None:
            stage.effect(f"{name_statement(query)} (many)")
            super().executemany(query, params_seq, returning=returning)

    class TellingConnection(LakeConnection):
        reads = True

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.cursor_factory = TellingCursor

        def commit(self) -> None:
            if self.reads or self.info.transaction_status == TransactionStatus.IDLE:
                super().commit()
                return
            stage.effect("before COMMIT")
            super().commit()
            stage.effect("after COMMIT")

    return TellingConnection


def build_objects(stage: Stage) -> type[Objects]:
    """Return objects that tell what is written and removed."""

    class TellingObjects(Objects):
        def put_new(self, uri: str, content: bytes) -> bool:
            with _told(stage, "put", uri):
                return super().put_new(uri, content)

        def replace(self, uri: str, content: bytes, etag: str | None) -> str | None:
            with _told(stage, "replace", uri):
                return super().replace(uri, content, etag)

        def delete(self, uri: str) -> None:
            with _told(stage, "delete", uri):
                super().delete(uri)

    return TellingObjects


def _told(stage: Stage, verb: str, uri: str) -> AbstractContextManager[None]:
    stage.effect(f"{verb} {OBJECT_NAME.sub('*', uri.rpartition('/')[2])}")
    return nullcontext()


def watch_requests(app: ASGIApp, stage: Stage) -> ASGIApp:
    """Return an app whose requests with the header `x-stop-at: NUMBER PORT` are watched; `-1` stops nowhere and lists all."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        headers: Mapping[bytes, bytes] = dict(scope.get("headers", ()))
        if STOP_HEADER not in headers:
            await app(scope, receive, send)
            return
        number, port = headers[STOP_HEADER].split()
        stage.watch(int(number), int(port))
        await app(scope, receive, _telling(send, stage))
        stage.watching = False

    return watched


def _telling(send: Send, stage: Stage) -> Callable[[Message], Awaitable[None]]:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            stage.effect("answer")
            told = (EFFECTS_HEADER, json.dumps(stage.names).encode())
            message["headers"] = [*message["headers"], told]
        await send(message)

    return tell
