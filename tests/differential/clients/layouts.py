"""What PyIceberg says of a table's layout and properties."""

from pyiceberg.table import Transaction
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import IdentityTransform, parse_transform

from tests.differential.clients.shape_operations import ChangeProperties, TellPartitioning, TellSorting
from tests.differential.generator.model import Table


def tell_partitioning(transaction: Transaction, operation: TellPartitioning, table: Table) -> None:
    """Make the spec what it should be: fields that stay get another name."""
    fields = transaction.table_metadata.schema().fields
    ids = {column.column_id: field.field_id for column, field in zip(table.columns, fields, strict=True)}
    names = {column.column_id: column.name for column in table.columns}
    wanted = {(ids[key.column_id], format_transform(key.transform)): names[key.column_id] for key in operation.keys}
    present = {(field.source_id, str(field.transform)): field.name for field in transaction.table_metadata.spec().fields}
    with transaction.update_spec() as update:
        for key in present.keys() - wanted.keys():
            update.remove_field(present[key])
        for key in present.keys() & wanted.keys():
            update.rename_field(present[key], f"{present[key]}_")
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
