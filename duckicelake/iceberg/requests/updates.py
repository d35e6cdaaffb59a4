"""The changes a client may ask for, one frozen value per action of the REST specification.

Ids are the client's; LAST_ADDED means the thing that this request added last. `parsing` reads them, `application` applies
them to a table, `views/view_application` to a view.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from duckicelake.iceberg.partition import PartitionSpec
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import PartitionStatisticsFile, Snapshot, SnapshotRef, StatisticsFile
from duckicelake.iceberg.sorting import SortOrder
from duckicelake.iceberg.views.view_metadata import ViewVersion

LAST_ADDED = -1


@dataclass(frozen=True, slots=True)
class AssignUuid:
    """Give a new table or view its uuid."""

    uuid: str


@dataclass(frozen=True, slots=True)
class UpgradeFormatVersion:
    """Raise the format version; it never goes down."""

    format_version: int


@dataclass(frozen=True, slots=True)
class AddSchema:
    """Add a schema; its id is given when it is applied."""

    schema: Schema


@dataclass(frozen=True, slots=True)
class SetCurrentSchema:
    """Make a schema the current one."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class AddSpec:
    """Add a partition spec; its id is given when it is applied, and so are its fields' where they are UNASSIGNED."""

    spec: PartitionSpec


@dataclass(frozen=True, slots=True)
class SetDefaultSpec:
    """Write new files with that partition spec."""

    spec_id: int


@dataclass(frozen=True, slots=True)
class AddSortOrder:
    """Add a sort order; its id is given when it is applied."""

    order: SortOrder


@dataclass(frozen=True, slots=True)
class SetDefaultSortOrder:
    """Write new files in that order."""

    order_id: int


@dataclass(frozen=True, slots=True)
class AddSnapshot:
    """Add a snapshot. No ref points to it until one is set."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class SetSnapshotRef:
    """Create or move a branch or tag."""

    name: str
    ref: SnapshotRef


@dataclass(frozen=True, slots=True)
class RemoveSnapshots:
    """Forget snapshots, the refs that point to them and the statistics of them."""

    snapshot_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveSnapshotRef:
    """Remove a branch or tag; without `main` the table has no current snapshot."""

    name: str


@dataclass(frozen=True, slots=True)
class SetLocation:
    """Write new files below that location."""

    location: str


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Add or replace properties."""

    updates: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class RemoveProperties:
    """Remove properties; those that are not there are no error."""

    removals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetStatistics:
    """Set the statistics file of its snapshot."""

    statistics: StatisticsFile


@dataclass(frozen=True, slots=True)
class RemoveStatistics:
    """Remove a snapshot's statistics file."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class SetPartitionStatistics:
    """Set the partition statistics file of its snapshot."""

    statistics: PartitionStatisticsFile


@dataclass(frozen=True, slots=True)
class RemovePartitionStatistics:
    """Remove a snapshot's partition statistics file."""

    snapshot_id: int


@dataclass(frozen=True, slots=True)
class RemoveSpecs:
    """Forget partition specs that no file uses."""

    spec_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RemoveSchemas:
    """Forget schemas that no snapshot uses."""

    schema_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AddViewVersion:
    """Add a definition of a view; its id is given when it is applied. Its schema id may be LAST_ADDED."""

    version: ViewVersion


@dataclass(frozen=True, slots=True)
class SetCurrentViewVersion:
    """Make a definition the current one."""

    version_id: int


TableUpdate: TypeAlias = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | AddSpec
    | SetDefaultSpec
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | SetSnapshotRef
    | RemoveSnapshots
    | RemoveSnapshotRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | SetStatistics
    | RemoveStatistics
    | SetPartitionStatistics
    | RemovePartitionStatistics
    | RemoveSpecs
    | RemoveSchemas
)
ViewUpdate: TypeAlias = (
    AssignUuid | UpgradeFormatVersion | AddSchema | SetLocation | SetProperties | RemoveProperties | AddViewVersion | SetCurrentViewVersion
)
