"""Our tables and triggers beside DuckLake's."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import duckdb
import psycopg
import pytest
from psycopg import connect

from duckicelake.embedded.ducklake import LakeAddress, create_lake
from duckicelake.errors import BadRequest, ServiceUnavailable, Unsupported
from duckicelake.lake.install import check_absolute, check_separate, install, uninstall
from duckicelake.lake.locations import list_table_locations
from tests.lake.bare import list_relations, make_bare_lake
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

ASKED = (
    "SELECT * REPLACE (snapshot_time::VARCHAR AS snapshot_time) FROM lake.snapshots()",
    "FROM ducklake_table_info('lake')",
    "FROM lake.options()",
    "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE database_name = 'lake'",
    "SELECT table_name, comment FROM duckdb_tables() WHERE database_name = 'lake'",
    "FROM t ORDER BY ALL",
    "FROM t AT (VERSION => 3) ORDER BY ALL",
    "FROM s.u",
)


def see(conn: duckdb.DuckDBPyConnection) -> list[list[tuple[object, ...]]]:
    """Everything a DuckDB user sees of the lake."""
    return [conn.execute(query).fetchall() for query in ASKED]


def read_rows(conn: psycopg.Connection, relations: list[str]) -> dict[str, list[str]]:
    """Every row of DuckLake's own tables, as text."""
    tables = [name for name in relations if name.startswith("ducklake_") and not name.endswith("_pkey")]
    return {name: [row for (row,) in conn.execute(f"SELECT x::text FROM {name} x ORDER BY 1")] for name in tables}  # pyright: ignore


def test_duckdb_sees_no_difference(lake: FreshLake, tmp_path: Path) -> None:
    """Rows, tables, options, snapshots and DuckLake's own tables stay as they are, for open sessions and new ones."""
    bare = make_bare_lake(lake, tmp_path)
    session = bare.duckdb()
    for statement in (
        "CREATE TABLE t (i INTEGER, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO t SELECT range, 'x' FROM range(100)",
        "DELETE FROM t WHERE i BETWEEN 10 AND 60",
        "CREATE SCHEMA s",
        "CREATE TABLE s.u AS SELECT 1 AS k",
        "COMMENT ON TABLE t IS 'c'",
        "CALL lake.set_option('target_file_size', '10MB')",
    ):
        session.execute(statement)
    conn, relations = bare.psycopg(), list_relations(bare)
    before, rows = see(session), read_rows(conn, relations)
    install(conn, bare.metadata_schema, bare.iceberg_path)
    assert (see(session), read_rows(conn, relations)) == (before, rows)
    assert see(bare.duckdb()) == before
    assert {name.split("_")[0] for name in set(list_relations(bare)) - set(relations)} == {"iceberg", "trigger iceberg"}


def test_nothing_of_ours_is_left_after_removing(lake: FreshLake, tmp_path: Path) -> None:
    """What `install` put there goes, what others put there stays, and it may be put there again."""
    bare = make_bare_lake(lake, tmp_path)
    conn, before = bare.psycopg(), list_relations(bare)
    for _ in range(2):
        install(conn, bare.metadata_schema, bare.iceberg_path)
        assert len(list_relations(bare)) > len(before)
        uninstall(conn, bare.metadata_schema)
        uninstall(conn, bare.metadata_schema)
        assert list_relations(bare) == before
    conn.execute("CREATE TABLE iceberg_of_mine (i integer)")
    install(conn, bare.metadata_schema, bare.iceberg_path)
    uninstall(conn, bare.metadata_schema)
    assert set(list_relations(bare)) == {*before, "iceberg_of_mine"}


def test_a_lake_that_an_older_release_prepared_gets_what_is_new(lake: FreshLake) -> None:
    """The next `install` adds the tables that it lacks; what others hold stays, and DuckDB goes on."""
    conn, session = lake.psycopg(), lake.duckdb()
    session.execute("CREATE TABLE t AS SELECT 1 AS i")
    conn.execute("INSERT INTO iceberg_change (kind) VALUES ('repair')")
    conn.execute("DROP TABLE iceberg_audit, iceberg_principal, iceberg_member, iceberg_grant, iceberg_staged")
    conn.execute("UPDATE iceberg_setting SET value = 'older' WHERE key = 'installed'")
    install(conn, lake.metadata_schema, lake.iceberg_path)
    assert {"iceberg_audit", "iceberg_principal", "iceberg_member", "iceberg_grant", "iceberg_staged"} <= set(list_relations(lake))
    assert conn.execute("SELECT kind FROM iceberg_change").fetchall() == [("repair",)]
    session.execute("INSERT INTO t VALUES (2)")
    assert session.execute("FROM t ORDER BY ALL").fetchall() == [(1,), (2,)]


