"""Columns of data files as their Parquet footers have them: types that DuckDB misreads are refused, names are written as name mappings.

`commits.prepare` and `external_metadata` read footers from the object store, on a worker thread; `read_footers` also asks Postgres, in read
transactions of its own. `commits.plan` builds the name mappings under the lake's lock, without I/O.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.incoming.file_changes import FileChange
from duckicelake.catalog.location_rules import NO_TABLE, AllowedLocations, check_files
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed, NotFound, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata, get_current_schema
from duckicelake.iceberg.requests.updates import SetProperties, TableUpdate
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import PrimitiveType, walk_fields
from duckicelake.lake.connect import reading
from duckicelake.lake.note_rows import MappedFile
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import NameMappingRow, TableRow, TableState
from duckicelake.lake.writing.lookups import read_file_ids_by_path
from duckicelake.lake.writing.rows import NewRow
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_columns
from duckicelake.translate.locations import list_paths, table_folder
from duckicelake.translate.name_mapping import PROPERTY, FileColumns, NamePath, parse_name_mapping, to_name_mapping
from duckicelake.translate.to_ducklake.files import (
    AddedFile,
    NamedFile,
    Names,
    PartitionOnlyColumn,
    add_mapping,
    build_partition_stats,
    find_names,
    list_partition_folders,
    list_partition_only,
)
from duckicelake.translate.to_ducklake.tables import IdAllocator
from duckicelake.translate.types import VARIANT, casts_as_stored

MAX_FILES = 10_000
MAX_COLUMNS = 1_000_000
MAX_FOOTER_BYTES = 64 * 1024 * 1024

Footers = Mapping[str, FileColumns]
"""The columns of data files by path."""


def may_lack_field_ids(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> bool:
    """Return True if files of a table may lack field ids, which only a table with a name mapping allows."""
    told = any(PROPERTY in update.updates for update in updates if isinstance(update, SetProperties))
    return told or (base is not None and PROPERTY in base.properties)


def read_footers(warehouse: Warehouse, table: TableRow | None, allowed: AllowedLocations, changes: Sequence[FileChange]) -> Footers:
    """Return the columns of the data files that come into a table.

    Raises: BadRequest: one is missing, no Parquet file or not where the table's may lie, or they are too many
    """
    files = {file.file_path: file for change in changes for file in change.added}
    returned = {
        file.file_path: file
        for change in changes
        for file in change.returned
        # what was on a branch comes from the table's own locations alone, and else is refused
        if not change.is_trusted or allowed.is_own(file.file_path)
    }
    files |= _without_known(warehouse, table, returned)
    if len(files) > MAX_FILES:
        raise BadRequest(f"{len(files)} new files are more than the {MAX_FILES} that are looked into at once; add them in smaller steps.")
    elsewhere = [path for path in files if not allowed.is_own(path)]
    if elsewhere:
        with reading(warehouse.lake) as conn:
            check_files(conn, NO_TABLE if table is None else table.table_id, allowed, elsewhere)
    return _read_all(warehouse.objects, files)


def _without_known(warehouse: Warehouse, table: TableRow | None, files: Mapping[str, DataFile]) -> Mapping[str, DataFile]:
    """Leave out the files of which DuckLake still has a row: they come back as they were."""
    if table is None or not files:
        return files
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), table)
        wanted = {path: uri for uri in files for path in list_paths(folder, uri)}
        known = {wanted[path] for path in read_file_ids_by_path(conn, table.table_id, wanted)}
    return {uri: file for uri, file in files.items() if uri not in known}


def _read_all(objects: Objects, files: Mapping[str, DataFile]) -> Footers:
    """Return the columns of files; those that say the same are one object. Raises BadRequest when they are too many."""
    shared: dict[Hashable, FileColumns] = {}
    found: dict[str, FileColumns] = {}
    counts: list[int] = []

    def read(file: DataFile) -> None:
        columns = read_file_columns(objects, file)
        key = tuple(columns.field_ids.items()), tuple(columns.kinds.items())
        found[file.file_path] = shared.setdefault(key, columns)
        if found[file.file_path] is not columns:
            return
        counts.append(len(columns.field_ids))
        if sum(counts) > MAX_COLUMNS:
            raise BadRequest(f"The new files of the table have more than {MAX_COLUMNS} different columns; add them in smaller steps.")

    objects.each(read, files.values())
    return found


def check_stored_types(footers: Footers, schemas: Sequence[Schema]) -> None:
    """Raise BadRequest for a file that stores a column in a type from which DuckDB does not read the column's values.

    `schemas` are those of the table, the newest last. Columns are known by the field ids in the file.
    """
    fields = {item.field_id: item for schema in schemas for _, item in walk_fields(schema.fields)}
    for path, columns in footers.items():
        for name, field_id in columns.field_ids.items():
            wanted = fields.get(-1 if field_id is None else field_id)
            if wanted is None or not isinstance(wanted.type, PrimitiveType) or wanted.type.name == VARIANT:
                continue
            stored = columns.kinds.get(name, "nested columns")
            if not casts_as_stored(wanted.type.name, stored):
                raise BadRequest(
                    f"Data file {path!r} stores the column {'.'.join(name)!r} as {stored}, and the column's type is {wanted.type.name}. "
                    f"DuckDB could not read the table. Write the column as {wanted.type.name}, with another client if this one cannot."
                )


def read_file_columns(objects: Objects, file: DataFile) -> FileColumns:
    """Return the columns of a data file. Raises BadRequest when it is missing or no Parquet file."""
    path = file.file_path
    try:
        return FileColumns(*read_columns(objects.open(path, file.file_size_in_bytes, MAX_FOOTER_BYTES)))
    except NotFound as error:
        raise BadRequest(f"Data file {path!r} is missing.") from error
    except Unsupported as error:
        raise BadRequest(f"Cannot read data file {path!r}: {error.message}") from error


@dataclass(slots=True)
class ColumnNames:
    """The names in files of one table. `footers` are those of its new files, `mapping_ids` and `merged` what its files are read by.

    DuckDB would read a file without field ids and without a mapping by the places of its columns.
    """

    footers: Footers
    mapping_ids: dict[NamedFile, int] = field(default_factory=dict[NamedFile, int])
    merged: Mapping[NamePath, int] = field(default_factory=dict[NamePath, int])

    def map_files(self, table_id: int, files: Mapping[int, AddedFile], new: TableMetadata, ids: IdAllocator) -> list[NewRow]:
        """Return the mappings of the new files, by their ids, that carry no field ids; files that name the same share one.

        Raises: BadRequest: DuckDB and Iceberg's readers would not read one alike. CommitFailed: the footer of one was not read
        """
        found = {key: (file, columns) for key, file in files.items() if (columns := self.footers.get(file.file.file_path)) is not None}
        rows: list[NewRow] = []
        if PROPERTY in new.properties and len(found) < len(files):
            # DuckLake had a row of it when it was not looked into
            raise CommitFailed("Files that come back into the table were forgotten while this commit was being made. Try again.")
        if not found:
            return rows
        ever = {item.field_id for schema in new.schemas for item in schema.fields}
        known = {name: field_id for name, field_id in self._list_known(new).items() if field_id in ever}
        seen: dict[tuple[int, int], tuple[NamedFile | None, Sequence[PartitionOnlyColumn]]] = {}
        for data_file_id, (file, columns) in found.items():
            kind = id(columns), file.spec.spec_id
            if kind not in seen:
                seen[kind] = _find_names(file, columns, new, known)
            named, untold = seen[kind]
            if named is None:
                continue
            if untold:
                named = replace(named, folders=_list_folders(file, untold, known, new))
                rows += build_partition_stats(table_id, data_file_id, file.file, untold)
            if named not in self.mapping_ids:
                self.mapping_ids[named] = ids.take_file_ids(1)
                rows += add_mapping(table_id, self.mapping_ids[named], named, ever)
            rows.append(MappedFile(data_file_id, self.mapping_ids[named]))
        return rows

    def _list_known(self, new: TableMetadata) -> dict[NamePath, int]:
        """Return all names there are: what files are read by counts first, then what the client says, then the columns' own."""
        own: dict[NamePath, int] = {(item.name,): item.field_id for item in get_current_schema(new).fields}
        return {**own, **parse_name_mapping(new.properties.get(PROPERTY, "")), **self.merged}


