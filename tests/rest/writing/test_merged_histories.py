"""Snapshots of Iceberg clients after DuckDB merged or expired what they wrote."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from duckicelake.lake.install import write_restored_max
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import Served
from tests.support.tiers import whole_after

MERGE = "CALL ducklake_merge_adjacent_files('lake', 't', schema => 'ns')"
ORPHANS = "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)"
EXPIRE = "CALL ducklake_expire_snapshots('lake', older_than => now() + INTERVAL 1 DAY)"
SAID = "flink.max-committed-checkpoint-id"
CLEAN_UP = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"


@pytest.fixture
def served(lake: FreshLake) -> Iterator[Served]:
    """A server of a lake that restores nothing: each merge is above the limit."""
    write_restored_max(lake.psycopg(), lake.metadata_schema, 0)
    with serve(make_settings(lake)) as server:
        yield Served(lake, server)


@pytest.fixture
def table(served: Served) -> Table:
    """A table of PyIceberg with four appends, each with a property of its writer."""
    catalog = served.pyiceberg().catalog
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    for number in range(4):
        rows = pa.table({"id": range(number * 10, number * 10 + 10)})
        table.append(rows, snapshot_properties={SAID: str(number + 1)})
    return table


def find_written(table: Table, said: str) -> int:
    """The lake's id of the snapshot with that property."""
    return min(s.snapshot_id for s in table.snapshots() if s.summary and s.summary.additional_properties.get(SAID) == said)


def tell(table: Table) -> list[tuple[str, str | None]]:
    """Operation and the writer's property of each snapshot, oldest first; not of the newest under its author's id."""
    summaries = [snapshot.summary for snapshot in table.refresh().snapshots()]
    shown = [summary for summary in summaries if summary is not None and "ducklake.alias-of" not in summary.additional_properties]
    return [(s.operation.value, s.additional_properties.get(SAID)) for s in shown]


def test_a_merge_above_the_limit_leaves_what_clients_wrote_in_their_snapshots(served: Served, table: Table) -> None:
    """Kafka Connect and Flink find there how far they came, whatever became of the operation."""
    assert tell(table) == [("append", "1"), ("append", "2"), ("append", "3"), ("append", "4")]
    duckdb = served.lake.duckdb()
    duckdb.execute(MERGE)
    duckdb.execute(CLEAN_UP)
    assert [said for _, said in tell(table)] == ["1", "2", "3", "4", None]


def test_a_delete_that_adds_rows_of_expired_snapshots_is_published_as_an_overwrite(served: Served, table: Table) -> None:
    """An incremental reader skips deletes, and would miss the rows of the expired append."""
    table.delete("id < 10")
    assert [operation for operation, _ in tell(table)] == ["append", "append", "append", "append", "delete"]
    expired = find_written(table, "4")
    served.lake.duckdb().execute(f"CALL ducklake_expire_snapshots('lake', versions => [{expired}])")
    assert [operation for operation, _ in tell(table)] == ["append", "append", "append", "overwrite"]


def list_manifests(table: Table) -> list[tuple[int, str]]:
    """The manifest list of each snapshot, by its name that follows from its bytes."""
    return sorted((snapshot.snapshot_id, snapshot.manifest_list) for snapshot in table.refresh().snapshots())


def test_a_merge_leaves_older_snapshots_on_their_files_until_ducklake_deletes_them(served: Served, table: Table) -> None:
    """Byte for byte, by a server that starts afterwards too; the merge is a snapshot of its own that changes no row."""
    before = list_manifests(table)
    duckdb = served.lake.duckdb()
    duckdb.execute(MERGE)
    after = tell(table)
    assert after == [("append", "1"), ("append", "2"), ("append", "3"), ("append", "4"), ("replace", None)]
    assert set(list_manifests(table)) >= {(i, name) for i, name in before if i < 1000}
    with serve(make_settings(served.lake)) as server:
        other = Served(served.lake, server).pyiceberg().catalog.load_table("ns.t")
        assert (tell(other), list_manifests(other)) == (after, list_manifests(table))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(40))
    duckdb.execute(CLEAN_UP)
    assert [operation for operation, _ in tell(table)] == ["overwrite", "overwrite", "overwrite", "overwrite", "replace"]
    for snapshot in table.refresh().snapshots():
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()["id"].to_pylist()
        assert len(set(rows)) == len(rows)
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(40))


@pytest.mark.whole
def test_a_table_that_goes_back_before_a_merge_keeps_its_files(served: Served, table: Table) -> None:
    """DuckLake was about to delete them; it does so for those of snapshots that nothing names."""
    second = find_written(table, "2")
    duckdb = served.lake.duckdb()
    duckdb.execute(MERGE)
    table.refresh().manage_snapshots().set_current_snapshot(second).commit()
    for statement in (CLEAN_UP, ORPHANS):
        duckdb.execute(statement)
    with serve(make_settings(served.lake)) as server:
        for catalog in (served.pyiceberg().catalog, Served(served.lake, server).pyiceberg().catalog):
            assert sorted(catalog.load_table("ns.t").scan().to_arrow()["id"].to_pylist()) == list(range(20))
    assert duckdb.execute("SELECT id FROM ns.t ORDER BY id").fetchall() == [(i,) for i in range(20)]
    duckdb.execute(MERGE)
    duckdb.execute("INSERT INTO ns.t SELECT range FROM range(90, 100)")
    duckdb.execute(CLEAN_UP)
    for statement in (MERGE, CLEAN_UP, ORPHANS):
        duckdb.execute(statement)
    assert sorted(table.refresh().scan().to_arrow()["id"].to_pylist()) == [*range(20), *range(90, 100)]
    for snapshot in table.snapshots():
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows in (10, 20, 30, 40)


@pytest.mark.parametrize("is_before", whole_after(1, [True, False]), ids=["tagged before the merge", "tagged after it"])
def test_a_tag_from_before_a_merge_keeps_its_files(served: Served, table: Table, is_before: bool) -> None:
    """Whenever it was made, and whatever DuckLake expires and deletes after that."""
    second = find_written(table, "2")
    duckdb = served.lake.duckdb()
    for statement in (None, MERGE) if is_before else (MERGE, None):
        if statement is None:
            table.refresh().manage_snapshots().create_tag(second, "early").commit()
        else:
            duckdb.execute(statement)
    assert [operation for operation, _ in tell(table)] == ["append", "append", "append", "append", "replace"]
    for statement in (EXPIRE, CLEAN_UP, ORPHANS):
        duckdb.execute(statement)
    with serve(make_settings(served.lake)) as server:
        for catalog in (served.pyiceberg().catalog, Served(served.lake, server).pyiceberg().catalog):
            found = catalog.load_table("ns.t")
            assert sorted(found.scan(snapshot_id=found.refs()["early"].snapshot_id).to_arrow()["id"].to_pylist()) == list(range(20))
            assert sorted(found.scan().to_arrow()["id"].to_pylist()) == list(range(40))