def test_the_index_of_changes_of_an_older_release_is_replaced(lake: FreshLake) -> None:
    """A lake whose index is over the bare expression gets the one over the function, and DuckDB's roles may compute its key."""
    conn, session = lake.psycopg(), lake.duckdb()
    expected = list_relations(lake)
    conn.execute("DROP FUNCTION iceberg_change_tokens CASCADE")
    conn.execute("CREATE INDEX iceberg_ix_changes ON ducklake_snapshot_changes USING gin (string_to_array(changes_made, ','))")
    conn.execute("UPDATE iceberg_setting SET value = 'older' WHERE key = 'installed'")
    install(conn, lake.metadata_schema, lake.iceberg_path)
    assert list_relations(lake) == expected
    session.execute("CREATE TABLE t AS SELECT 1 AS i")
    tokens = ["inserted_into_table:1", "inlined_insert:1"]
    found = conn.execute("SELECT snapshot_id FROM ducklake_snapshot_changes WHERE iceberg_change_tokens(changes_made) && %s", [tokens])
    assert found.fetchall() == [(1,)]
    conn.execute("CREATE INDEX iceberg_ix_changes ON ducklake_snapshot_changes (snapshot_id)")
    uninstall(conn, lake.metadata_schema)
    assert "iceberg_ix_changes" not in list_relations(lake)


@pytest.mark.whole
def test_of_files_that_were_about_to_go_before_nobody_knows_whose_they_were(lake: FreshLake, tmp_path: Path) -> None:
    """So their folders are nobody's for keys until DuckLake has removed them; what goes later of a live table's is its own."""
    bare = make_bare_lake(lake, tmp_path)
    conn, session = bare.psycopg(), bare.duckdb()
    session.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
    session.execute("CREATE TABLE gone AS SELECT 1 AS i; DROP TABLE gone; CREATE TABLE t AS SELECT 1 AS i; INSERT INTO t VALUES (2)")
    session.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    install(conn, bare.metadata_schema, bare.iceberg_path)
    session.execute("CALL ducklake_merge_adjacent_files('lake')")
    install(conn, bare.metadata_schema, bare.iceberg_path)
    unknown = [place.resolve("/data/") for place in list_table_locations(conn) if place.table_id < 0]
    assert unknown == ["/data/main/gone/"]
    session.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert not [place for place in list_table_locations(conn) if place.table_id < 0]


@pytest.mark.parametrize("schema", ['We"ird Ü lake', "select", "a.b", "x" * 63], ids=["quotes", "keyword", "dot", "long"])
def test_a_metadata_schema_may_have_any_name(lake: FreshLake, tmp_path: Path, schema: str) -> None:
    """Prepared, expiry noted, and removed."""
    odd = replace(lake, metadata_schema=schema, data_path=f"{tmp_path}/data/")
    create_lake(odd.extension_folder, LakeAddress(odd.dsn, schema, odd.data_path), None)
    with connect(odd.dsn, autocommit=True) as conn:
        install(conn, schema, f"{tmp_path}/iceberg/")
        session = odd.duckdb()
        session.execute("CREATE TABLE t (i INTEGER)")
        session.execute("CALL ducklake_expire_snapshots('lake', versions => [0])")
        assert conn.execute("SELECT kind FROM iceberg_change").fetchall() == [("expire",)]
        uninstall(conn, schema)
        assert session.execute("INSERT INTO t VALUES (1)").fetchall() == [(1,)]


@pytest.mark.whole
def test_a_lake_is_adopted_while_duckdb_writes(lake: FreshLake, tmp_path: Path) -> None:
    """No statement of DuckDB's fails, and the preparation gets through."""
    bare = make_bare_lake(lake, tmp_path)
    stopping, done = Event(), list[int]()

    def write(number: int) -> None:
        session = bare.duckdb()
        # whichever writer is slower loses the race for the next snapshot again and again, and waits longer each time
        session.execute("SET ducklake_max_retry_count = 1000")
        session.execute("SET ducklake_retry_backoff = 1")
        session.execute(f"CREATE TABLE t{number} (i INTEGER)")
        while not stopping.is_set():
            session.execute(f"INSERT INTO t{number} SELECT range FROM range(20)")
            session.execute(f"DELETE FROM t{number} WHERE i = {len(done) % 20}")
            done.append(number)

    def prepare() -> None:
        for _ in range(3):
            install(bare.psycopg(), bare.metadata_schema, bare.iceberg_path)
            uninstall(bare.psycopg(), bare.metadata_schema)
        install(bare.psycopg(), bare.metadata_schema, bare.iceberg_path)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, number) for number in range(2)]
        try:
            wait_for(lambda: {0, 1} <= set(done) or any(writer.done() for writer in writers), "both writers to write")
            prepare()
            written = len(done)
            wait_for(lambda: len(done) > written + 3 or any(writer.done() for writer in writers), "the writers to go on")
        finally:
            stopping.set()
    assert [writer.result() for writer in writers] == [None, None]


