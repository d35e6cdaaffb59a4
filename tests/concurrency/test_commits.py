"""Iceberg clients and DuckDB commit to the same tables at once: what is acknowledged happened once, in one order."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from threading import Lock
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from duckicelake.iceberg.manifest import DataFile
from duckicelake.store.parquet import encode_position_deletes
from tests.crashes.process import Running, running
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, write_file
from tests.support.lakes import FreshLake

COLOURS = ("red", "blue", "green", "white", "black", "grey", "pink", "brown", "amber", "azure", "beige", "coral")
RETRIES = "SET ducklake_max_retry_count = 1000"
SEED = 20261121
Row = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that a client of Iceberg was told of: what it was built on, the table's snapshot then, the rows that came and went."""

    table: str
    base_id: int | None
    snapshot_id: int
    came: Row | None
    gone: Row | None


@dataclass(slots=True)
class Doom:
    """Kills a server when so many commits were acknowledged."""

    victim: Running
    left: int
    lock: Lock = field(default_factory=Lock)

    def count(self) -> None:
        """Count one."""
        with self.lock:
            self.left -= 1
            if self.left == 0:
                self.victim.kill()


ASKED = 6
"""How often a client asks at the most: on a busy machine the server that is left may be as silent as the one that was killed."""


@dataclass(slots=True)
class IcebergWriter:
    """Appends a row, deletes one of its own or puts a row in its place, and counts one up, in one commit that wants nobody before it.

    What it hears no answer to it sends again, to the next of the servers.
    """

    clients: list[Client]
    number: int
    chance: random.Random
    tables: Sequence[str]
    doom: Doom
    done: list[Acknowledged] = field(default_factory=list[Acknowledged])
    files: dict[tuple[str, Row], str] = field(default_factory=dict[tuple[str, Row], str])
    lost: int = 0
    unheard: int = 0

    def run(self, commits: int) -> None:
        """Write until so many commits have landed."""
        for made in range(commits):
            while not self._commit(self.chance.choice(self.tables), made):
                self.lost += 1

    def _ask(self, send: Callable[[Client], Answer]) -> Answer:
        for _ in range(ASKED - 1):
            try:
                return send(self.clients[0])
            except (OSError, HTTPException):
                self.unheard += 1
                self.clients.append(self.clients.pop(0))
        return send(self.clients[0])

    def _load(self, table: str) -> Answer:
        """Load a table, again while the server says that it cannot now, as clients do."""
        for _ in range(ASKED - 1):
            loaded = self._ask(lambda client: client.server.get(f"namespaces/main/tables/{table}"))
            if loaded.status != 503:
                return loaded
        return self._ask(lambda client: client.server.get(f"namespaces/main/tables/{table}"))

    def _commit(self, table: str, made: int) -> bool:
        loaded = self._load(table)
        assert loaded.status == 200, loaded.body
        base: Any = loaded.json["metadata"]
        base_id = base.get("current-snapshot-id")
        own = sorted(row for there, row in self.files if there == table)
        gone = self.chance.choice(own) if own and self.chance.random() < 0.4 else None
        came = (self.number, made) if gone is None or self.chance.random() < 0.5 else None
        updates, path = self._make(base, made, came, self.files[table, gone] if gone else None)
        answer = self._ask(lambda client: client.commit(updates, [assert_main(base_id)], table))
        assert answer.status in (200, 409), answer.json
        if answer.status == 200:
            self.done.append(Acknowledged(table, base_id, find_child(answer.json["metadata"], base_id), came, gone))
            if gone:
                del self.files[table, gone]
            if came:
                self.files[table, came] = path
            # a client that did not hear the answer asks again, through whichever server
            if self.chance.random() < 0.2:
                self.clients.append(self.clients.pop(0))
                again = self._ask(lambda client: client.commit(updates, [assert_main(base_id)], table))
                assert again.status == 200, again.json
            self.doom.count()
        return answer.status == 200

    def _make(self, base: Any, made: int, came: Row | None, old_path: str | None) -> tuple[list[Any], str]:
        """Return the updates of a commit whose files are written, and where its row is."""
        client, name = self.clients[0], f"{self.number}-{made}-{self.lost}"
        files: list[DataFile] = []
        if came:
            files.append(write_file(client, base, name, {1: pa.array([came[0]]), 2: pa.array([came[1]])}))
        deletes: list[DataFile] = []
        if old_path:
            path, content = f"{base['location']}/data/{name}-d.parquet", encode_position_deletes(old_path, [0])
            client.objects.put_new(path, content)
            deletes.append(DataFile(1, path, "PARQUET", (), 1, len(content), referenced_data_file=old_path))
        updates = client.append(base, 1_000_000_000 * self.number + 1_000_000 * made + self.lost, files, deletes)
        count = int(base["properties"].get("count", "0")) + 1
        updates.append({"action": "set-properties", "updates": {"count": str(count)}})
        return updates, files[0].file_path if files else ""


@dataclass(slots=True)
class DuckWriter:
    """Inserts rows with DuckDB, deletes some of them again, and now and then tidies up."""

    lake: FreshLake
    number: int
    chance: random.Random
    tables: Sequence[str]
    rows: dict[str, Counter[tuple[int, int]]] = field(default_factory=lambda: {table: Counter() for table in COLOURS})

    def run(self, commits: int) -> None:
        """Make so many statements."""
        conn = self.lake.duckdb()
        conn.execute(RETRIES)
        for made in range(commits):
            table, row = self.chance.choice(self.tables), (self.number, made)
            if made % 5 == 4 and self.rows[table]:
                gone = self.chance.choice(sorted(self.rows[table]))
                if _execute(conn, f"DELETE FROM {table} WHERE writer = {gone[0]} AND number = {gone[1]}"):
                    del self.rows[table][gone]
            elif _execute(conn, f"INSERT INTO {table} VALUES ({row[0]}, {row[1]})"):
                self.rows[table][row] += 1


