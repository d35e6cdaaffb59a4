"""Snapshots that grew from a state that is no more: 409, and no row of anybody is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.iceberg.manifest import DELETED, ManifestEntry, encode_manifest
from duckicelake.iceberg.manifest_list import ManifestListHeader, WrittenManifest, build_manifest_file, encode_manifest_list
from tests.rest.serving import Server
from tests.rest.writing.client import Client, assert_main, data_file, make_header, open_client, read_rows, set_ref, write_file
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

FIRST, STALE, NEXT = 9_000_000_001, 9_000_000_002, 9_000_000_003


@dataclass(frozen=True, slots=True)
class Table:
    """A table of its own in a lake that tests share, a client of it and DuckDB beside it."""

    client: Client
    lake: FreshLake
    session: DuckDBPyConnection
    name: str

    def load(self) -> Any:
        """Return what a client knows of it now."""
        return self.client.load(self.name)

    def append(self, row: int, snapshot_id: int, base: Any = None) -> list[Any]:
        """Return the updates that append one row to main, as the client knows the table, now unless told."""
        known = base or self.load()
        file = write_file(self.client, known, str(uuid4()), {1: pa.array([row]), 2: pa.array(["mine"])})
        return self.client.append(known, snapshot_id, [file])

    def take(self, updates: Sequence[Any], requirements: Sequence[Any] = ()) -> None:
        """Commit what must be taken."""
        done = self.client.commit(updates, requirements, self.name)
        assert done.status == 200, done.body

    def refuse(self, updates: Sequence[Any], requirements: Sequence[Any] = ()) -> str:
        """Fail unless the commit is refused with 409 and no row of the lake has changed; return what was said."""
        self.load()
        rows = read_rows(self.lake)
        refused = self.client.commit(updates, requirements, self.name)
        assert refused.error == (409, "CommitFailedException")
        assert read_rows(self.lake) == rows
        return refused.json["error"]["message"]

    def insert(self, first: int, last: int) -> None:
        """Let DuckDB insert rows."""
        self.session.execute(f"INSERT INTO {self.name} SELECT range, 'duck' FROM range({first}, {last} + 1)")

    def ids(self) -> list[int]:
        """Return the ids of its rows, as DuckDB has them."""
        return [row[0] for row in self.session.execute(f"SELECT id FROM {self.name} ORDER BY id").fetchall()]


@pytest.fixture
def table(standing: Server, standing_lake: FreshLake, request: pytest.FixtureRequest) -> Table:
    """An empty table, of version 2 unless the test says another."""
    client, name = open_client(standing, standing_lake), f"t{uuid4().hex}"
    assert client.create(name, properties={"format-version": getattr(request, "param", "2")}).status == 200
    return Table(client, standing_lake, standing_lake.duckdb(), name)


@pytest.mark.parametrize("table", whole_after(1, ["1", "2", "3"]), indirect=True)
def test_a_stale_append_takes_no_rows_away(table: Table) -> None:
    """It requires nothing of main, or the table's uuid alone; once it builds on what there is, it is taken."""
    table.take(table.append(1, FIRST))
    late = table.load()
    updates = table.append(2, STALE)
    table.insert(10, 39)
    said = table.refuse(updates, [{"type": "assert-table-uuid", "uuid": late["table-uuid"]}])
    if late["format-version"] > 1:
        number, last = updates[0]["snapshot"]["sequence-number"], table.load()["last-sequence-number"]
        words = "Validation failed, please retry: Cannot add snapshot with sequence number"
        assert said == f"{words} {number} older than last sequence number {last}"
    table.refuse(updates)
    updates[0]["snapshot"]["sequence-number"] += 1000 if late["format-version"] > 1 else 0
    assert "its parent is" in table.refuse(updates)
    assert table.ids() == [1, *range(10, 40)]
    table.take(table.append(3, NEXT))
    assert table.ids() == [1, 3, *range(10, 40)]


def test_a_first_append_finds_the_table_filled(table: Table) -> None:
    """Without a parent it would leave its own rows alone; a replacement says that main is to go, and may."""
    updates = table.append(1, FIRST)
    table.insert(10, 10)
    table.refuse(updates)
    assert table.ids() == [10]
    table.take([{"action": "remove-snapshot-ref", "ref-name": "main"}, *updates])
    assert table.ids() == [1]


