"""PyIceberg as a second writer: a step of a history, committed over REST."""

from dataclasses import dataclass
from typing import assert_never
from uuid import uuid4
from warnings import catch_warnings, simplefilter

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, In, IsNull, NotNull
from pyiceberg.table import Transaction

from tests.differential.clients.layouts import change_properties, tell_partitioning, tell_sorting
from tests.differential.clients.operations import AddWritten, DynamicOverwrite, Overwrite, Upsert
from tests.differential.clients.ref_operations import WriteToBranch
from tests.differential.clients.refs import OfRefs, change_refs
from tests.differential.clients.refusals import check_refused
from tests.differential.clients.shape_operations import ChangeProperties, Refused, TellPartitioning, TellSorting
from tests.differential.clients.table_operations import MoveColumn, TellIdentifier
from tests.differential.clients.tables import OfNames, OfPast, change_past, define
from tests.differential.clients.values import to_arrow, to_iceberg_type
from tests.differential.generator import predicates
from tests.differential.generator.definitions import (
    AddColumn,
    DropColumn,
    PromoteColumn,
    RenameColumn,
    SetComment,
    SetRequired,
)
from tests.differential.generator.kinds import Scalar
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.nested import AddField, DropField, Path, PromoteField, RenameField, walk_names
from tests.differential.generator.operations import Cells, Delete, Insert
from tests.differential.generator.steps import Operation, Step

OfRows = Insert | Delete | Overwrite | DynamicOverwrite | Upsert | AddWritten
OfLayout = TellPartitioning | TellSorting | ChangeProperties
OfColumns = AddColumn | DropColumn | RenameColumn | PromoteColumn | SetRequired | SetComment | MoveColumn | TellIdentifier
OfFields = AddField | DropField | RenameField | PromoteField
PYICEBERG_WORDS = OfNames | OfPast | OfRefs | OfRows | WriteToBranch | OfLayout | OfColumns | OfFields | Refused
"""Everything that a step by PyIceberg may hold."""


@dataclass(frozen=True, slots=True)
class PyIcebergWriter:
    """A catalog that commits what a model's operation says."""

    catalog: Catalog

    def commit(self, step: Step, lake: Lake) -> None:
        """Commit a step to the lake it starts from; several operations are one transaction on one table."""
        first = step.operations[0]
        if isinstance(first, OfNames):
            define(self.catalog, first, lake)
            return
        if isinstance(first, OfPast):
            change_past(self.catalog, first, lake)
            return
        if isinstance(first, OfRefs):
            change_refs(self.catalog, first, lake.tables[first.table_id].ident)
            return
        if isinstance(first, Refused):
            check_refused(self.catalog, first, lake.tables[first.table_id].ident)
            return
        with catch_warnings():
            # PyIceberg says so when a delete finds no row.
            simplefilter("ignore", UserWarning)
            with self.catalog.load_table(lake.tables[first.table_id].ident).transaction() as transaction:
                for operation in step.operations:
                    _add(transaction, operation, lake)
                    lake = operation.apply(lake)


def _add(transaction: Transaction, operation: Operation, lake: Lake) -> None:
    if isinstance(operation, OfRows):
        _add_rows(transaction, operation, lake.tables[operation.table_id])
    elif isinstance(operation, WriteToBranch):
        _add_rows(transaction, operation.change, lake.tables[operation.table_id], operation.name)
    elif isinstance(operation, OfLayout):
        _tell(transaction, operation, lake.tables[operation.table_id])
    elif isinstance(operation, OfColumns):
        _change_columns(transaction, operation, lake.tables[operation.table_id])
    elif isinstance(operation, OfFields):
        _change_fields(transaction, operation, lake.tables[operation.table_id])
    else:
        raise AssertionError(f"PyIceberg has no word for {operation}")


def _tell(transaction: Transaction, operation: OfLayout, table: Table) -> None:
    match operation:
        case TellPartitioning():
            tell_partitioning(transaction, operation, table)
        case TellSorting():
            tell_sorting(transaction, operation, table)
        case ChangeProperties():
            change_properties(transaction, operation)
        case _:
            assert_never(operation)


