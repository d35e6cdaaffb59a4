"""Columns that an Iceberg client moved and DuckDB then alters: it shows them where their ids are, and its rows keep their values."""

from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from tests.rest.serving import make_settings, serve
from tests.support.going_on import check_going_on
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after

COLUMNS = ("a", "b", "c", "d", "e")


def move(catalog: Catalog, column: str, behind: str) -> None:
    """Put a column behind another one."""
    with catalog.load_table(("main", "t")).update_schema() as update:
        update.move_after(column, behind)


def to_rows(names: list[str], rows: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Rows by name, in a fixed order."""
    return sorted((dict(zip(names, row, strict=True)) for row in rows), key=lambda row: sorted(row.items()))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("column", "behind", "altered"),
    long_after(
        1,
        [("b", "d", "d"), ("e", "a", "e"), *(pytest.param(*moved, marks=pytest.mark.long) for moved in (("b", "d", "b"), ("a", "e", "e")))],
    ),
)
def test_rows_keep_their_values(lake: FreshLake, column: str, behind: str, altered: str) -> None:
    """Inlined ones and those in files, before and after DuckDB renames a column; clients see their own order, with new columns last."""
    conn = lake.duckdb()
    with serve(make_settings(lake)) as server:
        served = Served(lake, server)
        catalog = served.pyiceberg().catalog
        conn.execute("CREATE TABLE t AS SELECT 10 AS a, 20 AS b, 30 AS c, 40 AS d, 50 AS e")
        move(catalog, column, behind)
        conn.execute("INSERT INTO t (a, b, c, d, e) VALUES (11, 21, 31, 41, 51)")
        conn.execute(f"ALTER TABLE t RENAME COLUMN {altered} TO {altered}x")
        conn.execute("ALTER TABLE t ADD COLUMN f INTEGER")
        names = [f"{name}x" if name == altered else name for name in (*COLUMNS, "f")]
        conn.execute(f"INSERT INTO t ({', '.join(names)}) VALUES (12, 22, 32, 42, 52, 62)")
        expected = to_rows(names, [(10, 20, 30, 40, 50, None), (11, 21, 31, 41, 51, None), (12, 22, 32, 42, 52, 62)])
        for session in (conn, lake.duckdb()):
            found = session.execute("FROM t")
            assert [column[0] for column in found.description or ()] == names
            assert to_rows(names, found.fetchall()) == expected
        told = [name for name in (*COLUMNS, "f") if name != column]
        told.insert(told.index(behind) + 1, column)
        moved = [f"{name}x" if name == altered else name for name in told]
        read = served.pyiceberg().read(("main", "t"))
        assert read.column_names == moved
        assert to_rows(moved, list(zip(*(column.to_pylist() for column in read.columns), strict=True))) == expected
        check_going_on(served, ("main", "t"))
