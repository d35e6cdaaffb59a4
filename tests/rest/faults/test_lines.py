"""Lines to Postgres on which nothing comes any more, and hosts that are silent."""

import asyncio
import os
import socket
import time

import psutil
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import duckicelake.lake.watch
from duckicelake.errors import ServiceUnavailable
from duckicelake.lake.connect import CONNECT_OPTIONS, close_lake, open_lake, reading, writing_on_new_connection
from duckicelake.lake.rows import Position
from duckicelake.lake.watch import Watch
from tests.lake.wire import Wire, wire_to
from tests.support.lakes import FreshLake

QUIET_S, SILENT_MS = 10, 10_000


def list_lines(wire: Wire) -> list[tuple[int, int]]:
    """After how many quiet seconds each of this process's connections to the wire is probed, and after how many silent ms it ends."""
    found: list[tuple[int, int]] = []
    for line in psutil.Process().net_connections("tcp4"):
        if line.raddr and line.raddr.port == wire.port:
            with socket.socket(fileno=os.dup(line.fd)) as mine:
                quiet = mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                found.append((quiet, mine.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)))
    return found


def test_every_line_is_probed_while_nobody_asks(lake: FreshLake) -> None:
    """A firewall that forgets idle connections has none to forget, and one that drops what it should pass is noticed."""

    async def story() -> list[tuple[int, int]]:
        watch = Watch(dsn, lake.metadata_schema)
        await watch.position()
        try:
            with reading(opened), writing_on_new_connection(opened):
                return list_lines(wire)
        finally:
            await watch.close()

    with wire_to(lake.dsn) as (wire, dsn):
        opened = open_lake("mine", dsn, lake.metadata_schema, 1)
        try:
            lines = asyncio.run(story())
        finally:
            close_lake(opened)
    assert len(lines) == 3
    assert all(0 < quiet_s <= QUIET_S and 0 < silent_ms <= SILENT_MS for quiet_s, silent_ms in lines)


def test_a_silent_host_hides_none_behind_it(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two hosts the first is silent for longer than a check may take: the second is reached nevertheless."""
    monkeypatch.setattr(duckicelake.lake.watch, "CHECK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(duckicelake.lake.watch, "CONNECT_OPTIONS", {**CONNECT_OPTIONS, "connect_timeout": 2})

    async def ask_until_answered(dsn: str) -> Position:
        watch, ends = Watch(dsn, lake.metadata_schema), time.monotonic() + 20
        try:
            while True:
                try:
                    return await watch.position()
                except ServiceUnavailable:
                    assert time.monotonic() < ends
        finally:
            await watch.close()

    with wire_to(lake.dsn) as (wire, _):
        wire.freeze()
        port = conninfo_to_dict(lake.dsn)["port"]
        dsn = make_conninfo(lake.dsn, host="127.0.0.1,127.0.0.1", port=f"{wire.port},{port}")
        assert asyncio.run(ask_until_answered(dsn)).lake_snapshot_id == 0
