"""What `check` finds in a lake's rows: each poison is really poison, and a healthy lake has none."""

from collections.abc import Iterator

import duckdb
import psycopg
import pytest

from duckicelake.lake.inspect import (
    TablePrivileges,
    list_missing_files,
    list_privilege_findings,
    list_row_checks,
    list_setting_findings,
    read_defaults,
    read_file_paths,
    read_findings,
    read_privileges,
    read_settings,
)
from tests.support.lakes import FreshLake, clone_lake, make_lake
from tests.support.shared_stack import SharedStack

HEALTHY = (
    "CREATE TABLE t (id INTEGER NOT NULL, price DECIMAL(9, 2), s STRUCT(a INTEGER, b STRUCT(c VARCHAR)), l INTEGER[], "
    "m MAP(VARCHAR, STRUCT(x DATE)))",
    "INSERT INTO t SELECT i, i, {'a': i, 'b': {'c': 'x'}}, [i], MAP {'k': {'x': DATE '2026-01-01'}} FROM range(100) r(i)",
    "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 7",
    "ALTER TABLE t SET PARTITIONED BY (bucket(4, id), later)",
    "INSERT INTO t (id) VALUES (1000)",
    "DELETE FROM t WHERE id BETWEEN 10 AND 40",
    "COMMENT ON COLUMN t.id IS 'the number'",
    "CREATE VIEW v AS SELECT id FROM t",
    'CREATE SCHEMA "a b"',
    'CREATE TABLE "a b"."T x" (i INTEGER)',
    "CREATE TABLE gone (i INTEGER)",
    "DROP TABLE gone",
)

FATAL = [
    pytest.param(
        "UPDATE ducklake_column SET column_type = 'fixed[16]' WHERE column_name = 'id'",
        "column id has type fixed[16]",
        id="type",
    ),
    pytest.param(
        "INSERT INTO ducklake_column_tag (table_id, column_id, begin_snapshot, key, value) SELECT table_id, 1, 1, 'owner', 'me' "
        "FROM ducklake_table WHERE table_name = 't'",
        "column 1 carries tag owner",
        id="column tag",
    ),
    pytest.param(
        "UPDATE ducklake_partition_column SET transform = 'truncate(4)' WHERE transform = 'identity'",
        "partition transform truncate(4)",
        id="transform",
    ),
    pytest.param(
        "INSERT INTO ducklake_metadata (key, value, scope, scope_id) VALUES ('target_file_size', '1', 'lake', 1)",
        "option target_file_size has scope lake",
        id="option scope",
    ),
    pytest.param(
        "UPDATE ducklake_column SET end_snapshot = 2 WHERE table_id = (SELECT table_id FROM ducklake_table WHERE table_name = 't')",
        "has no columns",
        id="no columns",
    ),
    pytest.param(
        "UPDATE ducklake_column SET end_snapshot = 2 WHERE parent_column = (SELECT column_id FROM ducklake_column WHERE column_name = 'b')",
        "struct b has no fields",
        id="empty struct",
    ),
    pytest.param(
        "UPDATE ducklake_column SET column_name = 'ID' WHERE column_name = 'price'",
        "columns id, ID differ only by case",
        id="twin columns",
    ),
    pytest.param(
        "UPDATE ducklake_table SET schema_id = 777 WHERE table_name = 't' AND end_snapshot IS NULL",
        "belongs to namespace 777, which is dropped or missing",
        id="homeless",
    ),
    pytest.param("UPDATE ducklake_view SET column_aliases = NULL", "has column_aliases NULL", id="view aliases"),
    pytest.param(
        "UPDATE ducklake_column SET default_value_type = '', default_value = '3' WHERE column_name = 'later'",
        "column later has a default without default_value_type",
        id="default type",
    ),
    pytest.param(
        # DuckDB loads columns by their parent's number, so a parent must come before its grandchildren.
        "UPDATE ducklake_column SET parent_column = 900 WHERE column_name IN ('a', 'b'); "
        "UPDATE ducklake_column SET column_id = 900 WHERE column_name = 's'",
        "nested column b has id 5, not above its parent 900",
        id="late parent",
    ),
]
"""Rows with which DuckDB cannot open the lake, and what we say of them."""

WRONG = [
    pytest.param("UPDATE ducklake_table SET path = 't' WHERE table_name = 't'", "path t has no trailing slash", id="path"),
    pytest.param("UPDATE ducklake_data_file SET file_size_bytes = NULL", "has no file_size_bytes", id="size"),
    pytest.param("UPDATE ducklake_data_file SET file_format = 'orc'", "has format orc", id="format"),
    pytest.param(
        "INSERT INTO ducklake_delete_file SELECT (jsonb_populate_record(d, '{\"delete_file_id\": 999}')).* FROM ducklake_delete_file d",
        "has 2 live delete files",
        id="two delete files",
    ),
    pytest.param(
        'INSERT INTO ducklake_table SELECT (jsonb_populate_record(t, \'{"table_id": 999, "table_name": "t X"}\')).* '
        "FROM ducklake_table t WHERE table_name = 'T x'; "
        "INSERT INTO ducklake_column SELECT (jsonb_populate_record(c, '{\"table_id\": 999}')).* FROM ducklake_column c "
        "JOIN ducklake_table t ON t.table_id = c.table_id AND t.table_name = 'T x'",
        "tables T x, t X of one namespace differ only by case",
        id="twin tables",
    ),
]
"""Rows with which DuckDB opens the lake and then fails or answers wrongly."""


