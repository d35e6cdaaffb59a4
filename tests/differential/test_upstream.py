"""What DuckDB 1.5.5 gets wrong by itself, which is why the generator keeps off it.

Each test first states what upstream does; the day it fails, the generator can take the case in. Where the lake holds
the truth all the same, what is published is the truth.
"""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.differential.replay import find_doubled
from tests.differential.sessions import Sessions
from tests.differential.upstream import T, published, run
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import long_after, whole_after

pytestmark = pytest.mark.whole
"""They are of other projects: none comes or goes by a change here."""


def test_nul_byte_makes_duckdb_forget_rows(served: Served) -> None:
    """DuckDB takes bounds that it could not store for a column of NULLs, and finds nothing; the catalog does."""
    insert = "INSERT INTO t SELECT i, 'a' || chr(0) || i FROM range(20) r(i)"
    conn = run(served, "CREATE TABLE t (id INTEGER, name VARCHAR)", insert, "INSERT INTO t SELECT 100 + i, 'd' FROM range(20) r(i)")
    wanted = "SELECT count(*) FROM {} WHERE name = 'a' || chr(0) || '5'"
    assert conn.execute(wanted.format("t")).fetchone() == (0,)
    assert served.duckdb_iceberg().conn.execute(wanted.format("ice.main.t")).fetchone() == (1,)


def test_variants_are_written_so_that_spark_mistakes_them(lake: FreshLake) -> None:
    """A NULL is a value, the variant null, and DuckLake counts no NULL; names of an object are said to be sorted, and are not."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (v VARIANT)")
    conn.execute("INSERT INTO t VALUES (NULL), (1::VARIANT)")
    conn.execute("INSERT INTO t VALUES ({'b': 1, 'a': 2}::VARIANT)")
    names = conn.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    blobs = [conn.execute("SELECT content FROM read_blob(?)", name).fetchone() for name in names]
    opened = [pq.ParquetFile(pa.BufferReader(blob[0])) for blob in blobs if blob]
    files = [file.read(columns=["v.metadata", "v.value"])["v"].to_pylist() for file in opened]
    empty, sorted_flag = b"\x11\0\0", 0x10
    assert files[0] == [{"metadata": empty, "value": b"\0"}, {"metadata": empty, "value": None}]
    [row] = files[1]
    assert row["metadata"].endswith(b"ba") and row["metadata"][0] & sorted_flag
    with lake.psycopg() as postgres:
        assert postgres.execute("SELECT sum(null_count) FROM ducklake_file_column_stats").fetchone() == (0,)


def test_bucket_pruning_forgets_older_files(served: Served) -> None:
    """DuckDB looks for a bucket in files written before there were buckets; the catalog claims nothing of them."""
    conn = run(
        served,
        "CREATE TABLE t (id INTEGER, k INTEGER)",
        "INSERT INTO t SELECT i, i FROM range(20) r(i)",
        "ALTER TABLE t SET PARTITIONED BY (bucket(4, k))",
        "INSERT INTO t SELECT 100 + i, 100 + i FROM range(20) r(i)",
    )
    assert conn.execute("SELECT count(*) FROM t WHERE k = 5").fetchone() == (0,)
    ice = served.duckdb_iceberg().conn
    assert ice.execute("SELECT count(*) FROM ice.main.t WHERE k = 5").fetchone() == (1,)
    assert ice.execute("SELECT count(*) FROM ice.main.t WHERE k = 105").fetchone() == (1,)


def test_buckets_of_filtered_uuids_are_those_of_other_rows(served: Served) -> None:
    """DuckLake looks a filtered row's place up twice and takes the bucket of the next row; the catalog finds every row.

    Past the last row DuckLake reads other memory and may crash DuckDB, so the last row has a NULL, which is not looked up.
    """
    conn = run(
        served,
        "CREATE TABLE t AS SELECT i::INTEGER AS id, if(i < 20, md5(i::VARCHAR)::UUID, NULL) AS k FROM range(21) r(i)",
        "ALTER TABLE t SET PARTITIONED BY (bucket(4, k))",
        "UPDATE t SET id = -id WHERE id > 0",
    )
    wanted = "SELECT id FROM {} WHERE k = md5('1')::UUID"
    ice = served.duckdb_iceberg().conn
    assert conn.execute(wanted.format("t")).fetchall() == []
    assert ice.execute(wanted.format("ice.main.t")).fetchall() == [(-1,)]
    assert sorted(published(served, "id")) == list(range(-20, 1))
    conn.execute("ALTER TABLE t RESET PARTITIONED BY")
    assert conn.execute(wanted.format("t")).fetchall() == [(-1,)]


def test_apostrophe_in_an_inlined_struct_is_lost(served: Served) -> None:
    """DuckDB loses an apostrophe when it reads a struct back from Postgres; what was inserted is published."""
    conn = run(served, "CREATE TABLE t (s STRUCT(a VARCHAR))", "INSERT INTO t VALUES ({'a': 'it''s'})")
    assert conn.execute("SELECT s.a FROM t").fetchall() == [("its",)]
    assert published(served, "s") == [{"a": "it's"}]


def test_date_in_an_inlined_struct_is_unreadable(served: Served) -> None:
    """DuckDB cannot read a struct with a date back from Postgres; what was inserted is published."""
    conn = run(served, "CREATE TABLE t (s STRUCT(a DATE))", "INSERT INTO t VALUES ({'a': DATE '2024-02-29'})")
    with pytest.raises(duckdb.Error):
        conn.execute("SELECT s.a FROM t").fetchall()
    assert [str(row["a"]) for row in published(served, "s")] == ["2024-02-29"]


def test_a_table_that_goes_with_its_first_inlined_rows_has_no_past(served: Served) -> None:
    """Later sessions of DuckDB take its rows' table in Postgres for a file; one that had such rows before can be read."""
    limit = "CALL lake.set_option('data_inlining_row_limit', {})"
    create = (limit.format(0), "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)", limit.format(10), "CREATE TABLE u (id INTEGER)")
    conn = run(served, *create)
    found = conn.execute("SELECT id FROM ducklake_current_snapshot('lake')").fetchone()
    assert found is not None
    run(served, "BEGIN", "INSERT INTO t VALUES (2)", "DROP TABLE t", "INSERT INTO u VALUES (2)", "DROP TABLE u", "COMMIT")
    past = f"FROM {{}} AT (VERSION => {found[0]})"
    assert run(served).execute(past.format("u")).fetchall() == []
    with pytest.raises(duckdb.IOException, match="ducklake_inlined_data"):
        run(served).execute(past.format("t"))


