"""Tables of other catalogs, made by PyIceberg, registered here: every reader sees the rows that their own catalog showed."""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import FixedType, IntegerType, ListType, LongType, NestedField, StringType, StructType

from tests.interop.writing.test_folder_columns import append_files, write_file
from tests.rest.serving import make_settings, serve
from tests.support.going_on import check_going_on
from tests.support.lakes import FreshLake
from tests.support.readers import Served

SCHEMA = Schema(
    NestedField(1, "id", IntegerType(), required=False, doc="the key"),
    NestedField(2, "name", StringType()),
    NestedField(3, "place", StructType(NestedField(4, "x", IntegerType()), NestedField(5, "tags", ListType(6, StringType(), False)))),
)


@dataclass(frozen=True, slots=True)
class World:
    """A catalog of PyIceberg's own on the store, and a lake whose server may take its tables."""

    there: SqlCatalog
    here: RestCatalog
    served: Served

    @property
    def duck(self) -> DuckDBPyConnection:
        """A fresh DuckDB session in the lake."""
        return self.served.lake.duckdb()

    def register(self, table: Table, name: str = "ns.t") -> Table:
        """Register a table of the other catalog by its metadata file."""
        return self.here.register_table(name, table.metadata_location)


@pytest.fixture
def world(lake: FreshLake, tmp_path: Path) -> Iterator[World]:
    """Both catalogs with the namespace `ns`."""
    root = lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/elsewhere"
    with serve(make_settings(lake, allowed_locations=(root,))) as server:
        served = Served(lake, server)
        here = served.pyiceberg().catalog
        here.create_namespace("ns")
        keys = {key: value for key, value in here.properties.items() if key.startswith("s3.")}
        there = SqlCatalog("there", uri=f"sqlite:///{tmp_path}/there.db", warehouse=root, **keys)
        there.create_namespace("ns")
        yield World(there, here, served)
        there.engine.dispose()
        here.close()


def rows(*ids: int) -> pa.Table:
    """Rows of SCHEMA with these ids."""
    data = {"id": list(ids), "name": [f"n{i}" for i in ids], "place": [{"x": i, "tags": [str(i)]} for i in ids]}
    return pa.table(data, schema=SCHEMA.as_arrow())


def in_order(table: pa.Table) -> list[Any]:
    """The rows of a table in order of id."""
    return sorted(table.to_pylist(), key=lambda row: row["id"])


def both(world: World, table: Table) -> list[Any]:
    """The rows of ns.t, which PyIceberg and DuckDB must agree on."""
    table.refresh()
    mine = in_order(table.scan().to_arrow())
    assert in_order(world.duck.execute("FROM lake.ns.t").to_arrow_table()) == mine
    return mine


