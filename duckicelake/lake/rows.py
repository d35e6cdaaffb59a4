"""Rows of DuckLake's tables and of our own as frozen values, one class per table; columns keep their names.

A versioned row is live at lake snapshot n when `begin_snapshot <= n` and `end_snapshot` is None or above n.
Source: DuckLake specification 1.0; our own tables are defined in `install.sql`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

from duckicelake.lake.note_rows import RefNotes

RESTORED_MAX_BYTES = 16 * 1024 * 1024
"""The largest flush or merge whose earlier files are restored, unless the lake's settings say otherwise."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """The state of a lake that a transaction or a statement saw. Ordered by commit: a later read never returns a lower position."""

    lake_snapshot_id: int
    change_id: int


@dataclass(frozen=True, slots=True)
class HeadRow:
    """The newest `ducklake_snapshot`, and the newest row of `iceberg_change`."""

    snapshot_id: int
    next_file_id: int
    change_id: int


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """`ducklake_snapshot` joined with its `ducklake_snapshot_changes`."""

    snapshot_id: int
    snapshot_time: datetime
    changes_made: str | None


@dataclass(frozen=True, slots=True)
class SchemaRow:
    """`ducklake_schema`: a namespace in Iceberg's terms.

    `schema_names` are the names of its parents and its own, `schema_name` these in one text.
    """

    schema_id: int
    schema_name: str
    schema_names: Sequence[str]
    path: str | None
    path_is_relative: bool


@dataclass(frozen=True, slots=True)
class TableRow:
    """`ducklake_table` joined with its `ducklake_schema`; `schema_name` holds the names of its parents too."""

    table_id: int
    table_uuid: UUID
    table_name: str
    path: str | None
    path_is_relative: bool
    schema_name: str
    schema_path: str | None
    schema_path_is_relative: bool


@dataclass(frozen=True, slots=True)
class TagRow:
    """A live `ducklake_tag`. A value of None means that the tag was removed."""

    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """`ducklake_column`. `column_id` is the field id in Parquet and Iceberg."""

    column_id: int
    begin_snapshot: int
    end_snapshot: int | None
    column_order: int
    column_name: str
    column_type: str
    initial_default: str | None
    default_value: str | None
    default_value_type: str | None
    nulls_allowed: bool
    parent_column: int | None


@dataclass(frozen=True, slots=True)
class ColumnTagRow:
    """`ducklake_column_tag`; the only key is 'comment'."""

    column_id: int
    begin_snapshot: int
    end_snapshot: int | None
    value: str | None


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """`ducklake_partition_info` joined with `ducklake_partition_column`; without columns the key is None.

    `column_types` are all DuckLake types that the column has ever had.
    """

    partition_id: int
    begin_snapshot: int
    end_snapshot: int | None
    partition_key_index: int | None
    column_id: int | None
    transform: str | None
    column_types: Sequence[str]


@dataclass(frozen=True, slots=True)
class SortRow:
    """`ducklake_sort_info` joined with `ducklake_sort_expression`, live rows only, in order of key."""

    expression: str
    sort_direction: str
    null_order: str


@dataclass(frozen=True, slots=True)
class NameMappingRow:
    """`ducklake_name_mapping` of a table; `column_id` and `parent_column` count within one mapping.

    `has_files` False: only retained snapshots may have files of the mapping.
    """

    mapping_id: int
    column_id: int
    source_name: str
    target_field_id: int
    parent_column: int | None
    is_partition: bool
    has_files: bool = True


class RepeatedFileRow(NamedTuple):
    """`ducklake_data_file` of a file that the table has several rows for; `path` is resolved."""

    path: str
    data_file_id: int
    begin_snapshot: int
    end_snapshot: int | None


class FileSpan(NamedTuple):
    """The columns of `ducklake_data_file` that the history needs; a table may have a million of them."""

    data_file_id: int
    begin_snapshot: int
    end_snapshot: int | None
    record_count: int


