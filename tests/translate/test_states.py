"""Real DuckLake lives: what we put together from rows and files is what DuckDB shows, at every lake snapshot."""

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest

from duckicelake.lake.changes import REWRITE_KINDS, kinds_of_table
from duckicelake.lake.read_table import LastRead
from duckicelake.lake.rows import TableState
from duckicelake.translate.types import is_live
from tests.support.tiers import whole_after
from tests.translate.support.replay import Rows, replay, track
from tests.translate.support.room import Room

OPERATIONS = (
    "INSERT INTO {t} VALUES ({n}, 'a'), ({n} + 1, 'b'), ({n} + 2, NULL)",
    "INSERT INTO {t} SELECT range, 'x{n}' FROM range({n}, {n} + 40)",
    "DELETE FROM {t} WHERE i % 7 = {n} % 7 AND i < {n}",
    "DELETE FROM {t} WHERE i BETWEEN {n} - 30 AND {n} + 2",
    "DELETE FROM {t} WHERE s = 'a'",
    "UPDATE {t} SET s = 'u{n}' WHERE i % 11 = {n} % 11",
    "UPDATE {t} SET s = 'v{n}' WHERE i = (SELECT max(i) FROM {t})",
    "MERGE INTO {t} USING (SELECT {n} AS i) x ON {t}.i = x.i WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (x.i, 'm')",
    "BEGIN; INSERT INTO {t} VALUES ({n}, 'p'); DELETE FROM {t} WHERE i % 5 = 0; INSERT INTO {t} SELECT range, 'q' FROM range(30); COMMIT",
    "INSERT INTO other VALUES ({n})",
    "ALTER TABLE {t} SET PARTITIONED BY (bucket(4, i))",
    "ALTER TABLE {t} RESET PARTITIONED BY",
    "COMMENT ON TABLE {t} IS '{n}'",
    "TRUNCATE {t}",
)
MAINTENANCE = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', '{t}', delete_threshold => 0)",
)


@dataclass(frozen=True, slots=True)
class Witness:
    """Remembers what DuckDB showed of a table when each lake snapshot was the newest: history must never change.

    DuckDB's own time travel is no witness: flush after rewrite makes it show rows twice.
    """

    room: Room
    name: str
    seen: dict[int, Rows] = field(default_factory=dict[int, Rows])

    def run(self, statement: str) -> None:
        """Run a statement that makes at most one lake snapshot, and look."""
        self.room.run(statement)
        rows = self.room.duckdb.execute(f"SELECT i, s FROM {self.name}").fetchall()
        self.seen[self.lake_snapshot_ids()[-1]] = sorted(rows, key=repr)

    def lake_snapshot_ids(self) -> list[int]:
        """The lake snapshots that are left."""
        return [i for (i,) in self.room.postgres.execute("SELECT snapshot_id FROM ducklake_snapshot ORDER BY 1").fetchall()]

    def check(self) -> None:
        """At every lake snapshot that is left, the newest published snapshot not above it has the rows seen then.

        Unless one expired in between: what that changed is told by the next snapshot only.
        """
        left = set(self.lake_snapshot_ids())
        history, found = replay(self.room, self.room.read(self.name))
        ids = [step.snapshot_id for step in history.steps]
        for lake_snapshot_id in sorted(self.seen.keys() & left):
            current = max((snapshot_id for snapshot_id in ids if snapshot_id <= lake_snapshot_id), default=-1)
            if not any(current < i < lake_snapshot_id for i in self.seen.keys() - left):
                assert found.get(current, []) == self.seen[lake_snapshot_id], f"{self.name} at {lake_snapshot_id}"
        for before, step in pairwise(history.steps):
            assert not step.is_rewrite or found[step.snapshot_id] == found[before.snapshot_id], f"rewrite {step.snapshot_id}"
        assert set(ids[:-1]) <= left
        assert not self.seen or found.get(ids[-1] if ids else 0, []) == self.seen[max(self.seen)]


def live(witness: Witness, random: Random) -> None:
    """One random operation; maintenance and expiry now and then."""
    dice = random.random()
    statement = random.choice(OPERATIONS[:9] if dice < 0.6 else OPERATIONS if dice < 0.8 else MAINTENANCE)
    witness.run(statement.format(t=witness.name, n=random.randint(0, 300)))
    if dice > 0.97:
        ids = witness.lake_snapshot_ids()[:-1]
        witness.run(f"CALL ducklake_expire_snapshots('lake', versions => {random.sample(ids, min(len(ids), 4))})")


@pytest.mark.parametrize("seed", whole_after(1, range(4)))
def test_a_random_life_is_what_duckdb_showed(room: Room, seed: int) -> None:
    """Files, inlined rows, both kinds of deletes, flush, merge, rewrite and expiry, at head and at every lake snapshot."""
    random, witness = Random(seed), Witness(room, room.name())
    room.run("CREATE TABLE IF NOT EXISTS other (i INTEGER)", f"CREATE TABLE {witness.name} (i INTEGER, s VARCHAR)")
    for _ in range(3):
        for _ in range(8):
            live(witness, random)
        witness.check()


