"""Notes about branches, tags and the snapshots they keep as frozen rows: as they are read, and as commits write them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

UNPUBLISHED = ""
"""The JSON of a kept snapshot of main that has not been published yet."""


@dataclass(frozen=True, slots=True)
class RefNote:
    """`iceberg_ref`: a branch or tag; main without a snapshot id is where DuckLake's head is."""

    name: str
    snapshot_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class KeptSnapshotNote:
    """`iceberg_kept`: a snapshot as JSON. `is_off_main`: it was made beside main, and is there for nobody but Iceberg clients.

    Files that were live at `base_snapshot_id` are kept for it.
    """

    snapshot_id: int
    base_snapshot_id: int
    json: str
    is_off_main: bool


@dataclass(frozen=True, slots=True)
class MoveNote:
    """`iceberg_move`: a lake snapshot that gave main the rows of another snapshot, which clients see in its place."""

    lake_snapshot_id: int
    snapshot_id: int


@dataclass(frozen=True, slots=True)
class RegisteredNote:
    """`iceberg_registered`: a table came with its history at a lake snapshot; `snapshot_id` was its current snapshot.

    `is_shown`: that lake snapshot is one of the table's too. The logs are JSON, as the metadata file had them.
    """

    lake_snapshot_id: int
    snapshot_id: int | None
    is_shown: bool
    snapshot_log: str
    metadata_log: str


@dataclass(frozen=True, slots=True)
class RefNotes:
    """Everything noted about one table's refs. `hidden` are snapshots that clients removed, `registered` is how it came here.

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
    """A branch or tag made, or changed."""

    table_id: int
    name: str
    target_id: int | None
    type: str
    max_ref_age_ms: int | None
    max_snapshot_age_ms: int | None
    min_snapshots_to_keep: int | None


@dataclass(frozen=True, slots=True)
class EndedRef:
    """A branch or tag that goes."""

    table_id: int
    name: str


@dataclass(frozen=True, slots=True)
class NewKeptSnapshot:
    """A snapshot to keep; `manifest_list` of those made beside main."""

    table_id: int
    target_id: int
    base_snapshot_id: int
    json: str
    manifest_list: bytes | None


@dataclass(frozen=True, slots=True)
class EndedKeptSnapshot:
    """A snapshot that need not be kept any more; with the last one made beside main go the files added there."""

    table_id: int
    target_id: int


@dataclass(frozen=True, slots=True)
class NewKeptFile:
    """A data file that a client added beside main, by its full path as DuckLake would write it."""

    table_id: int
    path: str


@dataclass(frozen=True, slots=True)
class NewMove:
    """The step gives main the rows of that snapshot."""

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
    """`iceberg_change`: something about a table changed that makes no lake snapshot. `kind`: 'refs', or 'hide' for its history."""

    table_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class ReturnedFile:
    """A file of the table that comes back: everything is as with the row it had, `source_id`."""

    data_file_id: int
    table_id: int
    source_id: int


@dataclass(frozen=True, slots=True)
class ReservedRowIds:
    """Row ids given out to rows that DuckLake does not have."""

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
"""The id of the table, schema and data file that no lake snapshot ever shows; their rows only let DuckLake know files."""


@dataclass(frozen=True, slots=True)
class NewRegistered:
    """The step is where a table came with its history."""

    table_id: int
    target_id: int | None
    is_shown: bool
    snapshot_log: str
    metadata_log: str


@dataclass(frozen=True, slots=True)
class FormerColumn:
    """`ducklake_column` of a column that the table had before the lake knew it: no lake snapshot shows it, its id stays taken."""

    table_id: int
    column_id: int
    column_name: str
    column_type: str


@dataclass(frozen=True, slots=True)
class SequencedFile:
    """A data file that keeps the sequence number it came with."""

    data_file_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class NewMapping:
    """`ducklake_column_mapping`: how columns of files without field ids are found."""

    mapping_id: int
    table_id: int


@dataclass(frozen=True, slots=True)
class MappedName:
    """`ducklake_name_mapping`; `column_id` counts within the mapping. `is_partition`: the name is that of folders, which hold the value."""

    mapping_id: int
    column_id: int
    source_name: str
    target_field_id: int
    is_partition: bool = False


@dataclass(frozen=True, slots=True)
class MappedFile:
    """A data file of the same step that is read by a mapping."""

    data_file_id: int
    mapping_id: int


@dataclass(frozen=True, slots=True)
class PinnedFile:
    """A full path that DuckLake goes on knowing: for as long as the table is there, or (NOBODY) for good."""

    delete_file_id: int
    table_id: int
    path: str


@dataclass(frozen=True, slots=True)
class UnpinnedFile:
    """A path that NOBODY need keep any more: a table has it."""

    path: str


@dataclass(frozen=True, slots=True)
class PlaceholderTable:
    """The rows of NOBODY's table and schema, once in a lake: files of no table are files that DuckLake does not know."""

    table_id: int


RegisteredRow = (
    NewRegistered | FormerColumn | SequencedFile | NewMapping | MappedName | MappedFile | PinnedFile | UnpinnedFile | PlaceholderTable
)


@dataclass(frozen=True, slots=True)
class LiveView:
    """A live `ducklake_view` joined with its `ducklake_schema` and its comment.

    `begun_at` is the time of the lake snapshot that it begins at, None once that has expired; `head_at` that of the newest.
    """

    view_id: int
    view_uuid: UUID
    schema_id: int
    schema_name: str
    view_name: str
    sql: str
    column_aliases: str
    begun_at: datetime | None
    head_at: datetime
    comment: str | None


@dataclass(frozen=True, slots=True)
class ViewNote:
    """`iceberg_view`: written anew under the same id whenever the metadata changes. `metadata` is JSON."""

    view_id: int
    metadata_version: int
    metadata_location: str
    metadata: str
    sql: str
    column_aliases: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class NewView:
    """`ducklake_view`: a new view, or an old one under a new name."""

    view_id: int
    view_uuid: UUID
    schema_id: int
    view_name: str
    sql: str
    column_aliases: str


@dataclass(frozen=True, slots=True)
class EndedView:
    """The live `ducklake_view` row of a view that goes on under another name."""

    view_id: int


@dataclass(frozen=True, slots=True)
class DroppedView:
    """A view that ends with its comment and its note."""

    view_id: int


ViewRow = NewView | EndedView | DroppedView | ViewNote
"""What a commit writes of views."""


@dataclass(frozen=True, slots=True)
class FormerLocation:
    """`iceberg_location`: where a table was up to its present metadata version."""

    table_id: int
    location: str


@dataclass(frozen=True, slots=True)
class MarkedSchema:
    """An `iceberg_schema` that a client removed, or uses again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class MarkedSpec:
    """An `iceberg_spec` that a client removed, or uses again."""

    table_id: int
    id: int
    is_removed: bool


@dataclass(frozen=True, slots=True)
class NewStatistics:
    """`iceberg_statistics`: a file of one snapshot, in place of the one it had. `kind` is `table` or `partition`."""

    table_id: int
    kind: str
    snapshot_id: int
    json: str


@dataclass(frozen=True, slots=True)
class RemovedStatistics:
    """An `iceberg_statistics` that goes."""

    table_id: int
    kind: str
    snapshot_id: int


NoteRow = FormerLocation | MarkedSchema | MarkedSpec | NewStatistics | RemovedStatistics | RegisteredRow
