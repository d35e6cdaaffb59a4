"""Manifests that executors made are those that the server would make, byte by byte; all others are refused."""

import gc
import json
from typing import Any

import pytest

from duckicelake.catalog.manifest_import import imported, operations
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.commands.check import repair_lake
from duckicelake.commands.serve import GC_THRESHOLDS
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.pipeline.publish import looking_rarely_for_cycles
from duckicelake.store.objects import Objects
from duckicelake.translate import bulk_manifests, manifests
from duckicelake.translate.bulk_manifests import ENTRIES_MIN
from duckicelake.translate.locations import format_manifest_name, manifest_uri
from tests.catalog.conftest import Opener
from tests.catalog.manifest_import.making import Batch, make
from tests.catalog.reading import load, open_static
from tests.catalog.test_many_files import make_copies
from tests.rest.serving import make_settings
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

FEWER = 24
"""So many files are enough to be worth the way, in tests with real files; above those that are read one by one."""
FILES = FEWER + 8


def read_rows(lake: FreshLake) -> list[tuple[Any, ...]]:
    """The manifests that the lake knows to be taken over."""
    return lake.psycopg().execute("SELECT digest, name FROM iceberg_manifest ORDER BY digest").fetchall()


def list_manifests(lake: FreshLake, warehouse: Warehouse) -> set[str]:
    """The names of all data manifests of the present snapshot."""
    table = open_static(lake, load(warehouse))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {item.manifest_path.rpartition("/")[2] for item in snapshot.manifests(table.io)}


def fill(lake: FreshLake, more: str) -> None:
    """A partitioned table with nested columns, a file for each of many values, deletes, inlined rows, and what comes after."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE t (id BIGINT, k INTEGER, s STRUCT(a INTEGER, b VARCHAR[]), d DECIMAL(9, 2), f DOUBLE, w TIMESTAMP)")
        conn.execute("INSERT INTO t SELECT i, NULL, {'a': i, 'b': ['x']}, i, i / 3, '2026-01-01' FROM range(40) r(i)")
        conn.execute("ALTER TABLE t SET PARTITIONED BY (k)")
        conn.execute(
            f"INSERT INTO t SELECT i, i % {FILES}, {{'a': i, 'b': ['x', 'y' || i]}}, i / 7, i / 3, "
            f"TIMESTAMP '2026-01-01' + to_days(i::INT) FROM range({FILES * 2}) r(i)"
        )
        conn.execute("DELETE FROM t WHERE id % 50 = 0")
        conn.execute("INSERT INTO t VALUES (100000, 3, NULL, 1, 2, NULL)")
        conn.execute("CALL lake.set_option('data_inlining_row_limit', 0)")
        conn.execute("DELETE FROM t WHERE k BETWEEN 4 AND 8")
        conn.execute(more)


@pytest.mark.parametrize(
    ("more", "format_version"),
    whole_after(
        1,
        [
            pytest.param("ALTER TABLE t ALTER k SET DATA TYPE BIGINT", 2, id="version 2"),
            pytest.param("ALTER TABLE t ADD COLUMN n TIMESTAMP_NS", 3, id="version 3"),
        ],
    ),
)
def test_the_same_bytes_by_the_same_code(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, monkeypatch: pytest.MonkeyPatch, more: str, format_version: int
) -> None:
    """Partitions, nested columns, deletes, inlined rows, a column that changed: a server that takes manifests over publishes what
    one published alone, and reads none of their files' rows.
    """
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    fill(lake, more)
    alone = load(warehouse)
    taking = open_server(lake)
    batch = make(lake, taking)
    assert batch.plan.recipe.schemas.format_version == format_version
    assert len(batch.made) == batch.submit(taking) >= 2
    last = open_server(lake)
    again = load(last)
    assert (again.metadata_location, again.metadata) == (alone.metadata_location, alone.metadata)
    assert {row[1] for row in read_rows(lake)} >= {name.removesuffix("-m0.avro") for name in list_manifests(lake, last)} & {
        item["name"] for item in batch.made
    }
    read = last.caches.of(again.table_id).files.data_files.keys()
    # what is in smaller manifests, or has deletes
    assert len(read) < FILES // 2
    assert make(lake, last).made == []


def test_a_manifest_of_every_kind_is_made_again(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong in those with older files alone is found, whatever the lot is."""
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    monkeypatch.setattr(imported, "draw_lot", lambda digest: int(digest[:8], 16))  # pyright: ignore
    fill(lake, "SELECT 1")
    batch = make(lake, warehouse)
    plans = batch.plan.manifests
    older = next(digest for digest, found in plans.items() if any(entry.status == 0 for entry in found.entries))
    ordered = sorted(batch.made, key=lambda item: item["digest"] != older)
    check_refused(lake, warehouse, Batch(batch.plan, ordered).tell(bytes=[1, 1]), "other bytes than what this server makes")