def find_child(metadata: Any, base_id: int | None) -> int:
    """Return the snapshot that was built on another; by the time of the answer there may be more upon it."""
    [child] = [
        snapshot["snapshot-id"]
        for snapshot in metadata["snapshots"]
        if snapshot.get("parent-snapshot-id") == base_id and "ducklake.alias-of" not in snapshot["summary"]
    ]
    return child


def _execute(conn: duckdb.DuckDBPyConnection, statement: str) -> bool:
    """Whether DuckDB did it; it gives up where somebody else changed the same rows or files."""
    try:
        conn.execute(statement)
    except duckdb.TransactionException:
        return False
    return True


SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": i, "name": name, "required": False, "type": "long"} for i, name in ((1, "writer"), (2, "number"))],
}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("commits", "count"),
    [pytest.param(10, 2, id="a hundred and twenty"), pytest.param(840, 12, id="ten thousand", marks=pytest.mark.long)],
)
def test_every_acknowledged_commit_happened_once_and_in_order(lake: FreshLake, commits: int, count: int) -> None:
    """Eight clients at two servers, one of which is killed, and four sessions of DuckDB: each row once, each requirement true."""
    tables = COLOURS[:count]
    chances = [random.Random(SEED + number) for number in range(12)]
    with running(make_settings(lake)) as first, running(make_settings(lake)) as second:
        clients = [open_client(each.server, lake) for each in (first, second)]
        for table in tables:
            assert clients[0].post("namespaces/main/tables", {"name": table, "schema": SCHEMA}).status == 200
        doom = Doom(second, 4 * commits)
        iceberg = [IcebergWriter([clients[n % 2], clients[1 - n % 2]], n + 1, chances[n], tables, doom) for n in range(8)]
        ducks = [DuckWriter(lake, number + 101, chances[number + 8], tables) for number in range(4)]
        with ThreadPoolExecutor(12) as pool:
            parts = [pool.submit(writer.run, commits) for writer in (*iceberg, *ducks)]
        for part in parts:
            part.result()
        assert any(writer.unheard for writer in iceberg)
        for table in tables:
            done = [commit for writer in iceberg for commit in writer.done if commit.table == table]
            check_rows(lake, table, done, ducks)
            check_order(lake, first.server, table, done)


@pytest.mark.whole
def test_the_checks_see_what_is_lost_and_what_is_there_twice(lake: FreshLake) -> None:
    """A row that was acknowledged and is gone, and one that came twice, are found."""
    row = (1, 1)
    with serve(make_settings(lake)) as server:
        client = open_client(server, lake)
        assert client.post("namespaces/main/tables", {"name": "red", "schema": SCHEMA}).status == 200
        base = client.load("red")
        answer = client.commit(client.append(base, 7_000_000_001, [write_row(client, base, row)]), [], "red")
    done = [Acknowledged("red", None, answer.json["metadata"]["current-snapshot-id"], row, None)]
    check_rows(lake, "red", done, [])
    for wrong in ("INSERT INTO red VALUES (1, 1)", "DELETE FROM red"):
        lake.duckdb().execute(wrong)
        with pytest.raises(AssertionError):
            check_rows(lake, "red", done, [])


def write_row(client: Client, metadata: Any, row: Row) -> DataFile:
    """A file of one row."""
    return write_file(client, metadata, f"{row[0]}-{row[1]}", {1: pa.array([row[0]]), 2: pa.array([row[1]])})


def check_rows(lake: FreshLake, table: str, done: list[Acknowledged], ducks: list[DuckWriter]) -> None:
    """What was acknowledged is there once, and nothing else is."""
    expected = Counter(commit.came for commit in done if commit.came)
    expected.subtract(commit.gone for commit in done if commit.gone)
    for writer in ducks:
        expected.update(writer.rows[table])
    assert Counter(lake.duckdb().execute(f"SELECT writer, number FROM {table}").fetchall()) == +expected


def check_order(lake: FreshLake, server: Server, table: str, done: list[Acknowledged]) -> None:
    """Each commit follows the snapshot it was built on, its rows come and go with it, and no count was lost."""
    metadata: Any = server.get(f"namespaces/main/tables/{table}").json["metadata"]
    assert metadata["properties"]["count"] == str(len(done)) == str(len({commit.snapshot_id for commit in done}))
    parents = {snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in metadata["snapshots"]}
    assert {commit.snapshot_id: parents[commit.snapshot_id] for commit in done} == {commit.snapshot_id: commit.base_id for commit in done}
    conn = lake.duckdb()
    for commit in done[:: max(1, len(done) // 20)]:
        for at, is_after in ((commit.snapshot_id - 1, False), (commit.snapshot_id, True)):
            found = conn.execute(f"SELECT writer, number FROM {table} AT (VERSION => {at})").fetchall()
            for row, count in ((commit.came, int(is_after)), (commit.gone, int(not is_after))):
                assert row is None or found.count(row) == count, f"{commit} at {at}"
