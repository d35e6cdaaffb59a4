"""How DuckLake finds the columns of data files without field ids: by a name mapping, as `ducklake_add_data_files` notes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from duckicelake.catalog.writing.ids import Ids
from duckicelake.catalog.writing.ready.footers import Footers
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.iceberg.metadata import TableMetadata, current_schema
from duckicelake.lake.registered.rows import MappedFile
from duckicelake.lake.rows import TableState
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.shape.name_mapping import PROPERTY, FileColumns, NamePath, parse_name_mapping, to_name_mapping
from duckicelake.translate.to_ducklake.files import TakenFile
from duckicelake.translate.to_ducklake.registered import NamedFile, add_mapping, find_names


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
        seen: dict[tuple[int, int], NamedFile | None] = {}
        for data_file_id, (file, columns) in found.items():
            kind = id(columns), file.spec.spec_id
            if kind not in seen:
                seen[kind] = _find_names(file, columns, new, known)
            named = seen[kind]
            if named is None:
                continue
            if named not in self.there:
                self.there[named] = ids.take_file_ids(1)
                rows += add_mapping(table_id, self.there[named], named, ever)
            rows.append(MappedFile(data_file_id, self.there[named]))
        return rows

    def _find_known(self, new: TableMetadata) -> dict[NamePath, int]:
        """Return all names there are: what files are read by counts first, then what the client says, then the columns' own."""
        own: dict[NamePath, int] = {(item.name,): item.field_id for item in current_schema(new).fields}
        return {**own, **parse_name_mapping(new.properties.get(PROPERTY, "")), **self.merged}


def _find_names(file: TakenFile, columns: FileColumns, new: TableMetadata, known: Mapping[NamePath, int]) -> NamedFile | None:
    path = file.file.file_path
    named = find_names(path, columns, new, file.spec.spec_id, known)
    if named is not None:
        _check_meant(path, named, columns, new)
    return named


def _check_meant(path: str, named: NamedFile, columns: FileColumns, new: TableMetadata) -> None:
    """Raise BadRequest for a column that nobody knows, or that its writer took for another one than readers do."""
    own, told = {item.name: item.field_id for item in current_schema(new).fields}, dict(named)
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
    nested = {row.mapping_id for row in state.name_mappings if row.parent_column is not None or row.is_partition}
    there = {
        tuple(sorted((path[0], field_id) for path, field_id in paths.items())): mapping_id
        for mapping_id, paths in mapping.by_mapping.items()
        if mapping_id not in nested
    }
    return ColumnNames(footers, there, mapping.merged)
