"""A patch that lets PyIceberg 0.12 write format version 3, which it can only read. `install()` applies it to the current process.

Users import it: it runs in the client's process, never in the server's. Appended rows get row ids, and deleted rows become deletion
vectors: `delete`, `overwrite`, `upsert` and `dynamic_partition_overwrite` never copy the remaining rows, so these keep their ids. Variants
are read as JSON.
"""

# PyIceberg has no public hooks, so this fits the releases in KNOWN_VERSIONS. Pyright does not see the aliases of its models.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportCallIssue=false

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Literal
from uuid import uuid4

import numpy
import pyarrow
import pyarrow as pa
import pyiceberg
from pyiceberg import manifest
from pyiceberg import types as pyiceberg_types
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan, _expression_to_complementary_pyarrow, _read_all_delete_files
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.manifest import write_manifest as WRITE_MANIFEST
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Transaction, _parse_row_filter
from pyiceberg.table import update as table_update
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    UpdatesAndRequirements,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.table.update import snapshot as snapshot_update
from pyiceberg.table.update.snapshot import _DeleteFiles, _SnapshotProducer
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, NestedField, StringType

from duckicelake.errors import Unsupported
from duckicelake.iceberg.puffin import encode_deletion_vectors
from duckicelake.iceberg.variants import MISSING, assemble_variant, decode_names, format_json

VERSION: Literal[3] = 3
FETCH = ManifestFile.fetch_manifest_entry

FILE_FIELDS = [field.name for field in DATA_FILE_TYPE[VERSION].fields]
FIRST_ROW_ID = FILE_FIELDS.index("first_row_id")
REFERENCED_DATA_FILE = FILE_FIELDS.index("referenced_data_file")
LIST_FIELDS = [field.name for field in MANIFEST_LIST_FILE_SCHEMAS[VERSION].fields]
LIST_FIRST_ROW_ID = LIST_FIELDS.index("first_row_id")


def pad_fields(record: Any, length: int) -> list[Any]:
    """Return the values of a record, with None for the fields that its version did not have."""
    found = list(record._data)
    return found + [None] * (length - len(found))


def fetch_manifest_entry(self: ManifestFile, io: FileIO, discard_deleted: bool = True) -> list[ManifestEntry]:
    """Return the entries, each data file with its own or inherited first row id."""
    entries: list[ManifestEntry] = FETCH(self, io, discard_deleted=False)
    next_row_id = pad_fields(self, len(LIST_FIELDS))[LIST_FIRST_ROW_ID]
    for entry in entries:
        file: Any = entry.data_file
        if next_row_id is not None and file._data[FIRST_ROW_ID] is None:
            file._data[FIRST_ROW_ID] = next_row_id
            next_row_id += file.record_count
    return [entry for entry in entries if not discard_deleted or entry.status != ManifestEntryStatus.DELETED]


class ManifestWriterV3(ManifestWriterV2):
    """A writer of manifests of data files, or of delete files."""

    files: ManifestContent = ManifestContent.DATA

    def content(self) -> ManifestContent:
        return self.files

    @property
    def version(self) -> TableVersion:
        return VERSION

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self.files == ManifestContent.DATA else "deletes"}

    def prepare_entry(self, entry: ManifestEntry) -> ManifestEntry:
        entry = super().prepare_entry(entry)
        entry.data_file = DataFile(*pad_fields(entry.data_file, len(FILE_FIELDS)))
        return entry


def write_manifest(format_version: TableVersion, *arguments: Any, **named: Any) -> ManifestWriter:
    """Return a writer of a manifest of data files."""
    if format_version < VERSION:
        return WRITE_MANIFEST(format_version, *arguments, **named)
    return ManifestWriterV3(*arguments, **named)


@dataclass(frozen=True, slots=True)
class ListNumbers:
    """The ids and numbers of a snapshot that its manifest list contains."""

    snapshot_id: int
    parent_snapshot_id: int | None
    sequence_number: int
    first_row_id: int


