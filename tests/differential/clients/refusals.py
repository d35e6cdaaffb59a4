"""What the catalog must refuse PyIceberg; nothing is changed then."""

from collections.abc import Callable, Mapping

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    RESTError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from tests.differential.clients.shape_operations import Refused

Ident = tuple[str, str]
Commit = tuple[tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
_REFUSED_ERRORS = (RESTError, CommitFailedException, NamespaceAlreadyExistsError, NamespaceNotEmptyError, TableAlreadyExistsError)


def check_refused(catalog: Catalog, operation: Refused, ident: Ident) -> None:
    """Fail unless the catalog refuses, and the table and the names are as they were."""
    before, names = catalog.load_table(ident), _list_names(catalog)
    with pytest.raises(_REFUSED_ERRORS):
        if operation.reason in _COMMITS:
            catalog.commit_table(before, *_COMMITS[operation.reason](before))
        else:
            _CALLS[operation.reason](catalog, before, ident)
    assert catalog.load_table(ident).metadata == before.metadata, f"{operation.reason} changed {ident}"
    assert _list_names(catalog) == names, f"{operation.reason} changed the names"


def _list_names(catalog: Catalog) -> dict[tuple[str, ...], list[tuple[str, ...]]]:
    return {namespace: sorted(catalog.list_tables(namespace)) for namespace in catalog.list_namespaces()}


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


def _grown_from_another(table: IcebergTable) -> Commit:
    """A snapshot of another parent than main's current snapshot, with the files that one had, and nothing required of main."""
    current = table.metadata.current_snapshot_id
    others = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id != current]
    if not others:
        return _no_list(table)
    snapshot = others[0].model_copy(update={"snapshot_id": 2**43, "parent_snapshot_id": others[0].snapshot_id})
    snapshot = snapshot.model_copy(update={"sequence_number": table.metadata.last_sequence_number})
    main = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=2**43)
    return (AssertTableUUID(uuid=table.metadata.table_uuid),), (AddSnapshotUpdate(snapshot=snapshot), main)


def _changed_default(table: IcebergTable) -> Commit:
    """A column whose rows would read otherwise; before version 3 it cannot have a default at all."""
    schema = table.schema()
    defaults = {"long": 1, "int": 1, "string": "d", "boolean": True}
    field = next((field for field in schema.fields if str(field.field_type) in defaults), None)
    if field is None or table.metadata.current_snapshot_id is None:
        return _reserved(table)
    new = field.model_copy(update={"initial_default": defaults[str(field.field_type)] if field.initial_default is None else None})
    fields = tuple(new if item is field else item for item in schema.fields)
    changed = Schema(*fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)
    return (), (AddSchemaUpdate(schema_=changed), SetCurrentSchemaUpdate(schema_id=-1))


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


def _current_removed(table: IcebergTable) -> Commit:
    """The snapshot that is shown goes; where there is none, main is to name one."""
    current = table.metadata.current_snapshot_id
    if current is None:
        return (), (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=2**42),)
    return (), (SetPropertiesUpdate(updates={"test.refused": "1"}), RemoveSnapshotsUpdate(snapshot_ids=[current]))


def _added_twice(_: Catalog, table: IcebergTable, __: Ident) -> None:
    """A client's file that is live is added again; where there is none, two snapshots add one."""
    spec = table.spec()
    live = [task.file for task in table.scan().plan_files() if task.file.file_path.startswith(table.location())]
    fitting = [file for file in live if file.spec_id == spec.spec_id]
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/twice.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*(None for _ in spec.fields)),
        record_count=1,
        file_size_in_bytes=100,
    )
    made.spec_id = spec.spec_id
    with table.transaction() as transaction:
        for file in fitting[:1] or (made, made):
            with transaction.update_snapshot().fast_append() as append:
                append.append_data_file(file)


def _made_again(catalog: Catalog, table: IcebergTable, ident: Ident) -> None:
    with catalog.create_table_transaction(ident, table.schema()) as transaction:
        transaction.set_properties({"test.refused": "1"})


def _registered_twice(catalog: Catalog, table: IcebergTable, ident: Ident) -> None:
    catalog.register_table((ident[0], "registered twice"), table.metadata_location)


_COMMITS: Mapping[str, Callable[[IcebergTable], Commit]] = {
    "stale": _stale,
    "grown from another": _grown_from_another,
    "changed default": _changed_default,
    "reserved name": _reserved,
    "unknown spec": _unknown_spec,
    "no manifest list": _no_list,
    "elsewhere": _elsewhere,
    "current removed": _current_removed,
}
_CALLS: Mapping[str, Callable[[Catalog, IcebergTable, Ident], object]] = {
    "namespace in use": lambda catalog, _, ident: catalog.drop_namespace(ident[:1]),
    "namespace there": lambda catalog, _, ident: catalog.create_namespace(ident[:1]),
    "made again": _made_again,
    "added twice": _added_twice,
    "registered twice": _registered_twice,
}
