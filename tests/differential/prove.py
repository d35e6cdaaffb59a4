"""One history proven: played into a fresh lake, then read by everybody, everywhere, and its metadata checked."""

from collections.abc import Sequence

from tests.differential.check import (
    check_column_ids,
    check_head,
    check_increments,
    check_lake_snapshots,
    check_schema,
    check_snapshot_ids,
    check_snapshots,
)
from tests.differential.contents import check_contents
from tests.differential.generator.model import Moment, Table
from tests.differential.generator.steps import History
from tests.differential.manifests import check_metadata
from tests.differential.replay import Past, read_snapshots, replay
from tests.support.readers import DuckLakeReader, PyIcebergReader, Reader, Served


def prove(served: Served, history: History, others: Sequence[Reader]) -> None:
    """Fail unless DuckDB, PyIceberg and the other readers show the model's rows in every state of the history.

    After each step PyIceberg reads the tables that the step touched; the rest is read at the end.
    """
    pyiceberg = served.pyiceberg()
    moments: list[Moment] = []
    for moment in replay(served.lake.duckdb(), history):
        before = moments[-1].lake.tables if moments else {}
        moments.append(moment)
        for table in moment.lake.tables.values():
            if table != before.get(table.table_id) or moment.is_maintenance:
                check_head(table, pyiceberg)
    # A session of its own: after CHECKPOINT, the session that ran it shows old snapshots under wrong columns.
    conn = served.lake.duckdb()
    past = Past(moments, read_snapshots(conn))
    if history.keeps_duckdb_right:
        check_lake_snapshots(past, DuckLakeReader(conn))
    check_names(past, pyiceberg)
    for table in past.head.tables.values():
        published = pyiceberg.catalog.load_table(table.ident)
        check_schema(table, published)
        check_column_ids(past, table, published)
        snapshot_ids = check_snapshot_ids(past, table, published)
        for reader in (pyiceberg, *others):
            check_head(table, reader)
            check_snapshots(past, table, reader, snapshot_ids if history.keeps_past else [])
        if history.keeps_files:
            prove_metadata(past, table, pyiceberg)


def check_names(past: Past, reader: PyIcebergReader) -> None:
    """The catalog lists exactly the tables there are."""
    for namespace in past.head.namespaces:
        listed = sorted(name for _, name in reader.catalog.list_tables(namespace))
        assert listed == sorted(table.name for table in past.head.tables.values() if table.namespace == namespace)


def prove_metadata(past: Past, table: Table, pyiceberg: PyIcebergReader) -> None:
    """What is published of one table agrees with itself and with its files; true of history that nothing has rewritten."""
    published = pyiceberg.catalog.load_table(table.ident)
    check_increments(past, table, pyiceberg)
    for entry in check_metadata(published).values():
        check_contents(published, entry)
