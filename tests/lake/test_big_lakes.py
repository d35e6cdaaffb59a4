"""No statement of a load, commit, create, registration, drop or rename of a table reads a big table from end to end.

Whether or not Postgres has ever analysed the lake. Every statement of `lake` is looked at that is not named as another one's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from psycopg import Connection, sql

from duckicelake.lake.bulk_rows import tune_connection
from duckicelake.lake.changes import TABLE_KINDS, format_tokens
from duckicelake.lake.install import install
from tests.lake.test_queries import ONLY_NESTING, PARAMETERS, list_statements, make_inlined, to_prepared
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

TABLE_ID = 42
OTHER_MODULES = ("access_rules", "inspect", "readers", "writing.migrate")
"""Accounts, `duckicelake check`, migrations, and what makes roles of Postgres."""
OTHERS = frozenset(
    {
        # These remove what is too old, or is left of tables that were dropped with their files.
        "audit_log.DELETE_OLD_LINES",
        "events.DELETE_OLD_EVENTS",
        "locations.DELETE_CREATED_STAGED",
        "locations.SELECT_HAS_TABLE",
        "locations.SELECT_NAMED_PATHS",
        "locations.SELECT_OTHER_PATHS",
        "locations.SELECT_STAGED",
        "locations.SELECT_STATISTICS_PATHS",
        # A table's metadata files were deleted because a newer table has their folder.
        "notes.DELETE_VERSIONS",
        # `duckicelake publish` and `duckicelake check` forget manifests that executors wrote.
        "notes.DELETE_IMPORTED",
        "notes.DELETE_UNUSED",
        # What vended keys cover depends on the folders of all other tables. It is kept until the table changes.
        "locations.SELECT_LIVE_NAMES",
        "locations.SELECT_TABLE_LOCATIONS",
        # These list all namespaces, and what was dropped, or bring that back.
        "locations.SELECT_NAMESPACE_LOCATIONS",
        "read.SELECT_SCHEMAS",
        "writing.dropped.SELECT_DROPPED_SCHEMAS",
        "writing.dropped.SELECT_DROPPED_TABLES",
        "writing.dropped.SELECT_RESTORED_SCHEMA",
        # A list of functions reads the macros of a namespace with their history.
        "read_views.SELECT_MACROS",
        # A view was renamed before the response to its commit was made.
        "read_views.SELECT_VIEW_NAME",
    }
)
"""Statements that no load, commit, create, registration, drop or rename of a table runs."""

FILL = """
INSERT INTO ducklake_snapshot SELECT n, now() + n * interval '1 second', 1, 1, n FROM generate_series(10, {files} + 9) n;
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
    SELECT n, 'inserted_into_table:' || 10 + n % {tables} FROM generate_series(10, {files} + 9) n;
INSERT INTO ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative)
    SELECT n, gen_random_uuid(), 0, 'schema_' || n, 'x/', true FROM generate_series(10, {tables} + 9) n;
INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
    SELECT n, gen_random_uuid(), 0, 0, 'many_' || n, 'x/', true FROM generate_series(10, {tables} + 9) n;
INSERT INTO ducklake_view (view_id, view_uuid, begin_snapshot, end_snapshot, schema_id, view_name, dialect, sql, column_aliases)
    SELECT {tables} + n, gen_random_uuid(), n, n + 1, 0, 'view_' || n, 'duckdb', 'SELECT 1', '' FROM generate_series(10, {tables} + 9) n;
INSERT INTO iceberg_event (snapshot_id, changes_made, objects) SELECT -n, 'dropped_table:1', '[]' FROM generate_series(1, {files}) n;
INSERT INTO iceberg_audit (request_id, operation, objects, lake_snapshot_id) SELECT 'r', 'o', '{{}}', n FROM generate_series(1, {files}) n;
INSERT INTO ducklake_tag (object_id, begin_snapshot, end_snapshot, key, value)
    SELECT 10 + n % {tables}, n, CASE WHEN n < {tags} / 2 THEN n + 1 END, 'key_' || n / {tables}, 'v' FROM generate_series(0, {tags} - 1) n;
INSERT INTO ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name, column_type, nulls_allowed)
    SELECT c, 0, t, c, 'c' || c, 'int32', true FROM generate_series(10, {tables} + 9) t, generate_series(1, 10) c;
INSERT INTO ducklake_column_tag (table_id, column_id, begin_snapshot, key, value)
    SELECT t, c, 0, 'comment', 'c' || c FROM generate_series(10, {tables} + 9) t, generate_series(1, 10) c;
INSERT INTO ducklake_table_stats SELECT t, 1, 1, 1 FROM generate_series(10, {tables} + 9) t;
INSERT INTO ducklake_table_column_stats (table_id, column_id, min_value, max_value)
    SELECT t, c, '0', '1' FROM generate_series(10, {tables} + 9) t, generate_series(1, 10) c;