def _find_names(
    file: AddedFile, columns: FileColumns, new: TableMetadata, known: Mapping[NamePath, int]
) -> tuple[NamedFile | None, Sequence[PartitionOnlyColumn]]:
    path, spec_id = file.file.file_path, file.spec.spec_id
    named = find_names(path, columns, new, known)
    untold = list_partition_only(path, columns, new, spec_id, named)
    if named is not None:
        _check_meant(path, named, columns, new)
    return named, untold


def _list_folders(file: AddedFile, untold: Sequence[PartitionOnlyColumn], known: Mapping[NamePath, int], new: TableMetadata) -> Names:
    """Raise BadRequest for a folder that its writer took for another column than readers do, and what `list_partition_folders` raises."""
    own = {item.name: item.field_id for item in get_current_schema(new).fields}
    folders = list_partition_folders(file.file, untold, known)
    for name, field_id in folders:
        if own.get(name, field_id) != field_id:
            raise BadRequest(
                f"Data file {file.file.file_path!r} lies in a folder '{name}=…', which is column {own[name]} of the table by its name, but "
                f"{field_id} by {PROPERTY!r}; rewrite it."
            )
    return folders


def _check_meant(path: str, named: NamedFile, columns: FileColumns, new: TableMetadata) -> None:
    """Raise BadRequest for an unknown column, or one that its writer and the readers map to different fields."""
    own, told = {item.name: item.field_id for item in get_current_schema(new).fields}, dict(named.columns)
    for name, *_ in columns.field_ids:
        if name not in told:
            raise BadRequest(
                f"Data file {path!r} carries no field ids and has a column {name!r}, a name that the table does not know; add such a "
                "column to the table first, or rewrite the file without it."
            )
        if own.get(name, told[name]) != told[name]:
            raise BadRequest(
                f"Data file {path!r} carries no field ids, and its column {name!r} is column {own[name]} of the table by its name, but "
                f"{told[name]} by {PROPERTY!r}, by which older files are read; write it with field ids."
            )


def build_column_names(state: TableState | None, footers: Footers) -> ColumnNames:
    """Return the names in files of a table that is in that state, None for one that is made."""
    if state is None or not footers:
        return ColumnNames(footers)
    mapping = to_name_mapping(state.name_mappings, state.columns)
    nested = {row.mapping_id for row in state.name_mappings if row.parent_column is not None}
    rows: dict[int, list[NameMappingRow]] = {}
    for row in state.name_mappings:
        rows.setdefault(row.mapping_id, []).append(row)
    mapping_ids = {
        NamedFile(_list_names(own, is_partition=False), _list_names(own, is_partition=True)): mapping_id
        for mapping_id, own in rows.items()
        if mapping_id not in nested
    }
    return ColumnNames(footers, mapping_ids, mapping.merged)


def _list_names(rows: Sequence[NameMappingRow], *, is_partition: bool) -> Names:
    return tuple(sorted((row.source_name, row.target_field_id) for row in rows if row.is_partition == is_partition))
