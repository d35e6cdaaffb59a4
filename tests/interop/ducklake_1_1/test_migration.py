"""Lakes of DuckDB 1.5 that are migrated to DuckLake 1.1 under a running server: what was published before is dropped."""

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int64Type
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.types import IntegerType

from duckicelake.catalog.namespace_changes import nest_schemas
from duckicelake.errors import BadRequest
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import delete_branch
from duckicelake.lake.connect import Lake, close_lake, open_lake
from duckicelake.lake.lake_format import SCHEMA_NAMES
from duckicelake.lake.writing.migrate import migrate, plan_migration
from tests.rest.serving import make_settings, serve
from tests.support.ducklake_1_1 import LOCAL, check_same, open_ducklakepy, to_rows
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.waiting import wait_for

HISTORY = (
    "CREATE TABLE inlined (i INTEGER, s VARCHAR, t TIMESTAMP)",
    "INSERT INTO inlined VALUES (1, 'a', TIMESTAMP '2026-01-01 00:00:00'), (2, NULL, NULL), (3, 'c', NULL)",
    "DELETE FROM inlined WHERE i = 2",
    "ALTER TABLE inlined ADD COLUMN more INTEGER",
    "INSERT INTO inlined VALUES (4, 'd', NULL, 6)",
    "CREATE TABLE files AS SELECT range AS i, 'n' || range AS s FROM range(100)",
    "DELETE FROM files WHERE i < 3",
    "DELETE FROM files WHERE i BETWEEN 20 AND 80",
    "ALTER TABLE files ALTER COLUMN i TYPE BIGINT",
    "CREATE TABLE small AS SELECT range::UINTEGER AS i FROM range(20)",
    # The bounds prove that readers which take the old file's numbers for signed ones read them right.
    "ALTER TABLE small ALTER COLUMN i TYPE BIGINT",
    "CREATE TABLE nested AS SELECT {'a': range} AS s FROM range(20)",
    "ALTER TABLE nested ADD COLUMN s.c INTEGER DEFAULT 5",
    "ALTER TABLE nested RENAME s.c TO cc",
    'CREATE SCHEMA "a\u241fb"',
    'CREATE TABLE "a\u241fb".flat AS SELECT 1 AS i',
    "CREATE VIEW v AS SELECT i FROM files",
)
TABLES = (("main", "inlined"), ("main", "files"), ("main", "nested"), ("main", "small"))

SELECT_WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'ducklake_snapshot'::regclass"

INSERT_TAG = """
INSERT INTO ducklake_view_column_tag (view_id, column_name, begin_snapshot, key, value)
SELECT view_id, 'i', begin_snapshot, 'comment', 'the only one' FROM ducklake_view
"""
SELECT_SCHEMAS = f"SELECT {SCHEMA_NAMES.format(lake='')}, s.schema_uuid FROM ducklake_schema s WHERE s.end_snapshot IS NULL"
INSERT_SETTINGS = """
WITH chosen AS (SELECT * FROM ducklake_schema WHERE schema_name = %(schema_name)s AND end_snapshot IS NULL),
     tag AS (INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value) SELECT schema_id, begin_snapshot, 'owner', 'ann' FROM chosen),
     option AS (INSERT INTO ducklake_metadata (key, value, scope, scope_id) SELECT 'parquet_version', '2', 'schema', schema_id FROM chosen)
INSERT INTO iceberg_grant SELECT principal_id, 'namespace', schema_uuid, 'read' FROM iceberg_principal, chosen
"""
INSERT_GRANT = """
INSERT INTO iceberg_grant SELECT principal_id, 'namespace', schema_uuid, 'write' FROM iceberg_principal, ducklake_schema
 WHERE schema_name = 'b' AND end_snapshot IS NULL
"""
SELECT_OPTION = """
SELECT s.schema_name FROM ducklake_metadata m JOIN ducklake_schema s ON s.schema_id = m.scope_id AND s.end_snapshot IS NULL
 WHERE m.scope = 'schema'
"""
SELECT_TAGS = "SELECT t.end_snapshot = v.end_snapshot FROM ducklake_view_column_tag t JOIN ducklake_view v USING (view_id)"


@pytest.fixture
def served(local_lake: FreshLake) -> Iterator[Served]:
    """A lake of DuckDB 1.5 with a history, behind a running server."""
    duck = local_lake.duckdb()
    for statement in HISTORY:
        duck.execute(statement)
    duck.close()
    with serve(make_settings(local_lake, **LOCAL)) as server:
        yield Served(local_lake, server)


