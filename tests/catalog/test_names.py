"""Column names that DuckDB tells apart and Iceberg's readers do not."""

import pytest

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import Unsupported
from tests.catalog.reading import load, open_static
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after


@pytest.mark.parametrize(
    "columns",
    whole_after(
        1,
        [
            pytest.param('"a.b" INTEGER, a STRUCT(b INTEGER)', id="struct"),
            pytest.param('"a.b" INTEGER, a INTEGER[]', id="no-twin"),
            pytest.param('a INTEGER[], "a.element" INTEGER', id="list"),
            pytest.param('"a.key" INTEGER, a MAP(INTEGER, INTEGER)', id="map"),
        ],
    ),
)
def test_a_full_name_for_two_columns_is_refused(lake: FreshLake, warehouse: Warehouse, columns: str) -> None:
    """Both columns are named, and a copy under other names is published."""
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t ({columns})")
    conn.execute("INSERT INTO t SELECT NULL, NULL FROM range(20)")
    if columns.endswith("a INTEGER[]"):
        assert load(warehouse).metadata
        return
    with pytest.raises(Unsupported, match=r"'a\.\w+'.*CREATE TABLE"):
        load(warehouse)
    dotted = next(name for name in ("a.b", "a.element", "a.key") if f'"{name}"' in columns)
    conn.execute(f'CREATE TABLE copied AS SELECT a, "{dotted}" AS plain FROM t')
    table = open_static(lake, load(warehouse, "copied"))
    assert table.scan().to_arrow().num_rows == 20
