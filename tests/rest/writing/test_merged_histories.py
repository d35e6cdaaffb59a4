"""Snapshots of Iceberg clients after DuckDB merged or expired what they wrote."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyiceberg.table import Table

from duckicelake.lake.install import note_restored_max
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import Served

MERGE = "CALL ducklake_merge_adjacent_files('lake', 't', schema => 'ns')"
SAID = "flink.max-committed-checkpoint-id"
CLEAN_UP = "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)"


@pytest.fixture
def served(lake: FreshLake) -> Iterator[Served]:
    """A server of a lake that restores nothing: each merge is above the limit."""
    note_restored_max(lake.psycopg(), lake.metadata_schema, 0)
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
    (expired,) = (s.snapshot_id for s in table.snapshots() if s.summary and s.summary.additional_properties.get(SAID) == "4")
    served.lake.duckdb().execute(f"CALL ducklake_expire_snapshots('lake', versions => [{expired}])")
    assert [operation for operation, _ in tell(table)] == ["append", "append", "append", "overwrite"]
