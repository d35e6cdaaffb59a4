"""Namespaces, tables and their rows as one transaction sees them."""

import threading

import pytest

from duckicelake.errors import TableVanished, Unsupported
from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.read import find_table, read_data_path, read_iceberg_path, read_schemas, read_table_names, read_tags
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import TableRow, TableState
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after
from tests.support.waiting import wait_for

SELECT_WAITING = (
    "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def get(opened: Lake, schema_name: str, table_name: str) -> TableRow | None:
    """The table of that name."""
    with reading(opened) as conn:
        return find_table(conn, schema_name, table_name)


def load(opened: Lake, table_name: str) -> TableState:
    """The state of a table of the main schema."""
    with reading(opened) as conn:
        table = find_table(conn, "main", table_name)
        assert table is not None
        return read_table(conn, table, LastRead())


def test_names_are_found_in_any_case(opened: Lake, lake: FreshLake) -> None:
    """DuckDB folds names; the stored spelling is answered, and an exact spelling wins over a folded one."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute('CREATE SCHEMA "Sales"')
    session.execute('CREATE TABLE "Sales"."Orders" (i INTEGER)')
    for schema_name, table_name in (("Sales", "Orders"), ("sales", "orders"), ("SALES", "ORDERS")):
        found = get(opened, schema_name, table_name)
        assert found is not None
        assert (found.schema_name, found.table_name) == ("Sales", "Orders")
    assert get(opened, "main", "orders") is None
    assert [get(opened, "sales", name) for name in ("order", "order_", "%", "orders ")] == [None] * 4
    session.execute('CREATE TABLE "Sales"."Übersicht" (i INTEGER)')
    assert get(opened, "sales", "üBERSICHT") is None, "only ASCII letters are folded"
    # DuckDB cannot make two names that differ in case only; another writer may have
    conn.execute(
        "INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)"
        " SELECT 99, gen_random_uuid(), begin_snapshot, schema_id, 'ORDERS', path, path_is_relative FROM ducklake_table"
    )
    ids = {name: row.table_id for name in ("Orders", "ORDERS", "orders") if (row := get(opened, "Sales", name)) is not None}
    assert ids["ORDERS"] == 99
    assert ids["Orders"] == ids["orders"] != 99


def test_only_what_is_live_is_listed(opened: Lake, lake: FreshLake) -> None:
    """In order of name; dropped and renamed names are gone, odd ones stay as they are."""
    session = lake.duckdb()
    for name in ("b", "a", "gone", '"x.y/z ""q"""'):
        session.execute(f"CREATE TABLE {name} (i INTEGER)")
    session.execute('CREATE SCHEMA "Z"')
    session.execute("CREATE SCHEMA gone")
    session.execute("DROP TABLE gone")
    session.execute("ALTER TABLE a RENAME TO renamed")
    session.execute("DROP SCHEMA gone")
    session.execute("CREATE VIEW v AS SELECT 1")
    with reading(opened) as conn:
        schemas = read_schemas(conn)
        assert sorted(row.schema_name for row in schemas) == ["Z", "main"]
        main = next(row.schema_id for row in schemas if row.schema_name == "main")
        assert read_table_names(conn, main) == ["b", "renamed", 'x.y/z "q"']
        assert (read_data_path(conn), read_iceberg_path(conn)) == (lake.data_path, lake.iceberg_path)
    assert get(opened, "main", "a") is None
    assert get(opened, "main", "gone") is None


def test_a_renamed_table_is_the_same_one(opened: Lake, lake: FreshLake) -> None:
    """Id and uuid survive a rename and change on drop and create."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")
    before = get(opened, "main", "t")
    session.execute("ALTER TABLE t RENAME TO u")
    after = get(opened, "main", "u")
    session.execute("CREATE OR REPLACE TABLE u (i INTEGER)")
    replaced = get(opened, "main", "u")
    assert before is not None
    assert after is not None
    assert replaced is not None
    assert (before.table_id, before.table_uuid) == (after.table_id, after.table_uuid)
    assert replaced.table_id != after.table_id
    assert replaced.table_uuid != after.table_uuid


def test_tags_are_the_live_ones(opened: Lake, lake: FreshLake) -> None:
    """A comment that was changed shows as it is now, one that was removed has no value."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")
    for comment in ("'one'", "'two'"):
        session.execute(f"COMMENT ON TABLE t IS {comment}")
    state = load(opened, "t")
    assert [(tag.key, tag.value) for tag in state.tags] == [("comment", "two")]
    session.execute("COMMENT ON TABLE t IS NULL")
    with reading(opened) as conn:
        assert [tag.value for tag in read_tags(conn, state.table.table_id)] in ([None], [])


