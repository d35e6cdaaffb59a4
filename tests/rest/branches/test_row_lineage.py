"""Deletes and row lineage through merges of the whole lake: equality deletes, deletion vectors, and the ids of rows in version 3."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection

from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.manifest import DELETED, EQUALITY_DELETES, POSITION_DELETES
from duckicelake.iceberg.puffin import decode_deletion_vector
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.store.row_ids import ROW_ID
from tests.lake.branches.repository import MAINTENANCE, make_branch
from tests.rest.serving import Answer, make_settings, serve
from tests.rest.writing.client import NO_HEADERS, Client, assert_main, open_store, set_ref, write_file
from tests.support.lakes import FreshLake

LAST_UPDATED = ROW_ID - 1
Lineage = dict[int, tuple[int, int]]
"""By the column `id`, a row's id and the sequence number that last changed it."""


class BranchClient(Client):
    """Speaks about tables on the branch `dev`."""

    def post(self, path: str, body: Any, headers: Mapping[str, str] = NO_HEADERS) -> Answer:
        """Send JSON."""
        return super().post(f"/v1/lake%40dev/{path}", body, headers)

    def load(self, name: str = "t") -> Any:
        """Return a table's metadata."""
        return self.server.get(f"/v1/lake%40dev/namespaces/main/tables/{name}").json["metadata"]