def migrate_by_duckicelake(lake: FreshLake) -> None:
    """Migrate with our own command's function."""
    plan = migrate(lake.psycopg(), lake.metadata_schema)
    assert not plan.is_done


def migrate_by_ducklakepy(lake: FreshLake) -> None:
    """Migrate with the independent client."""
    with open_ducklakepy(lake, spec_version="1.1", automatic_migration=True) as catalog:
        assert str(catalog.spec_version()) == "1.1"


MIGRATIONS = [
    pytest.param(migrate_by_duckicelake, id="duckicelake"),
    pytest.param(migrate_by_ducklakepy, id="ducklakepy", marks=pytest.mark.long),
]


def read_columns(conn: psycopg.Connection) -> list[tuple[str, ...]]:
    """The columns of DuckLake's tables, in order, but those of inlined tables: ducklakepy has no order of its own there."""
    return conn.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name LIKE 'ducklake%' ORDER BY table_name, ordinal_position"
    ).fetchall()


@pytest.mark.parametrize("migrate_lake", MIGRATIONS)
def test_a_migrated_lake_is_served_and_written(served: Served, migrate_lake: Callable[[FreshLake], None]) -> None:
    """At every snapshot ducklakepy reads the same, before and after commits; defaults that DuckDB 1.5 lost are there again.

    The tags of a view's columns, which DuckLake has since 1.1, end with the view.
    """
    with served.pyiceberg().catalog as catalog:
        before = {ident: catalog.load_table(ident) for ident in TABLES}
        assert before["main", "nested"].scan().to_arrow()["s"].to_pylist()[0] == {"a": 0, "cc": None}
        migrate_lake(served.lake)
        assert catalog.load_table(("main", "nested")).scan().to_arrow()["s"].to_pylist()[0] == {"a": 0, "cc": 5}
        with open_ducklakepy(served.lake) as lake:
            assert [check_same(served, lake, ident) for ident in TABLES] == [3, 3, 1, 1]
            _write(catalog)
            assert [check_same(served, lake, ident) for ident in TABLES] == [5, 4, 1, 1]
            lake.load_table(TABLES[0]).append(pa.table({"i": pa.array([9], pa.int32()), "x": pa.array([1], pa.int32())}))
            assert check_same(served, lake, TABLES[0]) == 6
        assert sorted(catalog.list_namespaces()) == [("a",), ("main",)]
        assert catalog.load_table(("a", "b", "flat")).scan().to_arrow().to_pylist() == [{"i": 1}]
        conn = served.lake.psycopg()
        conn.execute(INSERT_TAG)
        catalog.drop_view(("main", "v"))
        assert conn.execute(SELECT_TAGS).fetchall() == [(True,)]


def _write(catalog: RestCatalog) -> None:
    table = catalog.load_table(TABLES[0])
    table.delete(EqualTo("i", 3))
    with table.update_schema() as update:
        update.delete_column("s").add_column("x", IntegerType())
    table.append(table.scan().to_arrow().slice(0, 1))
    catalog.load_table(TABLES[1]).append(pa.table({"i": pa.array([7], pa.int64()), "s": ["seven"]}))


def test_both_migrations_make_the_same_tables(served: Served) -> None:
    """The columns of DuckLake's tables are those of the independent client, in the same order: DuckDB inserts by position."""
    ours = served.lake.psycopg(autocommit=False)
    migrate(ours, served.lake.metadata_schema)
    mine = read_columns(ours)
    ours.rollback()
    migrate_by_ducklakepy(served.lake)
    assert read_columns(served.lake.psycopg()) == mine


