"""How DuckLake finds the columns of data files without field ids: by a name mapping, as `ducklake_add_data_files` notes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from duckicelake.catalog.writing.ids import Ids
from duckicelake.catalog.writing.ready.footers import Footers
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import TableMetadata, current_schema
from duckicelake.lake.registered.rows import MappedFile
from duckicelake.lake.rows import NameMappingRow, TableState
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.shape.name_mapping import PROPERTY, FileColumns, NamePath, parse_name_mapping, to_name_mapping
from duckicelake.translate.to_ducklake.files import TakenFile
from duckicelake.translate.to_ducklake.mapped.columns import NamedFile, add_mapping, find_names, list_untold
from duckicelake.translate.to_ducklake.mapped.folders import Names, Untold, find_folders, tell_stats


@dataclass(slots=True)
class ColumnNames:
    """The names in files of one table. `footers` are those of its new files, `there` and `merged` what its files are read by.

    DuckDB would read a file without field ids and without a mapping by the places of its columns.
    """

    footers: Footers
    there: dict[NamedFile, int] = field(default_factory=dict[NamedFile, int])
    merged: Mapping[NamePath, int] = field(default_factory=dict[NamePath, int])

    def map_files(self, table_id: int, files: Mapping[int, TakenFile], new: TableMetadata, ids: Ids) -> list[NewRow]:
        """Return the mappings of the new files, by their ids, that carry no field ids; files that name the same share one.

        Raises: BadRequest: DuckDB and Iceberg's readers would not read one alike. CommitFailed: nobody has looked into one
        """
        found = {key: (file, columns) for key, file in files.items() if (columns := self.footers.get(file.file.file_path)) is not None}
        rows: list[NewRow] = []
        if PROPERTY in new.properties and len(found) < len(files):
            # DuckLake had a row of it when it was not looked into
            raise CommitFailed("Files that come back into the table were forgotten while this commit was being made. Try again.")
        if not found:
            return rows
        ever = {item.field_id for schema in new.schemas for item in schema.fields}
        known = {name: field_id for name, field_id in self._find_known(new).items() if field_id in ever}
        seen: dict[tuple[int, int], tuple[NamedFile | None, Sequence[Untold]]] = {}
        for data_file_id, (file, columns) in found.items():
            kind = id(columns), file.spec.spec_id
            if kind not in seen:
                seen[kind] = _find_names(file, columns, new, known)
            named, untold = seen[kind]
            if named is None:
                continue
            if untold:
                named = replace(named, folders=_find_folders(file, untold, known, new))
                rows += tell_stats(table_id, data_file_id, file.file, untold)
            if named not in self.there:
                self.there[named] = ids.take_file_ids(1)
                rows += add_mapping(table_id, self.there[named], named, ever)
            rows.append(MappedFile(data_file_id, self.there[named]))
        return rows

    def _find_known(self, new: TableMetadata) -> dict[NamePath, int]:
        """Return all names there are: what files are read by counts first, then what the client says, then the columns' own."""
        own: dict[NamePath, int] = {(item.name,): item.field_id for item in current_schema(new).fields}
        return {**own, **parse_name_mapping(new.properties.get(PROPERTY, "")), **self.merged}


def _find_names(
    file: TakenFile, columns: FileColumns, new: TableMetadata, known: Mapping[NamePath, int]
) -> tuple[NamedFile | None, Sequence[Untold]]:
    path, spec_id = file.file.file_path, file.spec.spec_id
    named = find_names(path, columns, new, known)
    untold = list_untold(path, columns, new, spec_id, named)
    if named is not None:
        _check_meant(path, named, columns, new)
    return named, untold


def _find_folders(file: TakenFile, untold: Sequence[Untold], known: Mapping[NamePath, int], new: TableMetadata) -> Names:
    """Raise BadRequest for a folder that its writer took for another column than readers do, and what `find_folders` raises."""
    own = {item.name: item.field_id for item in current_schema(new).fields}
    folders = find_folders(file.file, untold, known)
    for name, field_id in folders:
        if own.get(name, field_id) != field_id:
            raise BadRequest(
                f"Data file {file.file.file_path!r} lies in a folder '{name}=…', which is column {own[name]} of the table by its name, but "
                f"{field_id} by {PROPERTY!r}; rewrite it."
            )
    return folders


def _check_meant(path: str, named: NamedFile, columns: FileColumns, new: TableMetadata) -> None:
    """Raise BadRequest for a column that nobody knows, or that its writer took for another one than readers do."""
    own, told = {item.name: item.field_id for item in current_schema(new).fields}, dict(named.columns)
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


def find_column_names(state: TableState | None, footers: Footers) -> ColumnNames:
    """Return the names in files of a table that is in that state, None for one that is made."""
    if state is None or not footers:
        return ColumnNames(footers)
    mapping = to_name_mapping(state.name_mappings, state.columns)
    nested = {row.mapping_id for row in state.name_mappings if row.parent_column is not None}
    rows: dict[int, list[NameMappingRow]] = {}
    for row in state.name_mappings:
        rows.setdefault(row.mapping_id, []).append(row)
    there = {
        NamedFile(_list_names(own, is_partition=False), _list_names(own, is_partition=True)): mapping_id
        for mapping_id, own in rows.items()
        if mapping_id not in nested
    }
    return ColumnNames(footers, there, mapping.merged)


def _list_names(rows: Sequence[NameMappingRow], *, is_partition: bool) -> Names:
    return tuple(sorted((row.source_name, row.target_field_id) for row in rows if row.is_partition == is_partition))
