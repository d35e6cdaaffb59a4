"""What an Iceberg client's change of columns means for DuckDB's SORTED BY, whose keys are SQL text with names in it."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog

from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after

T = ("main", "t")
NAME = 2
"""The id of the column `name`."""


@pytest.fixture
def duck(lake: FreshLake) -> DuckDBPyConnection:
    """A session with a table of two columns."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT, name VARCHAR, extra BIGINT)")
    return conn


@pytest.fixture
def catalog(served: Served) -> RestCatalog:
    """PyIceberg."""
    return served.pyiceberg().catalog


def sort(conn: DuckDBPyConnection, clause: str) -> None:
    """Give the table an order."""
    conn.execute(f"ALTER TABLE t SET SORTED BY ({clause})")


def go_on(conn: DuckDBPyConnection, columns: str) -> list[int]:
    """Let DuckDB insert rows in wrong order, flush them, and return a number of each as its file has them."""
    conn.execute(f"INSERT INTO t ({columns}) SELECT 100 - range, 'n' || (200 - range) FROM range(100)")
    conn.execute("CALL ducklake_flush_inlined_data('lake')")
    first = columns.split(",")[0]
    return [row[0] for row in conn.execute(f"SELECT {first} FROM t ORDER BY rowid").fetchall()]


@pytest.mark.parametrize(
    ("clause", "new"),
    whole_after(
        1,
        [
            pytest.param("id ASC NULLS FIRST", "number", id="column"),
            pytest.param('"id" DESC, name', "select", id="word of SQL"),
            pytest.param("name, id + length(name)", 'it\'s "a" column', id="expression"),
            pytest.param("CASE WHEN id > 1 THEN id ELSE length('id') END", "löwe", id="text of that name"),
        ],
    ),
)
def test_keys_follow_a_renamed_column(duck: DuckDBPyConnection, catalog: RestCatalog, clause: str, new: str) -> None:
    """DuckDB sorts on by the new name, as after a rename of its own."""
    sort(duck, clause)
    before = catalog.load_table(T)
    with catalog.load_table(T).update_schema() as update:
        update.rename_column("id", new)
    after = catalog.load_table(T)
    assert after.sort_order().fields == before.sort_order().fields
    quoted = '"' + new.replace('"', '""') + '"'
    ids = go_on(duck, f"{quoted}, name")
    down = clause.startswith('"id" DESC')
    if not clause.startswith("name"):
        assert ids == sorted(ids, reverse=down)
    duck.execute(f"ALTER TABLE t RENAME COLUMN {quoted} TO id")
    assert catalog.load_table(T).sort_order().fields == before.sort_order().fields


def test_columns_that_change_places_change_their_keys(duck: DuckDBPyConnection, catalog: RestCatalog) -> None:
    """Both names are there afterwards, each for the other column."""
    sort(duck, "id, extra DESC")
    before = catalog.load_table(T).sort_order().fields
    with catalog.load_table(T).update_schema() as update:
        update.rename_column("id", "extra_")
    with catalog.load_table(T).update_schema() as update:
        update.rename_column("extra", "id").rename_column("extra_", "extra")
    assert catalog.load_table(T).sort_order().fields == before
    assert go_on(duck, "extra, name") == list(range(1, 101))


def with_columns(fields: dict[int, str]) -> list[Any]:
    """The updates that make these the table's columns, by their ids."""
    types = {NAME: "string"}
    columns = [{"id": key, "name": name, "required": False, "type": types.get(key, "long")} for key, name in fields.items()]
    schema = {"type": "struct", "schema-id": 0, "fields": columns}
    return [{"action": "add-schema", "schema": schema}, {"action": "set-current-schema", "schema-id": -1}]


@pytest.mark.parametrize(
    ("clause", "more"),
    whole_after(
        1,
        [
            pytest.param("name, id", [{"action": "set-default-sort-order", "sort-order-id": 0}], id="columns"),
            pytest.param("id + 1", [], id="expression"),
        ],
    ),
)
def test_an_order_by_a_dropped_column_ends(served: Served, clause: str, more: list[Any]) -> None:
    """DuckDB goes on, unsorted, also where a new column has that name; an order that clients see they have to end themselves."""
    duck, client = served.lake.duckdb(), open_client(served.server, served.lake)
    duck.execute("CREATE TABLE t (id BIGINT, name VARCHAR, extra BIGINT)")
    sort(duck, clause)
    before = client.load()["default-sort-order-id"]
    assert client.commit(with_columns({1: "id", NAME: "name"})).status == 200
    assert client.load()["default-sort-order-id"] == before
    dropped = with_columns({4: "id", NAME: "name"})
    if more:
        refused = client.commit(dropped)
        assert refused.status == 400
        assert b"Cannot find source column for sort field" in refused.body
        assert client.load()["default-sort-order-id"] == before
    assert client.commit([*more, *dropped]).status == 200
    assert served.pyiceberg().catalog.load_table(T).sort_order().is_unsorted
    assert go_on(duck, "id, name") == list(range(100, 0, -1))
