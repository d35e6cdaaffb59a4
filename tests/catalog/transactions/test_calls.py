"""How much Python a small commit is: its calls are counted, which are the same on every machine, however busy."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from types import FrameType
from typing import Any

import pytest

from bench.commits.client import COLUMNS, Client
from duckicelake.store.objects import open_objects
from duckicelake.store.s3 import StoreSettings
from tests.rest.serving import BASE, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

WARM_UP, COMMITS, MOST_COMMITS = 7, 5, 40
"""psycopg prepares what it has sent five times. A busy machine is given more of them to have a quiet one among them."""

SNAPSHOTS = 60
MOST_CALLS = {"set-properties": 3300, "fast append": 7950}
"""Of functions of Python and C in all the server's threads, uvicorn's and psycopg's included; about a twelfth more than there are."""


class Calls:
    """Counts the calls of the threads that begin while it is in place, as long as it is on."""

    def __init__(self) -> None:
        self.count = 0
        self.is_on = False

    def notice(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call."""
        if self.is_on and event in ("call", "c_call"):
            self.count += 1

    def of(self, act: Callable[[], None]) -> int:
        """Return how many there are while something is done."""
        self.count, self.is_on = 0, True
        act()
        self.is_on = False
        return self.count


@pytest.fixture
def counted(lake: FreshLake) -> Iterator[tuple[Client, Calls]]:
    """A client of a new table on a server whose calls are counted."""
    calls, keys = Calls(), lake.store
    threading.setprofile(calls.notice)
    try:
        with serve(make_settings(lake)) as server:
            objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
            client = Client(server.port, f"{BASE}/namespaces/main/tables/t", objects)
            fields = [
                {"id": number, "name": name, "type": kind, "required": False} for number, (name, kind) in enumerate(COLUMNS.items(), 1)
            ]
            client.send("POST", f"{BASE}/namespaces/main/tables", {"name": "t", "schema": {"type": "struct", "fields": fields}})
            client.keep()
            yield client, calls
            assert client.connection is not None
            client.connection.close()
    finally:
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]  what takes it away


@pytest.mark.parametrize("kind", whole_after(1, MOST_CALLS))
def test_a_small_commit_is_few_calls(counted: tuple[Client, Calls], kind: str) -> None:
    """The least of several: now and then a thread of the pool, or of the memory's scales, does something beside it."""
    client, calls = counted
    found = count_commits(client, calls, client.set_property if kind == "set-properties" else client.append, MOST_CALLS[kind])
    assert MOST_CALLS[kind] / 2 < min(found) <= MOST_CALLS[kind], found


@pytest.mark.whole
def test_a_long_history_is_no_more_calls(counted: tuple[Client, Calls]) -> None:
    """Not even one for every other snapshot that the table has."""
    client, calls = counted
    client.commit(client.append())
    client.keep()
    short = count_commits(client, calls, client.set_property, MOST_CALLS["set-properties"])
    for _ in range(SNAPSHOTS):
        client.commit(client.append())
        client.keep()
    most = median(short) + SNAPSHOTS / 2
    long = count_commits(client, calls, client.set_property, most)
    assert min(long) < most, (short, long)


def count_commits(client: Client, calls: Calls, make: Callable[[], Sequence[Mapping[str, Any]]], most: float) -> list[int]:
    """Return how many calls each of some commits is, after those that warm up; more of them while all are more than they may be."""
    found: list[int] = []
    for number in range(WARM_UP + MOST_COMMITS):
        updates = make()
        count = calls.of(partial(client.commit, updates))
        client.keep()
        if number >= WARM_UP:
            found.append(count)
        if len(found) >= COMMITS and min(found) < most:
            break
    return found
