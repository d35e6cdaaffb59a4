"""The rows that a commit writes, as frozen values: one class per statement, its fields named like the statement's parameters.

Every row begins or ends at the lake snapshot of its step. The planner of a commit assigns ids from the counters of the
`LakeHead` that was read under the lake's lock. `translate` and `catalog` build these values, and `apply` writes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from duckicelake.lake.changes import Change
from duckicelake.lake.lake_format import V1_0, LakeFormat
from duckicelake.lake.note_rows import NewRefRow, NoteRow, ViewRow


@dataclass(frozen=True, slots=True)
class LakeHead:
    """The newest `ducklake_snapshot`, with the counters of all assigned ids, and the format of the lake's version of DuckLake."""

    snapshot_id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    lake_format: LakeFormat = V1_0


@dataclass(frozen=True, slots=True)
class NewSchema:
    """`ducklake_schema` at the top level."""

    schema_id: int
    schema_uuid: UUID
    schema_name: str
    path: str


@dataclass(frozen=True, slots=True)
class NewNestedSchema:
    """`ducklake_schema` in another one, which only DuckLake 1.1 has. Its path is relative to DATA_PATH, not to its parent's."""

    schema_id: int
    schema_uuid: UUID
    schema_name: str
    path: str
    parent_schema_id: int


@dataclass(frozen=True, slots=True)
class EndedSchema:
    """A `ducklake_schema` to end, with its tags."""

    schema_id: int


@dataclass(frozen=True, slots=True)
class NewTag:
    """`ducklake_tag` of a table, view or schema."""

    object_id: int
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class EndedTag:
    """A live `ducklake_tag` to end."""

    object_id: int
    key: str


@dataclass(frozen=True, slots=True)
class NewTable:
    """`ducklake_table`: a new table, or a renamed one."""

    table_id: int
    table_uuid: UUID
    schema_id: int
    table_name: str
    path: str | None
    path_is_relative: bool


@dataclass(frozen=True, slots=True)
class EndedTableName:
    """The live `ducklake_table` row of a table that is renamed."""

    table_id: int


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table to drop with everything that belongs to it."""

    table_id: int


@dataclass(frozen=True, slots=True)
class RevivedTable:
    """A dropped table to restore: rows that ended in the snapshot that dropped it live again, or begin again. Its name is a `NewTable`."""

    table_id: int
    dropped_at: int


@dataclass(frozen=True, slots=True)
class NewColumn:
    """`ducklake_column`; `column_id` is the Iceberg field id."""

    table_id: int
    column_id: int
    column_order: int
    column_name: str
    column_type: str
    initial_default: str | None
    default_value: str | None
    default_value_type: str
    nulls_allowed: bool
    parent_column: int | None


@dataclass(frozen=True, slots=True)
class EndedColumn:
    """A live `ducklake_column` to end, dropped or replaced by its next version."""

    table_id: int
    column_id: int


@dataclass(frozen=True, slots=True)
class NewComment:
    """`ducklake_column_tag` under the key 'comment'."""

    table_id: int
    column_id: int
    value: str


@dataclass(frozen=True, slots=True)
class EndedComment:
    """A live comment of a column to end."""

    table_id: int
    column_id: int


@dataclass(frozen=True, slots=True)
class NewSchemaVersion:
    """`ducklake_schema_versions`: the step changes the schema of the table's files."""

    table_id: int


@dataclass(frozen=True, slots=True)
class EndedPartitioning:
    """The live `ducklake_partition_info` of a table, to end."""

    table_id: int


@dataclass(frozen=True, slots=True)
class NewPartitionKey:
    """`ducklake_partition_column` of a new `ducklake_partition_info`."""

    partition_id: int
    table_id: int
    partition_key_index: int
    column_id: int
    transform: str


@dataclass(frozen=True, slots=True)
class NewDataFile:
    """`ducklake_data_file`, by its full path."""

    data_file_id: int
    table_id: int
    path: str
    record_count: int
    file_size_bytes: int
    row_id_start: int


@dataclass(frozen=True, slots=True)
class EndedDataFile:
    """A live data file to end. Its delete file stays live, as with DuckDB: a later flush continues from it."""

    data_file_id: int


@dataclass(frozen=True, slots=True)
class NewColumnStats:
    """`ducklake_file_column_stats`; `value_count` counts only non-null values."""

    data_file_id: int
    table_id: int
    column_id: int
    column_size_bytes: int | None
    value_count: int | None
    null_count: int | None
    min_value: str | None
    max_value: str | None
    contains_nan: bool | None


@dataclass(frozen=True, slots=True)
class AddedRows:
    """The numbers that a step adds to `ducklake_table_stats`, which has a row from a table's first files on."""

    table_id: int
    record_count: int
    file_size_bytes: int


@dataclass(frozen=True, slots=True)
class RemovedTableBounds:
    """The `ducklake_table_column_stats` of a table to delete, so that DuckDB assumes no bounds over all files."""

    table_id: int


@dataclass(frozen=True, slots=True)
class NewDeleteFile:
    """`ducklake_delete_file`: all deleted positions of one data file, by its full path."""

    delete_file_id: int
    table_id: int
    data_file_id: int
    path: str
    format: str
    delete_count: int
    file_size_bytes: int


