"""Rows and changes of their columns in one transaction: files of a lake snapshot may be older than the columns that it made."""

import json
from typing import Any

import pytest

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import Unsupported
from tests.catalog.conftest import Opener
from tests.catalog.reading import load, open_static
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after

INSERT = "INSERT INTO t VALUES (1, 5)"


def play(lake: FreshLake, limit: int, *statements: str) -> list[tuple[Any, ...]]:
    """Make a table, run the statements in one transaction, and return what DuckDB reads then."""
    conn = lake.duckdb()
    conn.execute(f"CALL lake.set_option('data_inlining_row_limit', {limit})")
    conn.execute("CREATE TABLE t (id INTEGER, x INTEGER)")
    conn.execute("BEGIN")
    for statement in statements:
        conn.execute(statement)
    conn.execute("COMMIT")
    return conn.execute("FROM t ORDER BY id").fetchall()


@pytest.mark.parametrize("limit", whole_after(1, [0, 10]), ids=["in files", "inlined"])
@pytest.mark.parametrize(
    "changes",
    long_after(
        1,
        [
            pytest.param(["ALTER TABLE t ADD COLUMN y BIGINT DEFAULT -32"], id="added"),
            pytest.param(["ALTER TABLE t ADD COLUMN y BIGINT DEFAULT -32", "ALTER TABLE t RENAME y TO z"], id="added and renamed"),
            pytest.param(["ALTER TABLE t DROP x", "ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 7"], id="dropped and added"),
            pytest.param(["ALTER TABLE t ALTER x SET DATA TYPE BIGINT"], id="widened"),
            pytest.param(["ALTER TABLE t RENAME x TO z"], id="renamed"),
            pytest.param(["ALTER TABLE t DROP x"], id="dropped"),
        ],
    ),
)
def test_columns_changed_after_rows_were_written(lake: FreshLake, warehouse: Warehouse, changes: list[str], limit: int) -> None:
    """Readers see what DuckDB sees, at once and after more rows."""
    expected = play(lake, limit, INSERT, *changes)
    read = open_static(lake, load(warehouse)).scan().to_arrow()
    assert sorted(zip(*read.to_pydict().values(), strict=True)) == expected
    with lake.duckdb() as conn:
        conn.execute("INSERT INTO t SELECT * FROM t")
        read = open_static(lake, load(warehouse)).scan().to_arrow()
        assert sorted(zip(*read.to_pydict().values(), strict=True)) == conn.execute("FROM t ORDER BY id").fetchall()


def test_a_default_that_every_file_holds_raises_no_version(lake: FreshLake, warehouse: Warehouse) -> None:
    """A column with a default that is older than the rows of its transaction needs no word of Iceberg's version 3."""
    with lake.duckdb() as conn:
        conn.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        conn.execute("BEGIN")
        conn.execute("CREATE TABLE t (id INTEGER DEFAULT 5, x INTEGER)")
        conn.execute("INSERT INTO t(x) VALUES (1)")
        conn.execute("COMMIT")
    assert json.loads(load(warehouse).metadata)["format-version"] == 2


def test_widened_rows_of_the_same_transaction_keep_spark_from_its_vectors(lake: FreshLake, warehouse: Warehouse) -> None:
    """As rows of an earlier transaction do."""
    play(lake, 0, INSERT, "ALTER TABLE t ALTER x SET DATA TYPE BIGINT")
    assert json.loads(load(warehouse).metadata)["properties"]["read.parquet.vectorization.enabled"] == "false"


def test_a_change_of_type_that_iceberg_does_not_know(lake: FreshLake, warehouse: Warehouse) -> None:
    """Refused by name, as for rows of an earlier transaction."""
    play(lake, 0, INSERT, "ALTER TABLE t ALTER x SET DATA TYPE DOUBLE")
    with pytest.raises(Unsupported, match="'x'|x"):
        load(warehouse)


def test_an_empty_table_that_was_changed_last(lake: FreshLake, warehouse: Warehouse) -> None:
    """Where no row is, none is of an older type: what would be refused with rows is published, and raises no version."""
    play(lake, 0, "ALTER TABLE t ALTER x SET DATA TYPE DOUBLE", "ALTER TABLE t ADD COLUMN y INTEGER DEFAULT 5")
    assert json.loads(load(warehouse).metadata)["format-version"] == 2


def test_a_table_changed_before_its_first_row(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A server that has seen every state of it publishes what one publishes that sees the last alone."""
    play(lake, 0)
    assert load(warehouse).metadata
    conn = lake.duckdb()
    for statement in (
        "ALTER TABLE t ALTER x SET DATA TYPE DOUBLE",
        "ALTER TABLE t ADD COLUMN y INTEGER DEFAULT 5",
        "INSERT INTO t VALUES (1, 2, 3)",
    ):
        conn.execute(statement)
        seen = load(warehouse)
    assert json.loads(seen.metadata)["format-version"] == 2
    assert load(open_server(lake)).metadata == seen.metadata
