"""Deletes that are older than what main has now: each counts for the files that its sequence number lets it count for."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.rest.serving import make_settings, serve
from tests.rest.writing.client import open_client, set_ref, write_file
from tests.rest.writing.test_foreign import FIRST_ID, Elsewhere, equality_deletes, ids, new_metadata, position_deletes, read_ids
from tests.support.lakes import FreshLake
from tests.support.readers import Served

FILE_PATH = 2_147_483_546


@pytest.fixture
def there(lake: FreshLake) -> Iterator[Elsewhere]:
    """A table of another catalog, and a server that may take it."""
    root = lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/other"
    with serve(make_settings(lake, allowed_locations=(root,))) as server:
        yield Elsewhere(open_client(server, lake), new_metadata(f"{root}/t"))


def read_iceberg(there: Elsewhere, lake: FreshLake, snapshot_id: int | None = None) -> list[int]:
    """The ids that DuckDB's `iceberg` extension reads, which knows deletes of all kinds."""
    found = Served(lake, there.client.server).duckdb_iceberg().read(("main", "t"), snapshot_id)
    return sorted(found.column("id").to_pylist())


def test_main_goes_back_to_rows_that_equality_deleted(there: Elsewhere, lake: FreshLake) -> None:
    """By position in DuckLake, for files older than the deletes alone; main shows the snapshot, and goes on from it."""
    a, b, c = (write_file(there.client, there.metadata, name, ids(1, 2, 3)) for name in ("a", "b", "c"))
    there.add([a])
    there.add([b], [equality_deletes(there, 1, 2)])
    there.add([c], [position_deletes(there, b.file_path, 2)])
    assert there.register().status == 200
    assert read_ids(lake) == read_iceberg(there, lake) == [1, 1, 2, 2, 3, 3]
    done = there.client.commit([set_ref("main", FIRST_ID + 1, "branch")])
    assert done.status == 200, done.json
    assert done.json["metadata"]["current-snapshot-id"] == FIRST_ID + 1
    assert read_ids(lake) == read_iceberg(there, lake) == [1, 2, 3, 3]


def test_what_grows_on_an_older_snapshot_has_its_deletes(there: Elsewhere, lake: FreshLake) -> None:
    """A request that puts main on a snapshot with equality deletes and adds one to it deletes no more and no less."""
    a, b, c, d = (write_file(there.client, there.metadata, name, ids(1, 2, 3)) for name in ("a", "b", "c", "d"))
    there.add([a])
    there.add([b])
    there.add([c], [equality_deletes(there, 1, 2)])
    there.add([d], [position_deletes(there, a.file_path, 2)])
    there.metadata["current-snapshot-id"] = FIRST_ID
    there.metadata["refs"] = {"main": {"snapshot-id": FIRST_ID, "type": "branch"}}
    there.metadata["snapshot-log"] = there.metadata["snapshot-log"][:1]
    assert there.register().status == 200
    assert read_ids(lake) == [1, 2, 3]
    now = there.client.load()
    old = next(snapshot for snapshot in now["snapshots"] if snapshot["snapshot-id"] == FIRST_ID + 3)
    added = there.client.add(now, 5, [write_file(there.client, now, "e", ids(4))], parent=old)
    added["sequence-number"] = now["last-sequence-number"] + 1
    updates = [set_ref("main", FIRST_ID + 3, "branch"), {"action": "add-snapshot", "snapshot": added}, set_ref("main", 5, "branch")]
    done = there.client.commit(updates)
    assert done.status == 200, done.json
    assert read_ids(lake) == read_iceberg(there, lake) == [1, 1, 2, 2, 3, 3, 3, 4]


def test_positions_older_than_a_file_delete_nothing_from_it(there: Elsewhere, lake: FreshLake) -> None:
    """Main goes back to a snapshot where a file is younger than deletes that name it; PyIceberg goes by the bounds of their paths."""
    a, b = (write_file(there.client, there.metadata, name, ids(*range(start, start + 5))) for name, start in (("a", 0), ("b", 10)))
    bounds = {FILE_PATH: b.file_path.encode()}
    there.add([a], [replace(position_deletes(there, b.file_path, 0), lower_bounds=bounds, upper_bounds=bounds)])
    there.add([b], [position_deletes(there, a.file_path, 1, 3)])
    there.add([], [position_deletes(there, b.file_path, 2)])
    assert there.register().status == 200
    assert there.client.commit([set_ref("main", FIRST_ID + 1, "branch")]).status == 200
    # DuckDB's `iceberg` extension takes positions for any file that they name
    read = Served(lake, there.client.server).pyiceberg().read(("main", "t"))
    assert read_ids(lake) == sorted(read.column("id").to_pylist()) == [0, 2, 4, 10, 11, 12, 13, 14]
