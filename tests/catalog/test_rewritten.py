"""Flush and merge rewrite where rows are stored; what was published of the past stays."""

import pytest

from duckicelake.catalog.tables import LoadedTable
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.install import write_restored_max
from tests.catalog.conftest import Opener
from tests.catalog.reading import check_every_snapshot, ids_by_iceberg, load, open_static
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after

NESTED = "n STRUCT(x INTEGER, y DOUBLE[]), m MAP(VARCHAR, DECIMAL(9,2)), u UUID, z TIMESTAMPTZ, o TIME, b BLOB, j JSON, s SMALLINT"
VALUES = """
    {'x': 1, 'y': [1.5::DOUBLE, NULL, 'nan'::DOUBLE]}, MAP {'k': 1.25, 'l': NULL}, '00000000-0000-0000-0000-00000000000f',
    '2026-01-02 03:04:05.678+00', '10:00:00', '\\x00ab'::BLOB, '{"a": [1]}', -3
"""
INLINED = [
    f"CREATE TABLE t (id BIGINT, {NESTED})",
    f"INSERT INTO t VALUES (1, {VALUES}), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    f"INSERT INTO t VALUES (3, {VALUES})",
    "UPDATE t SET s = 9 WHERE id = 1",
    "ALTER TABLE t ADD COLUMN later INTEGER DEFAULT 5",
    f"INSERT INTO t VALUES (4, {VALUES}, 6)",
    "ALTER TABLE t DROP COLUMN o",
    "ALTER TABLE t ALTER s TYPE INTEGER",
    "INSERT INTO t (id, s) VALUES (5, 100000), (6, NULL)",
    "DELETE FROM t WHERE id IN (3, 6)",
    "UPDATE t SET s = 1 WHERE id = 4",
]
FLUSH = "CALL ducklake_flush_inlined_data('lake')"
CLEAN_UP = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"
MERGE = "CALL ducklake_merge_adjacent_files('lake')"


def lists_of(lake: FreshLake, loaded: LoadedTable) -> list[tuple[int, str, str]]:
    """Each snapshot with its operation and the name of its manifest list, which follows from its bytes."""
    snapshots = open_static(lake, loaded).metadata.snapshots
    return [(s.snapshot_id, s.summary.operation.value if s.summary else "", s.manifest_list) for s in snapshots]


@pytest.mark.parametrize("is_fresh", whole_after(1, [pytest.param(False, id="same server"), pytest.param(True, id="new server")]))
def test_a_flush_leaves_published_history_as_it_is(lake: FreshLake, warehouse: Warehouse, open_server: Opener, is_fresh: bool) -> None:
    """Byte for byte, whoever publishes; the flush itself replaces the files and changes no row."""
    conn = lake.duckdb()
    for statement in INLINED:
        conn.execute(statement)
    before = lists_of(lake, load(warehouse))
    conn.execute(FLUSH)
    loaded = load(open_server(lake) if is_fresh else warehouse)
    after = lists_of(lake, loaded)
    assert after[:-1] == before
    assert after[-1][1] == "replace"
    check_every_snapshot(lake, conn, loaded)


def test_incremental_readers_see_what_was_inserted_across_a_flush(lake: FreshLake, warehouse: Warehouse) -> None:
    """Inserts stay appends of exactly their rows, although a server sees them only after flush and merge."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT)")
    for number in range(6):
        conn.execute(f"INSERT INTO t VALUES ({number})")
        if number % 2:
            conn.execute(FLUSH)
    conn.execute(MERGE)
    loaded = load(warehouse)
    operations = [operation for _, operation, _ in lists_of(lake, loaded)]
    assert operations == ["append", "append", "replace", "append", "append", "replace", "append", "append", "replace", "replace"]
    table = check_every_snapshot(lake, conn, loaded)
    assert ids_by_iceberg(table) == [0, 1, 2, 3, 4, 5]


@pytest.mark.whole
def test_rows_of_one_insert_are_found_in_all_files_of_a_flush(lake: FreshLake, warehouse: Warehouse) -> None:
    """A partitioned table is flushed into a file for each partition; the insert was one file, and is one again."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT, part VARCHAR)")
    conn.execute("ALTER TABLE t SET PARTITIONED BY (part)")
    conn.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'a'), (4, NULL)")
    conn.execute("INSERT INTO t VALUES (5, 'b'), (6, 'c')")
    conn.execute("DELETE FROM t WHERE id IN (2, 5)")
    before = lists_of(lake, load(warehouse))
    conn.execute(FLUSH)
    conn.execute("DELETE FROM t WHERE id = 6")
    loaded = load(warehouse)
    assert lists_of(lake, loaded)[:-2] == before
    check_every_snapshot(lake, conn, loaded)


