"""Many files at once: read column by column, they are published in the bytes of files read one by one."""

from duckicelake.catalog.data_files import FEW
from duckicelake.catalog.warehouse import Warehouse
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, load
from tests.support.lakes import FreshLake

FILES = FEW + 12
ROW = """i AS id, 's' || i AS name, i * 1.5 AS price, i::DOUBLE / 3 AS weight, DATE '2026-01-01' + (i % 400)::INTEGER AS day,
    TIMESTAMP '2026-01-01 10:00:00' + to_microseconds(i * 1001) AS at, i % 2 = 0 AS active, [i, NULL] AS items"""


def insert(table: str, number: int) -> str:
    """A statement that writes a file of its own."""
    return f"INSERT INTO {table} SELECT {ROW} FROM range({number * 20}, {number * 20 + 20}) r(i)"


def test_all_at_once_equals_one_after_the_other(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A server that saw every insert and one that sees only the last write the same objects."""
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t AS SELECT {ROW} FROM range(0) r(i)")
    for number in range(FILES):
        conn.execute(insert("t", number))
        load(warehouse)
        if number == 5:
            conn.execute("ALTER TABLE t ADD COLUMN more VARCHAR DEFAULT 'd'")
            conn.execute("ALTER TABLE t DROP COLUMN more")
    seen, fresh = load(warehouse), load(open_server(lake))
    assert fresh.metadata_location == seen.metadata_location
    assert fresh.metadata == seen.metadata


def test_partitions_of_one_snapshot(lake: FreshLake, warehouse: Warehouse) -> None:
    """A file for each partition: every reader sees every row, deletes and promoted types included."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER, k FLOAT, d DECIMAL(9, 2))")
    conn.execute("ALTER TABLE t SET PARTITIONED BY (k)")
    conn.execute(f"INSERT INTO t SELECT i, i % {FILES} + 0.5, i FROM range({FILES * 20}) r(i)")
    check_every_snapshot(lake, conn, load(warehouse))
    conn.execute("ALTER TABLE t ALTER k SET DATA TYPE DOUBLE")
    conn.execute("DELETE FROM t WHERE id % 50 = 0")
    conn.execute("DELETE FROM t WHERE k < 5")
    conn.execute(f"INSERT INTO t SELECT i, i % {FILES} + 0.25, i FROM range({FILES * 20}) r(i)")
    check_every_snapshot(lake, conn, load(warehouse))


def test_a_table_whose_past_has_expired(lake: FreshLake, warehouse: Warehouse) -> None:
    """What is left of many files is counted in the totals of the first snapshot."""
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t AS SELECT {ROW} FROM range(0) r(i)")
    for number in range(FILES):
        conn.execute(insert("t", number))
    conn.execute("DELETE FROM t WHERE id < 10")
    conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    conn.execute(insert("t", FILES))
    table = check_every_snapshot(lake, conn, load(warehouse))
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None
    assert summary["total-data-files"] == str(FILES + 1)
    assert summary["total-records"] == str((FILES + 1) * 20)