class ManifestListWriterV3(ManifestListWriterV2):
    """A writer of manifest lists that assigns row ids to manifests without them. `next_row_id` is the next unassigned id.

    Source: Iceberg spec «First Row ID Assignment»
    """

    next_row_id: int

    def __init__(self, output_file: OutputFile, numbers: ListNumbers, compression: Any) -> None:
        super().__init__(output_file, numbers.snapshot_id, numbers.parent_snapshot_id, numbers.sequence_number, compression)
        self._format_version = VERSION
        self._meta = {**self._meta, "format-version": str(VERSION), "first-row-id": str(numbers.first_row_id)}
        self.next_row_id = numbers.first_row_id

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        values = pad_fields(super().prepare_manifest(ManifestFile(*pad_fields(manifest_file, len(LIST_FIELDS)))), len(LIST_FIELDS))
        if manifest_file.content == ManifestContent.DATA and values[LIST_FIRST_ROW_ID] is None:
            values[LIST_FIRST_ROW_ID] = self.next_row_id
            self.next_row_id += (manifest_file.added_rows_count or 0) + (manifest_file.existing_rows_count or 0)
        return ManifestFile(*values)


SUPPORTED = SUPPORTED_TABLE_FORMAT_VERSION
COMMIT: Any = _SnapshotProducer._commit
UPGRADE = Transaction.upgrade_table_version


def commit(self: _SnapshotProducer[Any]) -> UpdatesAndRequirements:
    """Write the manifests and the manifest list of a snapshot, and return the updates and requirements of its commit."""
    metadata = self._transaction.table_metadata
    if metadata.format_version < VERSION:
        return COMMIT(self)
    first_row_id = _get_next_row_id(metadata)
    numbers = ListNumbers(self.snapshot_id, self._parent_snapshot_id, metadata.next_sequence_number(), first_row_id)
    manifests = self._manifests()
    path = self._transaction._table.location_provider().new_metadata_location(f"snap-{self.snapshot_id}-0-{self.commit_uuid}.avro")
    self._written_manifest_lists.append(path)
    writer = ManifestListWriterV3(self._io.new_output(path), numbers, self._compression)
    with writer:
        writer.add_manifests(manifests)
    snapshot = Snapshot(
        snapshot_id=numbers.snapshot_id,
        parent_snapshot_id=numbers.parent_snapshot_id,
        manifest_list=path,
        sequence_number=numbers.sequence_number,
        summary=self._summary(self.snapshot_properties),
        schema_id=metadata.current_schema_id,
        first_row_id=first_row_id,
        added_rows=writer.next_row_id - first_row_id,
    )
    return _build_commit(snapshot, self._target_branch, metadata.refs)


def _get_next_row_id(metadata: TableMetadata) -> int:
    """Return the next row id of the table. PyIceberg does not count rows of a table that is being created or upgraded."""
    next_row_id = getattr(metadata, "next_row_id", None)
    if next_row_id is not None:
        return next_row_id
    return max((s.first_row_id + (s.added_rows or 0) for s in metadata.snapshots if s.first_row_id is not None), default=0)


def _build_commit(snapshot: Snapshot, branch: str | None, refs: Any) -> UpdatesAndRequirements:
    """Return the updates and requirements. A snapshot without branch is staged; otherwise the branch must not have moved."""
    added = AddSnapshotUpdate(snapshot=snapshot)
    if branch is None:
        return (added,), ()
    head = refs[branch].snapshot_id if branch in refs else None
    moved = SetSnapshotRefUpdate(snapshot_id=snapshot.snapshot_id, ref_name=branch, type=SnapshotRefType.BRANCH)
    return (added, moved), (AssertRefSnapshotId(snapshot_id=head, ref=branch),)


def upgrade_table_version(self: Transaction, format_version: TableVersion) -> Transaction:
    """Raise the format version of the table, also to 3."""
    if format_version != VERSION or self.table_metadata.format_version >= VERSION:
        return UPGRADE(self, format_version) if format_version < VERSION else self
    return self._apply((UpgradeFormatVersionUpdate(format_version=format_version),))


DELETE = Transaction.delete
POSITION = "__position"

Deletes = Mapping[DataFile, Any]
"""The positions of all deleted rows of a data file, ascending."""


@dataclass(frozen=True, slots=True)
class DeletePlan:
    """Data files that are dropped as a whole, and the deletion vectors for rows of others."""

    whole_files: frozenset[DataFile]
    vectors: tuple[DataFile, ...]

    @property
    def rewritten_targets(self) -> set[str]:
        """Return the data files whose older deletion vectors are replaced or dropped."""
        return {file.file_path for file in self.whole_files} | {
            pad_fields(file, REFERENCED_DATA_FILE + 1)[REFERENCED_DATA_FILE] for file in self.vectors
        }


