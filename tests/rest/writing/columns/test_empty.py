"""Tables without columns and structs without fields: DuckLake holds a placeholder for what they lack, and both sides read the same rows."""

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StructType

from duckicelake.translate.types import PLACEHOLDER
from tests.rest.serving import Server
from tests.rest.writing.client import open_client
from tests.rest.writing.columns.test_added import field
from tests.support.lakes import FreshLake
from tests.support.readers import Served


@pytest.fixture
def catalog(standing: Server, standing_lake: FreshLake) -> RestCatalog:
    """PyIceberg on a server whose lake tests share."""
    return Served(standing_lake, standing).pyiceberg().catalog


def test_a_table_gets_its_columns_later(catalog: RestCatalog, standing_lake: FreshLake) -> None:
    """Created without columns, filled by DuckDB and PyIceberg, and without columns again: each row is a row on both sides."""
    name = f"e{uuid4().hex}"
    table = catalog.create_table(("main", name), Schema())
    duckdb = standing_lake.duckdb()
    assert duckdb.execute(f"FROM {name}").description[0][0] == PLACEHOLDER
    assert (table.schema().fields, table.metadata.last_column_id) == ((), 1)
    duckdb.execute(f"INSERT INTO {name} VALUES (NULL), (true)")
    table.refresh()
    assert table.scan().count() == 2
    with table.update_schema() as change:
        change.add_column("a", LongType())
    table.append(pa.table({"a": [5]}))
    for rows in (table.scan().to_arrow().to_pylist(), duckdb.execute(f"FROM {name}").to_arrow_table().to_pylist()):
        assert sorted(rows, key=str) == [{"a": 5}, {"a": None}, {"a": None}]
    with table.update_schema() as change:
        change.delete_column("a")
    duckdb.execute(f"INSERT INTO {name} VALUES (NULL)")
    table.refresh()
    assert table.schema().fields == ()
    assert table.scan().count() == 4
    assert duckdb.execute(f"SELECT count(*), count({PLACEHOLDER}) FROM {name}").fetchone() == (4, 0)
    duckdb.execute(f"ALTER TABLE {name} ADD COLUMN b INTEGER")
    duckdb.execute(f"INSERT INTO {name} VALUES (NULL, 7)")
    table.refresh()
    assert sorted(table.scan().to_arrow().column("b").to_pylist(), key=str) == [7, None, None, None, None]


def test_a_partitioning_of_duckdb_ends_with_its_column(catalog: RestCatalog, standing_lake: FreshLake) -> None:
    """Clients see no spec of a placeholder, nor of a year whose time zone is unknown, so they cannot end it themselves."""
    name = f"e{uuid4().hex}"
    table = catalog.create_table(("main", name), Schema())
    standing_lake.duckdb().execute(f"ALTER TABLE {name} SET PARTITIONED BY ({PLACEHOLDER}); INSERT INTO {name} VALUES (true)")
    with table.refresh().update_schema() as change:
        change.add_column("a", LongType())
    duckdb = standing_lake.duckdb()
    duckdb.execute(f"INSERT INTO {name} VALUES (3)")
    duckdb.execute(f"ALTER TABLE {name} ADD COLUMN seen TIMESTAMPTZ; ALTER TABLE {name} SET PARTITIONED BY (year(seen))")
    duckdb.execute(f"INSERT INTO {name} VALUES (1, now())")
    with table.refresh().update_schema() as change:
        change.delete_column("seen")
    duckdb = standing_lake.duckdb()
    duckdb.execute(f"INSERT INTO {name} VALUES (5)")
    for rows in (table.refresh().scan().to_arrow().to_pylist(), duckdb.execute(f"FROM {name}").to_arrow_table().to_pylist()):
        assert sorted(rows, key=str) == [{"a": 1}, {"a": 3}, {"a": 5}, {"a": None}]
    assert table.spec().fields == ()


