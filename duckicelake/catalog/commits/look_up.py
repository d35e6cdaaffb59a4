"""The rows of the lake that a request concerns, read under the lake's lock so that planning the commit reads nothing.

`commits.lock` calls `look_up` in the commit's transaction. It only reads Postgres; the checks of names, locations and files are made
here, too. A fast append to a table's own location takes one query.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID, uuid4

import psycopg

from duckicelake.catalog.commits.apply import AppliedRequest
from duckicelake.catalog.incoming.file_changes import FileChange
from duckicelake.catalog.location_rules import (
    NO_TABLE,
    AllowedLocations,
    check_files,
    check_free,
    check_may_hold_new,
    check_new_location,
    check_new_uuid,
    check_path_properties,
    check_table_location,
    get_last_version,
    get_place,
    read_default_location,
)
from duckicelake.iceberg.metadata import get_current_schema
from duckicelake.lake.lake_format import LakeFormat
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.lookups import (
    FileOrigin,
    LiveDataFile,
    LiveTableRows,
    list_file_origins,
    list_files_by_path,
    list_inlined_versions,
    read_file_ids_by_path,
    read_inlined_batch,
)
from duckicelake.translate.locations import find_inlined_snapshot, list_paths, list_spellings, table_folder, to_canonical
from duckicelake.translate.to_ducklake.tables import TableTarget
from duckicelake.translate.unreadable_columns import ColumnHistory, build_rewrite_refusal, check_appendable, list_unseen


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The rows that the lake has of the files of a request.

    `folder`: that of the table's relative paths; empty if none of the files can have one. `live`: live data files by their paths.
    `sources`: the newest data files, live or not, of the files that return, by URI. `inlined_versions`: the schema versions of which the
    table has inlined rows. `inlined_begins`: the lake snapshots whose inlined rows are live, as far as added files stand for them.
    """

    folder: str = ""
    live: Mapping[str, Sequence[LiveDataFile]] = field(default_factory=dict[str, Sequence[LiveDataFile]])
    sources: Mapping[str, int] = field(default_factory=dict[str, int])
    inlined_versions: Sequence[int] = ()
    inlined_begins: frozenset[int] = frozenset()

    def list_live(self, paths: Mapping[str, str]) -> list[LiveDataFile]:
        """Return the live data files with one of these paths, in the order of their ids."""
        return sorted(file for path in paths for file in self.live.get(path, ()))


NO_FILES_FOUND = FoundFiles()


@dataclass(frozen=True, slots=True)
class TableChange:
    """A request with all that planning it needs. `target` is where a new table goes, which begins after the version `last_version`.

    The metadata of `applied` have the uuid and the location that are stored.
    """

    applied: AppliedRequest
    found: FoundFiles
    target: TableTarget | None = None
    last_version: int = 0


def look_up(conn: psycopg.Connection, applied: AppliedRequest, lake_format: LakeFormat) -> TableChange:
    """Return a request with the rows that it concerns.

    Raises: BadRequest, Forbidden: the table may not have its location, or its files not theirs. NoSuchNamespace, AlreadyExists: of a
    table that is to be created
    """
    base, old, new = applied.prepared.base, applied.old, applied.new
    if base.row is None or old is None:
        change = _look_up_target(conn, applied, lake_format)
        _check_all_files(conn, NO_TABLE, change.applied, NO_FILES_FOUND)
        return change
    if new.location != old.location:
        new = replace(new, location=check_table_location(conn, new.location, base.allowed.roots, base.row.table_id))
        applied = replace(applied, new=new)
    check_path_properties(conn, base.row.table_id, base.allowed, new.properties, old.properties)
    found = _look_up_files(conn, base.row, base.allowed, applied.files.changes)
    _check_all_files(conn, base.row.table_id, applied, found)
    assert applied.live is not None and base.published is not None, "a table that is there has been published"
    _check_unseen(conn, applied, applied.live, (found, base.published.state.oldest.snapshot_id))
    return TableChange(applied, found)


def _look_up_target(conn: psycopg.Connection, applied: AppliedRequest, lake_format: LakeFormat) -> TableChange:
    request, base, new = applied.prepared.request, applied.prepared.base, applied.new
    target = get_place(conn, request.ident, lake_format)
    check_free(conn, request.ident, target)
    uuid = UUID(new.table_uuid) if new.table_uuid else uuid4()
    check_new_uuid(conn, uuid)
    default = read_default_location(conn, target, uuid)
    if new.location in ("", default):
        check_may_hold_new(conn, target.schema_id, base.allowed.server_roots)
    location = check_new_location(conn, new.location, default, base.allowed.roots) if new.location else default
    new = replace(new, table_uuid=str(uuid), location=location)
    check_path_properties(conn, NO_TABLE, AllowedLocations((location,), base.allowed.roots), new.properties, {})
    return TableChange(replace(applied, new=new), NO_FILES_FOUND, target, get_last_version(conn, location))


