"""Tables of other catalogs, made by PyIceberg, registered here: every reader sees the rows that their own catalog showed."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StringType, StructType

from tests.rest.serving import make_settings, serve
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
    lake: FreshLake

    @property
    def duck(self) -> DuckDBPyConnection:
        """A fresh DuckDB session in the lake."""
        return self.lake.duckdb()

    def register(self, table: Table, name: str = "ns.t") -> Table:
        """Register a table of the other catalog by its metadata file."""
        return self.here.register_table(name, table.metadata_location)


@pytest.fixture
def world(lake: FreshLake, tmp_path: Path) -> Iterator[World]:
    """Both catalogs with the namespace `ns`."""
    root = lake.iceberg_path.removesuffix("/").rpartition("/")[0] + "/elsewhere"
    with serve(make_settings(lake, allowed_locations=(root,))) as server:
        here = Served(lake, server).pyiceberg().catalog
        here.create_namespace("ns")
        keys = {key: value for key, value in here.properties.items() if key.startswith("s3.")}
        there = SqlCatalog("there", uri=f"sqlite:///{tmp_path}/there.db", warehouse=root, **keys)
        there.create_namespace("ns")
        yield World(there, here, lake)
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


@pytest.mark.parametrize("version", ["1", "2"])
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