def test_a_lake_that_is_never_idle_is_said_so(lake: FreshLake, tmp_path: Path) -> None:
    """Locks are waited for only so long; where everything is there already, they are not needed."""
    bare = make_bare_lake(lake, tmp_path)
    holder = bare.psycopg(autocommit=False)
    holder.execute("LOCK TABLE ducklake_snapshot IN ROW EXCLUSIVE MODE")
    with pytest.raises(ServiceUnavailable, match="quieter"):
        install(bare.psycopg(), bare.metadata_schema, bare.iceberg_path, tries=2)
    holder.rollback()
    install(bare.psycopg(), bare.metadata_schema, bare.iceberg_path)
    holder.execute("LOCK TABLE ducklake_snapshot IN ROW EXCLUSIVE MODE")
    install(bare.psycopg(), bare.metadata_schema, bare.iceberg_path, tries=2)


@pytest.mark.parametrize(
    ("data_path", "told"),
    [
        pytest.param("data/", "UPDATE ducklake_metadata", id="relative"),
        pytest.param("./data/", "relative", id="from here"),
        pytest.param("gs://bucket/data/", "S3 and local folders", id="another store"),
    ],
)
def test_a_data_path_that_we_cannot_find_is_refused(lake: FreshLake, data_path: str, told: str) -> None:
    """With what to do about it, and nothing of ours is put there."""
    conn = lake.psycopg()
    conn.execute("UPDATE ducklake_metadata SET value = %(value)s WHERE key = 'data_path'", {"value": data_path})
    with pytest.raises((BadRequest, Unsupported), match=told):
        install(conn, lake.metadata_schema, "s3://elsewhere/iceberg/")


def test_a_second_time_changes_nothing(lake: FreshLake) -> None:
    """`init` may run at every start; the ICEBERG_PATH first given stays."""
    before, conn = list_relations(lake), lake.psycopg()
    install(conn, lake.metadata_schema, "s3://elsewhere/iceberg")
    assert list_relations(lake) == before
    assert conn.execute("SELECT value FROM iceberg_setting WHERE key = 'iceberg_path'").fetchall() == [(lake.iceberg_path,)]


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        pytest.param("UPDATE ducklake_metadata SET value = '0.3' WHERE key = 'version'", "'0.3'", id="older version"),
        pytest.param("UPDATE ducklake_metadata SET value = '1.1-dev1' WHERE key = 'version'", "'1.1-dev1'", id="newer version"),
        pytest.param("UPDATE ducklake_metadata SET value = 'true' WHERE key = 'encrypted'", "ENCRYPTED", id="encrypted"),
    ],
)
def test_a_lake_we_cannot_serve_is_left_alone(lake: FreshLake, statement: str, word: str) -> None:
    """The refusal says what is wrong, and nothing of ours stays behind."""
    conn = lake.psycopg()
    conn.execute(statement)  # pyright: ignore
    conn.execute("DROP TABLE iceberg_change, iceberg_setting")
    before = list_relations(lake)
    with pytest.raises(Unsupported, match=word):
        install(conn, lake.metadata_schema, lake.iceberg_path)
    assert list_relations(lake) == before


def test_an_option_of_one_table_is_not_the_lakes(lake: FreshLake) -> None:
    """Only settings without a scope count: DuckLake keeps those of tables and schemas in the same rows."""
    conn = lake.psycopg()
    conn.execute("INSERT INTO ducklake_metadata (key, value, scope, scope_id) VALUES ('encrypted', 'true', 'table', 1)")
    install(conn, lake.metadata_schema, lake.iceberg_path)


@pytest.mark.parametrize("path", ["s3://b/da//ta/", "s3://b//", "/lake/../data/", "file:///lake/./data", "/lake//data/", "s3a://b/x/.."])
def test_a_path_has_one_spelling(path: str) -> None:
    """Checks of where things lie could not be trusted otherwise, and S3 clients have no name for an empty part."""
    with pytest.raises(BadRequest, match="part"):
        check_absolute(path)
    with pytest.raises(BadRequest, match="part"):
        check_separate("s3://other/data/", path)


