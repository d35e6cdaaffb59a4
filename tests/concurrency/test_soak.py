"""Sixty-four clients write to eight tables through two servers: no error of a server, nothing lost, and no memory that grows."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from tests.crashes.process import Running, running
from tests.rest.serving import make_settings
from tests.rest.writing.client import Client, assert_main, open_client, write_file
from tests.support.lakes import FreshLake

TABLES, EACH, APPENDERS = 8, 8, 2
"""Of the writers of each table so many append files; the others set properties."""
WARM_UP = 0.3
GROWTH, GROWTH_MIB = 1.15, 40
"""A history of some hundred snapshots more, and what the allocator keeps."""


@dataclass(slots=True)
class Writer:
    """A client of one table, which asks the two servers by turns. `refused` counts answers that refuse a commit, by status."""

    clients: list[Client]
    table: str
    number: int
    landed: int = 0
    refused: Counter[int] = field(default_factory=Counter[int])

    def run(self, stop: Event) -> None:
        """Commit until the end, and until one commit has landed."""
        pause = random.Random(self.number)
        while not (stop.is_set() and self.landed):
            self.clients.append(self.clients.pop(0))
            answer = self._append() if self.number % EACH < APPENDERS else self._set_property()
            assert answer.status in (200, 409, 429), answer.body
            if answer.status == 200:
                self.landed += 1
            else:
                self.refused[answer.status] += 1
                Event().wait(pause.uniform(0.02, 0.2))

    def _set_property(self) -> Any:
        update = {"action": "set-properties", "updates": {f"writer-{self.number}": str(self.landed + 1)}}
        return self.clients[0].commit([update], (), self.table)

    def _append(self) -> Any:
        client, made = self.clients[0], self.landed + self.refused.total()
        base = client.load(self.table)
        file = write_file(client, base, f"{self.number}-{made}", {1: pa.array([self.number]), 2: pa.array([str(made)])})
        updates = client.append(base, 1_000_000_000 * (self.number + 1) + made, [file])
        return client.commit(updates, [assert_main(base.get("current-snapshot-id"))], self.table)


def read_mib(server: Running) -> float:
    """The resident memory of a server's process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.mark.whole
@pytest.mark.parametrize("seconds", [pytest.param(5, id="short"), pytest.param(600, id="ten minutes", marks=pytest.mark.long)])
def test_many_writers_of_many_tables_leave_memory_flat(lake: FreshLake, seconds: int) -> None:
    """Each commit is answered with what became of it, never with a 5xx; what was acknowledged is there at the end."""
    names = [f"table_{number}" for number in range(TABLES)]
    stop, ended = Event(), Event()
    with ExitStack() as opened:
        servers = [opened.enter_context(running(make_settings(lake))) for _ in range(2)]
        clients = [open_client(each.server, lake) for each in servers]
        for name in names:
            assert clients[0].create(name).status == 200
        writers = [Writer([clients[n % 2], clients[1 - n % 2]], names[n // EACH], n) for n in range(TABLES * EACH)]
        with ThreadPoolExecutor(len(writers)) as pool:
            parts = [pool.submit(writer.run, stop) for writer in writers]
            for part in parts:
                # A writer that fails ends the test.
                part.add_done_callback(lambda _: ended.set())
            ended.wait(seconds * WARM_UP)
            before = [read_mib(each) for each in servers]
            ended.wait(seconds * (1 - WARM_UP))
            after = [read_mib(each) for each in servers]
            stop.set()
        for part in parts:
            part.result()
        check_landed(clients[1], writers)
    print_outcome(writers, before, after)
    if seconds > 60:
        assert all(late <= early * GROWTH + GROWTH_MIB for early, late in zip(before, after, strict=True)), (before, after)


def check_landed(client: Client, writers: list[Writer]) -> None:
    """Each table has its acknowledged appends, and the last value of each property."""
    for name in {writer.table for writer in writers}:
        metadata, own = client.load(name), [writer for writer in writers if writer.table == name]
        appended = sum(writer.landed for writer in own if writer.number % EACH < APPENDERS)
        assert len(metadata["snapshots"]) == appended
        for writer in own:
            if writer.number % EACH >= APPENDERS:
                assert metadata["properties"][f"writer-{writer.number}"] == str(writer.landed)


def print_outcome(writers: list[Writer], before: list[float], after: list[float]) -> None:
    """Print what `-s` shows."""
    appends = sum(writer.landed for writer in writers if writer.number % EACH < APPENDERS)
    refused = Counter[int]()
    for writer in writers:
        refused.update(writer.refused)
    landed = sum(writer.landed for writer in writers)
    print(f"{landed} commits, {appends} of them appends; refused {dict(refused)}; memory {before} to {after} MiB")  # noqa: T201