@pytest.fixture(scope="module")
def prototype(stack: SharedStack) -> Iterator[FreshLake]:
    """A lake with a bit of everything, made by DuckDB alone."""
    with make_lake(stack) as made:
        with made.duckdb() as conn:
            for statement in HEALTHY:
                conn.execute(statement)
        yield made


@pytest.fixture
def filled(stack: SharedStack, prototype: FreshLake) -> Iterator[FreshLake]:
    """A copy of that lake to damage; its files are the prototype's."""
    with clone_lake(stack, prototype) as copy:
        yield copy


def problems_in(lake: FreshLake) -> list[str]:
    """Return what is found in the lake's rows."""
    return [finding.problem for finding in read_findings(lake.psycopg())]


def test_a_healthy_lake_has_no_findings(filled: FreshLake) -> None:
    """Whatever DuckDB itself writes is fine: nested columns, partitions, deletes, views, odd names, dropped tables."""
    conn = filled.psycopg()
    assert read_findings(conn) == []
    assert list_setting_findings(read_settings(conn)) == []
    assert list_privilege_findings(read_privileges(conn, filled.metadata_schema)) == []


@pytest.mark.parametrize(("poison", "problem"), FATAL)
def test_a_row_that_stops_duckdb_is_found(filled: FreshLake, poison: str, problem: str) -> None:
    """DuckDB cannot use the lake any more, and we say which row is why."""
    filled.psycopg().execute(poison.encode())
    with pytest.raises(duckdb.Error):
        filled.duckdb().sql("SELECT * FROM t").fetchall()
    assert any(found.endswith(problem) for found in problems_in(filled)), problems_in(filled)


@pytest.mark.parametrize(("damage", "problem"), WRONG)
def test_a_row_that_misleads_duckdb_is_found(filled: FreshLake, damage: str, problem: str) -> None:
    """What DuckDB does not notice is named all the same."""
    filled.psycopg().execute(damage.encode())
    assert any(found.endswith(problem) for found in problems_in(filled)), problems_in(filled)


def test_every_check_runs_on_a_fresh_lake(lake: FreshLake) -> None:
    """A renamed column of DuckLake fails here, by the query that uses it."""
    conn = lake.psycopg()
    for check in list_row_checks():
        assert conn.execute(check.query, {"further_types": [], "further_transforms": []}).fetchall() == []
    assert read_defaults(conn) == []
    assert read_file_paths(conn) == []


def test_files_are_named_by_their_full_path(filled: FreshLake) -> None:
    """Relative paths are joined through table and schema, as DuckLake does it."""
    named = read_file_paths(filled.psycopg())
    seen = {path for (path,) in filled.duckdb().execute(f"SELECT file FROM glob('{filled.data_path}**')").fetchall()}
    assert {path for _, path in named} == seen
    assert {table for table, _ in named} == {"main.t"}


def test_defaults_are_listed_with_their_type(filled: FreshLake) -> None:
    """Whether they can be cast is DuckDB's to say."""
    assert read_defaults(filled.psycopg()) == [("t", "later", "int32", "7")]


def test_another_version_and_encryption_are_refused() -> None:
    """Both are errors with a remedy; a good lake has neither."""
    assert list_setting_findings({"version": "1.0", "encrypted": "false"}) == []
    old = list_setting_findings({"version": "0.3", "encrypted": "true"})
    assert [finding.problem for finding in old] == ["its DuckLake version is '0.3'", "it is encrypted"]
    assert {finding.severity for finding in old} == {"error"}


def test_missing_rights_are_told_apart() -> None:
    """Not reading is fatal, not writing our notes too; not writing the lake only makes it read-only."""
    rights = [
        TablePrivileges("ducklake_table", True, False),
        TablePrivileges("iceberg_table", True, False),
        TablePrivileges("ducklake_column", False, False),
    ]
    assert [(finding.severity, finding.subject) for finding in list_privilege_findings(rights)] == [
        ("warning", "ducklake_table"),
        ("error", "iceberg_table"),
        ("error", "ducklake_column"),
    ]


def test_a_lake_without_our_notes_is_told_to_init() -> None:
    """DuckLake's tables alone are not enough."""
    (finding,) = list_privilege_findings([TablePrivileges("ducklake_table", True, True)])
    assert finding.remedy == "Run `duckicelake init`."


def test_a_role_without_rights_is_seen_as_one(filled: FreshLake) -> None:
    """Rights are those of the role that asks."""
    owner = filled.psycopg()
    assert all(right.may_read and right.may_write for right in read_privileges(owner, "lake"))
    owner.execute("REVOKE ALL ON ducklake_data_file FROM duckicelake")
    assert [right.table for right in read_privileges(owner, "lake") if not right.may_read] == ["ducklake_data_file"]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        read_file_paths(owner)


def test_missing_files_are_named() -> None:
    """One finding per file that the store does not have."""
    paths = [("main.t", "s3://b/1"), ("main.t", "s3://b/2")]
    assert list_missing_files(paths, {"s3://b/1", "s3://b/2"}) == []
    (finding,) = list_missing_files(paths, {"s3://b/1"})
    assert (finding.subject, finding.problem) == ("main.t", "the file s3://b/2 is missing")
