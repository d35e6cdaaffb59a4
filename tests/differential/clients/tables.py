"""Whole tables, namespaces and snapshots by PyIceberg."""

from datetime import UTC, datetime, timedelta
from typing import assert_never

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.statistics import BlobMetadata, StatisticsFile
from pyiceberg.types import IntegerType, NestedField
from pyiceberg.view.metadata import SQLViewRepresentation, ViewRepresentation, ViewVersion

from tests.differential.clients.table_operations import (
    ChangeNamespace,
    HideSnapshots,
    MoveTable,
    PurgeTable,
    SetView,
    TakeBack,
    TellStatistics,
)
from tests.differential.clients.values import to_arrow, to_schema
from tests.differential.generator.definitions import CreateNamespace, CreateTable, CreateTableAs, DropNamespace, DropTable, RenameTable
from tests.differential.generator.model import Lake

OfTables = CreateTable | CreateTableAs | DropTable | RenameTable | MoveTable | PurgeTable
OfNames = CreateNamespace | DropNamespace | ChangeNamespace | SetView | OfTables
OfPast = TakeBack | HideSnapshots | TellStatistics


def define(catalog: Catalog, operation: OfNames, lake: Lake) -> None:
    """Make, rename or drop a namespace, a view or a table."""
    match operation:
        case SetView():
            _set_view(catalog, operation)
        case CreateNamespace(name):
            catalog.create_namespace((name,))
        case DropNamespace(name):
            catalog.drop_namespace((name,))
        case ChangeNamespace(name, updates, removed):
            catalog.update_namespace_properties((name,), set() if removed is None else {removed}, dict(updates))
        case _:
            _define_table(catalog, operation, lake)


def _set_view(catalog: Catalog, operation: SetView) -> None:
    ident = (operation.namespace, operation.name)
    assert catalog.view_exists(ident) is not operation.is_there
    if not operation.is_there:
        catalog.drop_view(ident)
        return
    text = ViewRepresentation(SQLViewRepresentation(type="sql", sql="SELECT 1 AS one", dialect="duckdb"))
    version = ViewVersion(version_id=1, schema_id=1, timestamp_ms=1, summary={}, representations=[text], default_namespace=["main"])
    made = catalog.create_view(ident, Schema(NestedField(1, "one", IntegerType())), version)
    assert catalog.load_view(ident).metadata == made.metadata


def _define_table(catalog: Catalog, operation: OfTables, lake: Lake) -> None:
    match operation:
        case CreateTable(namespace, name, columns):
            catalog.create_table((namespace, name), to_schema(columns))
        case CreateTableAs():
            _create_with_rows(catalog, operation)
        case DropTable(table_id):
            catalog.drop_table(lake.tables[table_id].ident)
        case PurgeTable(table_id):
            catalog.purge_table(lake.tables[table_id].ident)
        case RenameTable(table_id, name):
            table = lake.tables[table_id]
            catalog.rename_table(table.ident, (table.namespace, name))
        case MoveTable(table_id, namespace, name):
            catalog.rename_table(lake.tables[table_id].ident, (namespace, name))
        case _:
            assert_never(operation)


def _create_with_rows(catalog: Catalog, operation: CreateTableAs) -> None:
    """In one transaction of several steps: a property comes and goes, rows come in two snapshots."""
    with catalog.create_table_transaction((operation.namespace, operation.name), to_schema(operation.columns)) as transaction:
        transaction.set_properties({"test.a": "gone"})
        every = list(operation.table_rows)
        for rows in (every[:1], every[1:]):
            if rows or not every:
                transaction.append(to_arrow(operation.columns, rows, transaction.table_metadata.schema()))
        transaction.remove_properties("test.a")


def change_past(catalog: Catalog, operation: OfPast, lake: Lake) -> None:
    """Commit what is done to a table's snapshots, or to all of them at once."""
    table = catalog.load_table(lake.tables[operation.table_id].ident)
    match operation:
        case TakeBack(_, namespace, name, over):
            catalog.drop_table(lake.tables[operation.table_id].ident)
            catalog.register_table((namespace, name), table.metadata_location, overwrite=over is not None)
        case HideSnapshots():
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
        case TellStatistics(_, name):
            _tell_statistics(table, name)
        case _:
            assert_never(operation)


def _tell_statistics(table: IcebergTable, name: str | None) -> None:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    if name is not None:
        with table.update_statistics() as update:
            update.set_statistics(_describe(table, snapshot.snapshot_id, name))
        shown = [
            found.statistics_path.rsplit("/", 1)[1] for found in table.metadata.statistics if found.snapshot_id == snapshot.snapshot_id
        ]
        assert shown == [name], f"{table.name()} shows the statistics {shown}, not {name}"
        return
    for found in table.metadata.statistics:
        # PyIceberg 0.12 keeps the last of several removals alone.
        with table.update_statistics() as update:
            update.remove_statistics(found.snapshot_id)
    assert table.metadata.statistics == []


def _describe(table: IcebergTable, snapshot_id: int, name: str) -> StatisticsFile:
    """A file that nobody wrote: the catalog looks into none."""
    blob = BlobMetadata(
        type="apache-datasketches-theta-v1", snapshot_id=snapshot_id, sequence_number=1, fields=[1], properties={"ndv": "2"}
    )
    return StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"{table.location()}/metadata/{name}",
        file_size_in_bytes=9,
        file_footer_size_in_bytes=4,
        blob_metadata=[blob],
    )