@dataclass(frozen=True, slots=True)
class EndedDeleteFile:
    """The live delete file of a data file, to end."""

    data_file_id: int


@dataclass(frozen=True, slots=True)
class MergedDeletes:
    """One delete file that replaces a data file's live delete file and its inlined deletes.

    The new file ends at the step. It holds the lake snapshot of each position, and its row begins at the first of them.
    `old_path` is the path of the replaced delete file, or None if there was none.
    """

    delete_file_id: int
    table_id: int
    data_file_id: int
    begin_snapshot: int
    partial_max: int
    path: str
    delete_count: int
    file_size_bytes: int
    old_path: str | None


@dataclass(frozen=True, slots=True)
class EndedInlinedRows:
    """Live rows of `ducklake_inlined_data_<table_id>_<schema_version>` to end: these of one batch, or (None) all of the batch."""

    table_id: int
    schema_version: int
    begin_snapshot: int
    row_ids: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class NewInlinedTable:
    """An empty `ducklake_inlined_data_<table_id>_<schema_version>`: names and Postgres types of the root columns, in order."""

    table_id: int
    columns: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class NewTableNote:
    """`iceberg_table` of a table that an Iceberg client creates. `metadata_version` is the last one used at its location."""

    table_id: int
    location: str
    format_version: int
    last_column_id: int
    last_partition_id: int
    metadata_version: int


@dataclass(frozen=True, slots=True)
class ChangedTableNote:
    """New values for `iceberg_table`; `sequence_base` and `numbered_until` None stay unchanged."""

    table_id: int
    location: str
    format_version: int
    last_column_id: int
    last_partition_id: int
    sequence_base: int | None
    numbered_until: int | None = None


@dataclass(frozen=True, slots=True)
class NewSchemaNote:
    """`iceberg_schema`: an assigned id and its schema."""

    table_id: int
    id: int
    json: str


@dataclass(frozen=True, slots=True)
class NewSpecNote:
    """`iceberg_spec`."""

    table_id: int
    id: int
    json: str


@dataclass(frozen=True, slots=True)
class NewSortOrderNote:
    """`iceberg_sort_order`."""

    table_id: int
    id: int
    json: str


@dataclass(frozen=True, slots=True)
class NewShape:
    """`iceberg_shape`: the schema, spec and sort order that an Iceberg client made current."""

    table_id: int
    schema_id: int
    spec_id: int
    order_id: int


@dataclass(frozen=True, slots=True)
class NewSnapshotNote:
    """`iceberg_snapshot`: a client's values for the snapshot that the step makes. `summary` is JSON."""

    table_id: int
    commit_snapshot_id: int
    client_snapshot_id: int
    schema_id: int
    summary: str


@dataclass(frozen=True, slots=True)
class NewFileNote:
    """`iceberg_file`: values that DuckLake has no column for. `partition` and `split_offsets` are JSON."""

    table_id: int
    data_file_id: int
    spec_id: int
    partition: str
    sort_order_id: int | None
    split_offsets: str | None


@dataclass(frozen=True, slots=True)
class WidenedFloats:
    """The bounds of a `float32` column that becomes `float64`: DuckDB reads their texts as doubles from then on.

    A float's shortest text is that of another double, which may lie inside the values.
    """

    table_id: int
    column_id: int


BoundsRow = WidenedFloats


@dataclass(frozen=True, slots=True)
class EndedSorting:
    """The live `ducklake_sort_info` of a table, to end."""

    table_id: int


@dataclass(frozen=True, slots=True)
class RewordedSortKey:
    """A key of the `ducklake_sort_info` that replaces the live one of a table; direction and NULL order stay unchanged.

    All keys of the live one are rewritten together, by their index from 0.
    """

    table_id: int
    sort_id: int
    sort_key_index: int
    expression: str


SortingRow = EndedSorting | RewordedSortKey


NewRow = (
    NewSchema
    | NewNestedSchema
    | EndedSchema
    | NewTag
    | EndedTag
    | NewTable
    | EndedTableName
    | DroppedTable
    | RevivedTable
    | NewColumn
    | EndedColumn
    | NewComment
    | EndedComment
    | NewSchemaVersion
    | EndedPartitioning
    | NewPartitionKey
    | SortingRow
    | NewDataFile
    | EndedDataFile
    | NewColumnStats
    | AddedRows
    | RemovedTableBounds
    | BoundsRow
    | NewDeleteFile
    | EndedDeleteFile
    | MergedDeletes
    | EndedInlinedRows
    | NewInlinedTable
    | NewTableNote
    | ChangedTableNote
    | NewSchemaNote
    | NewSpecNote
    | NewSortOrderNote
    | NewShape
    | NewSnapshotNote
    | NewFileNote
    | NoteRow
    | NewRefRow
    | ViewRow
)


@dataclass(frozen=True, slots=True)
class LakeStep:
    """One lake snapshot to write: its rows, in order, and its entries for `changes_made`.

    `changes_catalog` makes DuckDB reload names, columns and tags. The counters are those after the step.
    """

    changes: tuple[Change, ...]
    rows: tuple[NewRow, ...]
    changes_catalog: bool
    next_catalog_id: int
    next_file_id: int