INSERT INTO ducklake_schema_versions SELECT 0, 0, t FROM generate_series(10, {tables} + 9) t;
INSERT INTO ducklake_partition_info (partition_id, table_id, begin_snapshot) SELECT t, t, 0 FROM generate_series(10, {tables} + 9) t;
INSERT INTO ducklake_partition_column SELECT t, t, 0, 1, 'identity' FROM generate_series(10, {tables} + 9) t;
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, end_snapshot, path, path_is_relative, record_count,
                                file_size_bytes, row_id_start, partition_id, partial_max)
    SELECT n, 10 + n % {tables}, n, CASE n % 7 WHEN 0 THEN n + 100 END, 'f' || n, true, 1, 1, 0, 1, CASE n % 500 WHEN 0 THEN n + 1 END
      FROM generate_series(10, {files} + 9) n;
INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, delete_count)
    SELECT n, 10 + n % {tables}, n, n, 'd' || n, true, 'parquet', 1 FROM generate_series(10, {files} / 2 + 9) n;
INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, value_count, null_count)
    SELECT n, 10 + n % {tables}, c, 1, 0 FROM generate_series(10, {files} + 9) n, generate_series(1, 2) c;
INSERT INTO ducklake_file_partition_value SELECT n, 10 + n % {tables}, 0, 'x' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id, token,
                           updated_ms)
    SELECT t, 'l' || t, 2, 0, 1, 1, 0, '', 0 FROM generate_series(10, {tables} + 9) t;
INSERT INTO iceberg_change (kind) SELECT 'expire' FROM generate_series(1, {files});
INSERT INTO iceberg_metadata_log SELECT t, v, v FROM generate_series(10, {tables} + 9) t, generate_series(1, 10) v;
INSERT INTO iceberg_schema SELECT t, v, '' FROM generate_series(10, {tables} + 9) t, generate_series(0, 1) v;
INSERT INTO iceberg_snapshot SELECT 10 + n % {tables}, n, n, n + 1000000, 0, '{{}}' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_file SELECT n, 10 + n % {tables}, 0, '[]' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_merged_file (data_file_id, table_id, begin_snapshot, end_snapshot, first_file_id, next_file_id, path, path_is_relative)
    SELECT -n, 10 + n % {tables}, n, n + 1, n, n, 'm' || n, true FROM generate_series(1, {files} / 2) n;
INSERT INTO iceberg_merged_column_stats (data_file_id, table_id, column_id)
    SELECT -n, 10 + n % {tables}, 1 FROM generate_series(1, {files} / 2) n;
INSERT INTO iceberg_location SELECT t, 1, 'former' || t FROM generate_series(10, {tables} + 9) t;
INSERT INTO iceberg_view
    SELECT {tables} + n, 1, 'v' || n || '/metadata/v1', '{{"location": "v' || n || '"}}', '', '', true
      FROM generate_series(10, {tables} + 9) n;
