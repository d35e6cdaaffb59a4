"""Files of snapshots that a client removed, and then deleted as Spark's expire_snapshots does (`gc.enabled=true`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from duckicelake.store.objects import Objects, StoreSettings, open_objects
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

FLUSHED = (
    *(f"INSERT INTO lake.ns.t VALUES ({i}, 'n{i}')" for i in range(5)),
    "DELETE FROM lake.ns.t WHERE id = 3",
    "CALL ducklake_flush_inlined_data('lake')",
)
MERGED = (
    *(f"INSERT INTO lake.ns.t SELECT range, 'm' FROM range({start}, {start + 20})" for start in (100, 200, 300)),
    "DELETE FROM lake.ns.t WHERE id = 207",
    "CALL ducklake_merge_adjacent_files('lake')",
)
DELETED_FROM = (
    "INSERT INTO lake.ns.t SELECT range, 'm' FROM range(100, 120)",
    "DELETE FROM ice.ns.t WHERE id = 103",
    "DELETE FROM ice.ns.t WHERE id = 104",
)


@dataclass(frozen=True, slots=True)
class Story:
    """The table ns.t, written by DuckDB, by its extension and by PyIceberg."""

    served: Served
    objects: Objects

    def load(self, served: Served | None = None) -> Table:
        """The table as a client finds it, at this server or another one."""
        return (served or self.served).pyiceberg().catalog.load_table("ns.t")

    def run(self, *statements: str) -> None:
        """Have DuckDB run statements: `lake` is the lake, `ice` the catalog."""
        conn = self.served.duckdb_iceberg().conn
        lake = self.served.lake.duckdb()
        for statement in statements:
            (conn if " ice." in statement else lake).execute(statement)

    def list_files(self, snapshot_ids: set[int]) -> set[str]:
        """Every object that these snapshots need."""
        table = self.load()
        found: set[str] = set()
        for snapshot in table.snapshots():
            if snapshot.snapshot_id in snapshot_ids:
                manifests = snapshot.manifests(table.io)
                entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
                found |= {snapshot.manifest_list, *(m.manifest_path for m in manifests), *(e.data_file.file_path for e in entries)}
        return found

    def expire(self, kept: set[int]) -> set[str]:
        """Remove all snapshots but these, and what they alone need; returns the data files that are gone."""
        ids = {snapshot.snapshot_id for snapshot in self.load().snapshots()}
        removed = self.list_files(ids - kept)
        self.load().maintenance.expire_snapshots().by_ids(sorted(ids - kept)).commit()
        left = {snapshot.snapshot_id for snapshot in self.load().snapshots()}
        gone = removed - self.list_files(left)
        for uri in gone:
            self.objects.delete(uri)
        return {uri for uri in gone if uri.endswith((".parquet", ".puffin"))}


def read_rows(table: Table, snapshot_id: int | None = None) -> list[Any]:
    """The rows in order."""
    return sorted(tuple(row.values()) for row in table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist())


def count_snapshots(table: Table) -> int:
    """How many there are, not counting those that show the newest one under its author's id."""
    return sum(
        1 for snapshot in table.snapshots() if snapshot.summary and "ducklake.alias-of" not in snapshot.summary.additional_properties
    )


@pytest.fixture
def story(lake: FreshLake) -> Iterator[Story]:
    """An empty table."""
    keys = lake.store
    objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
    with serve(make_settings(lake, object_check_s=0)) as server:
        story = Story(Served(lake, server), objects)
        story.run("CREATE SCHEMA lake.ns", "CREATE TABLE lake.ns.t (id BIGINT, name VARCHAR)")
        yield story


@pytest.mark.whole
@pytest.mark.parametrize(
    "statements",
    long_after(
        1,
        [
            pytest.param(FLUSHED, id="flushed"),
            pytest.param(MERGED, id="merged"),
            pytest.param(DELETED_FROM, id="deleted from", marks=pytest.mark.long),
        ],
    ),
)
def test_a_new_server_needs_no_file_of_removed_snapshots(story: Story, statements: tuple[str, ...]) -> None:
    """What no snapshot shows any more is not read: the table is shown, before it is dropped and when it is back."""
    story.run(*statements)
    story.load().overwrite(pa.table({"id": [1000, 1001], "name": ["new", "new"]}))
    table = story.load()
    table.append(pa.table({"id": [1002], "name": ["last"]}))
    rows = read_rows(table)
    assert any("/data/ns/t/ducklake-" in uri for uri in story.expire({table.metadata.current_snapshot_id or 0}))
    with serve(make_settings(story.served.lake)) as server:
        found = story.load(Served(story.served.lake, server))
        assert (read_rows(found), count_snapshots(found)) == (rows, 1)
        assert found.metadata == story.load().metadata
    location = story.load().metadata_location
    catalog = story.served.pyiceberg().catalog
    catalog.drop_table("ns.t")
    catalog.register_table("ns.t", location)
    with serve(make_settings(story.served.lake)) as server:
        other = Served(story.served.lake, server)
        assert (read_rows(story.load(other)), count_snapshots(story.load(other))) == (rows, 1)
        story.load(other).append(pa.table({"id": [1003], "name": ["more"]}))
        story.run("DELETE FROM lake.ns.t WHERE id = 1001")
        assert [row[0] for row in read_rows(story.load(other))] == [1000, 1002, 1003]


def test_a_tag_from_before_a_lost_flush_is_shown_as_it_was(story: Story) -> None:
    """The tag's rows lie in files of their own, which a new server can not make again, and need not."""
    story.run(*FLUSHED)
    table = story.load()
    tagged = table.snapshots()[1].snapshot_id
    table.manage_snapshots().create_tag(tagged, "early").commit()
    table.overwrite(pa.table({"id": [1000], "name": ["new"]}))
    assert any("/data/ns/t/ducklake-" in uri for uri in story.expire({tagged, table.metadata.current_snapshot_id or 0}))
    rows, early = read_rows(story.load()), read_rows(story.load(), tagged)
    with serve(make_settings(story.served.lake)) as server:
        found = story.load(Served(story.served.lake, server))
        assert (read_rows(found), read_rows(found, found.refs()["early"].snapshot_id)) == (rows, early)
        found.append(pa.table({"id": [1001], "name": ["more"]}))
        assert [row[0] for row in read_rows(found)] == [1000, 1001]
        found.manage_snapshots().remove_tag("early").commit()
        assert read_rows(story.load(Served(story.served.lake, server))) == read_rows(found)


@pytest.mark.whole
def test_a_snapshot_whose_file_is_gone_is_named(story: Story) -> None:
    """No ref has noted it: a new server says which file is missing until the snapshot is removed too."""
    story.run(*FLUSHED)
    table = story.load()
    early = table.snapshots()[1].snapshot_id
    table.overwrite(pa.table({"id": [1000], "name": ["new"]}))
    (gone,) = (uri for uri in story.expire({early, table.metadata.current_snapshot_id or 0}) if "/data/ns/t/ducklake-" in uri)
    with serve(make_settings(story.served.lake)) as server:
        answer = server.get("namespaces/ns/tables/t")
        assert answer.error == (404, "NotFoundException")
        assert gone in answer.json["error"]["message"]
        story.load().maintenance.expire_snapshots().by_ids([early]).commit()
        assert [row[0] for row in read_rows(story.load(Served(story.served.lake, server)))] == [1000]
