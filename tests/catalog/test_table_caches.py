"""What a server remembers: bounded in tables and bytes, never a wrong answer, and a refusal only as long as it is true."""

from dataclasses import replace

import pytest

from duckicelake.catalog.health import ObjectMonitor, list_missing_objects
from duckicelake.catalog.table_cache import estimate_bytes
from duckicelake.catalog.warehouse import TableCaches, Warehouse, WarehouseLimits
from duckicelake.errors import Unsupported
from tests.catalog.conftest import Opener
from tests.catalog.reading import load
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after


def test_sizes_are_about_right() -> None:
    """Large values weigh more than small ones, whatever holds them."""
    assert estimate_bytes(b"x" * 1000) > 1000
    assert estimate_bytes([b"x" * 1000] * 1000) > 1_000_000
    assert estimate_bytes({number: b"x" * 100 for number in range(1000)}) > 100_000
    assert estimate_bytes(()) < 100


@pytest.mark.parametrize("limits", whole_after(1, [WarehouseLimits(tables=1), WarehouseLimits(memory_bytes=1)]), ids=["tables", "bytes"])
def test_what_is_forgotten_is_made_again(lake: FreshLake, warehouse: Warehouse, limits: WarehouseLimits) -> None:
    """The table used last is kept; the others give the same answers from nothing."""
    with lake.duckdb() as conn:
        for name in ("a", "b", "c"):
            conn.execute(f"CREATE TABLE {name} AS SELECT range AS i FROM range(100)")
    narrow = replace(warehouse, caches=TableCaches(limits))
    first = {name: load(narrow, name).metadata for name in ("a", "b", "c")}
    assert len(narrow.caches) == 1
    assert {name: load(narrow, name).metadata for name in ("a", "b", "c")} == first
    assert {name: load(warehouse, name).metadata for name in ("a", "b", "c")} == first
    assert len(warehouse.caches) == 3
    assert warehouse.caches.size_bytes > 1000


def test_a_refusal_is_remembered_until_the_table_changes(lake: FreshLake, warehouse: Warehouse) -> None:
    """What other tables do does not matter, and a remedy is seen at once."""
    conn = lake.duckdb()
    conn.execute('CREATE TABLE t ("a.b" INTEGER, a STRUCT(b INTEGER))')
    conn.execute("CREATE TABLE u (i INTEGER)")
    with pytest.raises(Unsupported, match="full name") as refused:
        load(warehouse)
    table_id = warehouse.caches.items()[0][0]
    remembered = warehouse.caches.of(table_id).table.refusal
    assert remembered is not None
    conn.execute("INSERT INTO u VALUES (1)")
    with pytest.raises(Unsupported) as again:
        load(warehouse)
    assert again.value.message == refused.value.message
    later = warehouse.caches.of(table_id).table.refusal
    assert later is not None
    assert later.error is remembered.error
    assert later.position > remembered.position
    conn.execute('ALTER TABLE t RENAME "a.b" TO plain')
    assert load(warehouse).metadata
    assert warehouse.caches.of(table_id).table.refusal is None


def test_what_nobody_needs_may_be_deleted(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """Looking after what is published counts only what the newest metadata needs; it is looked at once."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    location = load(warehouse).location
    left_over, needed = (
        f"{location}/data/left-over.parquet",
        next(uri for uri, _ in warehouse.objects.list_under(location) if "/snap-" in uri),
    )
    warehouse.objects.put_new(left_over, b"")
    with lake.duckdb() as conn:
        conn.execute("INSERT INTO t VALUES (1)")
    late, forgotten = open_server(lake), list[int]()
    load(late)
    rounds = ObjectMonitor(late, 1, forgotten.append)
    [(table_id, cache)] = late.caches.items()
    assert left_over in (cache.files.known_uris or ())
    late.objects.delete(left_over)
    rounds.check_all()
    assert forgotten == []
    assert left_over not in (cache.files.known_uris or ())
    late.objects.delete(needed)
    rounds.check_all()
    assert forgotten == [table_id]
    assert late.objects.exists(needed)


def test_what_was_deleted_while_nobody_needed_it_is_made_again(lake: FreshLake, warehouse: Warehouse) -> None:
    """A file that comes back with the deletes it had once: they were removed meanwhile, and a round has seen it."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    rows: list[tuple[str]] = conn.execute("SELECT data_file FROM ducklake_list_files('lake', 't')").fetchall()
    conn.execute("DELETE FROM t WHERE i = 0")
    location = load(warehouse).location
    [deletes] = [uri for uri, _ in warehouse.objects.list_under(location) if "/data/deletes-" in uri]
    conn.execute("CALL ducklake_flush_inlined_data('lake')")
    conn.execute("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    conn.execute("CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)")
    load(warehouse)
    warehouse.objects.delete(deletes)
    ObjectMonitor(warehouse, 1, lambda _: None).check_all()
    conn.execute("CALL ducklake_add_data_files('lake', 't', ?)", rows[0])
    conn.execute("DELETE FROM t WHERE i = 0")
    version = load(warehouse).metadata_location
    assert version is not None
    assert list_missing_objects(warehouse.objects, location, int(version.rpartition("/v")[2].partition(".")[0])) == []
    assert warehouse.objects.exists(deletes)


@pytest.mark.parametrize("is_noticed", [True, False])
def test_a_copy_for_variants_that_is_gone_is_written_again(lake: FreshLake, warehouse: Warehouse, *, is_noticed: bool) -> None:
    """Either the monitor has noticed that it is gone, or the next history is built as if it were there."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t (v VARIANT, i INTEGER)")
        conn.execute("INSERT INTO t SELECT {'a': r}::VARIANT, r FROM range(20) r(r)")
        load(warehouse, "t")
        [(_, cache)] = warehouse.caches.items()
        [uri] = [uri for uri in cache.files.known_uris or () if "/data/variants-" in uri]
        warehouse.objects.delete(uri)
        if is_noticed:
            cache.forget_missing({uri})
        else:
            cache.forget_written()
        conn.execute("ALTER TABLE t ADD COLUMN w INTEGER")
    load(warehouse, "t")
    assert warehouse.objects.exists(uri)