@pytest.mark.whole
def test_going_on_after_a_flush_equals_starting_over(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """Deletes on flushed and merged files, and further rewritings of them, in every order of loads."""
    conn = lake.duckdb()
    steps = [*INLINED, FLUSH, "DELETE FROM t WHERE id = 2", "INSERT INTO t (id) VALUES (7)", FLUSH, MERGE]
    for statement in [
        *steps,
        "UPDATE t SET s = 2 WHERE id = 7",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)",
        "DELETE FROM t WHERE id = 1",
        FLUSH,
    ]:
        conn.execute(statement)
        seen = load(warehouse)
        assert load(open_server(lake)).metadata == seen.metadata
    check_every_snapshot(lake, conn, load(warehouse))


@pytest.mark.long
def test_a_rewriting_too_large_to_restore_hides_newer_rows(lake: FreshLake, warehouse: Warehouse) -> None:
    """When DuckLake has deleted the files before it, the merged file stands for them; old snapshots are exact, and overwrites."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT, noise DOUBLE)")
    for number in range(2):
        conn.execute(f"INSERT INTO t SELECT i, random() FROM range({number}, 2_400_000 + {number}, 2) r(i)")
    before = lists_of(lake, load(warehouse))
    conn.execute(MERGE)
    assert lists_of(lake, load(warehouse))[:-1] == before
    conn.execute(CLEAN_UP)
    loaded = load(warehouse)
    assert [operation for _, operation, _ in lists_of(lake, loaded)] == ["overwrite", "overwrite", "replace"]
    table = open_static(lake, loaded)
    counts = [table.scan(snapshot_id=s.snapshot_id, selected_fields=("id",)).to_arrow().num_rows for s in table.metadata.snapshots]
    assert counts == [1_200_000, 2_400_000, 2_400_000]


@pytest.mark.whole
@pytest.mark.parametrize("order", whole_after(1, [pytest.param((2, 3), id="old first"), pytest.param((3,), id="only the flush")]))
def test_an_expired_flush_is_no_snapshot(lake: FreshLake, warehouse: Warehouse, open_server: Opener, order: tuple[int, ...]) -> None:
    """What is left reads the same, and the next snapshots go on from it."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT)")
    conn.execute("INSERT INTO t VALUES (1)")
    conn.execute(FLUSH)
    conn.execute("INSERT INTO t VALUES (2)")
    conn.execute(FLUSH)
    conn.execute("DELETE FROM t WHERE id = 1")
    load(warehouse)
    conn.execute(f"CALL ducklake_expire_snapshots('lake', versions => {list(order)})")
    loaded = load(warehouse)
    assert load(open_server(lake)).metadata == loaded.metadata
    check_every_snapshot(lake, conn, loaded)