class DataFileRow(NamedTuple):
    """All columns of `ducklake_data_file`. `partition_values` are the texts of `ducklake_file_partition_value` by key index."""

    data_file_id: int
    begin_snapshot: int
    path: str
    path_is_relative: bool
    record_count: int
    file_size_bytes: int
    row_id_start: int | None
    partition_id: int | None
    mapping_id: int | None
    partial_max: int | None
    encryption_key: str | None
    partition_values: Sequence[str | None] | None


@dataclass(frozen=True, slots=True)
class PartialFileRow:
    """`ducklake_data_file` of a file that a flush or merge wrote from rows of earlier lake snapshots, embedded in the file.

    `written_at` is the lake snapshot that wrote it and `changes_made` its changes; if it has expired, those of the next one left.
    """

    data_file_id: int
    begin_snapshot: int
    path: str
    path_is_relative: bool
    record_count: int
    file_size_bytes: int
    row_id_start: int | None
    written_at: int | None
    changes_made: str | None
    partial_max: int | None = None


@dataclass(frozen=True, slots=True)
class SchemaVersionRow:
    """`ducklake_schema_versions`: the table has the columns of its newest version."""

    begin_snapshot: int
    schema_version: int


@dataclass(frozen=True, slots=True)
class DeleteFileRow:
    """`ducklake_delete_file`: cumulative positions of one data file."""

    delete_file_id: int
    data_file_id: int
    begin_snapshot: int
    end_snapshot: int | None
    path: str
    path_is_relative: bool
    format: str | None
    delete_count: int
    file_size_bytes: int


class ColumnStatsRow(NamedTuple):
    """`ducklake_file_column_stats`; `value_count` counts only non-null values."""

    data_file_id: int
    column_id: int
    column_size_bytes: int | None
    value_count: int | None
    null_count: int | None
    min_value: str | None
    max_value: str | None
    contains_nan: bool | None


class NullableRow(NamedTuple):
    """A required column, and the first lake snapshot from which a file or inlined row may hold a NULL in it."""

    column_id: int
    lake_snapshot_id: int


class PackedColumnStats(NamedTuple):
    """Many rows of `ducklake_file_column_stats`, in no order.

    Shape: `numbers` holds six big-endian 64-bit numbers for each row: `data_file_id`, and, -1 for null, `column_id`,
    `column_size_bytes`, `value_count`, `null_count`; then `contains_nan` (2 for null) above 32 bits, whose upper and lower halves are
    the lengths (in UTF-8) of `min_value` and `max_value` plus one, 0 for null. The texts are concatenated in `min_value` and `max_value`
    """

    numbers: bytes
    min_value: str
    max_value: str


@dataclass(frozen=True, slots=True)
class InlinedTable:
    """One `ducklake_inlined_data_<T>_<V>`: `rows` are (row_id, begin_snapshot, end_snapshot, *root columns in order).

    `column_names` are the root columns' names in Postgres: at most 63 bytes, in any case.
    """

    schema_version: int
    begin_snapshot: int
    rows: Sequence[tuple[object, ...]]
    column_names: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class InlinedDeleteRow:
    """`ducklake_inlined_delete_<T>`: `row_id` is the position in the file, from 0."""

    file_id: int
    row_id: int
    begin_snapshot: int


@dataclass(frozen=True, slots=True)
class TableNote:
    """`iceberg_table`: the numbers assigned to a table. `updated_ms` is the time of `metadata_version`.

    `is_native`: an Iceberg client created the table, so its spec 0 is the client's own. `current_snapshot_id` is the newest
    lake snapshot that was published as a change of its rows, -1 if there was none. `numbered_until`: the last lake
    snapshot that the sequence base counts for, if the table was upgraded to version 3 since.
    """

    table_id: int
    location: str
    format_version: int
    sequence_base: int
    metadata_version: int
    lake_snapshot_id: int
    change_id: int
    token: str
    updated_ms: int
    last_column_id: int = 0
    last_partition_id: int = 0
    is_native: bool = False
    current_snapshot_id: int = -1
    numbered_until: int | None = None


@dataclass(frozen=True, slots=True)
class ShapeNote:
    """`iceberg_shape`: the current schema, spec and sort order that an Iceberg client set, from a lake snapshot on."""

    lake_snapshot_id: int
    schema_id: int
    spec_id: int
    order_id: int