def test_a_stale_append_does_not_undo_a_rollback(table: Table) -> None:
    """Main went back meanwhile: what was taken back stays away."""
    table.take(table.append(1, FIRST))
    first = table.load()["current-snapshot-id"]
    table.take(table.append(2, FIRST + 10))
    updates = table.append(3, STALE)
    table.take([set_ref("main", first, "branch")])
    table.refuse(updates)
    assert table.ids() == [1]
    table.take(table.append(3, NEXT))
    assert table.ids() == [1, 3]


def test_a_stale_append_to_a_branch_is_refused(table: Table) -> None:
    """A branch loses nothing either; a repeated one is known, and a snapshot beside every ref may have any parent."""
    table.take(table.append(1, FIRST))
    main = table.load()["current-snapshot-id"]
    table.take([set_ref("dev", main, "branch")])
    base = table.load()
    mine = [table.append(2, NEXT, base)[0], set_ref("dev", NEXT, "branch")]
    late = [table.append(3, STALE, base)[0], set_ref("dev", STALE, "branch")]
    table.take(mine)
    table.refuse(late)
    table.take(mine)
    table.take(late[:1])
    assert table.load()["refs"]["main"]["snapshot-id"] == main


def test_of_several_snapshots_each_builds_on_the_one_before(table: Table) -> None:
    """A commit that puts main on two snapshots of one parent would lose the first one's rows; a chain is taken, and known again."""
    base = table.load()
    first = table.append(1, FIRST, base)
    table.refuse([*first, *table.append(2, STALE, base)])
    file = write_file(table.client, base, str(uuid4()), {1: pa.array([2]), 2: pa.array(["mine"])})
    second = table.client.add(base, NEXT, [file], parent=first[0]["snapshot"])
    chain = [*first, {"action": "add-snapshot", "snapshot": second}, set_ref("main", NEXT, "branch")]
    table.take(chain, [assert_main(None)])
    assert table.ids() == [1, 2]
    table.insert(10, 10)
    table.take(chain, [assert_main(None)])
    assert table.ids() == [1, 2, 10]


def test_one_stale_table_stops_a_whole_transaction(table: Table) -> None:
    """All or nothing holds for what a table has grown by, too."""
    other = f"u{uuid4().hex}"
    assert table.client.create(other).status == 200
    late = Table(table.client, table.lake, table.session, other)
    parts = [(table.name, table.append(1, FIRST)), (other, late.append(1, FIRST))]
    late.insert(10, 10)
    late.load()
    rows = read_rows(table.lake)
    assert table.client.post("transactions/commit", together(parts)).error == (409, "CommitFailedException")
    assert read_rows(table.lake) == rows
    parts[1] = (other, late.append(1, NEXT))
    assert table.client.post("transactions/commit", together(parts)).status == 204
    assert (table.ids(), late.ids()) == ([1], [1, 10])


def together(parts: Sequence[tuple[str, list[Any]]]) -> dict[str, Any]:
    """The body that changes several tables and requires nothing."""
    changes = [{"identifier": {"namespace": ["main"], "name": name}, "requirements": [], "updates": updates} for name, updates in parts]
    return {"table-changes": changes}


def test_a_file_that_is_gone_is_not_replaced(table: Table) -> None:
    """A compaction that knows main's snapshot and removes a file that is not in it, as after a merge by DuckDB, is late."""
    table.take(table.append(1, FIRST))
    base = table.load()
    updates, header = table.append(2, STALE, base), make_header(base)
    snapshot, gone = updates[0]["snapshot"], data_file(base, "gone")
    entries = [ManifestEntry(DELETED, STALE, 1, 1, gone)]
    path, content = f"{base['location']}/metadata/{uuid4()}-m0.avro", encode_manifest(header, entries)
    table.client.objects.put_new(path, content)
    number = snapshot["sequence-number"]
    removed = build_manifest_file(header, entries, WrittenManifest(path, len(content), STALE, number))
    files = [removed, *table.client._read_list(snapshot)]  # pyright: ignore[reportPrivateUsage]
    list_path = f"{base['location']}/metadata/snap-{uuid4()}.avro"
    written = ManifestListHeader(STALE, base["current-snapshot-id"], number, 2)
    table.client.objects.put_new(list_path, encode_manifest_list(written, files))
    snapshot |= {"manifest-list": list_path, "summary": {"operation": "replace"}}
    said = table.refuse(updates, [assert_main(base["current-snapshot-id"])])
    assert said == f"Missing required files to delete: {gone.file_path}"
    assert table.ids() == [1]