def delete(
    self: Transaction,
    delete_filter: str | BooleanExpression,
    snapshot_properties: Mapping[str, str] | None = None,
    case_sensitive: bool = True,
    branch: str | None = MAIN_BRANCH,
    _isolation_operation: Operation | None = None,
) -> None:
    """Delete rows. Tables of older versions use PyIceberg's own method."""
    properties = dict(snapshot_properties or {})
    if self.table_metadata.format_version < VERSION:
        return DELETE(self, delete_filter, properties, case_sensitive, branch, _isolation_operation)
    wanted = _parse_row_filter(delete_filter) if isinstance(delete_filter, str) else delete_filter
    found = _list_deletes(self, wanted, case_sensitive, branch)
    if not found:
        warnings.warn("Delete operation did not match any records", stacklevel=2)
        return None
    whole = frozenset(file for file, positions in found.items() if len(positions) == file.record_count)
    vectors = _write_vectors(self, {file: found[file] for file in found if file not in whole})
    make = partial(VectorDelete, Operation.DELETE, self, self._table.io, snapshot_properties=properties, branch=branch)
    producer = make()
    producer.plan, producer._planned_delete_files = DeletePlan(whole, vectors), set(whole)
    if _isolation_operation is not None:
        producer._isolation_operation = _isolation_operation
    producer.delete_by_predicate(wanted, case_sensitive)
    return producer.commit()


def _list_deletes(transaction: Transaction, wanted: BooleanExpression, case_sensitive: bool, branch: str | None) -> dict[DataFile, Any]:
    """Return the data files with newly deleted rows, each with all its deleted rows, including the older ones."""
    metadata, io = transaction.table_metadata, transaction._table.io
    if metadata.snapshot_by_name(branch) is None:
        return {}
    scan = transaction._scan(row_filter=wanted, case_sensitive=case_sensitive).use_ref(branch or MAIN_BRANCH)
    keeps = _expression_to_complementary_pyarrow(bind(metadata.schema(), wanted, case_sensitive), metadata.schema())
    found: dict[DataFile, Any] = {}
    for task in scan.plan_files():
        # Without delete files the scan returns all rows of the file, in file order.
        reader = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue(), case_sensitive)
        rows = reader.to_table([FileScanTask(task.file)])
        everything = numpy.arange(len(rows), dtype=numpy.int64)
        kept = rows.append_column(POSITION, pyarrow.array(everything)).filter(keeps)[POSITION].to_numpy()
        known = _read_all_delete_files(io, [task]).get(task.file.file_path, [])
        before = numpy.unique(numpy.concatenate([numpy.empty(0, numpy.int64), *(part.to_numpy() for part in known)]))
        positions = numpy.union1d(numpy.setdiff1d(everything, kept), before)
        if len(positions) > len(before):
            found[task.file] = positions
    return found


def _write_vectors(transaction: Transaction, deletes: Deletes) -> tuple[DataFile, ...]:
    """Write one Puffin file with a vector for each data file, and return a delete file for each vector."""
    if not deletes:
        return ()
    table, targets = transaction._table, list(deletes)
    puffin = encode_deletion_vectors([(file.file_path, deletes[file]) for file in targets])
    path = table.location_provider().new_data_location(f"{uuid4()}-deletes.puffin")
    with table.io.new_output(path).create() as sink:
        sink.write(puffin.content)
    vectors: list[DataFile] = []
    for file, blob in zip(targets, puffin.blobs, strict=True):
        vector = DataFile.from_args(
            _table_format_version=VERSION,
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PUFFIN,
            partition=file.partition,
            record_count=len(deletes[file]),
            file_size_in_bytes=len(puffin.content),
            referenced_data_file=file.file_path,
            content_offset=blob.offset,
            content_size_in_bytes=blob.length,
        )
        vector.spec_id = file.spec_id
        vectors.append(vector)
    return tuple(vectors)


