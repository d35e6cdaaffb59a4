"""Rows that no DuckLake writes: whatever they hold, a table is served right or refused by name, and others are not concerned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyiceberg.table.metadata import TableMetadataUtil

from duckicelake.catalog.namespaces import list_namespaces
from duckicelake.catalog.tables import Ident, LoadedTable, list_tables, load_table
from duckicelake.catalog.views import load_view
from duckicelake.catalog.warehouse import TableCaches, Warehouse, close_warehouse, open_warehouse
from duckicelake.errors import CatalogError, Damaged, NotFound, Unsupported
from duckicelake.rest.errors import get_status_and_type
from duckicelake.store.s3 import StoreSettings
from tests.support.examples import examples
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack

STEPS = (
    "CREATE TABLE healthy (i INTEGER, s STRUCT(a INTEGER, b VARCHAR[]))",
    "INSERT INTO healthy SELECT i, {'a': i, 'b': ['x']} FROM range(50) r(i)",
    "CREATE TABLE t (id INTEGER NOT NULL, price DECIMAL(9, 2), s STRUCT(a INTEGER, b STRUCT(c VARCHAR)), l INTEGER[], "
    "m MAP(VARCHAR, INTEGER))",
    "INSERT INTO t SELECT i, i, {'a': i, 'b': {'c': 'x'}}, [i], MAP {'k': i} FROM range(100) r(i)",
    "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 7",
    "ALTER TABLE t SET PARTITIONED BY (bucket(4, id), later)",
    "ALTER TABLE t SET SORTED BY (id DESC)",
    "INSERT INTO t (id, later) SELECT range, range % 3 FROM range(1000, 1100)",
    "INSERT INTO t (id) VALUES (1)",
    "DELETE FROM t WHERE id BETWEEN 10 AND 60",
    "DELETE FROM t WHERE id = 5",
    "COMMENT ON COLUMN t.id IS 'the number'",
    "COMMENT ON TABLE t IS 'the table'",
    "CREATE VIEW v AS SELECT id FROM t",
)
TIMES = [None, "infinity", "-infinity", "0044-03-15 BC", "99999-01-01"]
TEXTS = [None, "", "garbage", "../..", "x" * 5000, "\x01\"'{", "-1", "decimal(99,99)", "struct", "list", "truncate(4)", "bucket(0)"]
NUMBERS = [None, -1, 0, 7, 2**62]
VALUES: Mapping[str, Sequence[object]] = {
    "bigint": NUMBERS,
    "integer": [None, -1, 0, 7],
    "boolean": [None, True, False],
    "character varying": TEXTS,
    "text": TEXTS,
    "uuid": [None],
    "timestamp with time zone": TIMES,
}
OF_ALL_TABLES = {"ducklake_metadata", "ducklake_schema", "ducklake_snapshot", "ducklake_snapshot_changes"}
SELECT_COLUMNS = """
SELECT table_name, column_name, data_type FROM information_schema.columns
 WHERE table_schema = 'lake' AND (table_name LIKE 'ducklake\\_%%')
   AND (table_name !~ 'inlined_(data|delete)_\\d' OR table_name LIKE '%%inlined_data_' || %(table_id)s || '\\_%%')
 ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Ward:
    """A lake whose rows are damaged and restored, and a warehouse on it. `columns` are (table, column, type)."""

    warehouse: Warehouse
    conn: psycopg.Connection
    table_id: int
    columns: list[tuple[str, str, str]]

    def load(self, name: str) -> LoadedTable:
        """Load a table as a server that has just started."""
        return load_table(replace(self.warehouse, caches=TableCaches()), Ident(("main",), name))

    def damage(self, table: str, column: str, value: object, only_one: bool) -> None:
        """Set a column of all rows of the table `t`, or of one of them, to a value."""
        own = {"ducklake_tag": "object_id"}.get(table, "table_id")
        whose = sql.SQL("true")
        if (table, own) in {(name, found) for name, found, _ in self.columns}:
            whose = sql.SQL("{} = {}").format(sql.Identifier(own), self.table_id)
        which = sql.SQL("ctid = (SELECT min(ctid) FROM {} WHERE {})").format(sql.Identifier(table), whose) if only_one else whose
        statement = sql.SQL("UPDATE {} SET {} = %(value)s WHERE {}").format(sql.Identifier(table), sql.Identifier(column), which)
        self.conn.execute(statement, {"value": value})

    def restore(self, table: str) -> None:
        """Bring a table of DuckLake's back as it was."""
        self.conn.execute(sql.SQL("TRUNCATE {0}; INSERT INTO {0} SELECT * FROM saved.{0}").format(sql.Identifier(table)))


@pytest.fixture(scope="module")
def ward(stack: SharedStack) -> Iterator[Ward]:
    """A lake with a bit of everything in `t`, and the table `healthy` beside it."""
    with make_lake(stack) as lake:
        with lake.duckdb() as session:
            for step in STEPS:
                session.execute(step)
        conn, keys = lake.psycopg(), lake.store
        store = StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key)
        warehouse = open_warehouse("lake", lake.dsn, lake.metadata_schema, store)
        try:
            row = conn.execute("SELECT table_id FROM ducklake_table WHERE table_name = 't'").fetchone()
            assert row is not None
            columns = conn.execute(SELECT_COLUMNS, {"table_id": row[0]}).fetchall()
            conn.execute("CREATE SCHEMA saved")
            for table in {name for name, _, _ in columns}:
                conn.execute(sql.SQL("CREATE TABLE saved.{0} AS TABLE {0}").format(sql.Identifier(table)))
            yield Ward(warehouse, conn, row[0], columns)
        finally:
            close_warehouse(warehouse)


