"""Nested schemas of DuckLake 1.1 are Iceberg's namespaces, level by level."""

import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int64Type
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NamespaceNotEmptyError, NoSuchTableError
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.types import LongType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from tests.rest.undrop.test_undrop import undrop
from tests.support.ducklake_1_1 import read_at
from tests.support.readers import Served

SCHEMA = Schema(Column("i", Int64Type()))
NAMESPACES = (("sales",), ("sales", "europe"), ("europe",), ("sales.europe",), ("sales", "europe", "north"))

SELECT_CHANGES = "SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id > %(since)s ORDER BY snapshot_id"
SELECT_SCHEMAS = """
SELECT s.schema_name, p.schema_name, s.path = s.schema_uuid || '/'
  FROM ducklake_schema s LEFT JOIN ducklake_schema p ON p.schema_id = s.parent_schema_id
 WHERE s.end_snapshot IS NULL AND s.begin_snapshot > %(since)s ORDER BY s.schema_id
"""


def rows(*values: int) -> pa.Table:
    """Rows of the column `i`."""
    return pa.table({"i": pa.array(values, pa.int64())})


@pytest.fixture
def nested(made: tuple[Served, DuckLakeCatalog]) -> tuple[Served, DuckLakeCatalog]:
    """A lake with a table `orders` in each namespace; its only row is the namespace's index."""
    for index, levels in enumerate(NAMESPACES):
        made[1].create_namespace(levels)
        made[1].create_table((*levels, "orders"), schema=SCHEMA).append(rows(index))
    return made


def test_each_table_is_that_of_its_own_namespace(nested: tuple[Served, DuckLakeCatalog]) -> None:
    """Schemas with one name in several parents, and a dot in a name, are different namespaces; an append goes to its own."""
    served, lake = nested
    with served.pyiceberg().catalog as catalog:
        for index, levels in enumerate(NAMESPACES):
            table = catalog.load_table((*levels, "orders"))
            assert table.scan().to_arrow() == rows(index)
            assert catalog.list_tables(levels) == [(*levels, "orders")]
            table.append(rows(index + 10))
        for index, levels in enumerate(NAMESPACES):
            assert sorted(lake.load_table((*levels, "orders")).to_arrow()["i"].to_pylist()) == [index, index + 10]
        assert sorted(catalog.list_namespaces()) == [("europe",), ("main",), ("sales",), ("sales.europe",)]
        assert catalog.list_namespaces(("sales",)) == [("sales", "europe")]
        assert catalog.list_namespaces(("sales", "europe")) == [("sales", "europe", "north")]
        with pytest.raises(NoSuchTableError):
            catalog.load_table(("sales", "north", "orders"))


def test_a_client_makes_nested_namespaces(nested: tuple[Served, DuckLakeCatalog]) -> None:
    """With the parents that are missing; the whole path is in the changes; names differ by more than case."""
    served, lake = nested
    conn, since = served.lake.psycopg(), lake.current_snapshot().snapshot_id
    with served.pyiceberg().catalog as catalog:
        catalog.create_namespace(("sales", "asia", "south"), {"owner": "ann"})
        catalog.create_table(("sales", "asia", "south", "t"), rows().schema).append(rows(7))
        with pytest.raises(NamespaceAlreadyExistsError):
            catalog.create_namespace(("Sales", "ASIA"))
        assert catalog.load_namespace_properties(("sales", "asia", "south")) == {"owner": "ann"}
    assert conn.execute(SELECT_SCHEMAS, {"since": since}).fetchall() == [("asia", "sales", True), ("south", "asia", True)]
    assert [text for (text,) in conn.execute(SELECT_CHANGES, {"since": since}).fetchall()][:2] == [
        'created_schema:"sales"."asia",created_schema:"sales"."asia"."south"',
        'created_table:"sales"."asia"."south"."t"',
    ]
    assert lake.load_table(("sales", "asia", "south", "t")).to_arrow() == rows(7)


