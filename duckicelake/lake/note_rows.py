"""Frozen rows of refs, retained snapshots, registered tables and views: as reads return and commits write them.

Most are rows of `iceberg_*` tables; some are the `ducklake_*` rows written with them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

UNPUBLISHED = ""
"""The JSON of a retained snapshot of main that has not been published yet."""


@dataclass(frozen=True, slots=True)
class RefNote:
    """`iceberg_ref`: a branch or tag. Main without a snapshot id is at DuckLake's head."""

    name: str
    snapshot_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class KeptSnapshotNote:
    """`iceberg_kept`: a retained snapshot as JSON. `is_off_main`: it was committed to another branch, so only Iceberg clients see it.

    Files that were live at `base_snapshot_id` are retained for it.
    """

    snapshot_id: int
    base_snapshot_id: int
    json: str
    is_off_main: bool


@dataclass(frozen=True, slots=True)
class MoveNote:
    """`iceberg_move`: a lake snapshot that gave main the rows of another snapshot, which is published in its place."""

    lake_snapshot_id: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class RegisteredNote:
    """`iceberg_registered`: the lake snapshot at which a table with history was registered; `snapshot_id` was its current snapshot.

    `is_shown`: that lake snapshot is published as one of the table's. The logs are JSON, as the metadata file had them.
    """

    lake_snapshot_id: int
    snapshot_id: int | None
    is_shown: bool
    snapshot_log: str
    metadata_log: str


@dataclass(frozen=True, slots=True)
class RefNotes:
    """The notes about one table's refs. `hidden` are snapshots that clients removed, `registered` the row of a registered table.

    `roots` are the lake snapshots at which a client replaced the table, ascending.
    """

    refs: Sequence[RefNote] = ()
    kept: Sequence[KeptSnapshotNote] = ()
    moves: Sequence[MoveNote] = ()
    hidden: frozenset[int] = frozenset()
    registered: RegisteredNote | None = None
    roots: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class NewRef:
    """A branch or tag to create or change."""

    table_id: int
    name: str
    target_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class EndedRef:
    """A branch or tag to delete."""

    table_id: int
    name: str


@dataclass(frozen=True, slots=True)
class NewKeptSnapshot:
    """A snapshot to retain; `manifest_list` is set for snapshots off main."""

    table_id: int
    target_id: int
    base_snapshot_id: int
    json: str
    manifest_list: bytes | None


@dataclass(frozen=True, slots=True)
class EndedKeptSnapshot:
    """A snapshot that is no longer retained. With the last snapshot off main go the files that were added off main."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewKeptFile:
    """A data file that a client added off main, by its full path as DuckLake would write it."""

    table_id: int
    path: str


@dataclass(frozen=True, slots=True)
class NewMove:
    """The step gives main the rows of the snapshot `target_id`."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewRoot:
    """The step's lake snapshot starts the table's history, because a client replaced the table."""

    table_id: int