def test_inlined_rows_of_an_older_table_hide_a_younger_one_from_their_session(served: Served) -> None:
    """DuckDB reads rows whose table in Postgres came after the table itself, and takes the tables of then for those of their version."""
    limit = "CALL lake.set_option('data_inlining_row_limit', {})"
    run(served, limit.format(0), "CREATE TABLE t (id INTEGER)", limit.format(10), "CREATE TABLE u (id INTEGER)", "INSERT INTO t VALUES (1)")
    conn = run(served, "CREATE SCHEMA s")
    found = conn.execute("SELECT id - 1 FROM ducklake_current_snapshot('lake')").fetchone()
    assert found is not None
    past = f"FROM u AT (VERSION => {found[0]})"
    assert run(served).execute(past).fetchall() == []
    with pytest.raises(duckdb.CatalogException, match="does not exist at version"):
        run(served, "FROM t", past)
    # A session that has looked the tables of that version up before keeps them.
    assert run(served, past, "FROM t").execute(past).fetchall() == []


def test_added_column_can_not_become_required(served: Served) -> None:
    """DuckDB keeps no statistics of an added column and so takes it for one with NULLs."""
    conn = run(
        served, "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)", "ALTER TABLE t ADD COLUMN x INTEGER", "UPDATE t SET x = 1"
    )
    with pytest.raises(duckdb.CatalogException):
        conn.execute("ALTER TABLE t ALTER COLUMN x SET NOT NULL")