def test_a_flush_after_a_rewrite_leaves_the_past_as_it_was(room: Room) -> None:
    """It writes a second delete file for a data file that has ended: together they are what was deleted."""
    witness = Witness(room, room.name())
    t = witness.name
    room.run(f"CREATE TABLE {t} (i INTEGER, s VARCHAR)")
    witness.run(f"INSERT INTO {t} SELECT range, 'a' FROM range(100)")
    witness.run(f"DELETE FROM {t} WHERE i BETWEEN 10 AND 50")
    witness.run(f"DELETE FROM {t} WHERE i = 5")
    witness.run(f"CALL ducklake_rewrite_data_files('lake', '{t}', delete_threshold => 0)")
    witness.run("CALL ducklake_flush_inlined_data('lake')")
    witness.check()


@pytest.mark.parametrize("seed", whole_after(1, range(2)))
def test_reading_on_finds_all_that_changed(room: Room, seed: int) -> None:
    """Read from an earlier state on, there is every file that changed since, with all that decides which of its rows are seen."""
    random, name = Random(1000 + seed), room.name()
    room.run("CREATE TABLE IF NOT EXISTS other (i INTEGER)", f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    before = room.read(name)
    for _ in range(12):
        for _ in range(2):
            room.run(random.choice(OPERATIONS).format(t=name, n=random.randint(0, 300)))
        if random.random() < 0.2:
            # only inlined deletes are left to flush: no rewrite of the past
            room.run(MAINTENANCE[0])
        check_reading_on(room, before, before := room.read(name))


def test_reading_on_after_each_kind_of_delete(room: Room) -> None:
    """A cumulative delete file keeps the lake snapshot of the first one; a row of a batch takes the whole batch along."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)", f"INSERT INTO {name} SELECT range, 'a' FROM range(100)")
    room.run(f"INSERT INTO {name} VALUES (201, 'b'), (202, 'b'), (203, 'b')", f"DELETE FROM {name} WHERE i < 20")
    before = room.read(name)
    for condition in ("i BETWEEN 20 AND 40", "i = 202", "i = 50", "i = 51", "i BETWEEN 60 AND 80"):
        room.run(f"DELETE FROM {name} WHERE {condition}")
        check_reading_on(room, before, before := room.read(name))


def check_reading_on(room: Room, before: TableState, whole: TableState) -> None:
    """What is read from the earlier state on is the part of the whole that changed."""
    since = before.position.lake_snapshot_id
    part = room.read(whole.table.table_name, LastRead(since, before.next_file_id))
    assert part.position == whole.position
    assert list(part.snapshots) == [row for row in whole.snapshots if row.snapshot_id > since]
    if any(kinds_of_table(row.changes_made, whole.table.table_id) & REWRITE_KINDS for row in part.snapshots):
        return
    all_tracked, tracked = track(room, whole), track(room, part)
    files = {file.key: file for file in tracked.files}
    for file in all_tracked.files:
        seen = all_tracked.visibility.get(file.key)
        changed = seen is not None and bool((seen.changes() > since).any())
        if file.begin_snapshot > since or (file.end_snapshot or 0) > since or changed:
            assert files[file.key] == file
    for key, seen in tracked.visibility.items():
        expected = all_tracked.visibility[key]
        assert [expected.positions.tolist(), expected.died.tolist()] == [seen.positions.tolist(), seen.died.tolist()]


def test_columns_that_come_and_go_leave_inlined_rows_in_their_tables(room: Room) -> None:
    """Each schema version has a table of its own; its columns are those of its first lake snapshot."""
    name = room.name()
    room.run(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)", f"INSERT INTO {name} VALUES (1, 'a')")
    room.run(f"ALTER TABLE {name} ADD COLUMN c INTEGER", f"INSERT INTO {name} VALUES (2, 'b', 5)")
    room.run(f"ALTER TABLE {name} DROP COLUMN i", f"ALTER TABLE {name} RENAME COLUMN s TO text", f"INSERT INTO {name} VALUES ('c', 6)")
    state = room.read(name)
    names: list[list[str]] = []
    for table in state.inlined_tables:
        at = table.begin_snapshot
        live_columns = sorted((c for c in state.columns if is_live(c, at)), key=lambda c: c.column_order)
        names.append([column.column_name for column in live_columns])
        assert all(len(row) == 3 + len(live_columns) for row in table.rows)
    assert names == [["i", "s"], ["i", "s", "c"], ["text", "c"]]
    assert [table.rows[0][3:] for table in state.inlined_tables] == [(1, b"a"), (2, b"b", 5), (b"c", 6)]