@dataclass(frozen=True, slots=True)
class NewHiddenSnapshot:
    """A snapshot that a client removed."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewChange:
    """`iceberg_change`: a change of a table that makes no lake snapshot. `kind`: 'refs', or 'hide' for a change of its history."""

    table_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class ReturnedFile:
    """A new row for a file that was removed from the table, with all values of its earlier row `source_id`."""

    data_file_id: int
    table_id: int
    source_id: int


@dataclass(frozen=True, slots=True)
class ReservedRowIds:
    """Row ids that are taken by rows that DuckLake does not have."""

    table_id: int
    count: int


NewRefRow = (
    ReturnedFile
    | ReservedRowIds
    | NewRef
    | EndedRef
    | NewKeptSnapshot
    | EndedKeptSnapshot
    | NewKeptFile
    | NewMove
    | NewRoot
    | NewHiddenSnapshot
    | NewChange
)


PLACEHOLDER_ID = 9223372036854775807
"""The id of a table, schema and data file that no lake snapshot shows; their rows only make DuckLake know files."""


@dataclass(frozen=True, slots=True)
class NewRegistered:
    """The step registers a table with its history."""

    table_id: int
    target_id: int | None
    is_shown: bool
    snapshot_log: str
    metadata_log: str


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """`ducklake_column` of a column that the table had before it was registered: no lake snapshot shows it, its id stays taken."""

    table_id: int
    column_id: int
    column_name: str
    column_type: str


@dataclass(frozen=True, slots=True)
class FileSequenceNumber:
    """A data file that keeps its data sequence number of before."""

    data_file_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class NewMapping:
    """`ducklake_column_mapping`: the mapping of names for files without field ids."""

    mapping_id: int
    table_id: int


@dataclass(frozen=True, slots=True)
class MappedName:
    """`ducklake_name_mapping`; `column_id` counts within the mapping. `is_partition`: the name is that of hive folders with the value."""

    mapping_id: int
    column_id: int
    source_name: str
    target_field_id: int
    is_partition: bool = False


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A data file of the same step that is read with a mapping."""

    data_file_id: int
    mapping_id: int


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A full path that DuckLake keeps as a known file: while the table lives, or for good if the table is `PLACEHOLDER_ID`."""

    delete_file_id: int
    table_id: int
    path: str


@dataclass(frozen=True, slots=True)
class UnpinnedFile:
    """A path that needs no pin any more, because a table has the file."""

    path: str


@dataclass(frozen=True, slots=True)
class PlaceholderTable:
    """The placeholder table and schema, once in a lake: without them DuckLake would count files of no table as orphans."""

    table_id: int


RegisteredRow = (
    NewRegistered | FormerColumn | FileSequenceNumber | NewMapping | MappedName | MappedFile | PinnedFile | UnpinnedFile | PlaceholderTable
)


@dataclass(frozen=True, slots=True)
class LiveView:
    """A live `ducklake_view` joined with its `ducklake_schema` and its comment; `schema_names` has the schema's parents too.

    `begun_at` is the time of the lake snapshot that it begins at, None once that has expired; `head_at` that of the newest one.
    """

    view_id: int
    view_uuid: UUID
    schema_id: int
    schema_name: str
    schema_names: Sequence[str]
    view_name: str
    sql: str
    column_aliases: str
    begun_at: datetime | None
    head_at: datetime
    comment: str | None


@dataclass(frozen=True, slots=True)
class ViewNote:
    """`iceberg_view`: replaced under the same id whenever the metadata changes. `metadata` is JSON."""

    view_id: int
    metadata_version: int
    metadata_location: str
    metadata: str
    sql: str
    column_aliases: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class NewView:
    """`ducklake_view`: a new view, or a renamed one."""

    view_id: int
    view_uuid: UUID
    schema_id: int
    view_name: str
    sql: str
    column_aliases: str


@dataclass(frozen=True, slots=True)
class EndedView:
    """The live `ducklake_view` row of a view that is renamed."""

    view_id: int


@dataclass(frozen=True, slots=True)
class DroppedView:
    """A view that is dropped with its comment and its `iceberg_view` row."""

    view_id: int


ViewRow = NewView | EndedView | DroppedView | ViewNote
"""The rows that a commit writes for views."""


@dataclass(frozen=True, slots=True)
class FormerLocation:
    """`iceberg_location`: the location of a table up to its current metadata version."""

    table_id: int
    location: str


@dataclass(frozen=True, slots=True)
class MarkedSchema:
    """An `iceberg_schema` to mark as removed by a client, or as used again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class MarkedSpec:
    """An `iceberg_spec` to mark as removed by a client, or as used again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class NewStatistics:
    """`iceberg_statistics`: the statistics file of a snapshot, replacing an earlier one. `kind` is `table` or `partition`."""

    table_id: int
    kind: str
    snapshot_id: int
    json: str


@dataclass(frozen=True, slots=True)
class RemovedStatistics:
    """An `iceberg_statistics` row to delete."""

    table_id: int
    kind: str
    snapshot_id: int


NoteRow = FormerLocation | MarkedSchema | MarkedSpec | NewStatistics | RemovedStatistics | RegisteredRow
