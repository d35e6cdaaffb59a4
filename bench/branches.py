"""What branches cost: claims beside a lake that commits, inserts and DuckDB's attach by the number of branches, and merges by files.

Rows of tables and files are written into Postgres without objects: nothing here reads one.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from statistics import median
from threading import Event, Thread

import psycopg
from psycopg import sql

from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import Stand
from duckicelake.commands.prepare import find_s3_keys
from duckicelake.embedded.ducklake import LakeAddress, attach_lake, connect_duckdb
from duckicelake.embedded.home import open_home
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch
from duckicelake.lake.branches.spare import prepare_spare

CLAIMS, INSERTS, ATTACHES = 5, 15, 5
COLUMN_COUNT = 10
FIRST_TABLE = 1_000_000
"""Ids from here on are no table's that DuckDB makes in a benchmark."""

FILL_TABLES = f"""
WITH head AS (SELECT max(snapshot_id) AS id FROM ducklake_snapshot),
     tables AS (SELECT {FIRST_TABLE} + n AS id FROM generate_series(1, %(tables)s) n), main AS (
    SELECT schema_id FROM ducklake_schema WHERE schema_name = 'bench' AND end_snapshot IS NULL
), made AS (
    INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
    SELECT t.id, gen_random_uuid(), h.id, m.schema_id, 'many_' || t.id, 'many_' || t.id || '/', true FROM tables t, head h, main m
), columns AS (
    INSERT INTO ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name, column_type, nulls_allowed)
    SELECT c, h.id, t.id, c, 'c' || c, 'int32', true FROM tables t, head h, generate_series(1, {COLUMN_COUNT}) c
), stats AS (
    INSERT INTO ducklake_table_stats SELECT id, 1, 1, 1 FROM tables
), versions AS (
    INSERT INTO ducklake_schema_versions SELECT h.id, 0, t.id FROM tables t, head h
)
INSERT INTO ducklake_table_column_stats (table_id, column_id, contains_null, min_value, max_value)
SELECT t.id, c, false, '0', '1' FROM tables t, generate_series(1, {COLUMN_COUNT}) c
"""

FILL_SNAPSHOTS = """
WITH head AS (SELECT * FROM ducklake_snapshot WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)), made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    SELECT h.snapshot_id + n, h.snapshot_time + n * interval '1 ms', h.schema_version, greatest(h.next_catalog_id, 2000000), h.next_file_id
      FROM head h, generate_series(1, %(snapshots)s) n
)
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
SELECT h.snapshot_id + n, 'inserted_into_table:1000001' FROM head h, generate_series(1, %(snapshots)s) n
"""

FILL_FILES = f"""
WITH head AS (SELECT * FROM ducklake_snapshot WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot)), made AS (
    INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                                    file_size_bytes, footer_size, row_id_start)
    SELECT h.next_file_id + n, {FIRST_TABLE} + 1 + n %% %(tables)s, h.snapshot_id, 'f' || n || '.parquet', true, 'parquet',
           10, 1000, 100, 10 * n
      FROM head h, generate_series(0, %(files)s - 1) n
)
UPDATE ducklake_snapshot s SET next_file_id = s.next_file_id + %(files)s FROM head h WHERE s.snapshot_id = h.snapshot_id
"""

COMMIT = """
WITH made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1
    RETURNING snapshot_id
)
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) SELECT snapshot_id, 'inserted_into_table:1000001' FROM made
"""


def measure_claims(stand: Stand, scale: Scale) -> Result:
    """Return what a branch costs to make by the lake's files, and how long the lake's own commits took meanwhile."""
    conn, tables = stand.postgres, scale.branch_tables
    prepare(stand)
    conn.execute(FILL_TABLES.encode(), {"tables": tables})
    conn.execute(FILL_SNAPSHOTS, {"snapshots": tables})
    rows: list[dict[str, Cell]] = []
    written = 0
    for count in scale.branch_files:
        conn.execute(FILL_FILES.encode(), {"files": count - written, "tables": tables})
        written = count
        conn.execute("VACUUM ANALYZE")
        with committing(stand) as alone:
            time.sleep(1)
        takes: list[float] = []
        with committing(stand) as beside:
            for number in range(CLAIMS):
                takes.append(time_claim(stand, BranchRequest(f"claim-{number}"))[0])
        for number in range(CLAIMS):
            delete_branch(conn, stand.lake.metadata_schema, f"claim-{number}")
        figures = {"create_p50_ms": median(takes), "create_max_ms": max(takes)}
        figures |= {"commit_p50_ms": median(beside), "commit_max_ms": max(beside), "commit_max_ms_alone": max(alone)}
        rows.append({"files": count, "tables": tables, **figures})
    return Result(f"Branches made while the lake commits, {tables} tables of {COLUMN_COUNT} columns", rows)