@pytest.mark.parametrize("path", ["s3://b/a#b/", "s3://b/a?/", "/lake/#1/"])
def test_a_path_ends_where_clients_take_it_to_end(path: str) -> None:
    """Tables could not be made there: their locations would be refused."""
    with pytest.raises(BadRequest, match="clients take a path to end"):
        check_separate("s3://other/data/", path)


@pytest.mark.parametrize(
    ("data_path", "iceberg_path"),
    [
        pytest.param("s3://b/data/", "s3://b/data/", id="the same"),
        pytest.param("s3://b/data/", "s3://b/data", id="the same without a slash"),
        pytest.param("s3://b/data/", "s3://b/data/iceberg/", id="below"),
        pytest.param("s3://b/", "s3://b/iceberg/", id="below a whole bucket"),
        pytest.param("/lake/data/", "file:///lake/data/iceberg/", id="below, as a URI"),
        pytest.param("file:///lake/data/", "/lake/data/iceberg/", id="below a URI"),
        pytest.param("s3://b/lake/data/", "s3://b/lake/", id="above: a namespace may be called data"),
        pytest.param("s3://b/data/", "s3://b/", id="a whole bucket above"),
        pytest.param("s3a://b/", "s3://b/ice/", id="another scheme of S3's"),
        pytest.param("s3://b/", "s3n://b/ice/", id="an old scheme of S3's"),
        pytest.param("file:/lake/data/", "/lake/data/ice/", id="a URI with one slash"),
        pytest.param("/lake//data/", "/lake/data/ice/", id="more slashes than needed"),
    ],
)
def test_the_two_paths_never_hold_one_another(data_path: str, iceberg_path: str) -> None:
    """DuckLake's orphan clean-up would delete our files, so neither path may lie under the other."""
    with pytest.raises(BadRequest, match="DATA_PATH"):
        check_separate(data_path, iceberg_path)


@pytest.mark.parametrize(
    ("data_path", "iceberg_path"),
    [
        pytest.param("s3://b/data/", "s3://b/iceberg/", id="beside"),
        pytest.param("s3://b/data/", "s3://b/data-iceberg/", id="a longer name"),
        pytest.param("s3://b/data/", "s3://c/", id="another bucket"),
        pytest.param("/lake/data/", "s3://lake/data/x/", id="another kind of store"),
    ],
)
def test_paths_side_by_side_are_fine(data_path: str, iceberg_path: str) -> None:
    """Names that only begin alike are different folders."""
    check_separate(data_path, iceberg_path)


def test_a_name_of_any_length_is_left_to_duckdb(lake: FreshLake, other_lake: FreshLake) -> None:
    """Postgres limits the size of index keys: a table DuckDB alone can create, it can create beside our indexes."""
    name = "".join(f"{n * n * 7919 % 1_000_003:x}" for n in range(1, 2500))
    for fresh in (other_lake, lake):
        fresh.psycopg().execute("DROP INDEX iceberg_ix_change_tokens, iceberg_ix_table_folded")
    install(lake.psycopg(), lake.metadata_schema, lake.iceberg_path)
    for fresh in (other_lake, lake):
        session = fresh.duckdb()
        session.execute(f'CREATE TABLE "{name}" (i INTEGER)')
        session.execute(f'INSERT INTO "{name}" VALUES (1)')
        assert session.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == [(name,)]


def test_a_lake_of_the_first_version_is_upgraded(lake: FreshLake) -> None:
    """Its notes stay, and what clients' writes need is added."""
    conn = lake.psycopg()
    expected = list_relations(lake)
    conn.execute("DROP TABLE iceberg_shape, iceberg_snapshot, iceberg_file")
    conn.execute("DROP TABLE iceberg_ref, iceberg_kept, iceberg_kept_file, iceberg_move, iceberg_hidden")
    conn.execute("DROP FUNCTION iceberg_pin_files, iceberg_keep_file CASCADE")
    conn.execute("DELETE FROM iceberg_setting WHERE key = 'refs'")
    conn.execute("ALTER TABLE iceberg_table DROP COLUMN last_column_id, DROP COLUMN last_partition_id, DROP COLUMN is_native")
    conn.execute("INSERT INTO iceberg_table VALUES (1, 's3://b/t', 2, 0, 1, 1, 0, 'token', 5)")
    install(conn, lake.metadata_schema, lake.iceberg_path)
    assert list_relations(lake) == expected
    found = conn.execute("SELECT location, last_column_id, last_partition_id, is_native FROM iceberg_table").fetchall()
    assert found == [("s3://b/t", 0, 0, False)]