@pytest.mark.parametrize(
    "together",
    long_after(
        1,
        [
            pytest.param(["ALTER TABLE t ADD COLUMN b INTEGER", "INSERT INTO t VALUES (3, 30)"], id="new column"),
            pytest.param(["ALTER TABLE t ALTER id SET NOT NULL", "INSERT INTO t VALUES (3)"], id="not null"),
            pytest.param(
                ["INSERT INTO t VALUES (3)", "ALTER TABLE t ADD COLUMN c INTEGER", "INSERT INTO t VALUES (4, 5)"], id="before and after"
            ),
            pytest.param(["INSERT INTO t VALUES (3)", "ALTER TABLE t ADD COLUMN c INTEGER"], id="before"),
            pytest.param(["ALTER TABLE t ALTER id SET DEFAULT 7", "INSERT INTO t VALUES (3)"], id="default"),
            pytest.param(["ALTER TABLE t ALTER id TYPE BIGINT", "INSERT INTO t VALUES (3)"], id="type"),
        ],
    ),
)
def test_inserts_before_a_transaction_that_altered_and_inserted_stay_as_they_are(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, together: list[str]
) -> None:
    """Byte for byte after the flush, whichever columns the rows of that transaction were stored with."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id INTEGER)")
    conn.execute("INSERT INTO t VALUES (1)")
    conn.execute("INSERT INTO t VALUES (2)")
    for statement in ["BEGIN", *together, "COMMIT"]:
        conn.execute(statement)
    before = lists_of(lake, load(warehouse))
    conn.execute(FLUSH)
    loaded = load(open_server(lake))
    assert lists_of(lake, loaded)[:-1] == before
    check_every_snapshot(lake, conn, loaded)


def test_a_flush_that_was_the_last_change_stays_the_current_snapshot_when_it_expires(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener
) -> None:
    """Numbers that were given out never go back, on a warm server or a new one, and later changes go on from them."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (id BIGINT)")
    conn.execute("INSERT INTO t VALUES (1)")
    conn.execute(FLUSH)
    shown = open_static(lake, load(warehouse)).metadata
    conn.execute("CREATE TABLE other (id BIGINT)")
    conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    loaded = load(warehouse)
    assert load(open_server(lake)).metadata == loaded.metadata
    kept = open_static(lake, loaded).metadata
    assert (kept.current_snapshot_id, kept.last_sequence_number) == (shown.current_snapshot_id, shown.last_sequence_number)
    assert [s.summary.operation.value for s in kept.snapshots if s.summary] == ["replace"]
    conn.execute("INSERT INTO t VALUES (2)")
    later = load(warehouse)
    assert load(open_server(lake)).metadata == later.metadata
    check_every_snapshot(lake, conn, later)


CHAIN = [
    "CREATE TABLE t (id BIGINT, name VARCHAR)",
    "INSERT INTO t SELECT range, 'a' FROM range(20)",
    "INSERT INTO t VALUES (100, 'inlined')",
    "INSERT INTO t VALUES (101, 'inlined')",
    FLUSH,
    "INSERT INTO t SELECT range, 'b' FROM range(20, 40)",
    MERGE,
    "INSERT INTO t SELECT range, 'c' FROM range(40, 60)",
    "ALTER TABLE t ADD COLUMN later INTEGER",
    "INSERT INTO t SELECT range, 'd', 1 FROM range(60, 80)",
    "INSERT INTO t SELECT range, 'e', 2 FROM range(80, 100)",
    MERGE,
    "DELETE FROM t WHERE id = 70",
    "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
    "INSERT INTO t SELECT range, 'f', 3 FROM range(200, 220)",
    MERGE,
]


@pytest.mark.whole
@pytest.mark.parametrize("restored_max_bytes", long_after(1, [0, 1_000_000]), ids=["nothing is restored", "all is restored"])
def test_merges_of_merged_files_leave_history_as_it_is(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, restored_max_bytes: int
) -> None:
    """Byte for byte until the files are deleted; exact after that, and after an expiry; a new server says the same at each step."""
    write_restored_max(lake.psycopg(), lake.metadata_schema, restored_max_bytes)
    conn = lake.duckdb()
    before: list[tuple[int, str, str]] = []
    for statement in CHAIN:
        conn.execute(statement)
        loaded = load(warehouse)
        after = lists_of(lake, loaded)
        if restored_max_bytes or not statement.startswith(FLUSH):
            assert after[: len(before)] == before
        before = after
        assert load(open_server(lake)).metadata == loaded.metadata
    check_every_snapshot(lake, conn, loaded)
    conn.execute(f"CALL ducklake_expire_snapshots('lake', versions => [{before[2][0]}, {before[4][0]}])")
    for statement in ("CALL ducklake_cleanup_old_files('lake', older_than => now() - INTERVAL 1 DAY)", CLEAN_UP):
        conn.execute(statement)
        loaded = load(warehouse)
        assert load(open_server(lake)).metadata == loaded.metadata
        check_every_snapshot(lake, conn, loaded)
    conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    check_every_snapshot(lake, conn, load(warehouse))
    rows = lake.psycopg().execute("SELECT count(*) FROM iceberg_merged_file").fetchone()
    assert rows == (0,)
