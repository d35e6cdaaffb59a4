"""PyIceberg writes over REST, DuckDB reads and goes on writing in the same lake."""

import re
import sys
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.tiers import whole_after

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True, doc="the key"),
    NestedField(2, "name", StringType()),
    NestedField(3, "place", StructType(NestedField(4, "x", IntegerType()), NestedField(5, "tags", ListType(6, StringType(), False)))),
    identifier_field_ids=[1],
)

CLIENTS = Path(__file__).parents[3] / "docs" / "clients.md"
UUID_BYTES = "".join(f"\\x{byte:02X}" for byte in range(16))


@pytest.fixture
def catalog(served: Served) -> RestCatalog:
    """PyIceberg on a fresh lake with the namespace `ns`."""
    catalog = served.pyiceberg().catalog
    catalog.create_namespace("ns")
    return catalog


@pytest.fixture
def one_request_io(monkeypatch: pytest.MonkeyPatch) -> str:
    """The class in docs/clients.md that writes small files with one request, as `py-io-impl` names it."""
    [code] = re.findall(r"```python\n(.*?# one_request_io\.py.*?)```", CLIENTS.read_text(), re.DOTALL)
    module = ModuleType("one_request_io")
    exec(dedent(code), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return "one_request_io.OneRequestFileIO"


@pytest.fixture
def duck(served: Served) -> DuckDBPyConnection:
    """DuckDB on the same lake."""
    return served.lake.duckdb()


def rows(table: Table, *ids: int) -> pa.Table:
    """Rows of SCHEMA with these ids."""
    data = {"id": list(ids), "name": [f"n{i}" for i in ids], "place": [{"x": i, "tags": [str(i)]} for i in ids]}
    return pa.table(data, schema=table.schema().as_arrow())


def both(duck: DuckDBPyConnection, table: Table, columns: str = "*") -> list[Any]:
    """The rows of ns.t, which both sides must agree on."""
    if columns == "*":
        # by name: a column that was moved is where it was for DuckDB
        columns = ", ".join(f'"{name}"' for (name,) in duck.execute("SELECT column_name FROM (DESCRIBE lake.ns.t)").fetchall())
    found = duck.execute(f"SELECT {columns} FROM lake.ns.t ORDER BY ALL").fetchall()
    table.refresh()
    arrow = table.scan().to_arrow()
    mine = duck.execute(f"SELECT {columns} FROM arrow ORDER BY ALL").fetchall()
    assert len(arrow) == len(mine)
    assert mine == found
    return found


def test_a_created_table_is_ducklakes(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Columns, nested ones too, their ids, comments, NOT NULL and properties are on both sides; DuckDB inserts at once."""
    table = catalog.create_table("ns.t", SCHEMA, properties={"owner": "ann"})
    assert table.schema() == SCHEMA
    assert duck.execute('SELECT column_name, column_type, "null" FROM (DESCRIBE lake.ns.t)').fetchall() == [
        ("id", "BIGINT", "NO"),
        ("name", "VARCHAR", "YES"),
        ("place", "STRUCT(x INTEGER, tags VARCHAR[])", "YES"),
    ]
    assert duck.execute("SELECT comment FROM duckdb_columns() WHERE table_name = 't' AND column_name = 'id'").fetchone() == ("the key",)
    duck.execute("INSERT INTO lake.ns.t VALUES (1, 'a', NULL), (2, 'b', {'x': 1, 'tags': ['p']})")
    assert [row[0] for row in both(duck, table, "id")] == [1, 2]
    assert table.schema().identifier_field_ids == [1]


def test_every_kind_of_value_is_appended(served: Served, catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """DuckDB reads each type that PyIceberg writes, and its statistics never hide a row."""
    types = [BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(9, 2), DateType(), TimeType()]
    types += [TimestampType(), TimestamptzType(), StringType(), UUIDType(), BinaryType(), MapType(100, StringType(), 101, LongType())]
    schema = Schema(*(NestedField(i, f"c{i}", kind) for i, kind in enumerate(types, 1)))
    table = catalog.create_table("ns.t", schema)
    texts = "true, 7, 8, 1.5, -2.25, 12.34, DATE '2020-02-29', TIME '01:02:03.000004', TIMESTAMP '1969-12-31 23:59:59.5'"
    texts += f", TIMESTAMPTZ '2020-01-01 00:00:00+00', 'ü', '{UUID_BYTES}'::BLOB, '\\x00a'::BLOB, MAP {{'k': 1}}"
    values = duck.execute(f"SELECT * FROM (VALUES ({texts})) t({', '.join(f'c{i}' for i in range(1, 15))})").to_arrow_table()
    table.append(values.cast(table.schema().as_arrow()))
    found = both(duck, table)
    assert len(found) == 1
    for column in (f"c{i}" for i in range(1, 13)):
        query = f"SELECT count(*) FROM lake.ns.t WHERE {column} = (SELECT min({column}) FROM lake.ns.t)"
        assert duck.execute(query).fetchone() == (1,), column
    check_going_on(served, ("ns", "t"))


def test_appends_from_both_sides_add_up(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Counts, bounds and rows are right after each, and snapshot ids are lake snapshot ids."""
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows(table, 1, 2, 3))
    duck.execute("INSERT INTO lake.ns.t SELECT range, 'd', NULL FROM range(100, 150)")
    table.refresh()
    table.append(rows(table, 4))
    duck.execute("INSERT INTO lake.ns.t VALUES (200, 'inlined', NULL)")
    assert len(both(duck, table, "id")) == 55
    assert duck.execute("SELECT count(*), min(id), max(id) FROM lake.ns.t").fetchone() == (55, 1, 200)
    head = duck.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    assert head is not None
    assert table.metadata.current_snapshot_id == head[0]
    assert [snapshot.sequence_number for snapshot in table.metadata.snapshots] == [1, 2, 3, 4]


@pytest.mark.whole
def test_every_snapshot_reads_alike(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Overwrites, deletes, updates, flush, merge and rewrite by turns: both sides agree at each snapshot that is left."""
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows(table, *range(20)))
    duck.execute("DELETE FROM lake.ns.t WHERE id = 3")
    table.refresh()
    table.delete(EqualTo("id", 5))
    duck.execute("UPDATE lake.ns.t SET name = 'changed' WHERE id < 3")
    table.refresh()
    table.overwrite(rows(table, 30), EqualTo("id", 7))
    duck.execute("INSERT INTO lake.ns.t VALUES (40, 'inlined', NULL), (41, 'too', NULL)")
    table.refresh()
    table.delete(EqualTo("id", 40))
    for maintenance in ("ducklake_flush_inlined_data('lake')", "ducklake_merge_adjacent_files('lake')"):
        check_history(duck, table)
        duck.execute(f"CALL {maintenance}")
    duck.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    check_history(duck, table)
    assert [row[0] for row in both(duck, table, "id")] == [i for i in range(20) if i not in (3, 5, 7)] + [30, 41]


def test_the_history_is_listed_in_order(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """After each write the first snapshot stays the first one, the current one is the last one, and none is listed twice."""
    table = catalog.create_table("ns.t", SCHEMA)
    for number in range(3):
        table.append(rows(table, number))
        for seen in (table, catalog.load_table("ns.t")):
            ids = [snapshot.snapshot_id for snapshot in seen.snapshots()]
            assert len(ids) == number + 1
            assert ids == sorted(ids) == [entry.snapshot_id for entry in seen.history()]
            assert [(seen.metadata.current_snapshot_id,)] == [(ids[-1],)] == duck.execute("FROM lake.current_snapshot()").fetchall()
    assert table.inspect.snapshots()["snapshot_id"].to_pylist() == ids


def check_history(duck: DuckDBPyConnection, table: Table) -> None:
    """Compare both sides at every snapshot."""
    table.refresh()
    assert len(table.metadata.snapshots) > 3
    for snapshot in table.metadata.snapshots:
        query = f"SELECT id, name FROM lake.ns.t AT (VERSION => {snapshot.snapshot_id}) ORDER BY ALL"
        arrow = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        mine = sorted(zip(arrow["id"].to_pylist(), arrow["name"].to_pylist(), strict=True))
        assert mine == duck.execute(query).fetchall(), snapshot


@pytest.mark.whole
def test_columns_evolve_on_both_sides(served: Served, catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Adding, renaming, promoting, moving, dropping: DuckDB follows, and its own change keeps what only Iceberg can say."""
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows(table, 1, 2))
    duck.execute("INSERT INTO lake.ns.t VALUES (3, 'inlined', NULL)")
    with table.update_schema() as update:
        update.add_column("extra", IntegerType(), doc="more").add_column(("place", "y"), IntegerType(), doc="deep")
        update.rename_column("name", "title").move_first("name")
    with table.update_schema() as update:
        update.update_column("extra", LongType()).delete_column(("place", "tags"))
    described = duck.execute("SELECT column_name, column_type FROM (DESCRIBE lake.ns.t)").fetchall()
    assert described == [("id", "BIGINT"), ("title", "VARCHAR"), ("place", "STRUCT(x INTEGER, y INTEGER)"), ("extra", "BIGINT")]
    assert [field.name for field in table.schema().fields] == ["title", "id", "place", "extra"]
    duck.execute("INSERT INTO lake.ns.t VALUES (4, 'small', {'x': 1, 'y': 2}, 5)")
    duck.execute("UPDATE lake.ns.t SET extra = 9 WHERE id = 1")
    assert len(both(duck, table)) == 4
    duck.execute("ALTER TABLE lake.ns.t ADD COLUMN by_duckdb DATE")
    table.refresh()
    assert [field.name for field in table.schema().fields] == ["title", "id", "place", "extra", "by_duckdb"]
    assert table.schema().find_field("place.y").doc == "deep"
    assert table.schema().identifier_field_ids == [1]
    assert table.schema().find_field("by_duckdb").field_id == table.metadata.last_column_id
    duck.execute("CALL ducklake_flush_inlined_data('lake')")
    assert len(both(duck, table)) == 4
    check_going_on(served, ("ns", "t"))


@pytest.mark.parametrize(
    ("transform", "source_id"),
    whole_after(
        1,
        [
            pytest.param(IdentityTransform(), 2, id="identity"),
            pytest.param(BucketTransform(4), 1, id="bucket"),
            pytest.param(TruncateTransform(1), 2, id="truncate"),
        ],
    ),
)
def test_partitioned_tables(catalog: RestCatalog, duck: DuckDBPyConnection, transform: Any, source_id: int) -> None:
    """A client's own files keep their partition values, DuckDB's go unpartitioned, and filters find every row."""
    spec = PartitionSpec(PartitionField(source_id, 1000, transform, "part"))
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=spec)
    table.append(rows(table, *range(8)))
    duck.execute("INSERT INTO lake.ns.t VALUES (2, 'n2', NULL), (9, 'n9', NULL)")
    duck.execute("CALL ducklake_flush_inlined_data('lake')")
    table.refresh()
    table.append(rows(table, 10))
    assert table.spec().fields == spec.fields
    assert len(both(duck, table, "id")) == 11
    assert sorted(table.scan(EqualTo("name", "n2")).to_arrow()["id"].to_pylist()) == [2, 2]
    assert sorted(table.scan(EqualTo("id", 9)).to_arrow()["id"].to_pylist()) == [9]
    table.delete(EqualTo("name", "n2"))
    assert [row[0] for row in both(duck, table, "id")] == [0, 1, 3, 4, 5, 6, 7, 9, 10]


