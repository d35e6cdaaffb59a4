"""Commits of version 3 snapshots for PyIceberg: the patched functions of its transactions."""

# PyIceberg has no public hooks, so this fits the releases in KNOWN_VERSIONS. Pyright does not see the aliases of its models.
# pyright: reportPrivateUsage=false, reportUnknownVariableType=false, reportCallIssue=false

from typing import Any

from pyiceberg.table import Transaction
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    UpdatesAndRequirements,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.typedef import TableVersion

from duckicelake.pyiceberg_v3.manifests import VERSION, ListNumbers, ManifestListWriterV3

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
