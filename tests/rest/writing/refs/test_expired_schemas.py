"""Schemas of snapshots that tags keep, after DuckLake has expired what made them."""

import pyarrow as pa

from tests.support.readers import Served

MAINTAIN = (
    "CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMPTZ + INTERVAL 1 DAY)",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
)


def test_a_tag_keeps_the_schema_that_allowed_its_nulls(served: Served) -> None:
    """The column is required again once the file with a NULL is gone from main; the tag's snapshot still has it."""
    duckdb = served.lake.duckdb()
    duckdb.execute("CREATE TABLE t (id BIGINT NOT NULL, s BIGINT)")
    path = served.lake.data_path.replace("/data/", "/outside/") + "nulls.parquet"
    duckdb.execute(f"COPY (SELECT NULL::BIGINT AS id, i::BIGINT AS s FROM range(20) r(i)) TO '{path}' (FORMAT parquet)")
    duckdb.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    catalog = served.pyiceberg().catalog
    table = catalog.load_table("main.t")
    tagged = table.current_snapshot()
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged.snapshot_id, "kept").commit()
    duckdb.execute("DELETE FROM t")
    duckdb.execute("INSERT INTO t SELECT i, i FROM range(20) r(i)")
    for statement in MAINTAIN:
        duckdb.execute(statement)
    table = catalog.load_table("main.t")
    schemas = {schema.schema_id: schema for schema in table.metadata.schemas}
    snapshot = table.snapshot_by_name("kept")
    assert snapshot is not None and snapshot.schema_id is not None
    assert table.schema().find_field("id").required
    assert not schemas[snapshot.schema_id].find_field("id").required
    assert table.scan().to_arrow().num_rows == 20


def test_a_clients_file_without_counts_is_trusted_as_its_schema_is(served: Served) -> None:
    """Iceberg's writers may count nothing; a count of NULLs is believed."""
    served.lake.duckdb().execute("CREATE TABLE t (id BIGINT NOT NULL)")
    table = served.pyiceberg().catalog.load_table("main.t")
    table.append(pa.table({"id": pa.array([1, 2], pa.int64())}, schema=pa.schema([pa.field("id", pa.int64(), nullable=False)])))
    rows = served.lake.psycopg()
    rows.execute("UPDATE ducklake_file_column_stats SET null_count = NULL")
    rows.execute("INSERT INTO iceberg_change (kind) VALUES ('restore')")
    assert served.pyiceberg().catalog.load_table("main.t").schema().find_field("id").required
    rows.execute("UPDATE ducklake_file_column_stats SET null_count = 1")
    rows.execute("INSERT INTO iceberg_change (kind) VALUES ('restore')")
    table = served.pyiceberg().catalog.load_table("main.t")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert not table.schema().find_field("id").required
    assert snapshot.schema_id == table.metadata.current_schema_id
