"""Partition specs of columns that are gone: they are not shown and keep their ids, which clients take for new specs."""

from typing import Any

import pyarrow as pa
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.table import Table

from tests.support.going_on import check_going_on
from tests.support.readers import Served


def load_repartitioned(served: Served) -> tuple[Table, DuckDBPyConnection]:
    """A table of DuckDB's, by whose former partition column there are files, and which has lost that column."""
    duck = served.lake.duckdb()
    duck.execute("CREATE SCHEMA lake.ns")
    duck.execute("CREATE TABLE lake.ns.t (id BIGINT, gone VARCHAR, kind VARCHAR)")
    duck.execute("ALTER TABLE lake.ns.t SET PARTITIONED BY (gone)")
    duck.execute("INSERT INTO lake.ns.t SELECT range, 'g' || range % 2, 'k' || range % 3 FROM range(40)")
    assert served.pyiceberg().catalog.load_table("ns.t").spec().fields[0].name == "gone"
    duck.execute("ALTER TABLE lake.ns.t RESET PARTITIONED BY")
    duck.execute("ALTER TABLE lake.ns.t DROP COLUMN gone")
    return served.pyiceberg().catalog.load_table("ns.t"), duck


def rows(*ids: int) -> pa.Table:
    """Rows of three kinds."""
    return pa.table({"id": ids, "kind": [f"k{i % 3}" for i in ids]})


def read_both(table: Table, duck: DuckDBPyConnection) -> list[Any]:
    """The rows that both sides show."""
    mine = sorted(tuple(row.values()) for row in table.refresh().scan().to_arrow().to_pylist())
    assert mine == sorted(duck.execute("FROM lake.ns.t").fetchall())
    return mine


def list_spec_ids(table: Table) -> set[int]:
    """The specs of the files there are."""
    return {task.file.spec_id for task in table.scan().plan_files()}


@pytest.mark.long
def test_a_spec_comes_with_rows_under_it(served: Served) -> None:
    """In one transaction: the client's number for it is taken; the files have the table's, and it is the default from then on."""
    table, duck = load_repartitioned(served)
    hidden = 1
    assert hidden not in table.specs()
    with table.transaction() as transaction:
        with transaction.update_spec() as update:
            update.add_identity("kind")
        assert transaction.table_metadata.default_spec_id == hidden
        transaction.append(rows(100, 101, 102))
    assert len(read_both(table, duck)) == 43
    spec = table.spec()
    assert (spec.spec_id > hidden, [field.name for field in spec.fields]) == (True, ["kind"])
    assert spec.fields[0].field_id > 1000
    assert spec.spec_id in list_spec_ids(table)
    assert hidden not in list_spec_ids(table)
    table.append(rows(103, 104))
    duck.execute("INSERT INTO lake.ns.t SELECT range, 'k' || range % 3 FROM range(200, 220)")
    with table.refresh().transaction() as transaction:
        with transaction.update_spec() as update:
            update.add_identity("id")
        transaction.append(rows(105))
        transaction.delete("id = 100")
    assert len(read_both(table, duck)) == 65
    assert len({file["partition"]["kind"] for file in table.inspect.files().to_pylist() if file["spec_id"] == table.spec().spec_id}) == 1
    check_going_on(served, ("ns", "t"))


@pytest.mark.long
def test_a_spec_comes_with_rows_under_it_on_a_branch(served: Served) -> None:
    """The branch's manifests have the table's number for it, and main's files when it goes there."""
    table, duck = load_repartitioned(served)
    hidden, before = 1, read_both(table, duck)
    head = table.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "dev").commit()
    with table.refresh().transaction() as transaction:
        with transaction.update_spec() as update:
            update.add_identity("kind")
        assert transaction.table_metadata.default_spec_id == hidden
        transaction.append(rows(100, 101, 102), branch="dev")
    assert read_both(table, duck) == before
    spec, dev = table.spec(), table.refs()["dev"].snapshot_id
    assert (spec.spec_id > hidden, [field.name for field in spec.fields]) == (True, ["kind"])
    found = table.scan("kind = 'k1'", snapshot_id=dev)
    assert {task.file.spec_id for task in found.plan_files()} >= {spec.spec_id}
    assert sorted(row["id"] for row in found.to_arrow().to_pylist()) == [*range(1, 40, 3), 100]
    table.append(rows(103), branch="dev")
    table.refresh().manage_snapshots().set_current_snapshot(ref_name="dev").commit()
    assert read_both(table, duck) == sorted([*before, *((i, f"k{i % 3}") for i in range(100, 104))])
    assert spec.spec_id in list_spec_ids(table)
    check_going_on(served, ("ns", "t"))


@pytest.mark.whole
def test_a_flush_across_another_spec_changes_no_snapshot_that_was_shown(served: Served) -> None:
    """Rows that DuckDB inlined before a client partitioned the table and after it go into one file; each insert stays one."""
    duck = served.lake.duckdb()
    duck.execute("CREATE TABLE t (id BIGINT)")
    duck.execute("INSERT INTO t VALUES (1), (2)")
    table = served.pyiceberg().catalog.load_table("main.t")
    with table.update_spec() as update:
        update.add_identity("id")
    duck.execute("INSERT INTO t VALUES (3)")
    duck.execute("DELETE FROM t WHERE id = 2")
    shown = [(snapshot.snapshot_id, snapshot.manifest_list, snapshot.summary) for snapshot in table.refresh().snapshots()]
    duck.execute("CALL ducklake_flush_inlined_data('lake')")
    flushed = table.refresh().snapshots()
    assert [(snapshot.snapshot_id, snapshot.manifest_list, snapshot.summary) for snapshot in flushed[:-1]] == shown
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 3]
    assert sorted(table.scan(snapshot_id=shown[1][0]).to_arrow()["id"].to_pylist()) == [1, 2, 3]
