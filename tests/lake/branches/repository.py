"""A fresh lake with branches: each is attached by DuckDB like a lake of its own."""

from contextlib import closing
from dataclasses import replace

from duckdb import DuckDBPyConnection

from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.registry import Branch
from tests.support.lakes import FreshLake

MAINTENANCE = (
    "CALL ducklake_flush_inlined_data('lake')",
    "CALL ducklake_merge_adjacent_files('lake')",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.01)",
    "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)",
    "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
    "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
)
"""Everything by which DuckLake removes rows and files, in the order of CHECKPOINT."""

Rows = list[tuple[object, ...]]


def make_branch(lake: FreshLake, request: BranchRequest | str) -> FreshLake:
    """Make a branch and return it as a lake; its connections are closed with the original's."""
    wanted = BranchRequest(request) if isinstance(request, str) else request
    return as_lake(lake, create_branch(lake.psycopg(), lake.metadata_schema, wanted))


def as_lake(lake: FreshLake, branch: Branch) -> FreshLake:
    """Return a branch as a lake."""
    return replace(lake, metadata_schema=branch.schema_name, data_path=branch.data_path, iceberg_path=branch.iceberg_path)


def fill(session: DuckDBPyConnection) -> None:
    """Make tables with files, deletes, inlined rows and inlined deletes, partitions, and an empty one."""
    session.execute("CREATE TABLE t (id BIGINT, v VARCHAR)")
    for first in (0, 100, 200):
        session.execute(f"INSERT INTO t SELECT i, 'm' FROM range({first}, {first + 100}) r(i)")
    session.execute("DELETE FROM t WHERE id BETWEEN 10 AND 29")
    session.execute("INSERT INTO t VALUES (900, 'i'), (901, 'i')")
    session.execute("DELETE FROM t WHERE id = 901")
    session.execute("DELETE FROM t WHERE id = 205")
    session.execute("CREATE SCHEMA s")
    session.execute("CREATE TABLE s.parts (k INTEGER, n INTEGER)")
    session.execute("ALTER TABLE s.parts SET PARTITIONED BY (k)")
    session.execute("INSERT INTO s.parts SELECT i % 3, i FROM range(60) r(i)")
    session.execute("CREATE TABLE empty (i INTEGER)")
    session.execute("CREATE VIEW seen AS SELECT id FROM t")
    session.execute("COMMENT ON TABLE t IS 'c'")


def read_rows(lake: FreshLake, table: str, at: int | None = None) -> Rows:
    """Return the rows of a table as a new session sees them."""
    version = "" if at is None else f" AT (VERSION => {at})"
    with closing(lake.duckdb(read_only=True)) as session:
        return session.execute(f"SELECT * FROM {table}{version} ORDER BY ALL").fetchall()


def read_head(lake: FreshLake) -> int:
    """Return the newest snapshot id."""
    row = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    return row[0]


def maintain(lake: FreshLake) -> None:
    """Run every maintenance of DuckLake, in a new session."""
    with closing(lake.duckdb()) as session:
        for statement in MAINTENANCE:
            session.execute(statement)
