"""Histories by the thousand: DuckLake's rows cloned inside Postgres from those of one real insert.

Paths of cloned files name no object: manifests are made from rows alone, so a load never opens a data file.
"""

from dataclasses import dataclass

from psycopg import Connection

from bench.stand import Stand

MODEL = "model"
"""The table whose only file, written by DuckDB, is the pattern of all seeded ones."""
MODEL_ROWS = 100
COLUMNS = """(id BIGINT, customer BIGINT, quantity INTEGER, price DECIMAL(9, 2), weight DOUBLE,
    active BOOLEAN, day DATE, seen_at TIMESTAMP, city VARCHAR, note VARCHAR)"""
MODEL_INSERT = f"""
INSERT INTO {MODEL}
SELECT i, i % 7, i * 3, i / 10, i * 0.5, i % 2 = 0, DATE '2026-01-01' + i::INTEGER, TIMESTAMP '2026-01-01' + INTERVAL (i) HOUR,
       'city ' || i % 12, 'a note of some length about ' || i
  FROM range({MODEL_ROWS}) r(i)
"""

SELECT_TABLE = """
SELECT t.table_id FROM ducklake_table t JOIN ducklake_schema s USING (schema_id)
 WHERE t.table_name = %(name)s AND s.schema_name = 'bench' AND t.end_snapshot IS NULL AND s.end_snapshot IS NULL
"""

LOCK = "LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE"

SELECT_HEAD = """
SELECT snapshot_id, next_file_id FROM ducklake_snapshot WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)
"""

INSERT_SNAPSHOTS = """
INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
SELECT %(head)s + i, greatest(h.snapshot_time, now()) + i * interval '1 ms', h.schema_version, h.next_catalog_id, %(file)s + i * %(files)s
  FROM ducklake_snapshot h, generate_series(1, %(snapshots)s) i
 WHERE h.snapshot_id = %(head)s
"""

INSERT_CHANGES = """
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
SELECT %(head)s + i, format('inserted_into_table:%%s', %(table)s::bigint) FROM generate_series(1, %(snapshots)s) i
"""

INSERT_FILES = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                                file_size_bytes, footer_size, row_id_start)
SELECT %(file)s + i, %(table)s, %(head)s + 1 + i / %(files)s, 'ducklake-' || gen_random_uuid() || '.parquet', true, m.file_format,
       m.record_count, m.file_size_bytes, m.footer_size, %(row)s + i * m.record_count
  FROM ducklake_data_file m, generate_series(0, %(snapshots)s::bigint * %(files)s - 1) i
 WHERE m.table_id = %(model)s
"""

INSERT_STATS = """
INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count,
                                        min_value, max_value, contains_nan)
SELECT %(file)s + i, %(table)s, m.column_id, m.column_size_bytes, m.value_count, m.null_count,
       -- the first column counts on and texts differ, so that not all files have the same bounds
       CASE WHEN c.column_order = 1 THEN (i * 100)::text WHEN c.column_type = 'varchar' THEN m.min_value || i ELSE m.min_value END,
       CASE WHEN c.column_order = 1 THEN (i * 100 + 99)::text WHEN c.column_type = 'varchar' THEN m.max_value || i ELSE m.max_value END,
       m.contains_nan
  FROM ducklake_file_column_stats m JOIN ducklake_column c ON c.table_id = m.table_id AND c.column_id = m.column_id,
       generate_series(0, %(snapshots)s::bigint * %(files)s - 1) i
 WHERE m.table_id = %(model)s
"""

DELETE_TOTALS = "DELETE FROM ducklake_table_stats WHERE table_id = %(table)s"

INSERT_TOTALS = """
INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
SELECT table_id, sum(record_count), sum(record_count), sum(file_size_bytes)
  FROM ducklake_data_file WHERE table_id = %(table)s GROUP BY table_id
"""

SELECT_NEXT_ROW = "SELECT coalesce(sum(record_count), 0)::bigint FROM ducklake_data_file WHERE table_id = %(table)s"

TIDY = "VACUUM (ANALYZE) ducklake_snapshot, ducklake_snapshot_changes, ducklake_data_file, ducklake_file_column_stats"


@dataclass(frozen=True, slots=True)
class Growing:
    """A seeded table: how many snapshots, each with how many files."""

    name: str
    snapshots: int
    files: int


def seed_table(stand: Stand, wanted: Growing) -> None:
    """Make the table with DuckDB and its history in Postgres."""
    if not find_tables(stand.postgres, MODEL):
        stand.duckdb.execute(f"CREATE TABLE {MODEL} {COLUMNS}")
        stand.duckdb.execute(MODEL_INSERT)
    stand.duckdb.execute(f"CREATE TABLE {wanted.name} {COLUMNS}")
    append_snapshots(stand.postgres, wanted)
    # what autovacuum would do within a minute, and in the middle of a measurement
    stand.postgres.execute(TIDY)


def append_snapshots(conn: Connection, wanted: Growing) -> None:
    """Give a seeded table so many more snapshots, in one transaction."""
    [table], [model] = find_tables(conn, wanted.name), find_tables(conn, MODEL)
    with conn.transaction():
        conn.execute(LOCK)
        head, file = conn.execute(SELECT_HEAD).fetchone() or (0, 0)
        [row] = conn.execute(SELECT_NEXT_ROW, {"table": table}).fetchone() or (0,)
        known = {"table": table, "model": model, "head": head, "file": file, "row": row}
        known |= {"snapshots": wanted.snapshots, "files": wanted.files}
        for statement in (INSERT_SNAPSHOTS, INSERT_CHANGES, INSERT_FILES, INSERT_STATS, DELETE_TOTALS, INSERT_TOTALS):
            conn.execute(statement, known)


def find_tables(conn: Connection, name: str) -> list[int]:
    """Return the id of a table of the benchmarks, or nothing."""
    return [row[0] for row in conn.execute(SELECT_TABLE, {"name": name})]