def test_a_namespace_is_dropped_when_nothing_is_nested_in_it(nested: tuple[Served, DuckLakeCatalog]) -> None:
    """Its child namespaces count; DuckLake's own drop of a parent takes everything below with it. Tables move between levels."""
    served, lake = nested
    with served.pyiceberg().catalog as catalog:
        catalog.drop_table(("sales", "orders"))
        with pytest.raises(NamespaceNotEmptyError):
            catalog.drop_namespace(("sales",))
        catalog.rename_table(("sales", "europe", "north", "orders"), ("europe", "moved"))
        catalog.drop_namespace(("sales", "europe", "north"))
        assert catalog.load_table(("europe", "moved")).scan().to_arrow() == rows(4)
        assert lake.load_table(("europe", "moved")).to_arrow() == rows(4)
        lake.drop_namespace(("sales",), cascade=True)
        assert sorted(catalog.list_namespaces()) == [("europe",), ("main",), ("sales.europe",)]
        with pytest.raises(NoSuchTableError):
            catalog.load_table(("sales", "europe", "orders"))
        assert catalog.load_table(("europe", "orders")).scan().to_arrow() == rows(2)


def make_view(catalog: RestCatalog, ident: tuple[str, ...], sql: str) -> None:
    """A view of a client, with one column."""
    text = ViewRepresentation(SQLViewRepresentation(type="sql", sql=sql, dialect="duckdb"))
    version = ViewVersion(version_id=1, schema_id=1, timestamp_ms=1, summary={}, representations=[text], default_namespace=["main"])
    catalog.create_view(ident, IcebergSchema(NestedField(1, "i", LongType())), version)


def test_views_are_those_of_their_own_namespace(nested: tuple[Served, DuckLakeCatalog]) -> None:
    """One name in several namespaces, and DuckLake has each under its own; a view goes with its namespace, and alone."""
    served, lake = nested
    places = (("sales", "europe"), ("europe",), ("sales.europe",), ("sales", "europe", "north"))
    with served.pyiceberg().catalog as catalog:
        for index, levels in enumerate(places):
            make_view(catalog, (*levels, "v"), f"SELECT {index} AS i")
        for index, levels in enumerate(places):
            assert catalog.list_views(levels) == [(*levels, "v")]
            [text] = catalog.load_view((*levels, "v")).current_version().representations
            assert text.root.sql == f"SELECT {index} AS i"
            assert [ident.name for ident in lake.list_views(levels)] == ["v"]
        catalog.drop_view(("europe", "v"))
        lake.drop_namespace(("sales",), cascade=True)
        assert [catalog.view_exists((*levels, "v")) for levels in places] == [False, False, True, False]


def test_dropped_namespaces_come_back_level_by_level(nested: tuple[Served, DuckLakeCatalog]) -> None:
    """A parent first; each with its own tables, which ducklakepy reads again, now and before the drop."""
    served, lake = nested
    before = lake.current_snapshot().snapshot_id
    lake.drop_namespace(("sales",), cascade=True)
    refused = undrop(served.server, namespace=["sales", "europe"])
    assert refused.error == (404, "NoSuchNamespaceException") and "sales" in refused.json["error"]["message"]
    for levels in (("sales",), ("sales", "europe"), ("sales", "europe", "north")):
        assert undrop(served.server, namespace=list(levels)).json["tables"] == ["orders"]
    with served.pyiceberg().catalog as catalog:
        for index, levels in enumerate(NAMESPACES):
            ident = (*levels, "orders")
            assert catalog.load_table(ident).scan().to_arrow() == rows(index)
            assert lake.load_table(ident).to_arrow() == read_at(lake, ident, before) == rows(index)
        catalog.load_table(("sales", "europe", "orders")).append(rows(9))
    assert sorted(lake.load_table(("sales", "europe", "orders")).to_arrow()["i"].to_pylist()) == [1, 9]
    listed = served.server.get("/management/v1/lake/events").json["events"]
    assert [event["type"].rpartition(".")[2] for event in listed if event["subject"] == "sales.europe.orders"] == [
        *("created", "changed", "dropped", "restored", "changed"),
    ]