def _look_up_files(conn: psycopg.Connection, row: TableRow, allowed: AllowedLocations, changes: Sequence[FileChange]) -> FoundFiles:
    """Return what the lake has of the files that changes add, return and remove."""
    came = [file.file_path for change in changes for file in (*change.added, *change.returned)]
    returned = [file.file_path for change in changes for file in change.returned]
    gone = [uri for change in changes for uri in change.removed]
    if not came and not gone:
        return NO_FILES_FOUND
    derived = {uri for uri in gone if find_inlined_snapshot(allowed.locations, uri) is not None}
    # No location lies under DATA_PATH, from which relative paths lead on.
    needs_folder = bool(returned) or len(derived) < len(gone) or not all(allowed.is_own(uri) for uri in came)
    folder = table_folder(read_data_path(conn), row) if needs_folder else ""
    paths = {path for uri in came for path in list_spellings(folder, uri)} | {path for uri in gone for path in list_paths(folder, uri)}
    live: dict[str, list[LiveDataFile]] = {}
    for file in list_files_by_path(conn, row.table_id, paths):
        live.setdefault(file.path, []).append(file)
    wanted = {path: uri for uri in returned for path in list_paths(folder, uri)}
    known = read_file_ids_by_path(conn, row.table_id, wanted) if wanted else {}
    begins = _list_inlined_begins(allowed, came)
    versions = list_inlined_versions(conn, row.table_id) if derived or begins else ()
    inlined = frozenset(begin for begin in begins if _has_live_rows(conn, row.table_id, versions, begin))
    return FoundFiles(folder, live, {wanted[path]: source for path, source in known.items()}, versions, inlined)


def _list_inlined_begins(allowed: AllowedLocations, uris: Sequence[str]) -> set[int]:
    """Return the lake snapshots whose inlined rows files stand for."""
    locations = [to_canonical(location) for location in allowed.locations]
    found = (find_inlined_snapshot(locations, to_canonical(uri)) for uri in uris)
    return {begin for begin in found if begin is not None}


def _has_live_rows(conn: psycopg.Connection, table_id: int, versions: Sequence[int], begin: int) -> bool:
    return any(end is None for version in versions for _, end in read_inlined_batch(conn, table_id, version, begin))


def _check_all_files(conn: psycopg.Connection, table_id: int, applied: AppliedRequest, found: FoundFiles) -> None:
    """Raise BadRequest for new data files that lie where the table may have none. Those of a snapshot that is there were checked."""
    for change in applied.files.changes:
        if not change.is_trusted:
            fresh = [file.file_path for file in change.returned if file.file_path not in found.sources]
            check_files(conn, table_id, applied.prepared.base.allowed, [*(file.file_path for file in change.added), *fresh])
    for prepared in applied.files.branch_snapshots.values():
        check_files(conn, table_id, applied.prepared.base.allowed, [file.file_path for file in prepared.change.added])


def _check_unseen(conn: psycopg.Connection, applied: AppliedRequest, live: LiveTableRows, at: tuple[FoundFiles, int]) -> None:
    """Raise BadRequest for files that lack values of columns that clients do not see: NOT NULL ones, or those of rows that go.

    Rows may go in one snapshot of the request, and come back without the values in another one.
    """
    found, oldest = at
    files, old = applied.files, applied.old
    assert old is not None, "a new table has no rows that go"
    unseen = list_unseen(live.columns, get_current_schema(old))
    if not unseen:
        return
    off_main = any(prepared.change.added for prepared in files.branch_snapshots.values())
    if off_main:
        check_appendable(unseen)
    gone = [uri for change in files.changes for uri in (*change.removed, *change.deletes)]
    if not gone or not (off_main or any(_brings_files(change, found) for change in files.changes)):
        return
    histories = [ColumnHistory(live.columns, row, oldest) for row in unseen]
    if any(history.may_have_values(*origin) for origin in _list_origins(conn, applied, gone) for history in histories):
        raise build_rewrite_refusal(unseen)


def _brings_files(change: FileChange, found: FoundFiles) -> bool:
    """Return True if a change adds files that a client wrote, also those of a branch that main is set to."""
    return bool(change.added) or any(file.file_path not in found.sources for file in change.returned)


def _list_origins(conn: psycopg.Connection, applied: AppliedRequest, uris: Sequence[str]) -> list[FileOrigin]:
    """Return the origins of live files; inlined rows, and files derived from them, are DuckDB's."""
    base = applied.prepared.base
    if base.row is None or any(find_inlined_snapshot(base.allowed.locations, uri) is not None for uri in uris):
        return [FileOrigin(0, is_noted=False, is_own=False)]
    folder = table_folder(read_data_path(conn), base.row)
    return list_file_origins(conn, base.row.table_id, folder, [path for uri in uris for path in list_paths(folder, uri)])
