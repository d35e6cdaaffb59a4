"""Random histories of DuckDB's changes and maintenance, of branches, tags and moves of main, against a model of the rows."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, open_client, set_ref
from tests.rest.writing.refs.maintenance import EVERYTHING, expire_everything
from tests.rest.writing.refs.test_branches import rows_of
from tests.rest.writing.refs.test_moves import read_iceberg, read_table
from tests.support.lakes import FreshLake
from tests.support.readers import Served

STEPS = 40

Rows = list[tuple[int, str]]


@dataclass(slots=True)
class Story:
    """One lake, what main and every ref should hold, and what snapshots were seen to hold."""

    client: Client
    session: DuckDBPyConnection
    catalog: RestCatalog
    chance: random.Random
    main: Rows = field(default_factory=list[tuple[int, str]])
    refs: dict[str, tuple[str, Rows]] = field(default_factory=dict[str, tuple[str, Rows]])
    seen: dict[int, Rows] = field(default_factory=dict[int, Rows])
    next_id: int = 0

    def table(self) -> Table:
        """The table as it is now."""
        return self.catalog.load_table("main.t")

    def fresh(self, count: int) -> list[int]:
        """Ids that no row has had."""
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def commit(self, update: Any) -> None:
        """Send one update, which must be taken."""
        answer = self.client.commit([update])
        assert answer.status == 200, answer.body

    def insert(self) -> None:
        """DuckDB inserts a few rows, inlined, or more, in a file."""
        ids = self.fresh(self.chance.choice([1, 20]))
        self.session.execute(f"INSERT INTO t SELECT range, 'v' FROM range({ids[0]}, {ids[-1] + 1})")
        self.main = sorted([*self.main, *((i, "v") for i in ids)])

    def delete(self) -> None:
        """DuckDB deletes one row, some, or all."""
        first = self.chance.choice(self.main)[0] if self.main else 0
        last = self.chance.choice([first, first + 14, self.next_id])
        self.session.execute(f"DELETE FROM t WHERE id BETWEEN {first} AND {last}")
        self.main = [row for row in self.main if not first <= row[0] <= last]

    def update(self) -> None:
        """DuckDB updates a row."""
        changed = self.chance.choice(self.main)[0] if self.main else 0
        self.session.execute(f"UPDATE t SET name = 'u' WHERE id = {changed}")
        self.main = sorted((i, "u" if i == changed else name) for i, name in self.main)

    def maintain(self) -> None:
        """DuckDB flushes, merges or rewrites."""
        self.session.execute(self.chance.choice([EVERYTHING[0], EVERYTHING[2], EVERYTHING[3]]))

    def expire(self) -> None:
        """DuckDB expires and removes all it can."""
        expire_everything(self.session)

    def write(self) -> None:
        """A client appends to main or a branch, or deletes there."""
        branches = ["main", *(name for name, (kind, _) in self.refs.items() if kind == "branch")]
        name, table = self.chance.choice(branches), self.table()
        rows = self.main if name == "main" else self.refs[name][1]
        if rows and self.chance.random() < 0.5:
            gone = self.chance.choice(rows)[0]
            table.delete(EqualTo("id", gone), branch=name)
            rows = [row for row in rows if row[0] != gone]
        else:
            ids = self.fresh(2)
            table.append(rows_of(table, *ids), branch=name)
            rows = sorted([*rows, *((i, f"n{i}") for i in ids)])
        if name == "main":
            self.main = rows
        else:
            self.refs[name] = ("branch", rows)

    def name(self) -> None:
        """A tag or branch is made where main is."""
        head = self.table().metadata.current_snapshot_id
        if head is not None:
            name, kind = f"r{len(self.refs)}-{self.next_id}", self.chance.choice(["tag", "branch"])
            self.commit(set_ref(name, head, kind))
            self.refs[name] = (kind, self.main)

    def forget(self) -> None:
        """A ref goes, or a snapshot that none names."""
        named = {ref.snapshot_id for ref in self.table().refs().values()}
        free = [snapshot.snapshot_id for snapshot in self.table().metadata.snapshots if snapshot.snapshot_id not in named]
        if self.refs and self.chance.random() < 0.5:
            name = self.chance.choice(sorted(self.refs))
            self.commit({"action": "remove-snapshot-ref", "ref-name": name})
            del self.refs[name]
        elif free:
            self.commit({"action": "remove-snapshots", "snapshot-ids": [self.chance.choice(free)]})

    def move(self) -> None:
        """Main goes to any snapshot that there is."""
        shown = [snapshot.snapshot_id for snapshot in self.table().metadata.snapshots if snapshot.snapshot_id in self.seen]
        if shown:
            target = self.chance.choice(shown)
            self.commit(set_ref("main", target, "branch"))
            self.main = self.seen[target]

    def check(self) -> None:
        """Both sides have main's rows, every ref has its own, and some snapshots still hold what they did."""
        table = self.table()
        assert read_table(self.session) == read_iceberg(table) == self.main
        named = {name: ref.snapshot_id for name, ref in table.refs().items()}
        assert named.keys() - {"main"} == self.refs.keys()
        self.seen |= {named[name]: self.main if name == "main" else self.refs[name][1] for name in named}
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id in named.values() or (snapshot.snapshot_id in self.seen and self.chance.random() < 0.3):
                assert read_iceberg(table, snapshot.snapshot_id) == self.seen[snapshot.snapshot_id]


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_refs_and_main_hold_what_they_should(server: Server, lake: FreshLake, seed: int) -> None:
    """After each of many steps, in DuckDB and in Iceberg, and for a server that starts then."""
    client = open_client(server, lake)
    assert client.create().status == 200
    story = Story(client, lake.duckdb(), Served(lake, server).pyiceberg().catalog, random.Random(seed))
    often: Sequence[Callable[[], None]] = (story.insert, story.delete, story.write, story.move)
    seldom = (story.update, story.maintain, story.expire, story.name, story.forget)
    for _ in range(STEPS):
        story.chance.choice([*often, *often, *seldom])()
        story.check()
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()