@pytest.mark.whole
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_no_row_makes_the_catalog_fail(ward: Ward, draw: st.DataObject) -> None:
    """Any value in any column of DuckLake's: valid metadata or a refusal with a reason, and another table stays as it is."""
    table, column, kind = draw.draw(st.sampled_from(ward.columns))
    value, only_one = draw.draw(st.sampled_from(VALUES.get(kind, [None]))), draw.draw(st.booleans())
    try:
        ward.damage(table, column, value, only_one)
    except psycopg.Error:
        # Postgres itself does not let such rows be.
        return
    try:
        check_served_or_refused(ward, "t")
        check_served_or_refused(ward, "healthy", may_be_refused=table in OF_ALL_TABLES)
        for levels in list_namespaces(ward.warehouse, ()):
            list_tables(ward.warehouse, levels)
    finally:
        ward.restore(table)


@pytest.mark.parametrize("only_one", [False, True])
@pytest.mark.parametrize("time", TIMES)
def test_no_time_makes_the_catalog_fail(ward: Ward, time: str | None, only_one: bool) -> None:
    """Times that Python has no value for, in one lake snapshot or in all."""
    ward.damage("ducklake_snapshot", "snapshot_time", time, only_one)
    try:
        for name in ("t", "healthy"):
            check_served_or_refused(ward, name)
        assert load_view(replace(ward.warehouse, caches=TableCaches()), Ident(("main",), "v")).metadata
    finally:
        ward.restore("ducklake_snapshot")


def check_served_or_refused(ward: Ward, name: str, may_be_refused: bool = True) -> None:
    """A load gives metadata that another reader of the format takes, or is refused; it never fails."""
    try:
        loaded = ward.load(name)
    except CatalogError as error:
        assert get_status_and_type(type(error))[0] in range(400, 500) or isinstance(error, Unsupported)
        assert error.message
        assert may_be_refused
    else:
        TableMetadataUtil.parse_raw(loaded.metadata.decode())


NAMED = [
    pytest.param("UPDATE ducklake_data_file SET record_count = -1 WHERE table_id = {t}", r"main\.t.*data file \d+", id="negative count"),
    pytest.param("UPDATE ducklake_data_file SET file_size_bytes = -1 WHERE table_id = {t}", "file_size_bytes", id="negative size"),
    pytest.param("UPDATE ducklake_data_file SET path = '' WHERE table_id = {t}", "has no path", id="no path"),
    pytest.param("UPDATE ducklake_column SET end_snapshot = 0 WHERE table_id = {t}", r"main\.t.*no columns", id="no columns"),
    pytest.param("UPDATE ducklake_column SET parent_column = column_id WHERE column_name = 'a' AND table_id = {t}", "'a'", id="cycle"),
    pytest.param(
        "UPDATE ducklake_column SET parent_column = 3 WHERE column_name = 's' AND table_id = {t}", "lies below 3", id="root in itself"
    ),
    pytest.param("UPDATE ducklake_column SET column_type = NULL WHERE column_name = 'price'", "no column_type", id="no type"),
    pytest.param("UPDATE ducklake_column SET column_type = 'map' WHERE column_name = 'l'", "'l'.*map with 1", id="half a map"),
    pytest.param("INSERT INTO ducklake_column SELECT * FROM saved.ducklake_column WHERE table_id = {t}", "two rows", id="twice"),
    pytest.param("UPDATE ducklake_table SET table_uuid = NULL WHERE table_name = 't'", "table_uuid", id="no uuid"),
    pytest.param(
        "UPDATE ducklake_inlined_data_tables SET table_name = 'x' WHERE table_id = {t}", r"inlined rows of main\.t", id="lost rows"
    ),
    pytest.param("UPDATE ducklake_sort_expression SET expression = NULL", "sort keys", id="sort key"),
]


@pytest.mark.parametrize(("damage", "told"), NAMED)
def test_damage_is_refused_by_name(ward: Ward, damage: str, told: str) -> None:
    """The message names table and row; corrected rows are served again without a restart."""
    tables = sorted({name for name, _, _ in ward.columns if name in damage.split("FROM")[0]}, key=len)[-1:]
    before = [ward.load(name).metadata for name in ("t", "healthy")]
    with ward.conn.transaction():
        ward.conn.execute(damage.format(t=ward.table_id).encode())
    try:
        with pytest.raises(Damaged, match=told):
            ward.load("t")
        assert ward.load("healthy").metadata == before[1]
    finally:
        for table in tables:
            ward.restore(table)
    assert ward.load("t").metadata == before[0]


def test_a_key_that_no_store_has_is_refused(ward: Ward) -> None:
    """A path longer than any object's name is not asked for."""
    ward.damage("ducklake_delete_file", "path", "x" * 100_000, only_one=False)
    try:
        with pytest.raises((Unsupported, NotFound), match="1024 bytes"):
            ward.load("t")
    finally:
        ward.restore("ducklake_delete_file")
