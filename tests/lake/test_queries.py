"""Every statement against a real lake: it prepares, and the hot ones never read a big table from end to end."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping

import pytest
from psycopg import Connection, Error, sql

import duckicelake.lake
from duckicelake.lake.install import install
from duckicelake.lake.lake_format import V1_0, V1_1
from duckicelake.lake.writing.migrate import migrate
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack

TABLES, FILES_EACH = 100, 200
SNAPSHOTS = TABLES * FILES_EACH
TABLE_ID = 42
INLINED = {
    "table": "ducklake_inlined_data_1_1",
    "": "ducklake_inlined_delete_1",
    "row_id": "row_id",
    "begin": "begin_snapshot",
    "end": "end_snapshot",
}
ONLY_NESTING = ("INSERT_NESTED_SCHEMAS", "UPDATE_COLUMN_TAGS_OF_VIEWS")
"""Statements for tables and columns that only DuckLake 1.1 has."""
OF_BRANCHES = frozenset({"HOLD_BRANCH"})
"""Statements that name the schemas of branches; tests of branches run them."""
VERBS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")

FILL = f"""
INSERT INTO ducklake_snapshot SELECT n, now() + n * interval '1 second', 1, 1, n FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)
    SELECT n, 'inserted_into_table:' || n % {TABLES} FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
    SELECT n, gen_random_uuid(), 0, 0, 'many_' || n, 'x/', true FROM generate_series(10, {TABLES + 9}) n;
INSERT INTO ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name, column_type, nulls_allowed)
    SELECT c, 0, t, c, 'c' || c, 'int32', true FROM generate_series(10, {TABLES + 9}) t, generate_series(1, 20) c;
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, end_snapshot, path, path_is_relative, record_count,
                                file_size_bytes, row_id_start, partition_id, partial_max)
    SELECT n, n % {TABLES}, n, CASE n % 7 WHEN 0 THEN n + 100 END, 'f', true, 1, 1, 0, 1, CASE n % 500 WHEN 0 THEN n + 1 END
      FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, delete_count)
    SELECT n, n % {TABLES}, n, n, 'd', true, 'parquet', 1 FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, value_count, null_count)
    SELECT n, n % {TABLES}, c, 1, 0 FROM generate_series(10, {SNAPSHOTS + 9}) n, generate_series(1, 4) c;
INSERT INTO ducklake_file_partition_value SELECT n, n % {TABLES}, 0, 'x' FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO iceberg_change (kind) SELECT 'expire' FROM generate_series(1, {SNAPSHOTS});
INSERT INTO iceberg_metadata_log SELECT t, v, v FROM generate_series(10, {TABLES + 9}) t, generate_series(1, {FILES_EACH}) v;
INSERT INTO iceberg_snapshot SELECT n % {TABLES}, n, n, n + 1000000, 0, '{{}}' FROM generate_series(10, {SNAPSHOTS + 9}) n;
INSERT INTO iceberg_file SELECT n, n % {TABLES}, 0, '[]' FROM generate_series(10, {SNAPSHOTS + 9}) n;
ANALYZE
"""

PARAMETERS: dict[str, object] = {
    "table_id": TABLE_ID,
    "since": SNAPSHOTS - 50,
    "until": SNAPSHOTS,
    "next_file_id": SNAPSHOTS - 50,
    "row_group": 2_048,
    "nested": [2],
    "data_file_ids": [TABLE_ID + TABLES * n for n in range(1, 6)],
    "column_ids": [1, 2],
    "defaulted_until": [0, 0],
    "required_since": [0, 0],
    "column_begins": [0, 0],
    "leaves": [1, 2],
    "proofs": ["{1}", "{1,2}"],
    "first": TABLE_ID + TABLES,
    "last": TABLE_ID + TABLES + 3,
    "tokens": [f"inserted_into_table:{TABLE_ID}", f"merge_adjacent:{TABLE_ID}"],
    "any_tokens": [f"inserted_into_table:{TABLE_ID}", f"altered_table:{TABLE_ID}"],
    "living_tokens": [f"inserted_into_table:{TABLE_ID}", f"altered_table:{TABLE_ID}"],
    "ids": [TABLE_ID + TABLES, TABLE_ID + 2 * TABLES],
    "turn_class": 1,
    "turn_key": 1,
    "schema_name": "main",
    "table_name": "many_42",
    "schema_id": 0,
    "object_id": TABLE_ID,
    "most": 101,
    "name": "ducklake_inlined_delete_1",
    "lake_snapshot_id": SNAPSHOTS - 50,
    "change_id": 0,
    "location": "s3://b/i/t",
    "paths": ["a", "b"],
    "folder": "s3://b/d/main/t/",
    "data_file_id": TABLE_ID + TABLES,
    "begin_snapshot": 1,
    "metadata_version": 2,
    "token": "x",
    "updated_ms": 1,
    "format_version": 2,
    "current_snapshot_id": 1,
    "numbered_until": 1,
    "noted_format_version": 2,
    "noted_until": 1,
    "snapshot_id": SNAPSHOTS,
}
BIG = (
    "ducklake_snapshot",
    "ducklake_snapshot_changes",
    "ducklake_data_file",
    "ducklake_delete_file",
    "ducklake_file_column_stats",
    "ducklake_file_partition_value",
    "ducklake_column",
    "iceberg_change",
    "iceberg_metadata_log",
    "iceberg_snapshot",
    "iceberg_file",
)
USES_BEFORE_A_PLAN_STAYS = 8
HOT_MODULES = ("read", "read_files", "read_table", "null_proofs", "watch", "notes", "writing.lookups")


def list_statements() -> dict[str, str]:
    """Every SQL constant of the room, by module and name."""
    found: dict[str, str] = {}
    for info in pkgutil.walk_packages(duckicelake.lake.__path__, "duckicelake.lake."):
        # These name the schemas of branches; tests of branches run each of them.
        if info.name.startswith("duckicelake.lake.branches"):
            continue
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            text = value.as_string() if isinstance(value, sql.SQL) else value
            is_statement = name.isupper() and name not in OF_BRANCHES and isinstance(text, str) and text.lstrip().startswith(VERBS)
            if is_statement:
                plain = text.format(INLINED[""], **INLINED) if isinstance(value, sql.SQL) else text
                found[f"{info.name.removeprefix('duckicelake.lake.')}.{name}"] = plain
    return found


def to_prepared(text: str, parameters: list[str]) -> str:
    """The statement with numbered parameters, whose names are added to the list."""

    def number(match: re.Match[str]) -> str:
        if match[1] not in parameters:
            parameters.append(match[1])
        return f"${parameters.index(match[1]) + 1}"

    return re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")


@pytest.fixture(scope="module")
def filled(stack: SharedStack) -> Iterator[Connection]:
    """A lake of many tables, files and lake snapshots whose statistics Postgres knows."""
    with make_lake(stack) as lake:
        make_inlined(lake)
        conn = lake.psycopg()
        install(conn, lake.metadata_schema, lake.iceberg_path)
        for statement in FILL.split(";\n"):
            conn.execute(statement)  # pyright: ignore
        yield conn


def make_inlined(lake: FreshLake) -> None:
    """Tables of inlined rows and inlined deletes."""
    session = lake.duckdb()
    for statement in (
        "CREATE TABLE t (i INTEGER)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO t SELECT range FROM range(100)",
        "DELETE FROM t WHERE i = 50",
    ):
        session.execute(statement)


def test_every_statement_prepares(filled: Connection) -> None:
    """A DuckLake column that is renamed fails here, by the name of the statement."""
    statements = {name: text for name, text in list_statements().items() if not name.endswith(ONLY_NESTING)}
    assert list_failures(filled, statements) == []


def list_failures(conn: Connection, statements: Mapping[str, str]) -> list[str]:
    """The statements that do not prepare, with Postgres' errors."""
    failures: list[str] = []
    for name, text in statements.items():
        try:
            with conn.transaction(force_rollback=True):
                conn.execute(f"PREPARE statement AS {to_prepared(text, [])}")  # pyright: ignore
                conn.execute("DEALLOCATE statement")
        except Error as error:
            failures.append(f"{name}: {error}")
    return failures


