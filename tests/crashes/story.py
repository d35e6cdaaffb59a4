"""A request that is broken off at one of its effects, and what everybody sees then."""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from time import monotonic
from uuid import uuid4

import duckdb
import psycopg
from pyiceberg.exceptions import NoSuchTableError

from tests.crashes.asked import Asked, Rows
from tests.rest.serving import Answer, Server
from tests.support.lakes import FreshLake
from tests.support.readers import PyIcebergReader, Served

NOWHERE = -1
REACH_SECONDS = 300.0
LOOK_SECONDS = 0.2
BEYOND = "nothing more"
"""What a request comes to that has fewer effects."""

DONE = (200, 204)
IN_THE_WAY = (404, 409)
UNKNOWN = 500


def send(server: Server, asked: Asked, headers: Mapping[str, str]) -> Answer:
    """Send the request."""
    body = None if asked.body is None else json.dumps(asked.body).encode()
    return server.ask(asked.method, asked.path, {"content-type": "application/json", **headers}, body)


def list_effects(server: Server, asked: Asked, key: str | None = None) -> list[str]:
    """Let the request be done, and return its effects in order."""
    answer = send(server, asked, {"x-stop-at": f"{NOWHERE} 0"} | ({} if key is None else {"idempotency-key": key}))
    assert answer.status in DONE, answer.body
    return json.loads(answer.headers["x-effects"])


def break_off(server: Server, asked: Asked, effect: int, fault: Callable[[], None], key: str | None = None) -> tuple[str, Answer | None]:
    """Send the request, do the fault when it comes to that effect, let it go on if it can, and return the effect and the answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(LOOK_SECONDS)
        headers = {"x-stop-at": f"{effect} {listener.getsockname()[1]}"} | ({} if key is None else {"idempotency-key": key})
        answer = pool.submit(_try_to_send, server, asked, headers)
        wire = _accept(listener, answer)
        if wire is None:
            return BEYOND, answer.result()
        with wire:
            name = wire.makefile().read()
            fault()
            with suppress(OSError):
                wire.sendall(b"!")
        return name, answer.result()


def _accept(listener: socket.socket, answer: Future[Answer | None]) -> socket.socket | None:
    """Return the connection of a request that has come to its effect, None when it was answered without."""
    until = monotonic() + REACH_SECONDS
    while monotonic() < until:
        is_answered = answer.done()
        try:
            return listener.accept()[0]
        except TimeoutError:
            if is_answered:
                return None
    raise AssertionError(f"the request came neither to the effect nor to an answer within {REACH_SECONDS} s")


def _try_to_send(server: Server, asked: Asked, headers: Mapping[str, str]) -> Answer | None:
    try:
        return send(server, asked, headers)
    except (OSError, HTTPException):
        return None


@dataclass(frozen=True, slots=True)
class Onlooker:
    """Looks at tables with DuckDB and with PyIceberg, which must agree."""

    lake: FreshLake
    duck: duckdb.DuckDBPyConnection
    rows: psycopg.Connection
    catalogs: dict[Server, PyIcebergReader] = field(default_factory=dict[Server, PyIcebergReader])

    def see(self, server: Server, names: Iterable[str]) -> dict[str, Rows]:
        """Return the rows of each table, None where there is none."""
        if server not in self.catalogs:
            self.catalogs[server] = Served(self.lake, server).pyiceberg()
        catalog = self.catalogs[server]
        seen: dict[str, Rows] = {}
        for name in names:
            try:
                rows = self.duck.execute(f"FROM {name}").fetchall()
            except duckdb.CatalogException:
                rows = None
            try:
                table = catalog.read(("main", name))
            except NoSuchTableError:
                assert rows is None, f"{name} is there for DuckDB alone"
            else:
                assert rows is not None, f"{name} is there for Iceberg alone"
                assert Counter(zip(*(column.to_pylist() for column in table.columns), strict=True)) == Counter(rows), name
            seen[name] = rows
        return seen

    def see_all(self, server: Server, asked: Asked) -> dict[str, Rows]:
        """Return everything that a request is about."""
        facts = {name: find(server, self.duck) for name, find in asked.facts.items()}
        return self.see(server, [name for name in asked.before if name not in facts]) | facts

    def has_landed(self, server: Server, asked: Asked, snapshots: int, told: str) -> bool:
        """Tell whether a request is done; everything is as before it or as after it, and so many lake snapshots were there before."""
        seen = self.see_all(server, asked)
        landed = is_same(seen, asked.after)
        assert landed or is_same(seen, asked.before), f"{told}: {seen}"
        assert self.count_snapshots() == snapshots + (asked.lake_snapshots if landed else 0), told
        return landed

    def count_snapshots(self) -> int:
        """Return how many lake snapshots there are."""
        row = self.rows.execute("SELECT count(*) FROM ducklake_snapshot").fetchone()
        assert row is not None
        return row[0]


def open_onlooker(lake: FreshLake, duck: duckdb.DuckDBPyConnection) -> Onlooker:
    """Return somebody who looks at a lake for a whole test."""
    return Onlooker(lake, duck, lake.psycopg())


def is_ready(server: Server) -> bool:
    """Tell whether the server reaches Postgres and the store, and watches the lake; the table `probe` must be there."""
    return server.get("/readyz").status == server.get("namespaces/main/tables/probe").status == 200


def is_same(seen: Mapping[str, Rows], expected: Mapping[str, Rows]) -> bool:
    """Tell whether all tables have exactly the rows expected."""
    return {name: rows if rows is None else Counter(rows) for name, rows in seen.items()} == {
        name: rows if rows is None else Counter(rows) for name, rows in expected.items()
    }


def make_key() -> str:
    """A key as clients choose them."""
    return str(uuid4())


def check_retry(look: Onlooker, server: Server, asked: Asked, landed: bool, key: str | None) -> None:
    """Send the request again, and again: it is done then, once, and whoever has no key may find its own work in the way."""
    headers = {} if key is None else {"idempotency-key": key}
    before = look.count_snapshots()
    for number in range(2):
        answer = send(server, asked, headers)
        is_copy = landed or number > 0
        allowed = DONE if key is not None or asked.is_known or not is_copy else (*DONE, *IN_THE_WAY)
        assert answer.status in allowed, (answer.status, answer.body)
        assert is_same(look.see_all(server, asked), asked.after)
        assert look.count_snapshots() == before + (0 if landed else asked.lake_snapshots)