def _add_rows(transaction: Transaction, operation: OfRows, table: Table, branch: str = "main") -> None:
    match operation:
        case Insert(_, rows):
            transaction.append(_to_arrow(transaction, table, rows), branch=branch)
        case Delete(_, predicate):
            transaction.delete(to_filter(predicate, table), branch=branch)
        case Overwrite(_, predicate, rows):
            transaction.overwrite(_to_arrow(transaction, table, rows), to_filter(predicate, table), branch=branch)
        case DynamicOverwrite(_, rows):
            transaction.dynamic_partition_overwrite(_to_arrow(transaction, table, rows))
        case Upsert(_, rows):
            transaction.upsert(_to_arrow(transaction, table, rows), join_cols=[predicates.key_column(table).name])
        case AddWritten(_, rows):
            _add_file(transaction, _to_arrow(transaction, table, rows))
        case _:
            assert_never(operation)


def _add_file(transaction: Transaction, rows: pa.Table) -> None:
    path = f"{transaction.table_metadata.location}/data/written-{uuid4()}.parquet"
    plain = pa.schema([field.remove_metadata() for field in rows.schema])
    with transaction._table.io.new_output(path).create() as sink:
        pq.write_table(rows.cast(plain), sink)
    transaction.add_files([path])


def _to_arrow(transaction: Transaction, table: Table, rows: tuple[Cells, ...]):
    return to_arrow(table.columns, (dict(row) for row in rows), transaction.table_metadata.schema())


def to_filter(predicate: predicates.Predicate, table: Table) -> BooleanExpression:
    """The predicate in Iceberg's words, which has none for every n-th key."""
    match predicate:
        case predicates.Everything():
            return AlwaysTrue()
        case predicates.KeyIn(keys):
            return In(predicates.key_column(table).name, keys)
        case predicates.IsNull(column_id, negated):
            name = table.column(column_id).name
            return NotNull(name) if negated else IsNull(name)
        case predicates.KeyModulo():
            raise AssertionError("Iceberg has no modulo")
        case _:
            assert_never(predicate)


def _change_columns(transaction: Transaction, operation: OfColumns, table: Table) -> None:
    with transaction.update_schema() as update:
        match operation:
            case AddColumn(_, column):
                update.add_column((column.name,), to_iceberg_type(column.kind))
            case DropColumn(_, column_id):
                update.delete_column((table.column(column_id).name,))
            case RenameColumn(_, column_id, name):
                update.rename_column((table.column(column_id).name,), name)
            case PromoteColumn(_, column_id, type_name):
                update.update_column((table.column(column_id).name,), to_iceberg_type(Scalar(type_name)))
            case SetRequired(_, column_id):
                update.make_column_optional((table.column(column_id).name,))
            case SetComment(_, column_id, comment):
                assert column_id is not None
                update.update_column((table.column(column_id).name,), doc=comment)
            case MoveColumn(_, column_id, after_id):
                update.move_after((table.column(column_id).name,), (table.column(after_id).name,))
            case TellIdentifier(_, column_ids):
                update.set_identifier_fields(*(table.column(column_id).name for column_id in column_ids))
            case _:
                assert_never(operation)


def _change_fields(transaction: Transaction, operation: OfFields, table: Table) -> None:
    with transaction.update_schema() as update:
        match operation:
            case AddField(_, path, field):
                update.add_column((*_name_path(table, path), field.name), to_iceberg_type(field.kind))
            case DropField(_, path, field_id):
                update.delete_column(_name_path(table, (*path, field_id)))
            case RenameField(_, path, field_id, name):
                update.rename_column(_name_path(table, (*path, field_id)), name)
            case PromoteField(_, path, field_id, type_name):
                update.update_column(_name_path(table, (*path, field_id)), to_iceberg_type(Scalar(type_name)))
            case _:
                assert_never(operation)


def _name_path(table: Table, path: Path) -> tuple[str, ...]:
    return tuple(walk_names(table, path))