def test_partitioning_evolves(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Specs keep their ids; no spec appears that nobody asked for and no file needs."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "ts", TimestampType()))
    table = catalog.create_table("ns.t", schema)
    with table.update_spec() as update:
        update.add_field("ts", DayTransform(), "day")
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(8), "bucket")
    assert sorted(table.specs()) == [0, 1, 2]
    assert table.spec().spec_id == 2
    data = duck.execute("SELECT range AS id, TIMESTAMP '2020-01-01' + to_days(range::INTEGER) AS ts FROM range(5)").to_arrow_table()
    table.append(data.cast(table.schema().as_arrow()))
    assert len(both(duck, table)) == 5
    assert sorted(table.specs()) == [0, 1, 2]


def test_properties_are_tags(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Set and removed on one side, seen on the other; `comment` is DuckDB's comment."""
    table = catalog.create_table("ns.t", SCHEMA, properties={"a": "1", "b": "2"})
    with table.transaction() as transaction:
        transaction.set_properties({"b": "3", "comment": "hello"}).remove_properties("a")
    found = duck.execute("SELECT comment, tags['b'], tags['a'] FROM duckdb_tables() WHERE table_name = 't'").fetchone()
    assert found == ("hello", "3", None)
    duck.execute("COMMENT ON TABLE lake.ns.t IS 'changed'")
    assert table.refresh().properties["comment"] == "changed"


def test_create_transactions(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """A table and its first rows land together; its first snapshot is number 1."""
    with catalog.create_table_transaction("ns.t", SCHEMA) as transaction:
        transaction.append(pa.table({"id": [1], "name": ["a"], "place": [None]}, schema=SCHEMA.as_arrow()))
    table = catalog.load_table("ns.t")
    assert len(both(duck, table)) == 1
    assert table.metadata.last_sequence_number == 1
    with pytest.raises(TableAlreadyExistsError):
        catalog.create_table("ns.t", SCHEMA)


@pytest.mark.whole
def test_renamed_and_dropped(served: Served, catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """A renamed table keeps uuid, location and rows, across namespaces too; a dropped one is gone on both sides."""
    catalog.create_namespace("other")
    table = catalog.create_table("ns.t", SCHEMA)
    table.append(rows(table, 1, 2))
    duck.execute("INSERT INTO lake.ns.t SELECT range, 'd', NULL FROM range(10, 40)")
    renamed = catalog.rename_table("ns.t", "other.u")
    assert renamed.metadata.table_uuid == table.metadata.table_uuid
    assert renamed.location() == table.location()
    assert len(renamed.scan().to_arrow()) == 32
    assert duck.execute("SELECT count(*) FROM lake.other.u WHERE id >= 0").fetchone() == (32,)
    duck.execute("INSERT INTO lake.other.u SELECT range, 'd', NULL FROM range(50, 90)")
    assert len(renamed.refresh().scan().to_arrow()) == 72
    check_going_on(served, ("other", "u"))
    catalog.drop_table("other.u")
    assert catalog.list_tables("other") == []
    assert duck.execute("SELECT count(*) FROM duckdb_tables() WHERE database_name = 'lake'").fetchone() == (0,)


def test_a_stale_commit_is_refused(catalog: RestCatalog, duck: DuckDBPyConnection) -> None:
    """Whoever built on an older schema is told so, and nothing changed."""
    table = catalog.create_table("ns.t", SCHEMA)
    stale = catalog.load_table("ns.t")
    duck.execute("ALTER TABLE lake.ns.t ADD COLUMN other INTEGER")
    with pytest.raises(CommitFailedException, match="Requirement failed"), stale.update_schema() as update:
        update.add_column("mine", IntegerType())
    assert [field.name for field in table.refresh().schema().fields] == ["id", "name", "place", "other"]


def test_the_documented_way_to_write_small_files_at_once_writes_them(served: Served, duck: DuckDBPyConnection, one_request_io: str) -> None:
    """The rows are there, and PyArrow was told to wait with an upload until it knows that the file is large."""
    usual = served.pyiceberg().catalog
    catalog = RestCatalog("lake", **{**usual.properties, "py-io-impl": one_request_io})
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", Schema(NestedField(1, "id", LongType())))
    assert f"{type(table.io).__module__}.{type(table.io).__name__}" == one_request_io
    assert isinstance(table.io, PyArrowFileIO)
    _, (options,) = table.io.fs_by_scheme("s3", None).__reduce__()
    assert options["allow_delayed_open"]
    table.append(pa.table({"id": [1, 2, 3]}))
    assert duck.execute("SELECT sum(id) FROM ns.t").fetchone() == (6,)
    assert [row["id"] for row in table.scan().to_arrow().to_pylist()] == [1, 2, 3]