def test_structs_get_their_fields_later(catalog: RestCatalog, standing_lake: FreshLake) -> None:
    """A struct without fields is NULL or not, in rows that DuckDB inlined or wrote; it gets fields, and loses them again."""
    name = f"e{uuid4().hex}"
    schema = Schema(NestedField(1, "id", IntegerType(), required=False), NestedField(2, "s", StructType(), required=False))
    table = catalog.create_table(("main", name), schema)
    duckdb = standing_lake.duckdb()
    duckdb.execute(f"INSERT INTO {name} VALUES (1, NULL), (2, {{'{PLACEHOLDER}': NULL}})")
    duckdb.execute(f"CALL lake.set_option('data_inlining_row_limit', 0, table_name => '{name}')")
    duckdb.execute(f"INSERT INTO {name} VALUES (3, NULL), (4, {{'{PLACEHOLDER}': true}})")
    assert read_both(table, duckdb, name) == [{"id": i, "s": {} if i % 2 == 0 else None} for i in range(1, 5)]
    with table.update_schema() as change:
        change.add_column(("s", "x"), IntegerType())
    table.append(pa.table({"id": pa.array([6], pa.int32()), "s": pa.array([{"x": 1}], pa.struct({"x": pa.int32()}))}))
    assert read_both(table, duckdb, name)[1:] == [
        {"id": 2, "s": {"x": None}},
        {"id": 3, "s": None},
        {"id": 4, "s": {"x": None}},
        {"id": 6, "s": {"x": 1}},
    ]
    with table.update_schema() as change:
        change.delete_column(("s", "x"))
    assert [row["s"] for row in read_both(table, duckdb, name)] == [None, {}, None, {}, {}]


def read_both(table: Table, duckdb: DuckDBPyConnection, name: str) -> list[Any]:
    """Return the rows as PyIceberg reads them, which DuckDB must read too, but for placeholders."""
    found = sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    rows = duckdb.execute(f"FROM {name} ORDER BY id").to_arrow_table().to_pylist()
    for row in rows:
        if row["s"] is not None:
            row["s"].pop(PLACEHOLDER, None)
    assert found == rows
    return found


def test_elements_and_values_without_fields(standing: Server, standing_lake: FreshLake) -> None:
    """Within lists, maps and structs, which come back as they were sent; each has a placeholder of its own, above all ids."""
    client, name = open_client(standing, standing_lake), f"e{uuid4().hex}"
    nothing: dict[str, Any] = {"type": "struct", "fields": []}
    fields = [
        field(1, "l", {"type": "list", "element-id": 2, "element": nothing, "element-required": False}),
        field(3, "m", {"type": "map", "key-id": 4, "key": "int", "value-id": 5, "value": nothing, "value-required": False}),
        field(6, "s", {"type": "struct", "fields": [field(7, "inner", nothing)]}),
    ]
    made = client.post("namespaces/main/tables", {"name": name, "schema": {"type": "struct", "fields": fields}})
    shown = made.json["metadata"]["schemas"][0]["fields"]
    ids = {"l": 1, "m": 2, "s": 3}
    assert {item["name"]: item["id"] for item in shown} == ids
    assert shown[0]["type"]["element"] == shown[1]["type"]["value"] == shown[2]["type"]["fields"][0]["type"] == nothing
    duckdb = standing_lake.duckdb()
    value = f"{{'{PLACEHOLDER}': NULL}}"
    duckdb.execute(f"INSERT INTO {name} VALUES ([{value}, NULL], MAP {{1: {value}}}, {{'inner': {value}}})")
    assert client.load(name)["snapshots"][-1]["summary"]["total-records"] == "1"
    assert read_placeholders(standing_lake, name) == [8, 9, 10]


def read_placeholders(lake: FreshLake, name: str) -> list[int]:
    """Return the ids of a table's placeholders."""
    query = """SELECT c.column_id FROM ducklake_column c JOIN ducklake_table t USING (table_id)
                WHERE t.table_name = %s AND c.column_name = %s ORDER BY 1"""
    with lake.psycopg() as conn:
        return [row[0] for row in conn.execute(query, (name, PLACEHOLDER)).fetchall()]


def test_the_name_of_the_placeholder_is_reserved(standing: Server, standing_lake: FreshLake) -> None:
    """For columns and fields of clients: DuckLake would tell them from a placeholder by nothing."""
    client = open_client(standing, standing_lake)
    for fields in (
        [field(1, PLACEHOLDER.upper(), "boolean")],
        [field(1, "s", {"type": "struct", "fields": [field(2, PLACEHOLDER, "int")]})],
    ):
        body = {"name": f"e{uuid4().hex}", "schema": {"type": "struct", "fields": fields}}
        assert client.post("namespaces/main/tables", body).error == (400, "BadRequestException")
