"""The columns of data files that may carry no field ids, read from their footers before any lock."""

from collections.abc import Hashable, Mapping, Sequence

from duckicelake.catalog.warehouse import Warehouse
from duckicelake.catalog.writing.places import NO_TABLE, Grounds, check_files
from duckicelake.catalog.writing.ready.snapshots import FileChange
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.updates import SetProperties, TableUpdate
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import find_sources
from duckicelake.store.objects import Objects
from duckicelake.store.parquet import read_columns
from duckicelake.translate.locations import list_paths, table_folder
from duckicelake.translate.shape.name_mapping import PROPERTY, FileColumns

MAX_FILES = 10_000
MAX_COLUMNS = 1_000_000

Footers = Mapping[str, FileColumns]
"""The columns of data files by path."""


def may_lack_field_ids(base: TableMetadata | None, updates: Sequence[TableUpdate]) -> bool:
    """Tell whether files of a table may have no field ids: no reader would know their columns without the table's mapping."""
    told = any(PROPERTY in update.updates for update in updates if isinstance(update, SetProperties))
    return told or (base is not None and PROPERTY in base.properties)


def read_footers(warehouse: Warehouse, table: TableRow | None, grounds: Grounds, changes: Sequence[FileChange]) -> Footers:
    """Return the columns of the data files that come into a table.

    Raises: BadRequest: one is missing, no Parquet file or not where the table's may lie, or they are too many
    """
    files = {file.file_path: file for change in changes for file in change.added}
    returned = {
        file.file_path: file
        for change in changes
        for file in change.returned
        # what was on a branch comes from the table's own locations alone, and else is refused
        if not change.is_trusted or grounds.is_own(file.file_path)
    }
    files |= _without_known(warehouse, table, returned)
    if len(files) > MAX_FILES:
        raise BadRequest(f"A table with {PROPERTY!r} gets {len(files)} files, more than the {MAX_FILES} that are looked into at once.")
    elsewhere = [path for path in files if not grounds.is_own(path)]
    if elsewhere:
        with reading(warehouse.lake) as conn:
            check_files(conn, NO_TABLE if table is None else table.table_id, grounds, elsewhere)
    return _read_all(warehouse.objects, files)


def _without_known(warehouse: Warehouse, table: TableRow | None, files: Mapping[str, DataFile]) -> Mapping[str, DataFile]:
    """Leave out the files of which DuckLake still has a row: they come back as they were."""
    if table is None or not files:
        return files
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), table)
        wanted = {path: uri for uri in files for path in list_paths(folder, uri)}
        known = {wanted[path] for path in find_sources(conn, table.table_id, wanted)}
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


def read_file_columns(objects: Objects, file: DataFile) -> FileColumns:
    """Return the columns of a data file. Raises BadRequest when it is missing or no Parquet file."""
    path = file.file_path
    try:
        return FileColumns(*read_columns(objects.open(path, file.file_size_in_bytes)))
    except NotFound as error:
        raise BadRequest(f"Data file {path!r} is missing.") from error
    except Unsupported as error:
        raise BadRequest(f"Cannot read data file {path!r}: {error.message}") from error