def test_rows_older_than_a_sort_column_are_not_flushed(served: Served) -> None:
    """DuckDB looks for the column in the older inlined rows; they stay where they are, and are published."""
    create = ("CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (2), (1)")
    conn = run(served, *create, "ALTER TABLE t ADD COLUMN x INTEGER", "ALTER TABLE t SET SORTED BY (x)")
    with pytest.raises(duckdb.InvalidInputException, match='Referenced column "x" not found'):
        conn.execute("CALL ducklake_flush_inlined_data('lake')").fetchall()
    assert sorted(published(served, "id")) == [1, 2]


def test_a_sorted_table_that_lost_a_column_before_its_first_row_stops_a_flush(served: Served) -> None:
    """DuckDB goes by the places of the columns as they were made; with a row that has been there it does not."""
    alter = ("CREATE TABLE t (id INTEGER, name VARCHAR, x INTEGER)", "ALTER TABLE t SET SORTED BY (x)", "ALTER TABLE t DROP COLUMN name")
    flush = "CALL ducklake_flush_inlined_data('lake')"
    with pytest.raises(duckdb.InternalException, match="inequal types"):
        run(served, *alter, flush)
    run(served, "INSERT INTO t VALUES (2, 1), (1, 2)", flush)
    assert sorted(published(served, "id")) == [1, 2]


def test_a_flush_by_another_session_breaks_one_that_knows_a_changed_table(served: Served, sessions: Sessions) -> None:
    """DuckDB looks for inlined rows under the older columns, whose table in Postgres is gone; one that attaches again reads all."""
    with sessions.on_lake(served.lake) as careful:
        conn = run(served, "CREATE TABLE t (id INTEGER, x INTEGER)", "INSERT INTO t VALUES (1, 1)")
        for known in (conn, careful.conn):
            known.execute("ALTER TABLE t DROP COLUMN x" if known is conn else "FROM t")
            known.execute("INSERT INTO t VALUES (2)")
        with sessions.on_lake(served.lake) as other:
            other.conn.execute("CALL ducklake_flush_inlined_data('lake')")
        sessions.attach_again(careful, served.lake)
        assert careful.conn.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,), (2,)]
        with pytest.raises(duckdb.InternalException, match="index 0 within vector of size 0"):
            conn.execute("FROM t").fetchall()


@pytest.mark.parametrize(
    "call",
    long_after(
        1,
        [
            pytest.param("CALL ducklake_flush_inlined_data('lake')", id="flush"),
            pytest.param("CALL ducklake_merge_adjacent_files('lake')", id="merge"),
            pytest.param("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)", id="rewrite"),
            pytest.param("CHECKPOINT", id="checkpoint"),
        ],
    ),
)
def test_a_table_sorted_by_a_column_that_is_younger_than_its_files_is_not_maintained(served: Served, call: str) -> None:
    """DuckDB looks for the column among the file's; without the order it maintains the table, and what is published stays the same."""
    fills = [f"INSERT INTO t SELECT i * 100000000 + {place}, 'a' FROM range(20) r(i)" for place in range(3)]
    run(served, "CREATE TABLE t (id INTEGER, name VARCHAR)", *fills, "DELETE FROM t WHERE id % 100000000 = 0 AND id > 300000000")
    order = "ALTER TABLE t SET SORTED BY (x)"
    with pytest.raises(duckdb.InternalException, match="inequal types"):
        run(served, "ALTER TABLE t ADD COLUMN x INTEGER", order, call)
    run(served, "ALTER TABLE t RESET SORTED BY", call, order)
    assert len(published(served, "id")) == 44


@pytest.mark.parametrize(
    "call",
    long_after(
        1,
        [
            pytest.param("CALL ducklake_flush_inlined_data('lake')", id="flush"),
            pytest.param("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)", id="rewrite"),
            pytest.param("CHECKPOINT", id="checkpoint"),
        ],
    ),
)
def test_a_table_sorted_by_a_column_behind_one_that_it_lost_is_not_maintained(served: Served, call: str) -> None:
    """DuckDB looks for the column in the place of the lost one; without the order it maintains the table."""
    fills = [f"INSERT INTO t SELECT i * 10**17 + {place}, 'a', i * 10**17 FROM range(20) r(i)" for place in range(3)]
    run(served, "CREATE TABLE t (id BIGINT, name VARCHAR, x BIGINT)", *fills, "DELETE FROM t WHERE x < 300000000000000000")
    order = "ALTER TABLE t SET SORTED BY (x)"
    with pytest.raises(duckdb.InternalException, match="inequal types"):
        run(served, "ALTER TABLE t DROP COLUMN name", order, call)
    run(served, "ALTER TABLE t RESET SORTED BY", call, order)
    assert len(published(served, "id")) == 51


