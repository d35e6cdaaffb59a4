"""One history proven: played into a fresh lake, then read by everybody, everywhere, and its metadata checked."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pyiceberg.manifest import DataFileContent

from tests.differential.checks.contents import check_contents
from tests.differential.checks.deletes import list_targets
from tests.differential.checks.lineage import check_lineage
from tests.differential.checks.manifests import check_metadata
from tests.differential.checks.nulls import check_nulls
from tests.differential.checks.rows import check_as_duckdb, check_head, check_lake_snapshots, check_snapshots
from tests.differential.checks.shape import check_shape
from tests.differential.checks.snapshots import check_increments, check_refs, check_snapshot_ids
from tests.differential.clients.draws.duckdb_iceberg import DUCKDB_ICEBERG
from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.clients.draws.spark import SPARK
from tests.differential.clients.draws.whole import NAMESPACE_PROPERTIES
from tests.differential.clients.duckdb_iceberg import DuckDBIcebergWriter
from tests.differential.clients.spark import SparkWriter
from tests.differential.clients.writer import PyIcebergWriter
from tests.differential.generator.definitions import SPARK_USER
from tests.differential.generator.model import Moment, Table
from tests.differential.generator.steps import History
from tests.differential.replay import Client, Past, read_snapshots, read_table_id, replay
from tests.differential.sessions import Sessions
from tests.support.readers import DuckLakeReader, PyIcebergReader, Reader, Served, SparkReader
from tests.support.spark import Spark


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Who reads at the end: PyIceberg, DuckDB itself, and others."""

    pyiceberg: PyIcebergReader
    duckdb: DuckLakeReader
    others: Sequence[Reader]


def prove(served: Served, history: History, sessions: Sessions, spark: Spark | None = None) -> None:
    """Fail unless DuckDB, PyIceberg and another reader show the model's rows in every state of the history.

    After each step PyIceberg reads the tables that the step touched; the rest is read at the end, by Spark when there is
    one, else by DuckDB's iceberg extension.
    """
    pyiceberg = served.pyiceberg()
    with sessions.on_lake(served.lake) as writer, ExitStack() as stack:
        clients: dict[str, Client] = {PYICEBERG: PyIcebergWriter(pyiceberg.catalog)}
        if any(step.by == DUCKDB_ICEBERG for step in history.steps):
            clients[DUCKDB_ICEBERG] = DuckDBIcebergWriter(stack.enter_context(sessions.on_catalog(served)).conn)
        if spark is not None:
            clients[SPARK] = SparkWriter(served.spark(spark))
        moments = play(served, history, writer, clients, pyiceberg)
    prove_end(served, history.vector_tables, moments, sessions, spark)


def prove_end(
    served: Served, vector_tables: Collection[int], moments: Sequence[Moment], sessions: Sessions, spark: Spark | None = None
) -> None:
    """Fail unless everybody shows the model's rows in every state that is left of a history that was played."""
    pyiceberg = served.pyiceberg()
    # A session of its own: after CHECKPOINT, the session that ran it shows old snapshots under wrong columns.
    with sessions.on_lake(served.lake) as duckdb, sessions.on_catalog(served) as iceberg:
        past = Past(moments, read_snapshots(duckdb.conn))
        check_lake_snapshots(past, duckdb, vector_tables)
        check_names(past, pyiceberg, spark)
        witnesses = Witnesses(pyiceberg, duckdb, [iceberg if spark is None else served.spark(spark)])
        for table in past.head.tables.values():
            prove_table(past, table, witnesses, is_forgetful=table.table_id in vector_tables)


def play(served: Served, history: History, writer: DuckLakeReader, clients: Mapping[str, Client], reader: PyIcebergReader) -> list[Moment]:
    """Play the history; after each step the tables it touched must read right."""
    moments: list[Moment] = []
    outside = served.lake.data_path.replace("/data/", "/outside/")
    for moment in replay(writer.conn, history, outside, clients):
        before = next((seen.lake.tables for seen in reversed(moments) if seen.is_known), {})
        moments.append(moment)
        for table in moment.lake.tables.values() if moment.is_known else ():
            if table != before.get(table.table_id) or moment.is_maintenance:
                check_head(table, reader)
                check_refs(Past(moments, {}), table, reader)
    return moments


def prove_table(past: Past, table: Table, witnesses: Witnesses, *, is_forgetful: bool) -> None:
    """One table as it is published: what it looks like, what it holds and has held, and the files that say so."""
    pyiceberg, duckdb = witnesses.pyiceberg, witnesses.duckdb
    published = pyiceberg.catalog.load_table(table.ident)
    check_shape(past, table, published)
    recorded = past.list_recorded(read_table_id(duckdb.conn, published.metadata.table_uuid))
    snapshot_ids = check_snapshot_ids(past, table, published, recorded)
    readable = [snapshot_id for snapshot_id in snapshot_ids if snapshot_id in past.lake_snapshot_ids]
    for reader in (pyiceberg, *witnesses.others):
        check_head(table, reader)
        check_nulls(table, reader)
        known = [] if is_forgetful else past.list_known(snapshot_ids)
        check_snapshots(past, table, reader, known)
        check_as_duckdb(past, table, (reader, duckdb), [each for each in readable if each not in known])
    check_nulls(table, duckdb)
    if not is_forgetful:
        check_increments(past, table, pyiceberg)
    for reader in witnesses.others:
        if isinstance(reader, SparkReader) and published.format_version >= 3:
            check_lineage(table, duckdb, reader)
    check_refs(past, table, pyiceberg)
    has_moved = bool(past.list_moved(table.table_id))
    is_cut = past.has_expired or table.times_hidden > 0
    checked = check_metadata(published, has_expired=is_cut, has_refs=table.has_had_refs, has_moved=has_moved, is_forgetful=is_forgetful)
    entries = checked.values()
    data_files = {entry.data_file.file_path: entry.data_file for entry in entries if entry.data_file.content == DataFileContent.DATA}
    targets = list_targets(published, data_files)
    for entry in entries:
        check_contents(published, entry, targets)


def check_names(past: Past, reader: PyIcebergReader, spark: Spark | None) -> None:
    """The catalog lists exactly the namespaces, tables and views there are, and shows what clients said of namespaces."""
    assert sorted(reader.catalog.list_namespaces()) == sorted((name,) for name in past.head.namespaces)
    for namespace in past.head.namespaces:
        listed = sorted(name for _, name in reader.catalog.list_tables((namespace,)))
        assert listed == sorted(table.name for table in past.head.tables.values() if table.namespace == namespace)
        views = [name for _, name in reader.catalog.list_views((namespace,))]
        assert sorted(views) == sorted(name for place, name in past.head.views if place == namespace)
        told = dict(past.head.namespace_properties.get(namespace, {}))
        if spark is not None and told.get("owner") == SPARK_USER:
            told["owner"] = spark.session.sparkContext.sparkUser()
        shown = reader.catalog.load_namespace_properties((namespace,))
        assert {name: shown.get(name) for name in NAMESPACE_PROPERTIES} == {name: told.get(name) for name in NAMESPACE_PROPERTIES}