@dataclass(frozen=True, slots=True)
class SnapshotNote:
    """`iceberg_snapshot`: a client's values for its snapshot. `summary` is JSON."""

    lake_snapshot_id: int
    client_snapshot_id: int
    schema_id: int
    summary: str


@dataclass(frozen=True, slots=True)
class FileNote:
    """`iceberg_file`: a client's values for its data file. `partition` and `split_offsets` are JSON arrays."""

    data_file_id: int
    spec_id: int
    partition: str
    sort_order_id: int | None
    split_offsets: str | None
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class MetadataLogRow:
    """`iceberg_metadata_log`: an assigned metadata version and its time. `earlier_location`: the table's location at that time."""

    metadata_version: int
    updated_ms: int
    earlier_location: str | None = None


@dataclass(frozen=True, slots=True)
class JsonNote:
    """`iceberg_schema`, `iceberg_spec` or `iceberg_sort_order`: an assigned id and the exact JSON that it identifies.

    `is_removed`: a client removed it.
    """

    id: int
    json: str
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class TableNotes:
    """All notes about one table; `table` is None until its first publication. `statistics` are kind and JSON of each."""

    table: TableNote | None
    schemas: Sequence[JsonNote]
    specs: Sequence[JsonNote]
    sort_orders: Sequence[JsonNote]
    metadata_log: Sequence[MetadataLogRow]
    shapes: Sequence[ShapeNote] = ()
    refs: RefNotes = RefNotes()
    statistics: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class TableState:
    """One table as one transaction saw it, or as a commit leaves it, without the details of its data files.

    Files, deletes, inlined rows and snapshots are only those that changed after the lake snapshot `since`: every file that
    began or ended, and everything that decides which rows of the files with changed deletes are visible. `aliases` are
    the snapshots of the table's newest change, if a client made it; `changed_at` is the time of the newest change after
    `since`. `history_id` is the newest row of `iceberg_change` that may have changed the table's past.
    `too_large` and `lacked` are columns: see `lake.null_proofs`; for `nullable` see `lake.null_proofs`.
    """

    position: Position
    next_file_id: int
    next_row_id: int
    since: int
    data_path: str
    iceberg_path: str
    table: TableRow
    tags: Sequence[TagRow]
    snapshots: Sequence[SnapshotRow]
    oldest: SnapshotRow
    columns: Sequence[ColumnRow]
    column_tags: Sequence[ColumnTagRow]
    partitions: Sequence[PartitionRow]
    sort_keys: Sequence[SortRow]
    name_mappings: Sequence[NameMappingRow]
    spans: Sequence[FileSpan]
    partial_files: Sequence[PartialFileRow]
    schema_versions: Sequence[SchemaVersionRow]
    delete_files: Sequence[DeleteFileRow]
    inlined_tables: Sequence[InlinedTable]
    inlined_deletes: Sequence[InlinedDeleteRow]
    notes: TableNotes
    snapshot_notes: Sequence[SnapshotNote] = ()
    aliases: Sequence[SnapshotNote] = ()
    changed_at: datetime | None = None
    too_large: Sequence[int] = ()
    lacked: Sequence[int] = ()
    nullable: Sequence[NullableRow] = ()
    history_id: int = 0
    restored_max_bytes: int = RESTORED_MAX_BYTES


@dataclass(frozen=True, slots=True)
class MacroRow:
    """A parameter, joined with its implementation and its macro. An implementation without parameters has a row without `parameter_name`.

    `begun_at` is the time of the lake snapshot that the macro begins at, or that of the earliest one left if it has expired.
    `parameter_type` is in DuckLake's words; `unknown` for a parameter without a type, `list`, `struct` and `map` without their children.
    """

    schema_name: str
    schema_uuid: UUID
    macro_id: int
    macro_name: str
    begin_snapshot: int
    end_snapshot: int | None
    begun_at: datetime
    impl_id: int
    dialect: str
    sql: str
    kind: Literal["scalar", "table"]
    parameter_name: str | None
    parameter_type: str | None
    default_value: str
    default_value_type: str