def time_claim(stand: Stand, request: BranchRequest, *, is_prepared: bool = True) -> tuple[float, float]:
    """Return how many milliseconds a branch takes to make, and Postgres' CPU time. `is_prepared`: as beside a server that made one."""
    if is_prepared:
        prepare_spare(stand.postgres, stand.lake.metadata_schema)
    before, began = stand.meter.read_cpu_ms()["postgres"], time.perf_counter()
    create_branch(stand.postgres, stand.lake.metadata_schema, request)
    return 1000 * (time.perf_counter() - began), stand.meter.read_cpu_ms()["postgres"] - before


def measure_depth(stand: Stand, scale: Scale) -> Result:
    """Return what a branch of a branch costs to make by its depth, with the lake of the claims; each parent has rows of its own."""
    prepare(stand)
    stand.duckdb.execute("CREATE TABLE IF NOT EXISTS merged (id BIGINT)")
    rows: list[dict[str, Cell]] = []
    names: list[str] = []
    parent = "main"
    for depth, is_prepared in ((1, False), *((depth, True) for depth in range(1, scale.branch_depth + 1))):
        takes: list[float] = []
        spent: list[float] = []
        for number in range(CLAIMS):
            names.append(f"depth-{depth}-{number}" if is_prepared else f"unprepared-{number}")
            took_ms, cpu_ms = time_claim(stand, BranchRequest(names[-1], parent if is_prepared else "main"), is_prepared=is_prepared)
            takes.append(took_ms)
            spent.append(cpu_ms)
        if is_prepared:
            parent = names[-1]
            add_files(stand.postgres, f"{stand.lake.metadata_schema}@{parent}", CLAIMS)
        rows.append(
            {
                "depth": depth,
                "prepared": "yes" if is_prepared else "no",
                "create_p50_ms": median(takes),
                "create_max_ms": max(takes),
                "postgres_cpu_ms": sum(spent) / CLAIMS,
            }
        )
    for name in reversed(names):
        delete_branch(stand.postgres, stand.lake.metadata_schema, name)
    return Result("Branches of branches by their depth", rows)


SCHEDULE = """
INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
SELECT data_file_id, path, true, now() FROM ducklake_data_file ORDER BY data_file_id DESC LIMIT %(files)s
"""


def measure_guard(stand: Stand, scale: Scale) -> Result:
    """Return what the look-up before a clean-up costs by the number of branches, for files that all of them read, and for others."""
    conn, schema = stand.postgres, stand.lake.metadata_schema
    prepare(stand)
    stand.duckdb.execute("CREATE TABLE IF NOT EXISTS merged (id BIGINT)")
    add_files(conn, schema, scale.guarded_files)
    rows: list[dict[str, Cell]] = []
    made = 0
    for count in scale.branches:
        for number in range(made, count):
            create_branch(conn, schema, BranchRequest(f"member-{number}"))
        made = count
        conn.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(schema)))
        row: dict[str, Cell] = {"branches": count, "files": scale.guarded_files}
        for name, is_read in (("read_by_all_cpu_ms", True), ("read_by_none_cpu_ms", False)):
            row[name] = time_guard(stand, scale.guarded_files, is_read=is_read) / scale.guarded_files
        rows.append(row)
    for number in range(made):
        delete_branch(conn, schema, f"member-{number}")
    return Result("The look-up before a clean-up: Postgres' CPU time for each file", rows)


def time_guard(stand: Stand, count: int, *, is_read: bool) -> float:
    """Return the CPU time, in milliseconds, by which the look-up for the members makes it dearer to schedule files."""
    statement = SCHEDULE if is_read else SCHEDULE.replace("data_file_id, path, true", "data_file_id + 900000000, 'none-' || path, true")
    spent: list[float] = []
    for is_on in (False, True):
        with stand.postgres.transaction(force_rollback=True):
            if not is_on:
                stand.postgres.execute("ALTER TABLE ducklake_files_scheduled_for_deletion DISABLE TRIGGER iceberg_keep_for_members")
            before = stand.meter.read_cpu_ms()["postgres"]
            stand.postgres.execute(statement.encode(), {"files": count})
            spent.append(stand.meter.read_cpu_ms()["postgres"] - before)
    return spent[1] - spent[0]


