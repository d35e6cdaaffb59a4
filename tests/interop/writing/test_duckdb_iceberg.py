"""DuckDB's iceberg extension writes over REST, DuckDB on the lake itself reads and writes between."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from tests.interop.writing.pair import Pair
from tests.support.going_on import check_going_on
from tests.support.tiers import whole_but


def read_versions(conn: DuckDBPyConnection, catalog: str, versions: list[int]) -> list[list[Any]]:
    """The rows of ns.t at each of these snapshots."""
    return [conn.execute(f"FROM {catalog}.ns.t AT (VERSION => {version}) ORDER BY ALL").fetchall() for version in versions]


@pytest.mark.whole
@pytest.mark.parametrize("format_version", [pytest.param(2, marks=pytest.mark.long), 3])
def test_rows_come_and_go_by_turns(pair: Pair, format_version: int) -> None:
    """Inserts, deletes and updates of both, of files, inlined rows and rows with deletes: equal at head and at each snapshot."""
    ice, lake = pair.ice, pair.lake
    ice.execute(f"CREATE TABLE ice.ns.t (id INTEGER, name VARCHAR) WITH ('format-version' = {format_version})")
    first = lake.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    ice.execute("INSERT INTO ice.ns.t SELECT range, 'n' || range FROM range(10)")
    for conn, statement, left in [
        (ice, "DELETE FROM ice.ns.t WHERE id = 3", 9),
        (ice, "UPDATE ice.ns.t SET name = 'changed' WHERE id = 5", 9),
        (lake, "DELETE FROM lake.ns.t WHERE id = 7", 8),
        (lake, "INSERT INTO lake.ns.t VALUES (100, 'inlined'), (101, 'inlined')", 10),
        (ice, "DELETE FROM ice.ns.t WHERE id IN (8, 100)", 8),
        (lake, "UPDATE lake.ns.t SET name = 'again' WHERE id IN (5, 101)", 8),
        (ice, "DELETE FROM ice.ns.t WHERE id IN (5, 101)", 6),
    ]:
        conn.execute(statement)
        assert len(pair.rows()) == left, statement
    assert first is not None
    versions = [first[0] + n for n in range(1, 9)]
    before = read_versions(lake, "lake", versions)
    assert read_versions(ice, "ice", versions) == before
    for maintenance in ("ducklake_flush_inlined_data('lake')", "ducklake_merge_adjacent_files('lake')"):
        lake.execute(f"CALL {maintenance}")
        assert read_versions(lake, "lake", versions) == before, maintenance
        assert read_versions(ice, "ice", versions) == before, maintenance
    lake.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert len(pair.rows()) == 6
    assert lake.execute("SELECT count(*), min(id), max(id) FROM lake.ns.t").fetchone() == (6, 0, 9)
    check_going_on(pair.served, ("ns", "t"))


def test_a_transaction_over_tables_is_one_lake_snapshot(pair: Pair) -> None:
    """Two tables change together, or not at all."""
    ice, lake = pair.ice, pair.lake
    for name in ("t", "u"):
        ice.execute(f"CREATE TABLE ice.ns.{name} (i INTEGER)")
    before = lake.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    ice.execute("BEGIN")
    ice.execute("INSERT INTO ice.ns.t VALUES (1)")
    ice.execute("INSERT INTO ice.ns.u VALUES (2)")
    ice.execute("COMMIT")
    assert (pair.rows("t"), pair.rows("u")) == ([(1,)], [(2,)])
    after = lake.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone()
    assert before is not None and after is not None
    assert after[0] == before[0] + 1


def test_tables_are_made_from_queries_and_dropped(pair: Pair) -> None:
    """CREATE TABLE AS, and DROP of tables and schemas."""
    pair.ice.execute("CREATE TABLE ice.ns.t AS SELECT range AS i, [range] AS l, {'a': range} AS s FROM range(3)")
    assert len(pair.rows()) == 3
    pair.ice.execute("DROP TABLE ice.ns.t")
    pair.ice.execute("DROP SCHEMA ice.ns")
    assert pair.lake.execute("SELECT schema_name FROM duckdb_schemas() WHERE database_name = 'lake'").fetchall() == [("main",)]


@pytest.mark.whole
def test_a_table_made_in_duckdb_is_written_over_rest(pair: Pair) -> None:
    """Narrow types and JSON become wide enough for what Iceberg clients may write; DuckDB's own rows stay."""
    pair.lake.execute("CREATE TABLE lake.ns.t (a TINYINT, b UTINYINT, c JSON, d TIMESTAMP)")
    pair.lake.execute("INSERT INTO lake.ns.t VALUES (1, 2, '{}', TIMESTAMP '2020-01-01')")
    pair.ice.execute("INSERT INTO ice.ns.t VALUES (1000, -1, 'no json', TIMESTAMP '2020-01-02 00:00:00.000001')")
    assert len(pair.rows()) == 2
    described = pair.lake.execute("SELECT column_type FROM (DESCRIBE lake.ns.t)").fetchall()
    assert described == [("INTEGER",), ("INTEGER",), ("VARCHAR",), ("TIMESTAMP",)]
    pair.lake.execute("UPDATE lake.ns.t SET a = a + 1")
    assert sorted(row[0] for row in pair.rows()) == [2, 1001]
    check_going_on(pair.served, ("ns", "t"))


@pytest.mark.parametrize("format_version", [2, 3])
def test_rows_of_ducklakes_own_files_change(pair: Pair, format_version: int) -> None:
    """The extension writes deletes beside the data file, so under DATA_PATH: DuckLake's clean-up there loses nothing."""
    pair.ice.execute(f"CREATE TABLE ice.ns.t (i BIGINT) WITH ('format-version' = {format_version})")
    pair.lake.execute("INSERT INTO lake.ns.t SELECT range FROM range(50)")
    pair.ice.execute("DELETE FROM ice.ns.t WHERE i < 20")
    pair.ice.execute("UPDATE ice.ns.t SET i = 100 WHERE i = 20")
    pair.lake.execute("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    assert [row[0] for row in pair.rows()] == [*range(21, 50), 100]


@pytest.mark.parametrize("writer", ["ice", "lake"])
@pytest.mark.parametrize(
    "change", whole_but(["ADD COLUMN more VARCHAR", "RENAME COLUMN added TO renamed", "DROP COLUMN i"], "ADD COLUMN more VARCHAR")
)
def test_a_small_insert_keeps_its_values_when_columns_change_again(pair: Pair, writer: str, change: str) -> None:
    """DuckDB's first row in a table that a client made and altered has what was put in, whoever changes the columns next."""
    pair.ice.execute("CREATE TABLE ice.ns.t (i INTEGER)")
    pair.ice.execute("ALTER TABLE ice.ns.t ADD COLUMN added VARCHAR")
    pair.lake.execute("INSERT INTO lake.ns.t VALUES (1, 'one')")
    getattr(pair, writer).execute(f"ALTER TABLE {writer}.ns.t {change}")
    assert "one" in pair.rows()[0]
    pair.lake.execute("CALL ducklake_flush_inlined_data('lake')")
    assert "one" in pair.rows()[0]
