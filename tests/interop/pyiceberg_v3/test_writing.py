"""PyIceberg writes tables of version 3 over REST: both sides have the rows, rows keep their ids, plain DuckDB goes on."""

from typing import Any

import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from tests.interop.pyiceberg_v3.rows import BY_NAME, SCHEMA, make_rows
from tests.support.going_on import check_going_on
from tests.support.readers import Served

pytestmark = pytest.mark.usefixtures("shim")


class Story:
    """The table ns.t, and what both sides say of it."""

    def __init__(self, served: Served, spec: PartitionSpec = BY_NAME, **properties: str) -> None:
        self.catalog, self.duck = served.pyiceberg().catalog, served.lake.duckdb()
        self.catalog.create_namespace("ns")
        self.table: Table = self.catalog.create_table("ns.t", SCHEMA, partition_spec=spec, properties={"format-version": "3", **properties})

    def check(self, ids: list[int]) -> dict[int, int]:
        """Both sides have rows with these ids; returns the row ids by them."""
        assert sorted(self.table.refresh().scan().to_arrow()["id"].to_pylist()) == sorted(ids)
        return check_row_ids(self.duck, ids)

    def delete_files(self) -> list[Any]:
        """The paths of the delete files that are there."""
        return self.table.refresh().inspect.delete_files()["file_path"].to_pylist()


def check_row_ids(duck: DuckDBPyConnection, ids: list[int]) -> dict[int, int]:
    """DuckDB has those rows, no two under one row id."""
    found = duck.execute("SELECT id, rowid FROM lake.ns.t").fetchall()
    assert sorted(row[0] for row in found) == sorted(ids)
    assert len({row[1] for row in found}) == len(found)
    return dict(found)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("spec", "properties"),
    [
        pytest.param(PartitionSpec(), {}, id="unpartitioned", marks=pytest.mark.long),
        pytest.param(
            BY_NAME, {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"}, id="partitioned, merging"
        ),
    ],
)
def test_rows_are_appended_and_deleted(served: Served, spec: PartitionSpec, properties: dict[str, str]) -> None:
    """Of files of both sides, partly, again and whole; rows that stay keep their row ids, and no file is written again."""
    story = Story(served, spec, **properties)
    for start in (0, 20):
        story.table.append(make_rows(*range(start, start + 20)))
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'duck' FROM range(100, 130)")
    story.duck.execute("INSERT INTO lake.ns.t VALUES (200, 'inlined'), (201, NULL)")
    first = story.check([*range(40), *range(100, 130), 200, 201])
    story.table.delete("id in (3, 23, 105, 200)")
    story.table.delete("id = 7 or id = 105 or id = 106")
    left = [i for i in first if i not in (3, 23, 105, 200, 7, 106)]
    assert story.check(left) == {i: first[i] for i in left}
    assert all(path.endswith(".puffin") for path in story.delete_files())
    story.table.delete("id >= 20 and id < 40")
    story.table.delete("name is null")
    left = [i for i in left if not 20 <= i < 40 and i % 5 != 4 or i in (104, 109, 114, 119, 124, 129)]
    left.remove(201)
    assert story.check(left) == {i: first[i] for i in left}
    with pytest.warns(UserWarning, match="did not match any records"):
        story.table.delete("id = 105")
    newest = story.table.refresh().current_snapshot()
    assert newest is not None and newest.summary is not None
    assert newest.summary.operation == Operation.DELETE
    check_going_on(served, ("ns", "t"))
    story.table.refresh().delete(AlwaysTrue())
    story.check([])


@pytest.mark.whole
def test_rows_are_overwritten_and_upserted(served: Served) -> None:
    """With a filter, by partition, by key, and all of them."""
    story = Story(served)
    story.table.append(make_rows(*range(20)))
    first = story.check([*range(20)])
    story.table.overwrite(make_rows(50, 51), "id < 3")
    done = story.table.upsert(make_rows(5, 50, 60, name="new"), join_cols=["id"])
    assert (done.rows_updated, done.rows_inserted) == (2, 1)
    row_ids = story.check([*range(3, 20), 50, 51, 60])
    assert {i for i in first if i in row_ids and row_ids[i] != first[i]} == {5}
    story.table.dynamic_partition_overwrite(make_rows(70, name="new"))
    story.check([*(i for i in range(3, 20) if i != 5), 51, 70])
    check_going_on(served, ("ns", "t"))
    story.table.refresh().overwrite(make_rows(1))
    story.check([1])


@pytest.mark.long
def test_transactions_and_upgrades(served: Served) -> None:
    """Several snapshots in one commit, the one that makes the table too; a table of version 2 becomes one of 3 with its rows."""
    story = Story(served, PartitionSpec())
    with story.catalog.create_table_transaction("ns.u", SCHEMA, properties={"format-version": "3"}) as transaction:
        transaction.append(make_rows(1, 2))
        transaction.append(make_rows(3, 4))
        transaction.delete("id = 3")
    assert [snapshot.added_rows for snapshot in story.catalog.load_table("ns.u").snapshots()][-3:] == [2, 2, 0]
    assert story.duck.execute("SELECT id, rowid FROM lake.ns.u ORDER BY id").fetchall() == [(1, 0), (2, 1), (4, 3)]
    old = story.catalog.create_table("ns.old", SCHEMA, properties={"write.delete.mode": "copy-on-write"})
    old.append(make_rows(*range(6)))
    old.delete("id = 2")
    with old.transaction() as transaction:
        transaction.upgrade_table_version(3)
    old.append(make_rows(6))
    old.delete("id = 4")
    assert sorted(old.refresh().scan().to_arrow()["id"].to_pylist()) == [0, 1, 3, 5, 6]
    assert story.duck.execute("SELECT count(*), count(DISTINCT rowid) FROM lake.ns.old").fetchone() == (5, 5)
    check_going_on(served, ("ns", "old"))


def test_a_late_delete_is_refused(served: Served) -> None:
    """Rows deleted or changed by another since: the vector would bring them back, so nothing is changed."""
    story = Story(served, PartitionSpec())
    story.table.append(make_rows(*range(20)))
    stale = story.catalog.load_table("ns.t").transaction()
    stale.delete("id = 1")
    story.duck.execute("DELETE FROM lake.ns.t WHERE id = 2")
    with pytest.raises((CommitFailedException, ValidationException)):
        stale.commit_transaction()
    story.check([0, 1, *range(3, 20)])
    late = story.catalog.load_table("ns.t")
    story.duck.execute("INSERT INTO lake.ns.t SELECT range, 'duck' FROM range(100, 130)")
    late.append(make_rows(300))
    story.check([0, 1, *range(3, 20), *range(100, 130), 300])
