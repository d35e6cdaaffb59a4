"""Tables that take each other's names, and maintenance that deletes all it may: nothing of one table is taken for another's."""

from collections.abc import Iterable

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import StaticTable, Table

from duckicelake.store.objects import open_objects
from duckicelake.store.s3 import StoreSettings
from tests.interop.rich_lake import EVERYTHING, RichLake, fill_lake
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import DuckLakeReader, Ident, Served
from tests.support.tiers import long_after

NO_AGE = tuple(f"CALL lake.set_option('{option}', '0 seconds')" for option in ("expire_older_than", "delete_older_than"))
"""CHECKPOINT then expires every snapshot but the newest, and deletes every file that nothing names, however young."""

FILL = "INSERT INTO {} SELECT i, '{}' || i FROM range({}, {}) r(i)"


def run(conn: DuckDBPyConnection, *statements: str) -> None:
    """Run some statements."""
    for statement in statements:
        conn.execute(statement)


def read_both(served: Served, ident: Ident, past: Ident | None = None) -> tuple[Table, RichLake]:
    """Check that PyIceberg and DuckDB over Iceberg show DuckDB's rows, at every snapshot; returns the table and its judge.

    `past` is the name under which DuckDB knew the table at those snapshots.
    """
    judge = RichLake(served, DuckLakeReader(served.lake.duckdb()))
    judge.truth.conn.execute("SET TimeZone = 'UTC'")
    pyiceberg, iceberg = served.pyiceberg(), served.duckdb_iceberg()
    iceberg.conn.execute("SET TimeZone = 'UTC'")
    expected = judge.truth.read(ident)
    judge.check_same(expected, pyiceberg.read(ident))
    if "." not in ident[0]:
        judge.check_same(expected, iceberg.read(ident))
    table = pyiceberg.catalog.load_table(ident)
    # The last change stays the current snapshot when it has expired; DuckDB cannot travel there any more.
    left = {snapshot_id for (snapshot_id,) in judge.truth.conn.execute("SELECT snapshot_id FROM lake.snapshots()").fetchall()}
    for snapshot in table.snapshots():
        if snapshot.snapshot_id in left:
            judge.check_same(judge.truth.read(past or ident, snapshot.snapshot_id), pyiceberg.read(ident, snapshot.snapshot_id))
    return table, judge


def list_files(table: Table) -> set[str]:
    """Every object that a table's snapshots name, besides its metadata files."""
    return {
        path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        for path in (snapshot.manifest_list, manifest.manifest_path, entry.data_file.file_path)
    }


def check_apart(tables: Iterable[Table]) -> None:
    """Fail when two tables share an id, a location or any object."""
    known = list(tables)
    assert len({table.metadata.table_uuid for table in known}) == len({table.location() for table in known}) == len(known)
    seen: set[str] = set()
    for table in known:
        files = list_files(table)
        assert not files & seen
        seen |= files


def list_published(lake: FreshLake) -> dict[str, bytes]:
    """Every object below the lake's Iceberg path with its bytes, version hints aside, which change."""
    keys = lake.store
    objects = open_objects(StoreSettings(keys.endpoint, keys.region, keys.access_key_id, keys.secret_access_key))
    return {uri: objects.read(uri) for uri, _ in objects.list_under(lake.iceberg_path) if not uri.endswith(".text")}


@pytest.mark.whole
@pytest.mark.parametrize(
    "swap",
    long_after(
        1,
        [
            pytest.param(("DROP TABLE t", "CREATE TABLE t (id BIGINT, name VARCHAR)"), id="drop and create"),
            pytest.param(("BEGIN", "DROP TABLE t", "CREATE TABLE t (id BIGINT, name VARCHAR)", "COMMIT"), id="in one transaction"),
            pytest.param(("CREATE OR REPLACE TABLE t (id BIGINT, name VARCHAR)",), id="replace"),
            pytest.param(("ALTER TABLE t RENAME TO old", "CREATE TABLE t (id BIGINT, name VARCHAR)"), id="rename and create"),
        ],
    ),
)
def test_a_new_table_under_an_old_name_is_another_table(served: Served, swap: tuple[str, ...]) -> None:
    """DuckDB uses the folder of the old one again; ids, locations and objects are apart, and each table has its own rows."""
    conn = served.lake.duckdb()
    run(conn, "CREATE TABLE t (id BIGINT, name VARCHAR)", FILL.format("t", "a", 0, 50), "INSERT INTO t VALUES (50, 'inlined')")
    before, _ = read_both(served, ("main", "t"))
    run(conn, *swap, FILL.format("t", "b", 0, 40), "DELETE FROM t WHERE id < 20")
    after, _ = read_both(served, ("main", "t"))
    check_apart([before, after])
    with pytest.raises(ValueError, match="UUID"):
        before.refresh()
    run(conn, *NO_AGE)
    # Options count for sessions that attach later.
    served.lake.duckdb().execute("CHECKPOINT")
    last, _ = read_both(served, ("main", "t"))
    assert last.metadata.table_uuid == after.metadata.table_uuid
    if "RENAME" in swap[0]:
        old, _ = read_both(served, ("main", "old"))
        assert (old.metadata.table_uuid, old.location()) == (before.metadata.table_uuid, before.location())
        check_apart([old, last])