@pytest.mark.whole
@pytest.mark.parametrize("version", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_a_tables_rows_history_and_refs_come_along(world: World, version: str) -> None:
    """Under their own ids; nothing is copied, and everything goes on: writes of both sides, time travel."""
    there = world.there.create_table("ns.t", SCHEMA, properties={"format-version": version, "owner": "ann"})
    there.append(rows(1, 2, 3))
    there.manage_snapshots().create_tag(there.snapshots()[0].snapshot_id, "first").commit()
    there.append(rows(4, 5))
    there.delete(EqualTo("id", 2))
    table = world.register(there)
    assert table.metadata.current_snapshot_id == there.metadata.current_snapshot_id
    assert [s.snapshot_id for s in table.snapshots()] == [s.snapshot_id for s in there.snapshots()]
    assert table.metadata.snapshot_log == there.metadata.snapshot_log
    assert (table.metadata.table_uuid, table.location()) == (there.metadata.table_uuid, there.location())
    assert {name: ref.snapshot_id for name, ref in table.refs().items()} == {name: ref.snapshot_id for name, ref in there.refs().items()}
    assert table.properties["owner"] == "ann"
    assert both(world, table) == in_order(there.scan().to_arrow())
    for snapshot in there.snapshots():
        old = in_order(there.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert in_order(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == old
    table.append(rows(6))
    assert [row["id"] for row in both(world, table)] == [1, 3, 4, 5, 6]
    duck = world.duck
    duck.execute("UPDATE lake.ns.t SET name = 'new' WHERE id = 4")
    duck.execute("INSERT INTO lake.ns.t VALUES (7, 'n7', NULL)")
    duck.execute("DELETE FROM lake.ns.t WHERE id = 1")
    assert [(row["id"], row["name"]) for row in both(world, table)] == [(3, "n3"), (4, "new"), (5, "n5"), (6, "n6"), (7, "n7")]
    table.delete(EqualTo("id", 3))
    assert [row["id"] for row in both(world, table)] == [4, 5, 6, 7]
    parents = {s.snapshot_id: s.parent_snapshot_id for s in table.snapshots()}
    chain = [table.metadata.current_snapshot_id]
    while parents[chain[-1]] is not None:
        chain.append(parents[chain[-1]])
    assert chain[-1] == there.snapshots()[0].snapshot_id
    assert in_order(table.scan(snapshot_id=table.refs()["first"].snapshot_id).to_arrow()) == in_order(rows(1, 2, 3))
    check_going_on(world.served, ("ns", "t"))


@pytest.mark.whole
def test_evolved_schemas_and_specs_come_along(world: World) -> None:
    """Columns renamed, promoted, added, dropped and moved, nested ones too; files of three partition specs."""
    there = world.there.create_table("ns.t", SCHEMA)
    there.append(rows(1, 2))
    with there.update_schema() as change:
        change.rename_column("name", "title")
        change.add_column("extra", LongType())
        change.update_column("id", LongType())
        change.add_column(("place", "y"), StringType())
        change.add_column("gone", LongType())
    with there.update_spec() as spec:
        spec.add_field("id", BucketTransform(4), "id_bucket")
    there.append(evolved(there, 3, 4))
    with there.update_spec() as spec:
        spec.add_field("title", IdentityTransform(), "title")
        spec.remove_field("id_bucket")
    there.append(evolved(there, 5))
    with there.update_schema() as change:
        change.delete_column("extra")
        change.delete_column("gone")
        change.move_first("title")
    table = world.register(there)
    assert table.schemas() == there.schemas()
    assert table.specs() == there.specs()
    assert table.spec() == there.spec()
    assert both(world, table) == in_order(there.scan().to_arrow())
    for snapshot in there.snapshots():
        old = in_order(there.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert in_order(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == old
    duck = world.duck
    assert duck.execute("SELECT min(id), max(id), count(*) FROM lake.ns.t WHERE title >= 'n3'").fetchone() == (3, 5, 3)
    duck.execute("ALTER TABLE lake.ns.t ADD COLUMN later INTEGER")
    duck.execute("INSERT INTO lake.ns.t (id, title, later) VALUES (3000000000, 'big', 9)")
    found = both(world, table)
    assert [row["later"] for row in found] == [None, None, None, None, None, 9]
    taken = {field.field_id for schema in there.schemas().values() for field in schema.fields}
    assert table.schema().find_field("later").field_id > max(taken)
    assert len(table.scan(row_filter=EqualTo("title", "n5")).to_arrow()) == 1
    check_going_on(world.served, ("ns", "t"))


def evolved(table: Table, *ids: int) -> pa.Table:
    """Rows of the table as it is once its columns have changed."""
    place = [{"x": i, "y": str(i), "tags": []} for i in ids]
    data = {"id": list(ids), "title": [f"n{i}" for i in ids], "extra": [10 * i for i in ids], "gone": list(ids), "place": place}
    columns = {field.name: data[field.name] for field in table.schema().fields}
    return pa.table(columns, schema=table.schema().as_arrow())


@pytest.mark.whole
def test_files_without_field_ids_are_read_by_their_names(world: World) -> None:
    """As `add_files` takes them: by the names that the table's mapping has, old and new."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    there = world.there.create_table("ns.t", schema)
    there.append(pa.table({"id": [1], "name": ["own"]}))
    path = f"{there.location()}/data/added.parquet"
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"name": ["a", "b"], "more": [1, 2], "id": [2, 3]}), content)
    with there.io.new_output(path).create() as out:
        out.write(content.getvalue().to_pybytes())
    with there.update_schema() as change:
        change.add_column("more", LongType())
    there.add_files([path])
    with there.update_schema() as change:
        change.rename_column("name", "title")
    table = world.register(there)
    expected = [{"id": 1, "title": "own", "more": None}, {"id": 2, "title": "a", "more": 1}, {"id": 3, "title": "b", "more": 2}]
    assert both(world, table) == in_order(there.scan().to_arrow()) == expected
    world.duck.execute("UPDATE lake.ns.t SET title = 'new' WHERE id = 3")
    assert both(world, table)[2] == {"id": 3, "title": "new", "more": 2}
    table.append(pa.table({"id": [4], "title": ["last"], "more": pa.array([None], pa.int64())}))
    assert [row["title"] for row in both(world, table)] == ["own", "a", "new", "last"]
    check_going_on(world.served, ("ns", "t"))


@pytest.mark.whole
@pytest.mark.parametrize(("folder", "is_taken"), [("id=7", True), ("id=8", False), ("elsewhere", False)])
def test_columns_in_names_of_folders_come_along(world: World, folder: str, is_taken: bool) -> None:
    """Where they say what the partition says."""
    schema = Schema(NestedField(1, "name", StringType()), NestedField(2, "id", LongType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "id"))
    names = {"schema.name-mapping.default": '[{"field-id":1,"names":["name"]},{"field-id":2,"names":["id"]}]'}
    there = world.there.create_table("ns.t", schema, partition_spec=spec, properties=names)
    append_files(there, [write_file(there, folder, 7, pa.table({"name": ["a", "b"]}))])
    if not is_taken:
        with pytest.raises(BadRequestError, match="file.parquet.*'id'"):
            world.register(there)
        return
    table = world.register(there)
    assert both(world, table) == [{"name": "a", "id": 7}, {"name": "b", "id": 7}]
    check_going_on(world.served, ("ns", "t"))


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_a_table_without_rows_comes_along(world: World, packed: bool) -> None:
    """Also by a packed metadata file, and written to from both sides then."""
    there = world.there.create_table("ns.t", SCHEMA)
    location = there.metadata_location
    if packed:
        content = there.io.new_input(location).open().read()
        location = location.replace(".metadata.json", ".gz.metadata.json")
        with there.io.new_output(location).create() as out:
            out.write(gzip.compress(content))
    table = world.here.register_table("ns.t", location)
    assert table.current_snapshot() is None
    assert [entry.metadata_file for entry in table.metadata.metadata_log] == [location]
    world.duck.execute("INSERT INTO lake.ns.t VALUES (1, 'n1', NULL)")
    table.refresh()
    table.append(rows(2))
    assert [row["id"] for row in both(world, table)] == [1, 2]


@pytest.mark.whole
def test_the_past_stays_when_ducklake_forgets_it(world: World) -> None:
    """Maintenance removes what it may; snapshots from before the registration and its ref are read as ever."""
    there = world.there.create_table("ns.t", SCHEMA)
    there.append(rows(1, 2, 3))
    there.delete(EqualTo("id", 2))
    there.append(rows(4))
    table = world.register(there)
    duck = world.duck
    duck.execute("DELETE FROM lake.ns.t WHERE id < 4")
    duck.execute("INSERT INTO lake.ns.t SELECT 10 + range, 'x', NULL FROM range(100)")
    duck.execute("CALL lake.set_option('rewrite_delete_threshold', 0)")
    for option in ("expire_older_than", "delete_older_than"):
        duck.execute(f"CALL lake.set_option('{option}', '0 seconds')")
    for _ in range(2):
        duck.execute("CHECKPOINT lake")
        duck.execute("INSERT INTO lake.ns.t VALUES (5, 'n5', NULL)")
        duck.execute("DELETE FROM lake.ns.t WHERE id = 5")
    duck.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    duck.execute("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    assert len(both(world, table)) == 101
    for snapshot in there.snapshots():
        old = in_order(there.scan(snapshot_id=snapshot.snapshot_id).to_arrow())
        assert in_order(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == old


@pytest.mark.whole
def test_refs_move_over_the_past(world: World) -> None:
    """Main goes back to a snapshot from before the registration and on from there; branches grow from such snapshots."""
    there = world.there.create_table("ns.t", SCHEMA)
    there.append(rows(1, 2))
    there.append(rows(3))
    there.delete(EqualTo("id", 1))
    first, second, third = (snapshot.snapshot_id for snapshot in there.snapshots())
    table = world.register(there)
    table.manage_snapshots().create_branch(first, "b").commit()
    table.append(rows(4), branch="b")
    assert sorted(table.scan().use_ref("b").to_arrow()["id"].to_pylist()) == [1, 2, 4]
    assert [row["id"] for row in both(world, table)] == [2, 3]
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert [row["id"] for row in both(world, table)] == [1, 2]
    assert table.metadata.current_snapshot_id == first
    table.append(rows(5))
    assert [row["id"] for row in both(world, table)] == [1, 2, 5]
    table.manage_snapshots().set_current_snapshot(third).commit()
    assert [row["id"] for row in both(world, table)] == [2, 3]
    world.duck.execute("DELETE FROM lake.ns.t WHERE id = 2")
    assert [row["id"] for row in both(world, table)] == [3]
    table.maintenance.expire_snapshots().by_id(second).commit()
    assert second not in {snapshot.snapshot_id for snapshot in table.refresh().snapshots()}
    assert [row["id"] for row in both(world, table)] == [3]


@pytest.mark.whole
def test_fixed_columns_come_along(world: World) -> None:
    """With their lengths; a DuckDB row beside them is read by every reader, and by clients under the length still."""
    schema = Schema(NestedField(1, "id", IntegerType()), NestedField(2, "key", FixedType(4)))
    there = world.there.create_table("ns.t", schema)
    there.append(pa.table({"id": [1, 2], "key": [b"abcd", b"\x00\xff\x80\\"]}, schema=schema.as_arrow()))
    table = world.register(there)
    world.duck.execute("INSERT INTO lake.ns.t VALUES (3, 'efgh')")
    assert [row["key"] for row in both(world, table)] == [b"abcd", b"\x00\xff\x80\\", b"efgh"]
    assert str(table.schema().find_field("key").field_type) == "fixed[4]"
    check_going_on(world.served, ("ns", "t"))