@pytest.mark.parametrize(
    "call",
    whole_after(
        1,
        [
            pytest.param("CALL ducklake_merge_adjacent_files('lake')", id="merge"),
            pytest.param("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)", id="rewrite"),
        ],
    ),
)
def test_files_with_nulls_in_a_not_null_column_are_not_put_together(served: Served, call: str) -> None:
    """DuckDB takes such files in and checks NOT NULL when it writes their rows again, until there is no NULL."""
    conn = run(served, "CREATE TABLE t (id INTEGER, a DOUBLE NOT NULL)")
    for number in range(2):
        path = f"{served.lake.data_path}{number}.parquet"
        conn.execute(f"COPY (SELECT i::INTEGER AS id, if(i < 15, i::DOUBLE, NULL) AS a FROM range(20) r(i)) TO '{path}' (FORMAT parquet)")
        conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    if "merge" not in call:
        conn.execute("DELETE FROM t WHERE id < 14")
    with pytest.raises(duckdb.ConstraintException, match="NOT NULL"):
        conn.execute(call)
    assert published(served, "a").count(None) == 10
    run(served, "UPDATE t SET a = 0 WHERE a IS NULL", call)
    assert published(served, "a").count(0) >= 10


def test_altered_and_renamed_in_one_transaction_breaks_the_lake_for_duckdb(served: Served) -> None:
    """DuckDB writes such a table's columns twice and reads no table any more; the catalog serves the others."""
    create = ("CREATE TABLE t (id INTEGER)", "CREATE TABLE other AS SELECT 1 AS id")
    conn = run(served, *create, "BEGIN", "ALTER TABLE t ADD COLUMN x INTEGER", "ALTER TABLE t RENAME TO u", "COMMIT")
    with pytest.raises(duckdb.CatalogException, match="already exists"):
        conn.execute("FROM other")
    assert served.pyiceberg().read(("main", "other"))["id"].to_pylist() == [1]


def test_not_null_is_not_set_on_a_table_touched_in_the_transaction(served: Served) -> None:
    """DuckDB looks at statistics that the transaction has not written yet."""
    conn = run(served, "CREATE TABLE t (id INTEGER)", "INSERT INTO t VALUES (1)", "BEGIN", "ALTER TABLE t ADD COLUMN x INTEGER")
    with pytest.raises(duckdb.CatalogException, match="transaction-local"):
        conn.execute("ALTER TABLE t ALTER COLUMN id SET NOT NULL")


def test_rows_with_one_row_id_are_lost(served: Served) -> None:
    """Rows added and updated in one transaction keep the row ids they had in it; the next one gives them out again.

    With two such rows at hand, its DELETE takes both. The lake has lost the other one, and so have its readers.
    """
    added = "INSERT INTO t VALUES ({}, 0)"
    conn = run(served, "CREATE TABLE t AS SELECT i::INTEGER AS id, 0 AS x FROM range(20) r(i)")
    for statement in ("BEGIN", added.format(100), "UPDATE t SET x = 1", "COMMIT"):
        conn.execute(statement)
    assert conn.execute("SELECT rowid FROM t WHERE id = 100").fetchone() == (10**18,)
    for statement in ("BEGIN", added.format(200), "UPDATE t SET x = 2 WHERE id = 100"):
        conn.execute(statement)
    assert conn.execute("SELECT count(*) FROM t").fetchone() == (22,)
    conn.execute("DELETE FROM t WHERE id = 200")
    conn.execute("COMMIT")
    assert conn.execute("SELECT id FROM t WHERE id >= 100").fetchall() == []
    assert sorted(published(served, "id")) == list(range(20))


