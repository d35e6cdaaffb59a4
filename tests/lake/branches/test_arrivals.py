"""Transactions of DuckDB that create something on a branch while a merge or reset brings something of the same name."""

from contextlib import closing

import duckdb
import pytest

from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.reset import reset_branch
from tests.lake.branches.repository import make_branch
from tests.support.lakes import FreshLake
from tests.support.tiers import long_but, whole_after

# What the lake does, and what the open transaction does.
ARRIVING = {
    "table": ("CREATE TABLE x (i INTEGER)", "CREATE TABLE x (j INTEGER)"),
    "table for a view": ("CREATE TABLE x (i INTEGER)", "CREATE VIEW x AS SELECT 1 AS i"),
    "view for a table": ("CREATE VIEW x AS SELECT 1 AS i", "CREATE TABLE x (j INTEGER)"),
    "renamed table": ("ALTER TABLE t RENAME TO x", "CREATE TABLE x (j INTEGER)"),
    "namespace": ("CREATE SCHEMA x", "CREATE SCHEMA x"),
    "macro": ("CREATE MACRO x(a) AS a + 1", "CREATE MACRO x(a) AS a + 2"),
}
COUNT_DOUBLE = """
SELECT count(*) FROM (
    SELECT FROM (SELECT schema_id, table_name AS name FROM ducklake_table WHERE end_snapshot IS NULL
                  UNION ALL SELECT schema_id, view_name FROM ducklake_view WHERE end_snapshot IS NULL
                  UNION ALL SELECT -1, schema_name FROM ducklake_schema WHERE end_snapshot IS NULL
                  UNION ALL SELECT -2 - schema_id, macro_name FROM ducklake_macro WHERE end_snapshot IS NULL) o
     GROUP BY schema_id, name HAVING count(*) > 1) d
"""


@pytest.mark.parametrize("step", whole_after(1, ["reset", "merge"]))
@pytest.mark.parametrize("case", long_but(ARRIVING, "table", "namespace"))
def test_a_name_that_the_lake_has_taken_is_refused(lake: FreshLake, step: str, case: str) -> None:
    """The lake has one object of that name since the branch was made, and the branch gets it while the transaction is open."""
    on_lake, on_branch = ARRIVING[case]
    dev = _make_dev(lake)
    _run(dev, "INSERT INTO u FROM range(100, 130)")
    _check_refused(lake, dev, step, on_branch, on_lake)


@pytest.mark.parametrize(
    "freed", whole_after(1, ["DROP TABLE t", "ALTER TABLE t RENAME TO other", "DROP TABLE t; CREATE TABLE other (i INTEGER)"])
)
def test_a_name_that_the_branch_had_freed_is_refused_after_a_reset(lake: FreshLake, freed: str) -> None:
    """The reset brings back the table of the fork point."""
    dev = _make_dev(lake)
    _run(dev, freed)
    _check_refused(lake, dev, "reset", "CREATE TABLE t (i INTEGER)")


@pytest.mark.parametrize("step", whole_after(1, ["reset", "merge"]))
def test_a_free_name_is_taken(lake: FreshLake, step: str) -> None:
    """Neither other names nor objects that the branch has shown all along stand against an open transaction."""
    dev = _make_dev(lake)
    _run(dev, "INSERT INTO u FROM range(100, 130)")
    _run(lake, "CREATE TABLE x (i INTEGER)")
    with closing(dev.duckdb()) as session:
        session.execute("BEGIN; CREATE SCHEMA fresh; CREATE TABLE fresh.x (i INTEGER); CREATE VIEW y AS SELECT 1 AS i")
        _go_on(lake, step)
        session.execute("COMMIT")
    with closing(dev.duckdb(read_only=True)) as session:
        rows = session.execute("SELECT table_schema || '.' || table_name FROM information_schema.tables ORDER BY 1").fetchall()
    assert [name for (name,) in rows] == ["fresh.x", "main.t", "main.u", "main.x", "main.y"]


def _make_dev(lake: FreshLake) -> FreshLake:
    _run(lake, "CREATE TABLE t AS SELECT range AS id FROM range(40); CREATE TABLE u AS SELECT range AS id FROM range(40)")
    return make_branch(lake, "dev")


def _check_refused(lake: FreshLake, dev: FreshLake, step: str, on_branch: str, on_lake: str | None = None) -> None:
    with closing(dev.duckdb()) as session:
        session.execute(f"BEGIN; {on_branch}")
        if on_lake is not None:
            _run(lake, on_lake)
        _go_on(lake, step)
        with pytest.raises(duckdb.TransactionException, match="conflict"):
            session.execute("COMMIT")
    assert dev.psycopg().execute(COUNT_DOUBLE).fetchone() == (0,)


def _run(side: FreshLake, statement: str) -> None:
    with closing(side.duckdb()) as session:
        session.execute(statement)


def _go_on(lake: FreshLake, step: str) -> None:
    if step == "merge":
        merge_branch(lake.psycopg(), lake.metadata_schema, MergeRequest("dev"))
    else:
        reset_branch(lake.psycopg(), lake.metadata_schema, "dev")