def test_a_table_that_was_never_published(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """The call publishes it; a table that grows on keeps what was taken over."""
    make_copies(lake, 3 * ENTRIES_MIN)
    assert make(lake, warehouse).submit(warehouse) == 1
    first = load(warehouse)
    assert first.metadata_location is not None
    with lake.duckdb() as conn:
        conn.execute("ALTER TABLE t ADD COLUMN later VARCHAR")
        conn.execute("INSERT INTO t SELECT i, 'x' FROM range(100) r(i)")
    second, fresh = load(warehouse), open_server(lake)
    assert load(fresh).metadata == second.metadata
    assert make(lake, fresh).made == []
    lake.psycopg().execute("DELETE FROM iceberg_manifest")
    assert load(open_server(lake)).metadata == second.metadata


def test_executors_look_for_cycles_as_seldom_as_servers() -> None:
    """And a process that is not theirs alone is left as it was."""
    before = gc.get_threshold()
    with looking_rarely_for_cycles():
        assert gc.get_threshold() == GC_THRESHOLDS != before
    assert gc.get_threshold() == before


def test_lost_and_repaired_objects(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """What was taken over and is gone from the store is made again by the server."""
    make_copies(lake, ENTRIES_MIN)
    batch = make(lake, warehouse)
    batch.submit(warehouse)
    first = load(warehouse)
    uri = f"{batch.plan.recipe.note.location}/metadata/{batch.made[0]['name']}-m0.avro"
    warehouse.objects.delete_many([uri])
    assert len(make(lake, open_server(lake)).made) == 1
    warehouse.objects.delete_many([uri])
    fresh = open_server(lake)
    assert load(fresh).metadata == first.metadata
    assert fresh.objects.exists(uri)


@pytest.mark.parametrize("most", whole_after(1, [pytest.param(1 << 20, id="small"), pytest.param(100, id="large")]))
def test_manifests_are_taken_over_in_any_order(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Whether they are read side by side or are too large for that; each that is small is read once."""
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    monkeypatch.setattr(manifests, "ENTRIES_MAX", FEWER)
    monkeypatch.setattr(imported, "PREFETCH_COUNT", 3)
    monkeypatch.setattr(imported, "PREFETCH_BYTES", most)
    make_copies(lake, 8 * FEWER - 1)
    batch, read = make(lake, warehouse), list[str]()
    read_small = Objects.read_small

    def note(objects: Objects, uri: str, most_bytes: int) -> bytes:
        content = read_small(objects, uri, most_bytes)
        read.append(uri)
        return content

    monkeypatch.setattr(Objects, "read_small", note)
    assert len(batch.made) == batch.submit(warehouse) == 8
    assert len(read) == 8
    lake.psycopg().execute("DELETE FROM iceberg_manifest")
    assert Batch(batch.plan, [*batch.made[5:], *batch.made[:5]]).submit(open_server(lake)) == 8


def check_refused(lake: FreshLake, warehouse: Warehouse, batch: Batch, message: str) -> None:
    """It is refused for that, and nothing is taken over."""
    with pytest.raises(BadRequest, match=message):
        batch.submit(warehouse)
    assert read_rows(lake) == []


def test_what_is_not_what_it_says_is_refused(lake: FreshLake, warehouse: Warehouse) -> None:
    """Missing, changed, torn, of another table, with other rows, of other code: refused with the reason, and none is taken over."""
    make_copies(lake, ENTRIES_MIN)
    batch = make(lake, warehouse)
    [item] = batch.made
    rows = item["told"]["rows"]
    check_refused(lake, warehouse, batch.tell(rows=[rows[0], rows[1] + 1, 0]), "other rows")
    check_refused(lake, warehouse, batch.tell(length=item["told"]["length"] - 1), "other bytes")
    check_refused(lake, warehouse, batch.tell(rows=["1", 2, 3]), "in the place of a count")
    check_refused(lake, warehouse, batch.tell(partitions=[[False, None, None, None]]), "other partitions or row ids")
    check_refused(lake, warehouse, batch.tell(**{"first-row-id": 0}), "other partitions or row ids")
    check_refused(lake, warehouse, batch.tell(bytes=[1, 0]), "other bytes than what this server makes")
    check_refused(lake, warehouse, Batch(batch.plan, [{**item, "digest": "0" * 64}]), "belong to no plan")
    check_refused(lake, warehouse, Batch(batch.plan, [{**item, "name": "0" * 32}]), "is not there")
    with pytest.raises(BadRequest, match="made by version 'other'"):
        batch.submit(warehouse, "other")
    uri = f"{batch.plan.recipe.note.location}/metadata/{item['name']}-m0.avro"
    content = warehouse.objects.read(uri)
    for torn in (content[:-20], content[: len(content) // 2], b"", b"Obj\x01"):
        name = put(warehouse, batch, torn)
        check_refused(lake, warehouse, Batch(batch.plan, [{**item, "name": name}]).tell(length=len(torn)), "no whole manifest")
    warehouse.objects.delete_many([uri])
    warehouse.objects.put_new(uri, content[:-1])
    check_refused(lake, warehouse, batch, "other bytes")
    warehouse.objects.delete_many([uri])
    check_refused(lake, warehouse, batch, "is not there")
    assert make(lake, warehouse).submit(warehouse) == 1


def put(warehouse: Warehouse, batch: Batch, content: bytes) -> str:
    """Put other bytes where a manifest would be, and return their name."""
    name = format_manifest_name(content)
    warehouse.objects.put_new(manifest_uri(batch.plan.recipe.note.location, name), content)
    return name


@pytest.mark.parametrize(
    "change",
    whole_after(
        1,
        [
            pytest.param("INSERT INTO t SELECT range FROM range(100)", id="an insert"),
            pytest.param("ALTER TABLE t ADD COLUMN later VARCHAR", id="a column"),
            pytest.param("DROP TABLE t; CREATE TABLE t AS SELECT range::BIGINT AS id FROM range(100)", id="another table"),
        ],
    ),
)
def test_a_table_that_moved_on_is_refused(lake: FreshLake, warehouse: Warehouse, change: str) -> None:
    """With 409, and the next plan goes well; other tables may change."""
    make_copies(lake, ENTRIES_MIN)
    batch = make(lake, warehouse)
    with lake.duckdb() as conn:
        conn.execute(change)
    with pytest.raises(CommitFailed, match="has changed since"):
        batch.submit(warehouse)
    assert read_rows(lake) == []
    newer = make(lake, warehouse)
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE u AS SELECT range AS id FROM range(100)")
    assert newer.submit(warehouse) == len(newer.made)


def test_added_files_are_left_to_the_server(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether their names are those of the columns shows in their footers."""
    make_copies(lake, ENTRIES_MIN)
    path = f"{lake.data_path.rstrip('/')}-added.parquet"
    with lake.duckdb() as conn:
        conn.execute(f"COPY (SELECT 5::BIGINT AS id) TO '{path}'")
        conn.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}')")
    batch = make(lake, warehouse)
    assert "added by their names" in batch.plan.obstacle
    assert batch.made == []
    monkeypatch.setattr(operations, "explain_obstacle", lambda *_: "")  # pyright: ignore
    check_refused(lake, warehouse, make(lake, warehouse), "Only the server makes")


def test_a_repair_forgets_what_was_taken_over(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """Somebody may have corrected rows by hand; clearing up orphans is no reason."""
    make_copies(lake, ENTRIES_MIN)
    make(lake, warehouse).submit(warehouse)
    [settings] = make_settings(lake).lakes()
    repair_lake(settings)
    assert len(read_rows(lake)) == 1
    repair_lake(settings, is_corrected=True)
    assert read_rows(lake) == []
    assert len(make(lake, open_server(lake)).made) == 1


def test_rows_of_tables_that_are_gone_go(lake: FreshLake, warehouse: Warehouse) -> None:
    """With the next manifests that anybody offers; nothing reads them before."""
    make_copies(lake, ENTRIES_MIN)
    make(lake, warehouse).submit(warehouse)
    conn = lake.psycopg()
    conn.execute("INSERT INTO iceberg_manifest VALUES (4711, 'd', 'n', '{}')")
    conn.execute("UPDATE iceberg_manifest SET digest = 'old' WHERE table_id <> 4711")
    again = make(lake, warehouse)
    again.submit(warehouse)
    assert [row[0] for row in read_rows(lake)] == [item["digest"] for item in again.made]
    assert json.dumps(again.made)