def test_rows_merged_into_those_just_added_have_their_row_ids(served: Served) -> None:
    """MERGE gives out the transaction's row ids from the start again; after that an UPDATE is fine, and the next loses a row."""
    merge = "MERGE INTO t USING (VALUES (1), (2)) s(i) ON id = s.i"
    conn = run(
        served,
        "CREATE TABLE t (id INTEGER, x INTEGER)",
        *(
            "BEGIN",
            "INSERT INTO t VALUES (1, 0)",
            f"{merge} WHEN MATCHED THEN UPDATE SET x = 1 WHEN NOT MATCHED THEN INSERT VALUES (s.i, 0)",
        ),
        "UPDATE t SET x = 2",
    )
    assert conn.execute("SELECT count(*), count(DISTINCT rowid) FROM t").fetchone() == (2, 1)
    conn.execute("UPDATE t SET x = 3")
    conn.execute("COMMIT")
    assert conn.execute("SELECT count(*) FROM (FROM t)").fetchone() == (1,)
    assert published(served, "x") == [3]


@pytest.mark.parametrize("change", whole_after(1, ["RENAME COLUMN x TO", "ADD COLUMN"]))
@pytest.mark.parametrize("name", whole_after(1, ["l" * 64, "ü" * 32]))
def test_rows_inlined_before_a_column_gets_a_long_name_cannot_be_committed(served: Served, change: str, name: str) -> None:
    """From 64 bytes on DuckDB makes no table for inlined rows, but writes into it; with 63 all is well."""
    conn = run(served, "CREATE TABLE t (id INTEGER, x INTEGER)")
    alter = f"ALTER TABLE t {change} {{}}{' INTEGER' if change == 'ADD COLUMN' else ''}"
    for statement in ("BEGIN", "INSERT INTO t VALUES (1, 1)", alter.format(name)):
        conn.execute(statement)
    with pytest.raises(duckdb.TransactionException, match="ducklake_inlined_data_"):
        conn.execute("COMMIT")
    for statement in ("BEGIN", "INSERT INTO t VALUES (2, 2)", alter.format("l" * 63), "COMMIT"):
        conn.execute(statement)
    assert published(served, "id") == [2]


@pytest.mark.parametrize(
    ("change", "value"), whole_after(1, [("ADD COLUMN y INTEGER", "1, 1"), ("ALTER COLUMN x TYPE BIGINT", "5_000_000_000")])
)
def test_rows_cannot_be_inlined_when_columns_changed_while_no_rows_were(served: Served, change: str, value: str) -> None:
    """DuckDB makes no table for inlined rows at a limit of 0; after the limit is raised it writes into the older one."""
    limit = "CALL lake.set_option('data_inlining_row_limit', {}, schema => 'main', table_name => 't')"
    conn = run(served, "CREATE TABLE t (x INTEGER)", limit.format(0), f"ALTER TABLE t {change}", limit.format(10))
    with pytest.raises(duckdb.TransactionException, match="ducklake_inlined_data_"):
        conn.execute(f"INSERT INTO t VALUES ({value})")
    conn.execute("ALTER TABLE t ADD COLUMN z INTEGER")
    conn.execute(f"INSERT INTO t VALUES ({value}, 7)")
    assert published(served, "z") == [7]


@pytest.mark.parametrize("change", whole_after(1, ["RENAME COLUMN id TO name", "ADD COLUMN name INTEGER"]))
def test_files_are_not_rewritten_when_older_inlined_rows_lack_a_column(served: Served, change: str) -> None:
    """DuckDB asks every table of inlined rows for all columns of today; nothing is changed by it."""
    conn = run(
        served,
        "CREATE TABLE t AS SELECT i::INTEGER AS id, i::INTEGER AS x FROM range(20) r(i)",
        "INSERT INTO t VALUES (100, 100)",
        "DELETE FROM t WHERE x = 3",
        f"ALTER TABLE t {change}",
    )
    with pytest.raises(duckdb.TransactionException, match="inlined-data aggregates"):
        conn.execute("CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)")
    assert sorted(published(served, "x")) == [0, 1, 2, *range(4, 20), 100]


