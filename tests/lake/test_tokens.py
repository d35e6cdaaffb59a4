"""What DuckDB writes into `changes_made`, read with our grammar."""

from dataclasses import dataclass

from duckdb import DuckDBPyConnection
from psycopg import Connection

from duckicelake.lake.changes import kinds_of_table, parse_changes
from tests.support.lakes import FreshLake

ODD_TABLE = 'odd, "inserted_into_table:1,'
QUOTED_ODD_TABLE = '"odd, ""inserted_into_table:1,"'

STORY: dict[str, set[str]] = {
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')": {"inlined_insert"},
    "INSERT INTO t SELECT range, 'x' FROM range(100)": {"inserted_into_table"},
    "DELETE FROM t WHERE i = 1": {"inlined_delete"},
    "DELETE FROM t WHERE i BETWEEN 20 AND 60": {"deleted_from_table"},
    "UPDATE t SET s = 'u' WHERE i = 80": {"inlined_insert", "inlined_delete"},
    "UPDATE t SET s = 'u' WHERE i > 80": {"inserted_into_table", "deleted_from_table"},
    "MERGE INTO t USING (SELECT 70 AS i) x ON t.i = x.i WHEN MATCHED THEN UPDATE SET s = 'm'": {"inlined_insert", "inlined_delete"},
    "ALTER TABLE t ADD COLUMN z INTEGER": {"altered_table"},
    "ALTER TABLE t RENAME COLUMN z TO zz": {"altered_table"},
    "ALTER TABLE t ALTER COLUMN zz TYPE BIGINT": {"altered_table"},
    "ALTER TABLE t DROP COLUMN zz": {"altered_table"},
    "ALTER TABLE t SET PARTITIONED BY (s)": {"altered_table"},
    "ALTER TABLE t RESET PARTITIONED BY": {"altered_table"},
    "COMMENT ON TABLE t IS 'c'": {"altered_table"},
    "COMMENT ON COLUMN t.i IS 'c'": {"altered_table"},
    "CALL ducklake_flush_inlined_data('lake')": {"inline_flush", "deleted_from_table"},
    "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)": {"rewrite_delete"},
    "INSERT INTO t SELECT range, 'y' FROM range(100, 150)": {"inserted_into_table"},
    "INSERT INTO t SELECT range, 'y' FROM range(150, 200)": {"inserted_into_table"},
    "CALL ducklake_merge_adjacent_files('lake')": {"merge_adjacent"},
    "TRUNCATE t": {"deleted_from_table"},
    f"CREATE TABLE {QUOTED_ODD_TABLE} (i INTEGER)": set(),
    f"ALTER TABLE {QUOTED_ODD_TABLE} RENAME TO elsewhere": set(),
    "ALTER TABLE t RENAME TO renamed": set(),
    "CREATE OR REPLACE TABLE renamed (i INTEGER)": {"dropped_table"},
}


@dataclass(frozen=True, slots=True)
class Scribe:
    """A DuckDB session, and the last `changes_made` it caused."""

    duckdb: DuckDBPyConnection
    postgres: Connection

    def write(self, statement: str) -> str:
        """Run a statement that makes a lake snapshot; return what it says it changed."""
        before = self._last()
        self.duckdb.execute(statement)
        after = self._last()
        assert after[0] == before[0] + 1, f"{statement} made {after[0] - before[0]} lake snapshots"
        return after[1]

    def table_id(self, name: str) -> int:
        """The id of a live table."""
        query = "SELECT table_id FROM ducklake_table WHERE table_name = %s AND end_snapshot IS NULL"
        row = self.postgres.execute(query, [name]).fetchone()
        assert row is not None
        return row[0]

    def _last(self) -> tuple[int, str]:
        row = self.postgres.execute("SELECT snapshot_id, changes_made FROM ducklake_snapshot_changes ORDER BY 1 DESC LIMIT 1").fetchone()
        assert row is not None
        return row[0], row[1]


def test_each_operation_names_the_table_it_changed(lake: FreshLake) -> None:
    """Every way of changing a table has its kinds; a rename names the table by its new name only."""
    scribe = Scribe(lake.duckdb(), lake.psycopg())
    scribe.write("CREATE TABLE t (i INTEGER, s VARCHAR)")
    table_id = scribe.table_id("t")
    told = {statement: set(kinds_of_table(scribe.write(statement), table_id)) for statement in STORY}
    assert told == STORY


def test_one_transaction_names_all_its_tables(lake: FreshLake) -> None:
    """A CTAS, an insert and a drop in one commit are three tables' changes."""
    scribe = Scribe(lake.duckdb(), lake.psycopg())
    scribe.write("CREATE TABLE old (i INTEGER)")
    scribe.write("CREATE TABLE kept (i INTEGER)")
    old, kept = scribe.table_id("old"), scribe.table_id("kept")
    text = scribe.write("BEGIN; INSERT INTO kept VALUES (1); CREATE TABLE fresh AS SELECT 1 AS i; DROP TABLE old; COMMIT")
    fresh = scribe.table_id("fresh")
    assert kinds_of_table(text, old) == {"dropped_table"}
    assert kinds_of_table(text, kept) == kinds_of_table(text, fresh) == {"inlined_insert"}
    assert [change.value for change in parse_changes(text) if change.kind == "created_table"] == ['"main"."fresh"']


def test_a_dropped_schema_names_the_tables_that_go_with_it(lake: FreshLake) -> None:
    """DROP SCHEMA … CASCADE lists its tables by id, whatever they are called."""
    scribe = Scribe(lake.duckdb(), lake.psycopg())
    scribe.write('CREATE SCHEMA "s.a,""b"')
    text = scribe.write(f'CREATE TABLE "s.a,""b".{QUOTED_ODD_TABLE} (i INTEGER)')
    assert [change.value for change in parse_changes(text)] == [f'"s.a,""b".{QUOTED_ODD_TABLE}']
    table_id = scribe.table_id(ODD_TABLE)
    assert kinds_of_table(scribe.write('DROP SCHEMA "s.a,""b" CASCADE'), table_id) == {"dropped_table"}
