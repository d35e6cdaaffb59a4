"""Random histories of a branch with equality deletes, of main's moves to it, and of DuckDB's changes, against a model of the rows."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.iceberg.manifest import DataFile
from tests.rest.serving import Server, make_settings, serve
from tests.rest.writing.client import Client, open_client, set_ref
from tests.rest.writing.refs.maintenance import EVERYTHING, expire_everything
from tests.rest.writing.refs.test_equality_beside import (
    BASE,
    Rows,
    at,
    equal,
    fill,
    grow,
    head_of,
    ids,
    in_order,
    read,
    read_iceberg,
    take_over,
    write,
)
from tests.support.lakes import FreshLake
from tests.support.readers import Served

pytestmark = pytest.mark.long

STEPS = 40


@dataclass(slots=True)
class Story:
    """A lake, and what main and the branch `dev` should hold. `fresh` are the branch's newest files, with what is left in them."""

    client: Client
    session: DuckDBPyConnection
    chance: random.Random
    main: Rows = field(default_factory=lambda: list(BASE))
    dev: Rows = field(default_factory=lambda: list(BASE))
    fresh: list[tuple[DataFile, list[int]]] = field(default_factory=list[tuple[DataFile, list[int]]])
    next_id: int = 1000

    def upsert(self) -> None:
        """A client deletes rows of a branch by equality, and adds some of the same ids."""
        ref = self.chance.choice(["dev", "dev", "main"])
        rows = self.dev if ref == "dev" else self.main
        gone = {row[0] for row in self.chance.sample(rows, min(3, len(rows)))}
        added = [*sorted(gone)[:1], self.next_id, self.next_id + 1]
        self.next_id += 2
        base = self.client.load()
        file = write(self.client, base, ids(*added))
        keys = equal(self.client, base, {1: pa.array(sorted(gone), pa.int64())})
        done = grow(self.client, [file], [keys], ref)
        assert done.status == 200, done.json
        left = in_order([*(row for row in rows if row[0] not in gone), *((i, "new") for i in added)])
        if ref == "dev":
            self.dev = left
            self.fresh = [(known, [i for i in found if i not in gone]) for known, found in self.fresh] + [(file, added)]
        else:
            self.main = left

    def delete_by_position(self) -> None:
        """A client deletes the second row of a file that it added to the branch."""
        found = [pair for pair in self.fresh if len(pair[1]) == 3 and (pair[1][1], "new") in self.dev]
        if found:
            file, left = self.chance.choice(found)
            assert grow(self.client, [], [at(self.client, self.client.load(), file, 1)]).status == 200
            self.dev.remove((left.pop(1), "new"))

    def delete_nulls(self) -> None:
        """A client deletes the branch's rows without a name."""
        base = self.client.load()
        assert grow(self.client, [], [equal(self.client, base, {2: pa.array([None], pa.string())})]).status == 200
        self.dev = [row for row in self.dev if row[1] is not None]

    def change_main(self) -> None:
        """DuckDB inserts or deletes."""
        self.next_id += 1
        many = self.chance.choice([1, 20])
        if self.main and self.chance.random() < 0.5:
            gone = self.chance.choice(self.main)[0]
            self.session.execute(f"DELETE FROM t WHERE id = {gone}")
            self.main = [row for row in self.main if row[0] != gone]
        else:
            self.session.execute(f"INSERT INTO t SELECT range, NULL FROM range({self.next_id}, {self.next_id + many})")
            self.main = in_order([*self.main, *((i, None) for i in range(self.next_id, self.next_id + many))])
            self.next_id += many

    def maintain(self) -> None:
        """DuckDB flushes, merges, rewrites or expires."""
        self.chance.choice([*(lambda s=s: self.session.execute(s) for s in EVERYTHING[:4]), lambda: expire_everything(self.session)])()  # pyright: ignore

    def take_over(self) -> None:
        """Main goes to the branch."""
        base = self.client.load()
        if head_of(base, "dev")["snapshot-id"] != base["current-snapshot-id"]:
            take_over(self.client)
        self.main = list(self.dev)

    def branch_off(self) -> None:
        """The branch begins again at main."""
        assert self.client.commit([set_ref("dev", self.client.load()["current-snapshot-id"], "branch")]).status == 200
        self.dev, self.fresh = list(self.main), []

    def check(self, served: Served) -> None:
        """DuckDB has main's rows, and Iceberg the rows of both."""
        assert read(self.session) == self.main
        assert read_iceberg(served) == self.main
        assert read_iceberg(served, "dev") == self.dev


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("seed", [0, 3])
def test_main_and_a_branch_hold_what_they_should(server: Server, lake: FreshLake, seed: int, format_version: int) -> None:
    """After each of many steps, and for a server that starts then."""
    session, served = lake.duckdb(), Served(lake, server)
    client = fill(open_client(server, lake), session, properties={"format-version": str(format_version)})
    story = Story(client, session, random.Random(seed))
    often: list[Callable[[], None]] = [story.upsert, story.upsert, story.delete_by_position, story.take_over, story.change_main]
    for step in range(STEPS):
        chosen = story.chance.choice([*often, story.delete_nulls, story.maintain, story.branch_off])
        chosen()
        try:
            story.check(served)
        except AssertionError as error:
            raise AssertionError(f"step {step}: {chosen.__name__}") from error
    with serve(make_settings(lake)) as other:
        assert open_client(other, lake).load() == client.load()