def test_a_file_with_deletes_of_both_kinds_is_read_twice_once_it_was_rewritten(served: Served) -> None:
    """The flush gives it a second delete file for the time before; what the catalog publishes keeps its rows."""
    outside = served.lake.data_path.replace("/data/", "/outside/") + "nine.parquet"
    conn = run(
        served,
        "CREATE TABLE t (id INTEGER)",
        f"COPY (SELECT i::INTEGER AS id FROM range(9) r(i)) TO '{outside}'",
        "BEGIN",
        f"CALL ducklake_add_data_files('lake', 't', '{outside}')",
        "DELETE FROM t WHERE id = 3",
        "COMMIT",
        "DELETE FROM t WHERE id < 5",
        "CALL ducklake_rewrite_data_files('lake', 't', delete_threshold => 0)",
    )
    count = "SELECT count(*) FROM (FROM t AT (VERSION => 3))"
    assert conn.execute(count).fetchone() == (4,)
    conn.execute("CALL ducklake_flush_inlined_data('lake')")
    assert conn.execute(count).fetchone() == (13,)
    assert find_doubled(conn) == {("main", "t")}
    assert served.pyiceberg().read(("main", "t"), 3)["id"].to_pylist() == [5, 6, 7, 8]


def test_a_column_that_an_added_file_lacks_is_deleted_as_if_not_null(served: Served) -> None:
    """DuckDB's statistics leave the file out, so IS NOT NULL means its rows too; the lake has lost them, and so have its readers."""
    outside = served.lake.data_path.replace("/data/", "/outside/") + "short.parquet"
    conn = run(
        served,
        "CREATE TABLE t (id INTEGER, x INTEGER)",
        "INSERT INTO t VALUES (100, 1), (101, 2)",
        f"COPY (SELECT i::INTEGER AS id FROM range(20) r(i)) TO '{outside}'",
        f"CALL ducklake_add_data_files('lake', 't', '{outside}', allow_missing => true)",
    )
    assert conn.execute("SELECT x FROM t").fetchall().count((None,)) == 20
    assert conn.execute("SELECT count(x) FROM t").fetchone() == (22,)
    conn.execute("DELETE FROM t WHERE x IS NOT NULL")
    assert conn.execute("SELECT count(*) FROM (FROM t)").fetchone() == (0,)
    assert published(served, "id") == []


def test_deletion_vectors_forget_older_deletes(served: Served) -> None:
    """DuckDB replaces one by the next, and an older snapshot shows rows again; readers of the catalog see the same."""
    conn = run(
        served,
        "CREATE TABLE t AS SELECT i AS id FROM range(40) r(i)",
        "CALL lake.set_option('write_deletion_vectors', true, schema => 'main', table_name => 't')",
        "DELETE FROM t WHERE id < 12",
        "DELETE FROM t WHERE id < 30",
    )
    counted = [conn.execute(f"SELECT count(*) FROM (FROM t AT (VERSION => {n}))").fetchone() for n in (1, 2, 3)]
    assert counted == [(40,), (40,), (10,)]
    assert [served.pyiceberg().read(T, n).num_rows for n in (1, 2, 3)] == [40, 40, 10]


def test_duckdb_takes_the_text_null_for_no_default(served: Served) -> None:
    """DuckLake writes NULL for no default, and cannot tell it from the text; no row ever had another value."""
    run(served, "CREATE TABLE t (id INTEGER, x VARCHAR DEFAULT 'NULL')", "INSERT INTO t (id) VALUES (1)")
    assert run(served, "INSERT INTO t (id) VALUES (2)").execute("SELECT x FROM t ORDER BY id").fetchall()[-1] == (None,)
    assert published(served, "x")[-1] is None