def read_lineage(client: Client) -> Lineage:
    """Read the rows of the table as its specification says, without those that deletion vectors delete."""
    metadata = client.load()
    assert metadata["format-version"] == 3
    [newest] = [each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"]]
    gone: dict[str | None, Any] = {}
    for listed in decode_manifest_list(client.objects.read(newest["manifest-list"])):
        for entry in decode_manifest(client.objects.read(listed.manifest_path), listed)[1] if listed.content else ():
            file = entry.data_file
            if entry.status == DELETED:
                continue
            assert (file.content, file.file_format) == (POSITION_DELETES, "PUFFIN")
            assert file.content_offset is not None and file.content_size_in_bytes is not None
            blob = client.objects.read(file.file_path)[file.content_offset : file.content_offset + file.content_size_in_bytes]
            assert file.referenced_data_file not in gone
            gone[file.referenced_data_file] = decode_deletion_vector(blob)
    found: list[tuple[int, tuple[int, int]]] = []
    for entry in client.read_entries(newest):
        file, deleted = entry.data_file, gone.pop(entry.data_file.file_path, ())
        table = pq.read_table(io.BytesIO(client.objects.read(file.file_path)))
        columns = {
            int((each.metadata or {}).get(b"PARQUET:field_id", -1)): table.column(n).to_pylist() for n, each in enumerate(table.schema)
        }
        own, updated = (columns.get(number) or [None] * table.num_rows for number in (ROW_ID, LAST_UPDATED))
        assert file.first_row_id is not None and entry.sequence_number is not None
        for place, row in enumerate(columns[1]):
            if place not in deleted:
                numbers = own[place], updated[place]
                ids = file.first_row_id + place if numbers[0] is None else numbers[0]
                found.append((row, (ids, entry.sequence_number if numbers[1] is None else numbers[1])))
    assert not gone and len(found) == len(dict(found)) == len({row_id for _, (row_id, _) in found})
    return dict(found)


def ask_duckdb(session: DuckDBPyConnection) -> Lineage:
    """Return the same as DuckDB has it."""
    return {row: (row_id, snapshot) for row, row_id, snapshot in session.execute("SELECT id, rowid, snapshot_id FROM lake.t").fetchall()}


def delete_equal(client: Client, *ids: int) -> None:
    """Delete rows by equality."""
    base = client.load()
    columns = {1: pa.array(ids)}
    deletes = write_file(client, base, f"equal-{ids[0]}", columns, content=EQUALITY_DELETES, equality_ids=(1,))
    done = client.commit(client.append(base, 9_000_000_000 + ids[0], [], [deletes]), [assert_main(base["current-snapshot-id"])])
    assert done.status == 200, done.json


def insert(session: DuckDBPyConnection, first: int, count: int) -> None:
    """Insert rows with ids from a number on."""
    session.execute(f"INSERT INTO lake.t SELECT i, 'd' FROM range({first}, {first + count}) r(i)")


@pytest.mark.whole
def test_deletes_and_row_ids_are_the_same_after_a_merge(lake: FreshLake) -> None:
    """Of both sides, in files and inlined; a row that existed keeps its id, and the number of its last change unless a merge changed it."""
    with serve(make_settings(lake)) as server:
        main, dev = Client(server, open_store(lake.store)), BranchClient(server, open_store(lake.store))
        assert main.create(properties={"format-version": "3"}).status == 200
        base = main.load()
        old = write_file(main, base, "old", {1: pa.array(range(100, 130)), 2: pa.array(["old"] * 30)})
        assert main.commit(main.append(base, 9_000_000_001, [old])).status == 200
        ours = lake.duckdb()
        for first in (0, 200):
            insert(ours, first, 50)
        insert(ours, 900, 3)
        side = make_branch(lake, "dev")
        theirs = side.duckdb()
        before = ask_duckdb(ours)
        delete_equal(dev, 101, 5, 901)
        insert(theirs, 1000, 40)
        insert(theirs, 1900, 2)
        theirs.execute("DELETE FROM lake.t WHERE id IN (110, 1000)")
        theirs.execute("UPDATE lake.t SET name = 'changed' WHERE id IN (6, 120)")
        delete_equal(main, 210, 211)
        insert(ours, 2000, 40)
        ours.execute("UPDATE lake.t SET name = 'ours' WHERE id = 220")
        on_branch = ask_duckdb(theirs)
        assert read_lineage(dev) == on_branch and read_lineage(main) == ask_duckdb(ours)
        snapshot_id = merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev")).snapshot_id
        left = {each for each in (*before, *range(1000, 1040), 1900, 1901, *range(2000, 2040))} - {101, 5, 901, 110, 1000, 210, 211}
        for client, lake_or_branch in ((main, lake), (dev, side)):
            shown, truth = read_lineage(client), ask_duckdb(lake_or_branch.duckdb())
            assert shown == truth and set(shown) == left
            assert all(shown[each][0] == row_id for each, (row_id, _) in before.items() if each in left)
            assert all(shown[each][0] == on_branch[each][0] for each in on_branch if each in left)
            untouched = [each for each in before if each in left - {6, 120, 220}]
            assert all(shown[each][1] == before[each][1] for each in untouched)
            assert all(shown[each][1] == snapshot_id for each in (1001, 1900, 6, 120))
        after = ask_duckdb(lake.duckdb())
        insert(lake.duckdb(), 3000, 30)
        with_new = read_lineage(main)
        assert {each: ids for each, ids in with_new.items() if each < 3000} == after
        check_maintenance(lake, main, with_new)


def check_maintenance(lake: FreshLake, client: Client, lineage: Lineage) -> None:
    """A flush and a merge of files change no row. DuckLake dates the rows of files that it rewrites anew, and says so to Iceberg."""
    for statement in MAINTENANCE[:2]:
        lake.duckdb().execute(statement)
    assert read_lineage(client) == ask_duckdb(lake.duckdb()) == lineage
    lake.duckdb().execute(MAINTENANCE[2])
    rewritten = read_lineage(client)
    assert rewritten == ask_duckdb(lake.duckdb())
    assert {each: row_id for each, (row_id, _) in rewritten.items()} == {each: row_id for each, (row_id, _) in lineage.items()}


@pytest.mark.whole
def test_equality_deletes_of_a_table_branch_last_over_a_merge(lake: FreshLake) -> None:
    """A table has them on an Iceberg branch when the lake is merged; they are resolved when the table's main moves there."""
    with serve(make_settings(lake)) as server:
        client = Client(server, open_store(lake.store))
        assert client.create().status == 200
        insert(lake.duckdb(), 0, 50)
        head = client.load()["current-snapshot-id"]
        assert client.commit([set_ref("other", head, "branch")]).status == 200
        base = client.load()
        equal = write_file(client, base, "equal", {1: pa.array([3, 4])}, content=EQUALITY_DELETES, equality_ids=(1,))
        added = client.add(base, 9_000_000_007, [], [equal])
        assert client.commit([{"action": "add-snapshot", "snapshot": added}, set_ref("other", 9_000_000_007, "branch")]).status == 200
        side = make_branch(lake, "dev")
        insert(side.duckdb(), 100, 40)
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
        metadata = client.load()
        assert set(metadata["refs"]) == {"main", "other"}
        rows = lake.duckdb().execute("SELECT count(*) FROM lake.t").fetchone()
        assert rows == (90,)
        target = metadata["refs"]["other"]["snapshot-id"]
        done = client.commit([set_ref("main", target, "branch")], [assert_main(metadata["current-snapshot-id"])])
        assert done.status == 200, done.json
        left = [row for (row,) in lake.duckdb().execute("SELECT id FROM lake.t ORDER BY 1").fetchall()]
        assert left == [each for each in range(50) if each not in (3, 4)]
        assert side.duckdb().execute("SELECT count(*) FROM lake.t").fetchone() == (90,)


@pytest.mark.long
def test_snapshots_that_one_side_removes_stay_on_the_other(lake: FreshLake) -> None:
    """A client's `remove-snapshots`, and all maintenance after it, takes nothing that the other side reads, whichever side it is."""
    with serve(make_settings(lake)) as server:
        main, dev = Client(server, open_store(lake.store)), BranchClient(server, open_store(lake.store))
        assert main.create().status == 200
        for first in (0, 100, 200):
            insert(lake.duckdb(), first, 50)
        main.load()
        side = make_branch(lake, "dev")
        for member, other in (((lake, main), (side, dev)), ((side, dev), (lake, main))):
            insert(member[0].duckdb(), 1000 if member[0] is lake else 2000, 30)
            member[0].duckdb().execute(f"DELETE FROM lake.t WHERE id < {20 if member[0] is lake else 40}")
            shown = read_snapshots(other)
            metadata = member[1].load()
            old = [each["snapshot-id"] for each in metadata["snapshots"] if each["snapshot-id"] != metadata["current-snapshot-id"]]
            assert member[1].commit([{"action": "remove-snapshots", "snapshot-ids": old}]).status == 200
            assert len(member[1].load()["snapshots"]) == 1
            for statement in MAINTENANCE:
                member[0].duckdb().execute(statement)
            assert read_snapshots(other) == shown


def read_snapshots(member: tuple[FreshLake, Client]) -> dict[int, Sequence[int]]:
    """Return the ids of the rows of each snapshot that Iceberg shows, as DuckDB reads them; the files that Iceberg names are there, too."""
    lake, client = member
    found: dict[int, Sequence[int]] = {}
    for snapshot in client.load()["snapshots"]:
        for entry in client.read_entries(snapshot):
            assert len(client.objects.read(entry.data_file.file_path)) == entry.data_file.file_size_in_bytes
        at = snapshot["snapshot-id"]
        rows = lake.duckdb().execute(f"SELECT id FROM lake.t AT (VERSION => {at}) ORDER BY 1").fetchall()
        found[at] = [row for (row,) in rows]
    return found
