"""What counts as damage: whatever DuckDB makes is none of it."""

import pytest

from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.damaged_rows import list_column_problems
from duckicelake.lake.read import find_table
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import ColumnRow, InlinedTable
from tests.support.lakes import FreshLake

LONG = "ä" * 31
ODD = (
    f'CREATE TABLE t ("{LONG}" INTEGER, "Mixed Ü" VARCHAR, s STRUCT(a INTEGER, b STRUCT(c INTEGER[])), l INTEGER[])',
    "INSERT INTO t VALUES (1, 'a', {'a': 1, 'b': {'c': [1]}}, [1])",
    'ALTER TABLE t RENAME "Mixed Ü" TO "Plain"',
    "INSERT INTO t VALUES (1, 'a', {'a': 1, 'b': {'c': [1]}}, [1])",
    "ALTER TABLE t ADD COLUMN s.d INTEGER",
    "INSERT INTO t VALUES (1, 'a', {'a': 1, 'b': {'c': [1]}, 'd': 1}, [1])",
    "ALTER TABLE t DROP COLUMN s.b",
    "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 7",
    f'ALTER TABLE t ALTER "{LONG}" TYPE BIGINT',
    "INSERT INTO t VALUES (1, 'a', {'a': 1, 'd': 1}, [1], 2)",
    "ALTER TABLE t DROP COLUMN l",
    """COMMENT ON COLUMN t."Plain" IS 'c'""",
    "INSERT INTO t VALUES (1, 'a', {'a': 1, 'd': 1}, 2)",
    "ALTER TABLE t DROP COLUMN s",
    "INSERT INTO t VALUES (1, 'a', 2)",
    "BEGIN; ALTER TABLE t ADD COLUMN x INTEGER; ALTER TABLE t RENAME x TO y; INSERT INTO t VALUES (1, 'a', 2, 3); COMMIT",
    f'ALTER TABLE t RENAME "{LONG}" TO short',
    "INSERT INTO t VALUES (1, 'a', 2, 3)",
)


@pytest.mark.whole
def test_what_duckdb_makes_is_no_damage(opened: Lake, lake: FreshLake) -> None:
    """Names longer than Postgres keeps, mixed case, nested columns added and dropped, inlined rows of every schema."""
    session = lake.duckdb()
    seen: list[InlinedTable] = []
    for statement in ODD:
        session.execute(statement)
        with reading(opened) as conn:
            table = find_table(conn, "main", "t")
            assert table is not None
            seen += read_table(conn, table, LastRead()).inlined_tables
    assert len({inlined.schema_version for inlined in seen}) >= 3
    assert all(inlined.column_names for inlined in seen)


def column(column_id: int, kind: str = "int32", parent: int | None = None, begin: int = 0, end: int | None = None) -> ColumnRow:
    """A column of that id."""
    return ColumnRow(column_id, begin, end, column_id, f"c{column_id}", kind, None, None, None, True, parent)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        pytest.param([], "no columns", id="none"),
        pytest.param([column(1, end=4)], "no columns", id="none is live"),
        pytest.param([column(1), column(1)], "two rows", id="twice"),
        pytest.param([column(1, end=5), column(1, begin=4)], "two rows", id="overlapping"),
        pytest.param([column(1), column(2, parent=2)], "below 2", id="its own parent"),
        pytest.param([column(1), column(2, "struct", 3), column(3, "struct", 2)], "below 3", id="a circle"),
        pytest.param([column(1), column(2, parent=9)], "below 9", id="a parent that is not there"),
        pytest.param([column(1, "struct")], "struct with 0", id="an empty struct"),
        pytest.param([column(1, "map"), column(2, parent=1)], "map with 1", id="half a map"),
        pytest.param([column(1, "decimal(99,99)")], "decimal", id="no decimal"),
    ],
)
def test_columns_that_are_no_tree_are_told(columns: list[ColumnRow], problem: str) -> None:
    """Each with the column's number."""
    found = list(list_column_problems(columns))
    assert any(problem in text for text in found), found


def test_columns_that_are_a_tree_are_fine() -> None:
    """Also when some end where others begin, or never were."""
    columns = [
        column(1, end=5),
        column(1, "int64", begin=5),
        column(2, "list"),
        column(3, parent=2),
        column(4, begin=5, end=5),
        column(4, begin=5),
    ]
    assert list(list_column_problems(columns)) == []