@pytest.mark.parametrize(
    ("statement", "message"),
    whole_after(
        1,
        [
            ("ALTER TABLE t ADD COLUMN y INTEGER DEFAULT (1 + 1)", "non-literal default"),
            ("ALTER TABLE t ALTER COLUMN x SET DEFAULT (1 + 1)", "non-literal default"),
            ("ALTER TABLE t SET SORTED BY (x)", "transaction-local inlined data"),
            ("ALTER TABLE t SET PARTITIONED BY (x)", "transaction-local inlined data"),
        ],
    ),
)
def test_duckdb_refuses(served: Served, statement: str, message: str) -> None:
    """What histories leave out because DuckLake has no word for it."""
    conn = run(served, "CREATE TABLE t (id INTEGER)", "ALTER TABLE t ADD COLUMN x INTEGER", "BEGIN", "INSERT INTO t VALUES (1, 1)")
    with pytest.raises(duckdb.NotImplementedException, match=message):
        conn.execute(statement)


@pytest.mark.parametrize("change", whole_after(1, ["RENAME COLUMN s.u TO v", "ALTER COLUMN s TYPE STRUCT(d DOUBLE, u INTEGER)"]))
def test_a_field_loses_its_default_when_it_is_changed(served: Served, change: str) -> None:
    """Older rows had the default until then, and have NULL from then on; a column keeps its own."""
    create = ("CREATE TABLE t (s STRUCT(d DOUBLE))", "INSERT INTO t VALUES ({'d': 1.5})")
    conn = run(served, *create, "ALTER TABLE t ADD COLUMN s.u TINYINT DEFAULT -18", f"ALTER TABLE t {change}")
    assert conn.execute("SELECT struct_extract_at(s, 2) FROM t").fetchone() == (None,)
    assert list(published(served, "s")[0].values()) == [1.5, None]


def test_numbers_inlined_before_they_become_double_lose_digits(served: Served) -> None:
    """DuckDB keeps the short text of the FLOAT, and reads it as a DOUBLE."""
    change = ("BEGIN", "INSERT INTO t VALUES (0.1)", "ALTER TABLE t ALTER COLUMN f TYPE DOUBLE", "COMMIT")
    conn = run(served, "CREATE TABLE t (f FLOAT)", *change)
    assert conn.execute("FROM t").fetchone() == (0.1,)
    assert published(served, "f") == [0.1]


def test_checkpoint_makes_its_session_forget_old_columns(served: Served) -> None:
    """The session that ran CHECKPOINT shows an old snapshot under newer columns; another session shows the old ones."""
    insert = "INSERT INTO other SELECT i FROM range(20) r(i)"
    create = ("CREATE TABLE t (id INTEGER, x INTEGER)", "CREATE TABLE other (id INTEGER)")
    conn = run(served, *create, "ALTER TABLE t DROP COLUMN x", insert, insert, "CHECKPOINT")
    assert conn.execute("FROM t AT (VERSION => 2)").to_arrow_table().column_names == ["id"]
    assert served.lake.duckdb().execute("FROM t AT (VERSION => 2)").to_arrow_table().column_names == ["id", "x"]


def test_columns_of_an_earlier_state_are_shown_between_two_tables(served: Served) -> None:
    """After another table at an earlier snapshot: the first rows inlined raise the schema version, which DuckDB then takes for older."""
    run(
        served,
        "CALL lake.set_option('data_inlining_row_limit', 0)",
        "CREATE TABLE o (id INTEGER, b INTEGER)",
        "ALTER TABLE o SET PARTITIONED BY (id)",
        "CREATE TABLE e (id INTEGER)",
        "ALTER TABLE o ADD COLUMN c INTEGER",
        "INSERT INTO e VALUES (1)",
        "INSERT INTO o VALUES (1, 1, 1)",
        "CALL lake.set_option('data_inlining_row_limit', 10)",
        "BEGIN; INSERT INTO o VALUES (8, 8, 8); INSERT INTO e VALUES (5); COMMIT",
        "DROP TABLE e",
    )
    wanted, conn = ["id", "b", "c"], served.lake.duckdb()
    asked = ("FROM e AT (VERSION => 5)", "FROM o AT (VERSION => 6)", "FROM o AT (VERSION => 7)")
    shown = [conn.execute(statement).to_arrow_table().column_names for statement in asked]
    assert shown == [["id"], wanted, wanted[:2]]
    assert served.lake.duckdb().execute("FROM o AT (VERSION => 7)").to_arrow_table().column_names == wanted