@pytest.mark.whole
def test_a_commit_that_waits_for_a_migration_writes_the_new_shape(served: Served) -> None:
    """The version is read under the lock: it was the old one when the commit was prepared."""
    conn = served.lake.psycopg()
    with served.pyiceberg().catalog as catalog, ThreadPoolExecutor(1) as threads:
        table = catalog.load_table(TABLES[0])
        with conn.transaction():
            conn.execute("LOCK TABLE ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
            update = table.update_schema().add_column("x", IntegerType())
            answer = threads.submit(update.commit)
            wait_for(lambda: served.lake.psycopg().execute(SELECT_WAITING).fetchall(), "the commit waits for the lake's lock")
            migrate(conn, served.lake.metadata_schema)
        answer.result(timeout=120)
        with open_ducklakepy(served.lake) as lake:
            lake.load_table(TABLES[0]).append(pa.table({"i": pa.array([9], pa.int32()), "x": pa.array([1], pa.int32())}))
            assert check_same(served, lake, TABLES[0]) == 4


def test_what_stands_against_a_migration_is_named(served: Served) -> None:
    """Nothing is changed then: names that DuckLake 1.1 reserves, and tables of inlined rows that are not there."""
    conn = served.lake.psycopg()
    conn.execute("UPDATE ducklake_column SET column_name = '_ducklake_mine' WHERE column_name = 's' AND column_type = 'varchar'")
    conn.execute("INSERT INTO ducklake_inlined_data_tables VALUES (99, 'ducklake_inlined_data_99_1', 1)")
    plan = plan_migration(conn)
    assert ["'_ducklake_mine'" in text or "'a dropped table'" in text for text in plan.obstacles] == [True] * 3
    with pytest.raises(BadRequest, match="ducklake_inlined_data_99_1"):
        migrate(conn, served.lake.metadata_schema)
    assert conn.execute("SELECT value FROM ducklake_metadata WHERE key = 'version'").fetchone() == ("1.0",)


FLAT = (
    'CREATE SCHEMA "x\u241fy\u241fz"',
    'CREATE TABLE "x\u241fy\u241fz".deep AS SELECT range AS i FROM range(50)',
    'INSERT INTO "x\u241fy\u241fz".deep VALUES (100)',
    'CREATE VIEW "x\u241fy\u241fz".seen AS SELECT i FROM lake."x\u241fy\u241fz".deep',
    'CREATE SCHEMA "a\u241fB\u241fd"',
    'CREATE TABLE "a\u241fB\u241fd".t AS SELECT 5 AS i',
    "CALL lake.set_option('data_inlining_row_limit', 0, schema => 'a\u241fb')",
)


@pytest.mark.whole
def test_schemas_of_nested_namespaces_are_nested(local_lake: FreshLake) -> None:
    """In one lake snapshot: tables keep files, rows and history, schemas properties, options and uuids; missing parents are made."""
    duck = local_lake.duckdb()
    for statement in (*HISTORY, *FLAT):
        duck.execute(statement)
    duck.close()
    with serve(make_settings(local_lake, **LOCAL)) as server, open_pool(local_lake) as pool:
        served, conn = Served(local_lake, server), local_lake.psycopg()
        with pytest.raises(BadRequest, match="lake migrate"):
            nest_schemas(pool, is_dry_run=False)
        with served.pyiceberg().catalog as catalog:
            catalog.update_namespace_properties(("a", "b"), updates={"owner": "ann"})
            before = read_namespaces(catalog)
            uuids = {catalog.load_table(ident).metadata.table_uuid for ident in before}
            migrate_by_duckicelake(local_lake)
            report = nest_schemas(pool, is_dry_run=True)
            assert (report.nested, report.obstacles, report.outdated_views) == (["a.b", "x.y.z", "a.B.d"], [], ["seen"])
            schema_uuids = conn.execute(SELECT_SCHEMAS).fetchall()
            assert [len(names) for names, _ in schema_uuids] == [1, 1, 1, 1]
            nest_schemas(pool, is_dry_run=False)
            assert read_namespaces(catalog) == before
            assert {catalog.load_table(ident).metadata.table_uuid for ident in before} == uuids
            assert catalog.load_namespace_properties(("a", "b")) == {"owner": "ann"}
            nested = {tuple(names): uuid for names, uuid in conn.execute(SELECT_SCHEMAS).fetchall()}
            assert set(nested) == {("main",), ("a",), ("a", "b"), ("a", "b", "d"), ("x",), ("x", "y"), ("x", "y", "z")}
            assert {uuid for _, uuid in schema_uuids} <= set(nested.values())
            assert conn.execute(SELECT_OPTION).fetchall() == [("b",)]
            with open_ducklakepy(local_lake) as lake:
                assert [check_same_after(served, lake, ident) for ident in before if ident[0] != "main"] == [1, 1, 2]
                lake.load_table(("x", "y", "z", "deep")).append(pa.table({"i": pa.array([7], pa.int64())}))
                catalog.load_table(("a", "b", "flat")).append(pa.table({"i": pa.array([8], pa.int32())}))
                assert sorted(lake.load_table(("a", "b", "flat")).to_arrow()["i"].to_pylist()) == [1, 8]
                assert catalog.load_table(("x", "y", "z", "deep")).scan().count() == 52
            assert nest_schemas(pool, is_dry_run=False).nested == []


def check_same_after(served: Served, lake: DuckLakeCatalog, ident: tuple[str, ...]) -> int:
    """Compare a table's rows now, and return the number of its snapshots: before the nesting ducklakepy knows it by another name."""
    with served.pyiceberg().catalog as catalog:
        table = catalog.load_table(ident)
        assert to_rows(table.scan().to_arrow()) == to_rows(lake.load_table(ident).to_arrow())
        return len(table.metadata.snapshots)


def read_namespaces(catalog: RestCatalog) -> list[tuple[str, ...]]:
    """Return all tables of all namespaces, by their names in lower case."""
    found, todo = list[tuple[str, ...]](), list(catalog.list_namespaces())
    for levels in todo:
        todo += catalog.list_namespaces(levels)
        found += catalog.list_tables(levels)
    return sorted({tuple(name.lower() for name in ident) for ident in found})


@contextmanager
def open_pool(lake: FreshLake) -> Generator[Lake]:
    """The lake as commands open it."""
    opened = open_lake("lake", lake.dsn, lake.metadata_schema, 1)
    try:
        yield opened
    finally:
        close_lake(opened)


def test_what_stands_against_nesting_is_named(local_lake: FreshLake) -> None:
    """A macro, a table of a name that the nested schema has too, what the flat one would lose, and who would get rights on its tables."""
    duck = local_lake.duckdb()
    for statement in (*HISTORY, 'INSERT INTO "a\u241fb".flat SELECT 1 FROM range(50)', 'CREATE MACRO "a\u241fb".m(x) AS x + 1'):
        duck.execute(statement)
    duck.close()
    migrate_by_duckicelake(local_lake)
    with open_ducklakepy(local_lake) as lake, open_pool(local_lake) as pool:
        lake.create_namespace(("a",))
        lake.create_namespace(("a", "b"))
        lake.create_table(("a", "b", "FLAT"), schema=Schema(Column("i", Int64Type())))
        report = nest_schemas(pool, is_dry_run=False)
        assert ["macro 'm'" in text or "'flat': rename one" in text for text in report.obstacles] == [True, True]
        conn = local_lake.psycopg()
        assert len(conn.execute(SELECT_SCHEMAS).fetchall()) == 4
        conn.execute("UPDATE ducklake_macro SET end_snapshot = begin_snapshot")
        lake.drop_table(("a", "b", "FLAT"))
        lake.create_table(("a", "b", "own"), schema=Schema(Column("i", Int64Type())))
        conn.execute("INSERT INTO iceberg_principal (name, is_role, secret_number) VALUES ('ann', false, 1)")
        conn.execute(INSERT_SETTINGS, {"schema_name": "a\u241fb"})
        obstacles = nest_schemas(pool, is_dry_run=False).obstacles
        assert [text.partition("flat one has the ")[2].partition(":")[0] for text in obstacles] == [
            *("grant 'ann' = 'read'", "option 'parquet_version' = '2'", "property 'owner' = 'ann'"),
        ]
        conn.execute(INSERT_SETTINGS, {"schema_name": "b"})
        assert nest_schemas(pool, is_dry_run=True).obstacles == []
        conn.execute(INSERT_GRANT)
        (obstacle,) = nest_schemas(pool, is_dry_run=False).obstacles
        assert "nested one has the grant 'ann' = 'write': revoke it on a.b" in obstacle
        conn.execute("DELETE FROM iceberg_grant WHERE privilege = 'write'")
        create_branch(conn, local_lake.metadata_schema, BranchRequest("dev"))
        schemas = conn.execute(SELECT_SCHEMAS).fetchall()
        (obstacle,) = nest_schemas(pool, is_dry_run=False).obstacles
        assert "branches or tags, which keep the schemas as they are: dev" in obstacle
        assert conn.execute(SELECT_SCHEMAS).fetchall() == schemas
        delete_branch(conn, local_lake.metadata_schema, "dev")
        assert nest_schemas(pool, is_dry_run=False).obstacles == []
        assert conn.execute(SELECT_OPTION).fetchall() == [("b",)]
        assert lake.load_table(("a", "b", "flat")).to_arrow()["i"].to_pylist() == [1] * 51
        assert lake.load_table(("a", "b", "own")).to_arrow().num_rows == 0
