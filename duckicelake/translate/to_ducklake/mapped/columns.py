"""Which columns files without field ids have, by the names in them, and how DuckLake notes that."""

from collections.abc import Mapping
from dataclasses import dataclass

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.metadata import TableMetadata, current_schema
from duckicelake.iceberg.schema import leaf_fields
from duckicelake.iceberg.types import walk_fields
from duckicelake.lake.note_rows import MappedName, NewMapping
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.shape.name_mapping import FileColumns, NameMapping, NamePath, check_mapped_file
from duckicelake.translate.to_ducklake.columns import to_column_type
from duckicelake.translate.to_ducklake.mapped.folders import Names, Untold

IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """How the columns of a file without field ids are found: those at its root, and those in names of the folders that it lies in."""

    columns: Names
    folders: Names = ()


def find_names(path: str, columns: FileColumns, metadata: TableMetadata, known: Mapping[NamePath, int]) -> NamedFile | None:
    """Return which columns a file without field ids has by the names that are `known`; None for one that carries them.

    Raises: BadRequest: the file cannot be read alike by Iceberg's readers and DuckDB
    """
    roots = {name[0]: field_id for name, field_id in columns.field_ids.items() if len(name) == 1}
    carried = {field_id for field_id in columns.field_ids.values() if field_id is not None}
    if carried and None in roots.values():
        raise BadRequest(f"Data file {path!r} carries field ids for some of its columns only; rewrite it.")
    return None if carried else NamedFile(_name_roots(path, columns, metadata, known))


def list_untold(path: str, columns: FileColumns, metadata: TableMetadata, spec_id: int, named: NamedFile | None) -> tuple[Untold, ...]:
    """Return the columns that files have in their partitions alone.

    Raises: BadRequest: DuckLake would go by field ids, and so see none of them
    """
    spec = next((spec for spec in metadata.partition_specs if spec.spec_id == spec_id), None)
    live = {item.field_id: item for item in current_schema(metadata).fields}
    carried = {field_id for field_id in columns.field_ids.values() if field_id is not None}
    present = carried if named is None else {field_id for _, field_id in named.columns}
    untold = tuple(
        Untold(place, live[item.source_id])
        for place, item in enumerate(spec.fields if spec else ())
        if item.transform == IDENTITY and item.source_id in live and item.source_id not in present
    )
    if untold and named is None:
        raise BadRequest(
            f"Data file {path!r} carries field ids and has the column {untold[0].column.name!r} in its partition alone, which DuckLake "
            "would not see; rewrite it."
        )
    return untold


def _name_roots(path: str, columns: FileColumns, metadata: TableMetadata, known: Mapping[NamePath, int]) -> Names:
    if any(len(name) > 1 for name in columns.field_ids):
        raise BadRequest(f"Data file {path!r} has nested columns and carries no field ids, which is not taken yet; rewrite it.")
    named = tuple(sorted((name, known[name,]) for (name,) in columns.field_ids if (name,) in known))
    if len({field_id for _, field_id in named}) < len(named):
        raise BadRequest(f"Data file {path!r} has two columns for one by the name mapping; rewrite it.")
    _check_readers(path, columns, metadata, dict(named))
    return named


def _check_readers(path: str, columns: FileColumns, metadata: TableMetadata, named: Mapping[str, int]) -> None:
    ids = {field_id for _, item in walk_fields(current_schema(metadata).fields) for field_id in [item.field_id]}
    types = {field_id: frozenset({to_column_type(leaf, path)}) for field_id, leaf in leaf_fields(current_schema(metadata))}
    kept = {(name,): field_id for name, field_id in named.items() if field_id in ids}
    try:
        check_mapped_file(path, 0, columns, NameMapping({0: kept}, kept, {}, frozenset(ids), types))
    except Unsupported as error:
        told = error.message.replace(", added with ducklake_add_data_files,", "")
        raise BadRequest(told.replace("Copy the table with CREATE TABLE … AS SELECT.", "Rewrite it.")) from error


def add_mapping(table_id: int, mapping_id: int, names: NamedFile, live: set[int]) -> list[NewRow]:
    """Return the mapping by which DuckDB finds the columns of files without field ids."""
    told = [*((name, field_id, False) for name, field_id in names.columns), *((name, field_id, True) for name, field_id in names.folders)]
    kept = [one for one in told if one[1] in live]
    return [
        NewMapping(mapping_id, table_id),
        *(MappedName(mapping_id, place, *one) for place, one in enumerate(kept)),
    ]
