"""Iceberg clients and DuckDB commit to the same tables at once: what is acknowledged happened once, in one order."""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, assert_main, open_client, write_file
from tests.support.lakes import FreshLake

COLOURS = ("red", "blue", "green", "white", "black", "grey", "pink", "brown", "amber", "azure", "beige", "coral")
RETRIES = "SET ducklake_max_retry_count = 1000"
SEED = 20261121


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A commit that a client of Iceberg was told of: what it was built on, and the table's snapshot then."""

    table: str
    base_id: int | None
    snapshot_id: int
    row: tuple[int, int]


@dataclass(slots=True)
class IcebergWriter:
    """Appends one row and counts one up, in one commit that wants nobody to have been before."""

    client: Client
    number: int
    chance: random.Random
    tables: Sequence[str]
    done: list[Acknowledged] = field(default_factory=list[Acknowledged])
    lost: int = 0

    def run(self, commits: int) -> None:
        """Write until so many commits have landed."""
        for made in range(commits):
            row = (self.number, made)
            while not self._commit(self.chance.choice(self.tables), row):
                self.lost += 1

    def _commit(self, table: str, row: tuple[int, int]) -> bool:
        base = self.client.load(table)
        base_id = base.get("current-snapshot-id")
        columns = {1: pa.array([row[0]]), 2: pa.array([row[1]])}
        file = write_file(self.client, base, f"{row[0]}-{row[1]}-{self.lost}", columns)
        updates = self.client.append(base, 1_000_000_000 * row[0] + 1_000_000 * row[1] + self.lost, [file])
        count = int(base["properties"].get("count", "0")) + 1
        updates.append({"action": "set-properties", "updates": {"count": str(count)}})
        answer = self.client.commit(updates, [assert_main(base_id)], table)
        assert answer.status in (200, 409), answer.json
        if answer.status == 200:
            self.done.append(Acknowledged(table, base_id, find_child(answer.json["metadata"], base_id), row))
            # a client that did not hear the answer asks again, through whichever server
            if self.chance.random() < 0.2:
                again = self.client.commit(updates, [assert_main(base_id)], table)
                assert again.status == 200, again.json
        return answer.status == 200


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


@pytest.mark.parametrize(
    ("commits", "count"), [pytest.param(84, 2, id="a thousand"), pytest.param(840, 12, id="ten thousand", marks=pytest.mark.long)]
)
def test_every_acknowledged_commit_happened_once_and_in_order(lake: FreshLake, commits: int, count: int) -> None:
    """Eight clients at two servers and four sessions of DuckDB: each row once, each requirement true, each count made."""
    tables = COLOURS[:count]
    chances = [random.Random(SEED + number) for number in range(12)]
    with serve(make_settings(lake)) as first, serve(make_settings(lake)) as second:
        clients = [open_client(server, lake) for server in (first, second)]
        for table in tables:
            assert clients[0].post("namespaces/main/tables", {"name": table, "schema": SCHEMA}).status == 200
        iceberg = [IcebergWriter(clients[number % 2], number + 1, chances[number], tables) for number in range(8)]
        ducks = [DuckWriter(lake, number + 101, chances[number + 8], tables) for number in range(4)]
        with ThreadPoolExecutor(12) as pool:
            running = [pool.submit(writer.run, commits) for writer in (*iceberg, *ducks)]
        for part in running:
            part.result()
        for table in tables:
            done = [commit for writer in iceberg for commit in writer.done if commit.table == table]
            check_rows(lake, table, done, ducks)
            check_order(lake, second, table, done)


def check_rows(lake: FreshLake, table: str, done: list[Acknowledged], ducks: list[DuckWriter]) -> None:
    """What was acknowledged is there once, and nothing else is."""
    expected = Counter(commit.row for commit in done)
    for writer in ducks:
        expected.update(writer.rows[table])
    assert Counter(lake.duckdb().execute(f"SELECT writer, number FROM {table}").fetchall()) == expected


def check_order(lake: FreshLake, server: Server, table: str, done: list[Acknowledged]) -> None:
    """Each commit follows the snapshot it was built on, its row appears with it, and no count was lost."""
    metadata: Any = server.get(f"namespaces/main/tables/{table}").json["metadata"]
    assert metadata["properties"]["count"] == str(len(done)) == str(len({commit.snapshot_id for commit in done}))
    parents = {snapshot["snapshot-id"]: snapshot.get("parent-snapshot-id") for snapshot in metadata["snapshots"]}
    assert {commit.snapshot_id: parents[commit.snapshot_id] for commit in done} == {commit.snapshot_id: commit.base_id for commit in done}
    conn = lake.duckdb()
    for commit in done[:: max(1, len(done) // 20)]:
        for at, count in ((commit.snapshot_id - 1, 0), (commit.snapshot_id, 1)):
            found = conn.execute(f"SELECT writer, number FROM {table} AT (VERSION => {at})").fetchall()
            assert found.count(commit.row) == count, f"{commit} at {at}"
