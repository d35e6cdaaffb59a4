"""DuckLake's SORTED BY as an Iceberg sort order."""

import json

import pytest

from duckicelake.catalog.warehouse import Warehouse
from tests.catalog.reading import load
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

BOTH = [
    {"transform": "identity", "source-id": 2, "direction": "desc", "null-order": "nulls-last"},
    {"transform": "identity", "source-id": 1, "direction": "asc", "null-order": "nulls-first"},
]


@pytest.mark.parametrize(
    ("clause", "fields"),
    whole_after(
        1,
        [
            pytest.param("(Name DESC NULLS LAST, id ASC NULLS FIRST)", BOTH, id="columns"),
            pytest.param("(length(name))", None, id="expression"),
        ],
    ),
)
def test_a_sort_order_of_bare_columns_is_published(
    lake: FreshLake, warehouse: Warehouse, clause: str, fields: list[dict[str, object]] | None
) -> None:
    """Its id is 1, and stays when the order comes back; an order by an expression is none."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, name VARCHAR)")
    assert json.loads(load(warehouse).metadata)["default-sort-order-id"] == 0
    for _ in range(2):
        conn.execute(f"ALTER TABLE t SET SORTED BY {clause}")
        metadata = json.loads(load(warehouse).metadata)
        assert metadata["default-sort-order-id"] == (0 if fields is None else 1)
        assert metadata["sort-orders"][-1]["fields"] == (fields or [])
        conn.execute("ALTER TABLE t RESET SORTED BY")
        assert json.loads(load(warehouse).metadata)["default-sort-order-id"] == 0