@pytest.mark.long
def test_two_tables_swap_their_names(served: Served) -> None:
    """Each keeps its id, its location and its rows under the other's name."""
    conn = served.lake.duckdb()
    for name in ("left", "right"):
        run(conn, f'CREATE TABLE "{name}" (id BIGINT, name VARCHAR)', FILL.format(f'"{name}"', name, 0, 30))
    before = {name: read_both(served, ("main", name))[0] for name in ("left", "right")}
    swap = ('ALTER TABLE "left" RENAME TO middle', 'ALTER TABLE "right" RENAME TO "left"', 'ALTER TABLE middle RENAME TO "right"')
    run(conn, "BEGIN", *swap, "COMMIT")
    other = {"left": "right", "right": "left"}
    after = {name: read_both(served, ("main", name), ("main", other[name]))[0] for name in other}
    assert (after["left"].metadata.table_uuid, after["right"].metadata.table_uuid) == (
        before["right"].metadata.table_uuid,
        before["left"].metadata.table_uuid,
    )
    run(conn, FILL.format('"left"', "more", 30, 60), *NO_AGE)
    served.lake.duckdb().execute("CHECKPOINT")
    check_apart(read_both(served, ("main", name))[0] for name in ("left", "right"))
    with pytest.raises(NoSuchTableError):
        served.pyiceberg().catalog.load_table(("main", "middle"))


@pytest.mark.whole
def test_a_namespace_dropped_and_made_again_starts_anew(served: Served) -> None:
    """DuckDB uses its folder again too."""
    conn = served.lake.duckdb()
    make = ("CREATE SCHEMA shop", "CREATE TABLE shop.t (id BIGINT, name VARCHAR)")
    run(conn, *make, FILL.format("shop.t", "a", 0, 30))
    before, _ = read_both(served, ("shop", "t"))
    run(conn, "DROP SCHEMA shop CASCADE")
    assert ("shop",) not in served.pyiceberg().catalog.list_namespaces()
    run(conn, *make, FILL.format("shop.t", "b", 0, 30))
    check_apart([before, read_both(served, ("shop", "t"))[0]])


@pytest.mark.long
def test_checkpoint_with_no_age_deletes_nothing_of_ours(lake: FreshLake) -> None:
    """Every snapshot but the newest expires, every file nobody names is deleted; what a fresh load names is all there."""
    truth = fill_lake(lake, EVERYTHING)
    with serve(make_settings(lake)) as server:
        served = Served(lake, server)
        idents = [("main", "trips"), ("main", "visits"), ("main", "measures"), ("main", "empty"), ("ü", "ü"), ("a.b", "T x")]
        old = {ident: read_both(served, ident)[0] for ident in idents}
        ours = list_published(lake)
        run(truth.conn, *NO_AGE, 'DROP TABLE "a.b"."T x"', 'CREATE TABLE "a.b"."T x" AS SELECT i AS id FROM range(20) r(i)')
        for _ in range(2):
            tidy = lake.duckdb()
            tidy.execute("CHECKPOINT")
            assert ours.items() <= list_published(lake).items()
            tables = [read_both(served, ident)[0] for ident in idents]
            check_apart(tables)
            assert max(len(table.snapshots()) for table in tables) == 1
            run(tidy, "DELETE FROM trips WHERE id % 7 = 1", "UPDATE visits SET amount = 0 WHERE id < 20")
        # What we published of a dropped table is still there; its rows are gone, as the lake's owner asked.
        dropped = StaticTable.from_metadata(old["a.b", "T x"].metadata_location, served.pyiceberg().catalog.properties)
        with pytest.raises(FileNotFoundError):
            dropped.scan().to_arrow()
