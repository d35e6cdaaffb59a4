"""Deletes of version 3 tables for PyIceberg: deletion vectors instead of rewritten data files."""

# PyIceberg has no public hooks, so this fits the releases in KNOWN_VERSIONS.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import numpy
import pyarrow
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import ArrowScan, _expression_to_complementary_pyarrow, _read_all_delete_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import FileScanTask, Transaction, _parse_row_filter
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update.snapshot import _DeleteFiles

from duckicelake.iceberg.puffin import encode_deletion_vectors
from duckicelake.pyiceberg_v3.manifests import REFERENCED_DATA_FILE, VERSION, ManifestWriterV3, pad_fields

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