def test_a_lake_without_our_notes_says_what_to_do(opened: Lake, lake: FreshLake) -> None:
    """`init` was never run, or its tables were dropped."""
    lake.psycopg().execute("DELETE FROM iceberg_setting")
    with pytest.raises(Unsupported, match="duckicelake init"), reading(opened) as conn:
        read_iceberg_path(conn)
    lake.psycopg().execute("DROP TABLE iceberg_setting")
    with pytest.raises(Unsupported, match="duckicelake init"), reading(opened) as conn:
        read_iceberg_path(conn)


def test_a_name_that_looks_like_a_token_makes_no_snapshot(opened: Lake, lake: FreshLake) -> None:
    """Creating such a table changes no other table's rows."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("INSERT INTO t VALUES (1)")
    table_id = load(opened, "t").table.table_id
    session.execute(f'CREATE TABLE "a,inserted_into_table:{table_id},b" (i INTEGER)')
    assert [row.changes_made for row in load(opened, "t").snapshots] == [f"inlined_insert:{table_id}"]


def test_a_snapshot_that_says_nothing_is_known_by_its_rows(opened: Lake, lake: FreshLake) -> None:
    """Another writer may leave `changes_made` out, or write it in upper case."""
    session, conn = lake.duckdb(), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    for _ in range(3):
        session.execute("INSERT INTO t SELECT range FROM range(100)")
    conn.execute("UPDATE ducklake_snapshot_changes SET changes_made = NULL WHERE snapshot_id = 2")
    conn.execute("UPDATE ducklake_snapshot_changes SET changes_made = upper(changes_made) WHERE snapshot_id = 3")
    conn.execute("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = 4")
    state = load(opened, "t")
    assert [(row.snapshot_id, row.changes_made) for row in state.snapshots] == [(2, None), (3, "INSERTED_INTO_TABLE:1"), (4, None)]


def test_one_state_although_duckdb_commits_in_between(opened: Lake, lake: FreshLake) -> None:
    """Everything read on one transaction is of one moment: flush, expiry and new rows come later."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("INSERT INTO t VALUES (1), (2)")
    session.execute("INSERT INTO t SELECT range FROM range(100)")
    session.execute("DELETE FROM t WHERE i = 50")
    whole = load(opened, "t")
    with reading(opened) as conn:
        table = find_table(conn, "main", "t")
        assert table is not None
        session.execute("CALL ducklake_flush_inlined_data('lake')")
        session.execute("INSERT INTO t VALUES (3)")
        session.execute("ALTER TABLE t ADD COLUMN c INTEGER")
        session.execute("CALL ducklake_expire_snapshots('lake', versions => [2])")
        assert read_table(conn, table, LastRead()) == whole
    assert load(opened, "t") != whole


@pytest.mark.parametrize("name", whole_after(1, ["ducklake_inlined_data_{table_id}_1", "ducklake_inlined_delete_{table_id}"]))
def test_a_table_that_vanishes_while_it_is_read_is_read_again(opened: Lake, lake: FreshLake, name: str) -> None:
    """DuckLake drops inlined tables; a transaction that had not read them yet cannot."""
    session, dropper, watcher = lake.duckdb(), lake.psycopg(autocommit=False), lake.psycopg()
    session.execute("CREATE TABLE t (i INTEGER)")
    session.execute("INSERT INTO t VALUES (1)")
    session.execute("INSERT INTO t SELECT range FROM range(100)")
    session.execute("DELETE FROM t WHERE i = 50")
    table = get(opened, "main", "t")
    assert table is not None
    dropper.execute(f"DROP TABLE {name.format(table_id=table.table_id)}")  # pyright: ignore
    outcome: list[BaseException | TableState] = []

    def ask() -> None:
        try:
            outcome.append(load(opened, "t"))
        except TableVanished as error:
            outcome.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_for(lambda: watcher.execute(SELECT_WAITING).fetchone() == (1,), "the reader waits for the table")
    dropper.commit()
    asking.join(timeout=60)
    assert [type(item) for item in outcome] == [TableVanished]