def measure_members(stand: Stand, scale: Scale) -> Result:
    """Return what an insert of DuckDB on the lake and DuckDB's attach cost by the number of branches, and the server's connections."""
    conn, schema = stand.postgres, stand.lake.metadata_schema
    prepare(stand)
    stand.duckdb.execute("CREATE TABLE IF NOT EXISTS inserted (id BIGINT)")
    rows: list[dict[str, Cell]] = []
    made = 0
    for count in scale.branches:
        for number in range(made, count):
            create_branch(conn, schema, BranchRequest(f"member-{number}"))
        made = count
        stand.restart_server()
        for number in range(count):
            status, _, _ = stand.server.fetch(f"/v1/{stand.lake.name}@member-{number}/namespaces")
            assert status == 200, number
        row: dict[str, Cell] = {"branches": count, "relations": read_number(conn, "SELECT count(*) FROM pg_class")}
        row["insert_p50_ms"] = median(time_insert(stand, number) for number in range(INSERTS))
        row["attach_p50_ms"] = median(time_attach(stand) for _ in range(ATTACHES))
        row["connections"] = read_number(conn, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        rows.append(row)
    for number in range(made):
        delete_branch(conn, schema, f"member-{number}")
    return Result("The lake by its number of branches, each of which the server has served", rows)


def measure_merges(stand: Stand, scale: Scale) -> Result:
    """Return what a merge costs by the files that the branch has added."""
    conn, schema = stand.postgres, stand.lake.metadata_schema
    prepare(stand)
    stand.duckdb.execute("CREATE TABLE IF NOT EXISTS merged (id BIGINT)")
    rows: list[dict[str, Cell]] = []
    for count in scale.merged_files:
        branch = create_branch(conn, schema, BranchRequest("merged"))
        add_files(conn, branch.schema_name, count)
        meter = stand.meter
        before, began = meter.read_cpu_ms(), time.perf_counter()
        merge_branch(conn, schema, MergeRequest("merged"))
        took = 1000 * (time.perf_counter() - began)
        spent = meter.read_cpu_ms()
        rows.append({"files": count, "merge_ms": took, "postgres_cpu_ms": spent["postgres"] - before["postgres"]})
        delete_branch(conn, schema, "merged")
    return Result("Merges by the files that a branch has added", rows)


def prepare(stand: Stand) -> None:
    """Make the namespace, and prepare the lake for branches."""
    stand.duckdb.execute("SELECT 1")
    create_branch(stand.postgres, stand.lake.metadata_schema, BranchRequest("first"))
    delete_branch(stand.postgres, stand.lake.metadata_schema, "first")
    stand.postgres.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(stand.lake.metadata_schema)))


ADD_SNAPSHOT = """
INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
SELECT snapshot_id + 1, now(), schema_version, next_catalog_id, next_file_id + %(files)s FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1
RETURNING snapshot_id, next_file_id - %(files)s
"""
ADD_FILES = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                                file_size_bytes, footer_size, row_id_start)
SELECT %(first)s + n, %(table)s, %(snapshot)s, 'm' || n || '.parquet', true, 'parquet', 10, 1000, 100, s.next_row_id + 10 * n
  FROM ducklake_table_stats s, generate_series(0, %(files)s - 1) n WHERE s.table_id = %(table)s
"""
UPDATE_STATS = "UPDATE ducklake_table_stats SET next_row_id = next_row_id + 10 * %(files)s WHERE table_id = %(table)s"


def add_files(conn: psycopg.Connection, schema: str, count: int) -> None:
    """Add files to a table on a branch in one lake snapshot, as a commit does."""
    with conn.transaction():
        conn.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(schema)))
        table = read_number(conn, "SELECT table_id FROM ducklake_table WHERE table_name = 'merged' AND end_snapshot IS NULL")
        row = conn.execute(ADD_SNAPSHOT, {"files": count}).fetchone()
        assert row is not None
        conn.execute(ADD_FILES, {"first": row[1], "table": table, "snapshot": row[0], "files": count})
        conn.execute(UPDATE_STATS, {"files": count, "table": table})
        told = {"snapshot": row[0], "text": f"inserted_into_table:{table}"}
        conn.execute("INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (%(snapshot)s, %(text)s)", told)


@contextmanager
def committing(stand: Stand) -> Generator[list[float]]:
    """Commit lake snapshots in a thread, one after the other; the list has how many milliseconds each took."""
    takes: list[float] = []
    is_over, lake = Event(), stand.lake

    def commit() -> None:
        options = f"-c search_path={lake.metadata_schema}"
        with psycopg.connect(lake.postgres_dsn.get_secret_value(), autocommit=True, options=options) as conn:
            while not is_over.is_set():
                began = time.perf_counter()
                conn.execute(COMMIT)
                takes.append(1000 * (time.perf_counter() - began))
                is_over.wait(0.002)

    thread = Thread(target=commit)
    thread.start()
    try:
        yield takes
    finally:
        is_over.set()
        thread.join()


def time_insert(stand: Stand, number: int) -> float:
    """Return how many milliseconds DuckDB takes for an insert."""
    began = time.perf_counter()
    stand.duckdb.execute("INSERT INTO inserted VALUES ($1)", [number])
    return 1000 * (time.perf_counter() - began)


def time_attach(stand: Stand) -> float:
    """Return how many milliseconds a new DuckDB takes to attach the lake and count a table's rows."""
    lake = stand.lake
    with connect_duckdb(open_home(stand.home).make_folder("extensions")) as conn:
        began = time.perf_counter()
        attach_lake(conn, LakeAddress(lake.postgres_dsn.get_secret_value(), lake.metadata_schema), find_s3_keys(lake))
        conn.execute("SELECT count(*) FROM lake.bench.inserted")
        return 1000 * (time.perf_counter() - began)


def read_number(conn: psycopg.Connection, query: str) -> int:
    """Return the number that a query has as its only value."""
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
