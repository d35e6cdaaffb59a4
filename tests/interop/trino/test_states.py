"""Trino on what maintenance, types and names leave behind, and on the demo's tables."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from demo.compare import find_difference
from demo.flights import find_files
from demo.load import load
from demo.questions import list_questions
from demo.read import SqlReader
from tests.interop.rich_lake import RichLake, fill_lake
from tests.interop.trino.reader import TrinoReader, fold_names, open_trino
from tests.support.readers import DuckLakeReader, Ident, Served
from tests.support.tiers import long_but
from tests.support.trino.server import Trino, TrinoRefused

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]

T: Ident = ("main", "t")
ROWS = "INSERT INTO t SELECT i, 'r' || i FROM range({}, {}) r(i)"
MAINTAINED = (
    "CREATE TABLE t (id INTEGER, name VARCHAR)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two')",
    ROWS.format(10, 60),
    "DELETE FROM t WHERE id IN (1, 20)",
    "DELETE FROM t WHERE id BETWEEN 30 AND 50",
    "CALL ducklake_flush_inlined_data('lake')",
    ROWS.format(100, 130),
    ROWS.format(200, 230),
    "CALL ducklake_merge_adjacent_files('lake')",
    "ALTER TABLE t ALTER COLUMN id TYPE BIGINT",
    "UPDATE t SET name = 'new' WHERE id BETWEEN 100 AND 115",
    "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0.1)",
    "INSERT INTO t VALUES (3, NULL)",
)
TYPES = (
    "CREATE TABLE t (id INTEGER, b BOOLEAN, f FLOAT, d DOUBLE, m DECIMAL(38, 10), s VARCHAR, y BLOB, day DATE, t TIME, ts TIMESTAMP, "
    "tz TIMESTAMPTZ, u UUID, l INTEGER[], st STRUCT(a INTEGER, b STRUCT(c VARCHAR)), mp MAP(VARCHAR, INTEGER))",
    "INSERT INTO t SELECT i, i % 2 = 0, i / 4, i / 8, i * 1.5, 'ü' || i, ('x' || i)::BLOB, DATE '1969-12-25' + i::INTEGER, "
    "TIME '10:00:00' + INTERVAL (i) SECOND, TIMESTAMP '1969-12-31 23:59:59' + INTERVAL (i) SECOND, "
    "TIMESTAMPTZ '2026-01-01 00:00:00+00' + INTERVAL (i) HOUR, ('00000000-0000-0000-0000-0000000000' || lpad(i::VARCHAR, 2, '0'))::UUID, "
    "[i, NULL], {'a': i, 'b': {'c': 'c' || i}}, MAP {'k': i} FROM range(30) r(i)",
    "INSERT INTO t (id) VALUES (100)",
)


@pytest.fixture
def fresh(trino: Trino, served: Served) -> Iterator[TrinoReader]:
    """Trino in front of a fresh lake."""
    reader = open_trino(trino, served)
    yield reader
    trino.arrow(f"DROP CATALOG {reader.catalog}")


def check_every_snapshot(served: Served, reader: TrinoReader, truth: DuckLakeReader) -> int:
    """Compare with DuckDB at head and at every snapshot; returns how many there are."""
    judge = RichLake(served, truth)
    judge.check_same(fold_names(truth.read(T)), reader.read(T))
    ids = [row["snapshot_id"] for row in reader.find_rows('SELECT snapshot_id FROM {}.main."t$snapshots"')]
    for snapshot_id in ids:
        judge.check_same(fold_names(truth.read(T, snapshot_id)), reader.read(T, snapshot_id))
    return len(ids)


@pytest.mark.parametrize("version", long_but([2, 3], 3))
def test_maintenance_changes_no_rows(served: Served, fresh: TrinoReader, version: int) -> None:
    """Flushed, merged, rewritten and promoted, with deletes of every kind; in v3 as deletion vectors."""
    truth = fill_lake(served.lake, MAINTAINED)
    if version == 3:
        truth.conn.execute("ALTER TABLE t ADD COLUMN extra INTEGER DEFAULT 5")
        truth.conn.execute("DELETE FROM t WHERE id = 210")
    assert check_every_snapshot(served, fresh, truth) > 8
    (row,) = fresh.find_rows("SELECT value FROM {}.main.\"t$properties\" WHERE key = 'format-version'")
    assert row["value"] == str(version)


@pytest.mark.long
def test_checkpoint_leaves_the_rows(served: Served, fresh: TrinoReader) -> None:
    """With no age to wait for, what is left is what Trino reads."""
    truth = fill_lake(served.lake, MAINTAINED)
    fresh.read(T)
    for option in ("expire_older_than", "delete_older_than"):
        truth.conn.execute(f"CALL lake.set_option('{option}', '0 seconds')")
    served.lake.duckdb().execute("CHECKPOINT")
    after = DuckLakeReader(served.lake.duckdb())
    RichLake(served, after).check_same(after.read(T), fresh.read(T))


@pytest.mark.long
def test_types_are_duckdbs(served: Served, fresh: TrinoReader) -> None:
    """Value for value and type for type, from files and from inlined rows."""
    truth = fill_lake(served.lake, TYPES)
    truth.conn.execute("SET arrow_lossless_conversion = true")
    assert check_every_snapshot(served, fresh, truth) == 2


def test_a_refused_table_hides_no_other(served: Served, fresh: TrinoReader) -> None:
    """What cannot be published is refused, and said to be there; the namespace is listed and its other tables are read."""
    truth = fill_lake(served.lake, (*MAINTAINED[:3], "CREATE TABLE odd (id INTEGER, pause INTERVAL)"))
    with pytest.raises(TrinoRefused, match="Failed to load table: odd"):
        fresh.read(("main", "odd"))
    assert {row["Table"] for row in fresh.find_rows("SHOW TABLES FROM {}.main")} == {"odd", "t"}
    columns = fresh.find_rows("SELECT DISTINCT table_name FROM {}.information_schema.columns WHERE table_schema = 'main'")
    assert columns == [{"table_name": "t"}]
    assert check_every_snapshot(served, fresh, truth) == 2


def test_a_commit_is_seen_at_once(served: Served, fresh: TrinoReader) -> None:
    """When DuckDB's COMMIT has returned, the next query shows it; a replaced table is another one."""
    truth = fill_lake(served.lake, MAINTAINED[:2])
    for number in range(3):
        truth.conn.execute(f"INSERT INTO t VALUES ({number + 50}, 'x')")
        assert len(fresh.read(T)) == number + 3
    truth.conn.execute("CREATE OR REPLACE TABLE t (other VARCHAR)")
    assert fresh.read(T).column_names == ["other"]
    assert len(fresh.read(T)) == 0


@pytest.mark.long
def test_the_demos_questions_have_duckdbs_answers(served: Served, fresh: TrinoReader, tmp_path: Path) -> None:
    """Whole tables, the past, filters and joins over flights, weather, planes, airports and airlines."""
    conn = served.lake.duckdb()
    conn.execute("SET TimeZone = 'UTC'")
    conn.execute("CREATE SCHEMA flying")
    conn.execute("USE lake.flying")
    steps = load(conn, find_files(tmp_path), 1000, Console(quiet=True))
    truth = SqlReader("DuckDB", lambda sql: conn.execute(sql).to_arrow_table(), "lake.flying", " AT (VERSION => {})")

    def ask_trino(sql: str):
        # Trino compares no instant with a text.
        return fresh.trino.arrow(re.sub(r"'(2013-05-01)T(\d\d:00:00)\+00:00'", r"TIMESTAMP '\1 \2 UTC'", sql))

    trino = SqlReader("Trino", ask_trino, f"{fresh.catalog}.flying", " FOR VERSION AS OF BIGINT '{}'")
    for question in list_questions(steps.values()):
        assert find_difference(conn, truth.ask(question), trino.ask(question)) is None, question.title