def test_every_statement_prepares_in_a_migrated_lake(lake: FreshLake) -> None:
    """Those for DuckLake 1.1 too; the system columns of inlined tables have other names there."""
    make_inlined(lake)
    conn = lake.psycopg()
    install(conn, lake.metadata_schema, lake.iceberg_path)
    migrate(conn, lake.metadata_schema)
    names = dict(zip(V1_0.inlined_columns, V1_1.inlined_columns, strict=True))
    statements = list_statements()
    update = statements["writing.apply.UPDATE_INLINED_ROWS"]
    statements["writing.apply.UPDATE_INLINED_ROWS"] = re.sub(
        r"\b(row_id|end_snapshot)\b|(?<!\()\bbegin_snapshot\b", lambda m: names[m[0]], update
    )
    assert list_failures(conn, statements) == []


def test_no_hot_query_scans_a_big_table(filled: Connection) -> None:
    """Files, statistics, snapshots and our logs are found by index, at first and after Postgres has settled on a plan."""
    statements = {name: text for name, text in list_statements().items() if name.rpartition(".")[0] in HOT_MODULES}
    reading = {name: text for name, text in statements.items() if text.lstrip().startswith(("SELECT", "WITH"))}
    scans = {name: found for name, text in reading.items() if (found := scans_of(filled, text))}
    assert scans == {}


def scans_of(conn: Connection, text: str) -> set[str]:
    """Return the big tables that any plan of a statement scans, also the plan that Postgres keeps for all parameters."""
    parameters: list[str] = []
    prepared = to_prepared(text, parameters)
    values = sql.SQL("({})").format(sql.SQL(", ").join(PARAMETERS[p] for p in parameters)) if parameters else sql.SQL("")
    found: set[str] = set()
    with conn.transaction(force_rollback=True):
        conn.execute(f"PREPARE statement AS {prepared}")  # pyright: ignore
        for _ in range(USES_BEFORE_A_PLAN_STAYS):
            row = conn.execute(sql.SQL("EXPLAIN (FORMAT JSON) EXECUTE statement{}").format(values)).fetchone()
            assert row is not None
            found |= {relation for relation in scanned(row[0][0]["Plan"]) if relation in BIG}
        conn.execute("DEALLOCATE statement")
    return found


def scanned(node: dict[str, object]) -> Iterator[str]:
    """The tables that a plan reads from end to end."""
    if node["Node Type"] == "Seq Scan":
        yield str(node["Relation Name"])
    children = node.get("Plans", [])
    assert isinstance(children, list)
    for child in children:
        yield from scanned(child)
