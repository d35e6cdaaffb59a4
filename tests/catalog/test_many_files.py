"""Many files at once: read column by column, they are published in the bytes of files read one by one."""

import struct
import threading
from itertools import groupby

import pytest
from pyiceberg.table import StaticTable

from duckicelake.catalog.manifests import SINGLY_MAX, SLICE
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import Unsupported
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, load, open_static
from tests.support.lakes import FreshLake

FILES = SINGLY_MAX + 12
ROW = """i AS id, 's' || i AS name, i * 1.5 AS price, i::DOUBLE / 3 AS weight, DATE '2026-01-01' + (i % 400)::INTEGER AS day,
    TIMESTAMP '2026-01-01 10:00:00' + to_microseconds(i * 1001) AS at, i % 2 = 0 AS active, [i, NULL] AS items,
    i::INTEGER AS n"""


def insert(table: str, number: int) -> str:
    """A statement that writes a file of its own."""
    return f"INSERT INTO {table} SELECT {ROW} FROM range({number * 20}, {number * 20 + 20}) r(i)"


def bound_sizes(table: StaticTable, field_id: int, snapshot_id: int) -> set[int]:
    """The lengths in bytes of a column's bounds in the data files of a snapshot, as PyIceberg reads them."""
    files = table.inspect.data_files(snapshot_id)
    bounds = [dict(cell) for side in ("lower_bounds", "upper_bounds") for cell in files[side].to_pylist()]
    return {len(cell[field_id]) for cell in bounds}


@pytest.mark.whole
def test_all_at_once_equals_one_after_the_other(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A server that saw every insert and one that sees only the last write the same objects.

    Bounds from before a promotion have 8 bytes in manifests that were merged since.
    """
    conn = lake.duckdb()
    conn.execute(f"CREATE TABLE t AS SELECT {ROW} FROM range(0) r(i)")
    for number in range(FILES):
        conn.execute(insert("t", number))
        load(warehouse)
        if number == 5:
            conn.execute("ALTER TABLE t ADD COLUMN more VARCHAR DEFAULT 'd'")
            conn.execute("ALTER TABLE t DROP COLUMN more")
            conn.execute("ALTER TABLE t ALTER n TYPE BIGINT")
    seen, fresh = load(warehouse), load(open_server(lake))
    assert fresh.metadata_location == seen.metadata_location
    assert fresh.metadata == seen.metadata
    table = open_static(lake, fresh)
    sizes = [bound_sizes(table, table.schema().find_field("n").field_id, snapshot.snapshot_id) for snapshot in table.metadata.snapshots]
    assert [size for size, _ in groupby(sizes)] == [{4}, {4, 8}, {8}]


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


@pytest.mark.whole
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


COPY_FILE = """
INSERT INTO ducklake_data_file
SELECT (jsonb_populate_record(f, jsonb_build_object('data_file_id', 1000 + i, 'path', 'copy-' || i || '.parquet'))).*
  FROM ducklake_data_file f, generate_series(1, %(copies)s) i
"""
COPY_STATS = """
INSERT INTO ducklake_file_column_stats
SELECT (jsonb_populate_record(s, jsonb_build_object('data_file_id', 1000 + i, 'max_value', (1000 + i)::text))).*
  FROM ducklake_file_column_stats s, generate_series(1, %(copies)s) i
"""


def make_copies(lake: FreshLake, copies: int) -> None:
    """A table whose only file stands there so many times more, each with a bound of its own."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range::BIGINT AS id FROM range(100)")
    with lake.psycopg() as conn:
        conn.execute(COPY_FILE, {"copies": copies})
        conn.execute(COPY_STATS, {"copies": copies})


@pytest.mark.whole
def test_files_of_several_slices(lake: FreshLake, warehouse: Warehouse) -> None:
    """What is read while something else is encoded belongs to its own file."""
    make_copies(lake, 3 * SLICE)
    files = open_static(lake, load(warehouse)).inspect.files()
    bounds = {
        str(path).rpartition("/")[2]: upper
        for path, upper in zip(files["file_path"].to_pylist(), files["upper_bounds"].to_pylist(), strict=True)
    }
    assert len(bounds) == 3 * SLICE + 1
    for number in range(1, 3 * SLICE + 1):
        assert dict(bounds[f"copy-{number}.parquet"]) == {1: struct.pack("<q", 1000 + number)}


@pytest.mark.whole
def test_a_refused_file_while_others_are_read(lake: FreshLake, warehouse: Warehouse) -> None:
    """Nothing is read for a load that has failed: its connection is free for the next one."""
    make_copies(lake, 3 * SLICE)
    with lake.psycopg() as conn:
        conn.execute("UPDATE ducklake_data_file SET encryption_key = 'k' WHERE data_file_id = 1001")
    with pytest.raises(Unsupported, match="encrypted"):
        load(warehouse)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE u AS SELECT range AS id FROM range(100)")
    assert load(warehouse, "u").metadata