class VectorDelete(_DeleteFiles):
    """A snapshot that drops data files and adds deletion vectors in place of the older ones."""

    plan: DeletePlan

    @property
    def files_affected(self) -> bool:
        return True

    def _existing_manifests(self) -> list[ManifestFile]:
        self._dropped: list[DataFile] = []
        kept = super()._existing_manifests()
        data = [file for file in kept if file.content == ManifestContent.DATA]
        deletes = [file for file in kept if file.content == ManifestContent.DELETES]
        return [*data, *(self._without_rewritten(file) for file in deletes), *self._write_added()]

    def _without_rewritten(self, manifest: ManifestFile) -> ManifestFile:
        """Return the manifest without replaced vectors. PyIceberg does not distinguish vectors of one Puffin file."""
        entries, rewritten_targets = self.fetch_manifest_entry(manifest), self.plan.rewritten_targets
        is_rewritten = [
            pad_fields(entry.data_file, REFERENCED_DATA_FILE + 1)[REFERENCED_DATA_FILE] in rewritten_targets for entry in entries
        ]
        if not any(is_rewritten):
            return manifest
        with self._open(manifest.partition_spec_id) as writer:
            for entry, is_dropped in zip(entries, is_rewritten, strict=True):
                _ = writer.delete(entry) if is_dropped else writer.existing(entry)
                self._dropped += [entry.data_file] if is_dropped else []
        return writer.to_manifest_file()

    def _write_added(self) -> Iterable[ManifestFile]:
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for vector in self.plan.vectors:
            by_spec[vector.spec_id].append(vector)
        for spec_id, vectors in by_spec.items():
            with self._open(spec_id) as writer:
                for vector in vectors:
                    writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=vector))
            yield writer.to_manifest_file()

    def _open(self, spec_id: int) -> ManifestWriterV3:
        writer = ManifestWriterV3(self.spec(spec_id), self.schema(), self.new_manifest_output(), self.snapshot_id, self._compression)
        writer.files = ManifestContent.DELETES
        return writer

    def _summary(self, snapshot_properties: Mapping[str, str] | None = None) -> Summary:
        metadata = self._transaction.table_metadata
        counted, specs, schema = SnapshotSummaryCollector(), metadata.specs(), metadata.schema()
        for file in self.plan.vectors:
            counted.add_file(file, schema, specs[file.spec_id])
        for file in [*self._deleted_data_files, *self._dropped]:
            counted.remove_file(file, schema, specs[file.spec_id])
        parent = None if self._parent_snapshot_id is None else metadata.snapshot_by_id(self._parent_snapshot_id)
        summary = Summary(operation=self._operation, **counted.build(), **dict(snapshot_properties or {}))
        return update_snapshot_summaries(summary, None if parent is None else parent.summary)


PYARROW_TO_SCHEMA = pyiceberg_arrow.pyarrow_to_schema
FIELD_ID = b"PARQUET:field_id"


def pyarrow_to_schema(schema: Any, *args: Any, **options: Any) -> Schema:
    """Return the Iceberg schema of a file with variants as columns of a table.

    The parts of a variant have no field ids. PyIceberg takes a file in which one id is missing for a file without ids, and refuses it.
    """
    variants = {int(field.metadata[FIELD_ID]) for field in schema if _has_id(field) and _is_variant(field.type)}
    if not variants:
        return PYARROW_TO_SCHEMA(schema, *args, **options)
    plain = [field.with_type(pa.large_string()) if _has_id(field) and _is_variant(field.type) else field for field in schema]
    found = PYARROW_TO_SCHEMA(pa.schema(plain, metadata=schema.metadata), *args, **options)
    fields = [
        NestedField(field.field_id, field.name, VariantType(), field.required) if field.field_id in variants else field
        for field in found.fields
    ]
    return Schema(*fields, schema_id=found.schema_id, identifier_field_ids=found.identifier_field_ids)


def _has_id(field: Any) -> bool:
    return FIELD_ID in (field.metadata or {})


def _is_variant(kind: Any) -> bool:
    """Return True if a type is the group of a variant. Source: Parquet's VariantEncoding.md"""
    children: list[Any] = list(kind) if pa.types.is_struct(kind) else []
    return {"metadata", "value"} <= {child.name for child in children} and not any(map(_has_id, children))


class VariantType(StringType):
    """The type `variant`: columns of it are read as JSON text, and cannot be written.

    PyIceberg chooses by base classes how a type is read, so this one has that of a text.
    """

    root: Literal["variant"] = "variant"  # pyright: ignore[reportIncompatibleVariableOverride]

    def minimum_format_version(self) -> TableVersion:
        """Return the version from which on tables may have the type."""
        return VERSION


PARSE_TYPE: Any = IcebergType.handle_primitive_type
PARSE_CODE = PARSE_TYPE.__func__.__code__
PARSE = FunctionType(PARSE_CODE, PARSE_TYPE.__func__.__globals__)


def parse_type(cls: type[IcebergType], value: Any, handler: Any) -> IcebergType:
    """Return a type from its JSON."""
    return VariantType() if value == "variant" and cls is not VariantType else PARSE(cls, value, handler)


