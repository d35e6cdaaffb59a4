"""What PyIceberg says of a table's layout and properties, and commits that must fail."""

from collections.abc import Callable, Mapping

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, RESTError
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import NullOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import LongType

from tests.differential.clients.shape_operations import ChangeProperties, Refused, TellPartitioning, TellSorting
from tests.differential.generator.model import Table


def tell_partitioning(transaction: Transaction, operation: TellPartitioning, table: Table) -> None:
    """Make the spec what it should be: fields that stay are left alone."""
    fields = transaction.table_metadata.schema().fields
    ids = {column.column_id: field.field_id for column, field in zip(table.columns, fields, strict=True)}
    names = {column.column_id: column.name for column in table.columns}
    wanted = {(ids[key.column_id], format_transform(key.transform)): names[key.column_id] for key in operation.keys}
    present = {(field.source_id, str(field.transform)): field.name for field in transaction.table_metadata.spec().fields}
    with transaction.update_spec() as update:
        for key in present.keys() - wanted.keys():
            update.remove_field(present[key])
        for key in sorted(wanted.keys() - present.keys()):
            update.add_field(wanted[key], parse_transform(key[1]), f"p_{key[0]}_{key[1].partition('[')[0]}")


def format_transform(transform: str) -> str:
    """A transform as Iceberg writes it."""
    return transform.replace("(", "[").replace(")", "]")


def tell_sorting(transaction: Transaction, operation: TellSorting, table: Table) -> None:
    """Make the sort order what it should be."""
    nulls = {True: NullOrder.NULLS_FIRST, False: NullOrder.NULLS_LAST}
    with transaction.update_sort_order() as update:
        for key in operation.keys:
            add = update.desc if key.descending else update.asc
            add(table.column(key.column_id).name, IdentityTransform(), nulls[key.nulls_first])


def change_properties(transaction: Transaction, operation: ChangeProperties) -> None:
    """Set and remove."""
    transaction.set_properties(dict(operation.updates))
    if operation.removed is not None:
        transaction.remove_properties(operation.removed)


def check_refused(catalog: Catalog, operation: Refused, ident: tuple[str, str]) -> None:
    """Fail unless the catalog refuses, and the table is as it was."""
    before = catalog.load_table(ident)
    requirements, updates = _REFUSED[operation.reason](before)
    with pytest.raises((RESTError, CommitFailedException)):
        catalog.commit_table(before, requirements, updates)
    assert catalog.load_table(ident).metadata == before.metadata, f"{operation.reason} changed {ident}"


Commit = tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]


def _stale(table: IcebergTable) -> Commit:
    return (AssertRefSnapshotId(ref="main", snapshot_id=2**40),), (SetPropertiesUpdate(updates={"test.refused": "1"}),)


def _reserved(table: IcebergTable) -> Commit:
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("row_id", LongType())
        updates = transaction._updates
        transaction._updates = ()
    return (), updates


def _unknown_spec(table: IcebergTable) -> Commit:
    return (), (SetPropertiesUpdate(updates={"test.refused": "1"}), SetDefaultSpecUpdate(spec_id=999))


def _no_list(table: IcebergTable) -> Commit:
    current = table.metadata.current_snapshot_id
    snapshot = Snapshot(
        snapshot_id=2**41,
        parent_snapshot_id=current,
        sequence_number=table.metadata.last_sequence_number + 1,
        timestamp_ms=table.metadata.last_updated_ms + 1,
        manifest_list=f"{table.location()}/metadata/nowhere.avro",
        summary=Summary(Operation.APPEND),
        schema_id=table.metadata.current_schema_id,
    )
    return (), (AddSnapshotUpdate(snapshot=snapshot),)


def _elsewhere(table: IcebergTable) -> Commit:
    return (), (SetPropertiesUpdate(updates={"test.refused": "1"}), SetLocationUpdate(location="s3://nobody/elsewhere"))


_REFUSED: Mapping[str, Callable[[IcebergTable], Commit]] = {
    "stale": _stale,
    "reserved name": _reserved,
    "unknown spec": _unknown_spec,
    "no manifest list": _no_list,
    "elsewhere": _elsewhere,
}