INSERT INTO iceberg_purge SELECT n, gen_random_uuid(), ARRAY['l' || n, 'p' || n] FROM generate_series(10, {tables} + 9) n;
INSERT INTO iceberg_registered SELECT n, 1, 1, true, '[]', '[]' FROM generate_series(10, {tables} + 9) n;
INSERT INTO iceberg_kept_file SELECT 10 + n % {tables}, 'k' || n FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_ref SELECT 10 + n % {tables}, 'r' || n, n, 'tag' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_kept SELECT 10 + n % {tables}, n, n, '' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_move SELECT 10 + n % {tables}, n, n FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_root SELECT 10 + n % {tables}, n FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_hidden SELECT 10 + n % {tables}, n FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_statistics SELECT 10 + n % {tables}, 'k', n, '' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_shape SELECT 10 + n % {tables}, n, 0, 0, 0 FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_manifest SELECT 10 + n % {tables}, 'm' || n, 'm' || n, '' FROM generate_series(10, {files} + 9) n;
INSERT INTO iceberg_idempotency (key, fingerprint) SELECT gen_random_uuid(), 'f' FROM generate_series(1, {files});
INSERT INTO iceberg_transaction (digest) SELECT 'd' || n FROM generate_series(1, {files}) n;
INSERT INTO iceberg_staged (location) SELECT 's' || n FROM generate_series(1, {tables}) n;
INSERT INTO iceberg_gone_file SELECT 'g' || n, true FROM generate_series(1, {files}) n;
INSERT INTO ducklake_files_scheduled_for_deletion SELECT n, 's' || n, true, now() FROM generate_series(1, {files}) n;
INSERT INTO ducklake_macro (schema_id, macro_id, macro_name, begin_snapshot)
    SELECT 0, {tables} + n, 'macro_' || n, 1 FROM generate_series(10, {tables} + 9) n
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How many tables, tags and data files a lake has."""

    tables: int
    tags: int
    files: int


SIZES = (
    pytest.param(Size(1_000, 30_000, 10_000), id="small"),
    pytest.param(Size(10_000, 300_000, 100_000), marks=pytest.mark.long, id="big"),
)


@pytest.fixture(scope="module", params=SIZES)
def big(request: pytest.FixtureRequest, stack: SharedStack) -> Iterator[tuple[Connection, Size]]:
    """A lake of many tables that Postgres never analysed, and will not."""
    size: Size = request.param
    with make_lake(stack) as lake:
        make_inlined(lake)
        conn = lake.psycopg()
        tune_connection(conn)
        install(conn, lake.metadata_schema, lake.iceberg_path)
        tables = [name for (name,) in conn.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(ducklake|iceberg)_'")]
        for name in tables:
            conn.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(sql.Identifier(name)))
        for statement in FILL.format(tables=size.tables, tags=size.tags, files=size.files).split(";\n"):
            conn.execute(statement)  # pyright: ignore
        yield conn, size


def list_hot() -> dict[str, str]:
    """Return the statements that loads and changes of tables run, by module and name."""
    statements = {name: text for name, text in list_statements().items() if not name.endswith(ONLY_NESTING)}
    assert statements.keys() >= OTHERS
    return {name: text for name, text in statements.items() if name.rpartition(".")[0] not in OTHER_MODULES and name not in OTHERS}


def list_parameters(size: Size) -> dict[str, object]:
    """Return values for the parameters of a load of the table: it was read 50 lake snapshots ago."""
    near = size.files - 50
    ids = [TABLE_ID - 10 + size.tables * n for n in range(1, 6)]
    tokens = format_tokens(TABLE_ID, TABLE_KINDS)
    return {
        **PARAMETERS,
        **{"since": near, "until": size.files + 9, "next_file_id": near, "lake_snapshot_id": near, "data_file_ids": ids, "ids": ids},
        **{"first": ids[0], "last": ids[0] + 3, "data_file_id": ids[0], "snapshot_id": size.files},
        **{
            "tokens": tokens,
            "any_tokens": tokens,
            "living_tokens": tokens,
            "recent_pids": [1],
            "checks_waiting": True,
            "folder": "s3://b/i/t/",
        },
    }


def test_no_statement_scans_a_lake_that_was_never_analysed(big: tuple[Connection, Size]) -> None:
    """The indexes are chosen without knowing anything of the tables."""
    scans = format_scans(*big)
    assert not scans, scans


def test_no_statement_scans_an_analysed_lake(big: tuple[Connection, Size]) -> None:
    """The indexes are chosen when the statistics are there."""
    conn, size = big
    conn.execute("ANALYZE")
    scans = format_scans(conn, size)
    assert not scans, scans


SELECT_LARGE = """
SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^(ducklake|iceberg)_' AND pg_relation_size(oid) > 4 * 8192
"""


def list_scans(conn: Connection, size: Size) -> dict[str, set[str]]:
    """Return the statements whose plan reads a big table from end to end, and what it reads."""
    large = {name for (name,) in conn.execute(SELECT_LARGE)}
    assert {
        "ducklake_tag",
        "ducklake_schema",
        "ducklake_table",
        "ducklake_data_file",
        "ducklake_snapshot_changes",
        "iceberg_table",
    } <= large
    scans = {name: list_plan_scans(conn, text, size) for name, text in list_hot().items()}
    return {name: of_large for name, found in scans.items() if (of_large := {scan for scan in found if scan.partition(" ")[0] in large})}


def list_plan_scans(conn: Connection, text: str, size: Size) -> set[str]:
    """Return what the plan of a statement for all parameters scans, and for a load also the plan for this table."""
    parameters: list[str] = []
    prepared = to_prepared(text, parameters)
    generic = conn.execute(f"EXPLAIN (GENERIC_PLAN, FORMAT JSON) {prepared}").fetchone()  # pyright: ignore
    assert generic is not None
    found = set(scans_in(generic[0][0]["Plan"]))
    values = list_parameters(size)
    if text.lstrip().startswith("SELECT") and values.keys() >= set(parameters):
        with conn.transaction(force_rollback=True):
            conn.execute(f"PREPARE statement AS {prepared}")  # pyright: ignore
            given = sql.SQL("({})").format(sql.SQL(", ").join(values[p] for p in parameters)) if parameters else sql.SQL("")
            row = conn.execute(sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE statement{}").format(given)).fetchone()
            conn.execute("DEALLOCATE statement")
        assert row is not None
        found |= set(scans_in(row[0][0]["Plan"]))
    return found


def scans_in(node: dict[str, object], *, limited: bool = False, relation: str = "") -> Iterator[str]:
    """Yield the tables that a plan reads from end to end, row by row or through a whole index."""
    kind = str(node["Node Type"])
    relation = str(node.get("Relation Name", relation))
    is_whole_index = kind.endswith(("Index Scan", "Index Only Scan")) and "Index Cond" not in node
    if kind == "Seq Scan" or is_whole_index and not (limited and "Filter" not in node):
        yield f"{relation} {kind}"
    children = node.get("Plans", [])
    assert isinstance(children, list)
    for child in children:
        yield from scans_in(child, limited=kind == "Limit", relation=relation)


def format_scans(conn: Connection, size: Size) -> str:
    """Return a line for each statement that scans."""
    return "\n".join(f"{name}: {', '.join(sorted(scans))}" for name, scans in list_scans(conn, size).items())