def _call_parse_type(cls: Any, v: Any, handler: Any) -> Any:
    return _parse_type(cls, v, handler)  # pyright: ignore  # noqa: F821 - a name in `pyiceberg.types`


CAST_IF_NEEDED = ArrowProjectionVisitor._cast_if_needed


def cast_if_needed(self: ArrowProjectionVisitor, field: NestedField, values: Any) -> Any:
    """Return the values of a file's column in the type of the table's column; those of a variant are JSON."""
    if isinstance(field.field_type, VariantType) and pa.types.is_struct(values.type):
        return pa.array(map(_to_json, values.to_pylist()), pa.large_string())
    return CAST_IF_NEEDED(self, field, values)


def _to_json(row: dict[str, Any] | None) -> str | None:
    """Return a variant by the parts that a file has of it. A row that has none is a NULL."""
    value = MISSING if row is None else assemble_variant(decode_names(row["metadata"]), row.get("value"), row.get("typed_value"))
    return None if value is MISSING else format_json(value)


WRITE_FILE = pyiceberg_arrow.write_file


def write_file(io: FileIO, table_metadata: TableMetadata, tasks: Any) -> Any:
    """Write data files without the columns that are variants: such columns are NULL in them.

    Raises: Unsupported: the rows have such a column
    """
    schema = table_metadata.schema()
    shown = [field for field in schema.fields if not isinstance(field.field_type, VariantType)]
    if len(shown) < len(schema.fields):
        variants = {field.name for field in schema.fields} - {field.name for field in shown}
        tasks = list(tasks)
        given = variants.intersection(*(task.schema.column_names for task in tasks[:1]))
        if tasks and given:
            raise Unsupported(f"PyIceberg cannot write the variants of the column {min(given)!r}; leave the column out, or use Spark.")
        plain = Schema(*shown, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)
        schemas = [plain if each.schema_id == schema.schema_id else each for each in table_metadata.schemas]
        table_metadata = table_metadata.model_copy(update={"schemas": schemas})
    return WRITE_FILE(io, table_metadata, tasks)


KNOWN_VERSIONS = frozenset({"0.12.0"})

PATCHES: tuple[tuple[Any, str, Any, Any], ...] = (
    (manifest, "DEFAULT_READ_VERSION", manifest.DEFAULT_READ_VERSION, VERSION),
    (manifest, "write_manifest", WRITE_MANIFEST, write_manifest),
    (snapshot_update, "write_manifest", WRITE_MANIFEST, write_manifest),
    (manifest.ManifestFile, "fetch_manifest_entry", FETCH, fetch_manifest_entry),
    (getattr(snapshot_update, "_SnapshotProducer"), "_commit", COMMIT, commit),  # noqa: B009 - a private name
    (table_update, "SUPPORTED_TABLE_FORMAT_VERSION", SUPPORTED, VERSION),
    (Transaction, "upgrade_table_version", UPGRADE, upgrade_table_version),
    (Transaction, "delete", DELETE, delete),
    (pyiceberg_arrow, "pyarrow_to_schema", PYARROW_TO_SCHEMA, pyarrow_to_schema),
    (pyiceberg_arrow, "write_file", WRITE_FILE, write_file),
    (ArrowProjectionVisitor, "_cast_if_needed", CAST_IF_NEEDED, cast_if_needed),
    (pyiceberg_types, "_parse_type", PARSE, parse_type),
    # Pydantic keeps the function itself, so that only its code can be replaced.
    (PARSE_TYPE.__func__, "__code__", PARSE_CODE, _call_parse_type.__code__),
)
"""For each patch: the owner, the name, PyIceberg's original and the replacement."""


def install() -> Callable[[], None]:
    """Let PyIceberg write version 3 from now on, and return a function that undoes it. A second call has no further effect.

    Raises: Unsupported: this PyIceberg is not one that the shim was written for
    """
    if pyiceberg.__version__ not in KNOWN_VERSIONS:
        known = ", ".join(sorted(KNOWN_VERSIONS))
        raise Unsupported(
            f"PyIceberg {pyiceberg.__version__} is not known to this shim, which was written for {known}: "
            "install that one, or see whether yours writes format version 3 by itself."
        )
    for owner, name, _, ours in PATCHES:
        setattr(owner, name, ours)
    return uninstall


def uninstall() -> None:
    """Restore PyIceberg's own functions."""
    for owner, name, theirs, _ in PATCHES:
        setattr(owner, name, theirs)
