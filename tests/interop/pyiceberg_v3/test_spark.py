"""Spark reads what PyIceberg wrote with the shim: as it was written, and over REST."""

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table

from tests.interop.pyiceberg_v3.folder import FolderCatalog
from tests.interop.pyiceberg_v3.rows import BY_NAME, SCHEMA, make_rows
from tests.support.going_on import check_going_on
from tests.support.readers import Served
from tests.support.spark import Spark

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.usefixtures("shim")]

LINEAGE = ("id", "_row_id", "_last_updated_sequence_number")


def write_everything(table: Table) -> dict[int, tuple[int, int]]:
    """Append, delete, overwrite; returns by id the row id and the number of the snapshot that the row is of."""
    table.append(make_rows(*range(20)))
    table.append(make_rows(*range(20, 40)))
    table.delete("id in (3, 23)")
    table.delete("id = 4 or id = 24")
    table.overwrite(make_rows(50), "id >= 30 and id < 40")
    table.delete("id >= 20 and id < 30")
    return {i: (i, 1) for i in range(20) if i not in (3, 4)} | {50: (40, 6)}


@pytest.mark.long
@pytest.mark.parametrize("spec", [PartitionSpec(), BY_NAME], ids=["unpartitioned", "partitioned"])
def test_its_files_are_read_as_they_are(spark: Spark, tmp_path: Path, spec: PartitionSpec) -> None:
    """Manifests, lists and vectors of PyIceberg's own writing: rows, row ids and numbers."""
    table = FolderCatalog(tmp_path).make(SCHEMA, spec)
    expected = write_everything(table)
    found = spark.collect(spark.session.read.format("iceberg").load(str(tmp_path)).select, *LINEAGE).to_pylist()
    assert {row["id"] for row in found} == expected.keys() and len(found) == len(expected)
    # Within one commit rows are numbered file by file.
    by_row_id = {row["_row_id"]: row["_last_updated_sequence_number"] for row in found}
    assert len(by_row_id) == len(found)
    assert [row["_last_updated_sequence_number"] for row in sorted(found, key=by_id)] == [expected[i][1] for i in sorted(expected)]
    if not spec.fields:
        assert {row["id"]: (row["_row_id"], row["_last_updated_sequence_number"]) for row in found} == expected


def test_over_rest(served: Served, spark: Spark) -> None:
    """Spark's row ids are DuckDB's, and it goes on deleting by vectors."""
    catalog, reader, duck = served.pyiceberg().catalog, served.spark(spark), served.lake.duckdb()
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", SCHEMA, partition_spec=BY_NAME, properties={"format-version": "3"})
    write_everything(table)
    name = reader.sql_name(("ns", "t"))
    mode = "'write.delete.mode' = 'merge-on-read'"
    spark.arrow(f"ALTER TABLE {name} SET TBLPROPERTIES ({mode})")
    spark.arrow(f"DELETE FROM {name} WHERE id = 5")
    table.refresh().delete("id = 6")
    found = spark.arrow(f"SELECT id, _row_id FROM {name}").to_pylist()
    assert sorted((row["id"], row["_row_id"]) for row in found) == duck.execute("SELECT id, rowid FROM lake.ns.t ORDER BY id").fetchall()
    assert sorted(row["id"] for row in found) == [i for i in range(20) if i not in (3, 4, 5, 6)] + [50]
    check_going_on(served, ("ns", "t"))


def by_id(row: dict[str, Any]) -> int:
    return row["id"]
