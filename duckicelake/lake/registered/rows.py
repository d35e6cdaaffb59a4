"""What registering and unregistering write beside the rows of every commit; see `lake.writing.rows`."""

from dataclasses import dataclass

PLACEHOLDER_ID = 9223372036854775807
"""The id of the table, schema and data file that no lake snapshot ever shows; their rows only let DuckLake know files."""


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


RegisteredRow = NewRegistered | FormerColumn | SequencedFile | NewMapping | MappedName | MappedFile | PinnedFile | UnpinnedFile | PlaceholderTable
