"""Removal of objects that no table needs: those of purged tables, of staged tables that were never created, and orphans.

`drop_table` and a repeated drop call the purge functions on a worker thread. `duckicelake check --repair` and the Spark job `maintain` (on
its driver) call `finish_purge` and the functions for staged locations and orphans, through `commands.check.remove_orphans`. Each function
opens its own transactions and takes no lake lock. The row of a purge is deleted after the objects, so that a purge which a crash ends is
finished later. `list_orphans` publishes the table, and only returns what the caller is to delete, as `list_leftovers` does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import psycopg

from duckicelake.catalog.location_rules import NO_TABLE
from duckicelake.catalog.tables import Ident, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import CatalogError, NotFound
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest, decode_manifest_list
from duckicelake.iceberg.json_reader import decode_json
from duckicelake.iceberg.metadata import TableMetadata, parse_metadata
from duckicelake.iceberg.snapshots import Snapshot, parse_snapshot
from duckicelake.lake.branches.registry import is_shared
from duckicelake.lake.connect import reading, writing
from duckicelake.lake.locations import (
    StagedLocation,
    delete_created_staged,
    delete_staged,
    find_overlapping_table,
    find_overlapping_view,
    has_table,
    list_earlier_locations,
    list_named_paths,
    list_other_paths,
    list_staged,
    list_statistics_paths,
)
from duckicelake.lake.note_rows import UNPUBLISHED
from duckicelake.lake.notes import read_kept_list, read_notes, read_ref_notes
from duckicelake.lake.read import read_data_path
from duckicelake.lake.rows import TableNotes, TableRow
from duckicelake.lake.writing.registration import (
    Purge,
    claim_purge,
    delete_purge,
    has_other_table,
    list_purges,
    list_unregistered_locations,
)
from duckicelake.store.objects import Objects
from duckicelake.translate.locations import (
    file_uri,
    find_copy,
    metadata_uri,
    table_folder,
    to_canonical,
    to_folder_uri,
    to_uri,
    version_hint_uri,
)

CLAIMED_OBJECTS = 1000
"""So many objects are deleted well within the hour for which a claim holds."""


@dataclass(frozen=True, slots=True)
class TableObjects:
    """The objects in a table's locations before it was dropped. Objects written later are not the table's."""

    table: TableRow
    uris: Sequence[str]
    locations: Sequence[str] = ()


def list_table_objects(warehouse: Warehouse, table: TableRow) -> TableObjects:
    """Return the objects of a live table; where another one was before it, its metadata files alone."""
    with reading(warehouse.lake) as conn:
        notes = read_notes(conn, table.table_id)
        if notes.table is None:
            return TableObjects(table, [])
        locations = [notes.table.location, *list_earlier_locations(conn, table.table_id)]
        shared = _list_shared(conn, table.table_id, locations)
    own = _list_own_metadata(notes)
    return TableObjects(
        table,
        [uri for location in locations for uri, _ in warehouse.objects.list_under(location) if location not in shared or uri in own],
        locations,
    )


def purge_objects(warehouse: Warehouse, table_objects: TableObjects, noted: Purge) -> None:
    """Remove the objects of a purged table that no row of DuckLake names. If the store fails, the rest stays: the drop has landed."""
    try:
        with reading(warehouse.lake) as conn:
            if is_shared(conn):
                # A branch may read these files. The purge stays noted, and is finished when the lake has no branches.
                return
            named = _list_named(conn, table_objects)
        _delete_purged(warehouse, noted, [uri for uri in table_objects.uris if to_canonical(uri) not in named])
    except CatalogError:
        # The drop has landed, so the request must not fail; the noted purge is finished later.
        return


def finish_noted_purges(warehouse: Warehouse, table_uuid: UUID | None) -> None:
    """Remove what is left of a purged table, when its drop is asked for again."""
    if table_uuid is None:
        return
    try:
        with reading(warehouse.lake) as conn:
            purges = list_purges(conn, table_uuid)
        for purge_ in purges:
            finish_purge(warehouse, purge_)
    except CatalogError:
        return


def finish_purge(warehouse: Warehouse, noted: Purge) -> list[str]:
    """Remove what a broken-off purge has left of a table's objects, or those of a table that DuckLake has forgotten, and return their URIs.

    What was written after the drop is another's, and so is a location where another table is; where another one was before, the
    table's own metadata files alone are its own.
    """
    with reading(warehouse.lake) as conn:
        if is_shared(conn):
            return []
        own = _list_own_metadata(read_notes(conn, noted.table_id))
        free = [location for location in noted.locations if find_overlapping_table(conn, noted.table_id, to_canonical(location)) is None]
        shared = _list_shared(conn, noted.table_id, free)
        data = to_folder_uri(read_data_path(conn))
    left = [
        uri
        for location in free
        for uri, modified in warehouse.objects.list_modified(location)
        if modified <= noted.begun_at and (location not in shared or uri in own) and not to_canonical(uri).startswith(data)
    ]
    with reading(warehouse.lake) as conn:
        paths = [path for path, is_relative in list_named_paths(conn, noted.table_id, noted.locations) if not is_relative]
        named = {to_canonical(to_uri(path)) for path in (*paths, *list_other_paths(conn, noted.locations, noted.table_id))}
    return _delete_purged(warehouse, noted, [uri for uri in left if to_canonical(uri) not in named])


def _list_shared(conn: psycopg.Connection, table_id: int, locations: Sequence[str]) -> set[str]:
    """Return those locations that an unregistered table has, or that another table has or had which DuckLake has not forgotten."""
    unregistered = {to_canonical(location) for location in list_unregistered_locations(conn, table_id)}
    return {location for location in locations if to_canonical(location) in unregistered or has_other_table(conn, table_id, location)}


def _list_own_metadata(notes: TableNotes) -> set[str]:
    """Return the URIs of a table's own metadata files, each at the location that the table had then."""
    if notes.table is None:
        return set()
    return {metadata_uri(row.earlier_location or notes.table.location, row.metadata_version) for row in notes.metadata_log}


def _delete_purged(warehouse: Warehouse, noted: Purge, uris: Sequence[str]) -> list[str]:
    """Delete objects of a purged table, then the note of its purge, and return what was deleted.

    Each batch is claimed first: a table that came back since the objects were listed keeps the rest.
    """
    gone: list[str] = []
    for first in range(0, len(uris), CLAIMED_OBJECTS):
        with writing(warehouse.lake) as conn:
            claimed = claim_purge(conn, noted)
            # A table may have been created or moved there since the objects were listed.
            free = [each for each in claimed or () if find_overlapping_table(conn, noted.table_id, to_canonical(each)) is None]
        if claimed is None:
            return gone
        folders = tuple(to_folder_uri(location) for location in free)
        batch = [uri for uri in uris[first : first + CLAIMED_OBJECTS] if to_canonical(uri).startswith(folders)]
        warehouse.objects.delete_many(batch)
        gone += batch
    with writing(warehouse.lake) as conn:
        delete_purge(conn, noted)
    return gone


def _list_named(conn: psycopg.Connection, gone: TableObjects) -> set[str]:
    folder = table_folder(read_data_path(conn), gone.table)
    paths = list_named_paths(conn, gone.table.table_id, gone.locations)
    return {to_canonical(file_uri(folder, path, is_relative)) for path, is_relative in paths}


def list_abandoned_locations(warehouse: Warehouse, before: datetime) -> Sequence[StagedLocation]:
    """Return the locations that were given to staged tables before that time and have no table.

    The notes of staged tables that exist by now are deleted.
    """
    with writing(warehouse.lake) as conn:
        delete_created_staged(conn)
    with reading(warehouse.lake) as conn:
        return list_staged(conn, before)


def list_leftovers(warehouse: Warehouse, noted: StagedLocation, before: datetime) -> Sequence[str] | None:
    """Return the objects in a staged location that has no table and that nothing names; None if one is younger than that time."""
    found = dict(warehouse.objects.list_modified(noted.location))
    if any(modified >= before for modified in found.values()):
        return None
    # Read this after the objects were listed, so that a table that was created meanwhile is found.
    with reading(warehouse.lake) as conn:
        place = to_canonical(noted.location)
        if has_table(conn, place) or find_overlapping_view(conn, place) is not None:
            return []
        paths = [path for path, is_relative in list_named_paths(conn, NO_TABLE, [place]) if not is_relative]
        named = {to_canonical(to_uri(path)) for path in (*paths, *list_other_paths(conn, [place]), *list_statistics_paths(conn, place))}
        data = to_folder_uri(read_data_path(conn))
    return sorted(uri for uri in found if to_canonical(uri) not in named and not to_canonical(uri).startswith(data))


def forget_staged_location(warehouse: Warehouse, noted: StagedLocation) -> None:
    """Delete the note of a staged location in which no object is left."""
    with writing(warehouse.lake) as conn:
        delete_staged(conn, noted)


METADATA = ".metadata.json"
NUMBER = re.compile(r"v?(\d+)[-.]", re.ASCII)


@dataclass(slots=True)
class NamedObjects:
    """The objects named so far, each URI in one spelling; each manifest list and manifest is read once."""

    objects: Objects
    uris: set[str] = field(default_factory=set[str])

    def add(self, uri: str) -> bool:
        """Add a URI; return False if it was added before."""
        name = to_canonical(uri)
        is_new = name not in self.uris
        self.uris.add(name)
        return is_new

    def add_metadata(self, metadata: TableMetadata) -> None:
        """Add all URIs that a metadata file names, and those that its manifest lists and manifests name."""
        for item in (*metadata.statistics, *metadata.partition_statistics):
            self.add(item.statistics_path)
        for snapshot in metadata.snapshots:
            self.add_snapshot(snapshot)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Add a snapshot's manifest list, and the URIs that it names."""
        if self.add(snapshot.manifest_list):
            with suppress(NotFound):
                self.add_list(self.objects.read(snapshot.manifest_list))

    def add_list(self, content: bytes) -> None:
        """Add the manifests of a list, and their files."""
        for manifest in decode_manifest_list(content):
            if self.add(manifest.manifest_path):
                with suppress(NotFound):
                    _, entries = decode_manifest(self.objects.read(manifest.manifest_path), manifest.manifest_path)
                    for entry in entries:
                        self.add(entry.data_file.file_path)


def list_orphans(warehouse: Warehouse, ident: Ident, before: datetime) -> list[str]:
    """Return the objects in a live table's locations that nothing names and that were last written before that time.

    The table is published first, so that everything its rows and notes imply is named. Locations that another table has had
    are skipped. Metadata files stay, except those of a copy that was never registered.
    Raises: what `load_table` raises. BadRequest: an object is there and is not what was written
    """
    table, published = publish_table(warehouse, ident)
    objects, metadata = warehouse.objects, published.metadata
    with reading(warehouse.lake) as conn:
        locations = dict.fromkeys([*list_earlier_locations(conn, table.table_id), metadata.location])
        shared = _list_shared(conn, table.table_id, [*locations])
        own = [location for location in locations if location not in shared]
        data = to_folder_uri(read_data_path(conn))
    everything = {uri: modified for location in own for uri, modified in objects.list_modified(location)}
    found = {uri: modified for uri, modified in everything.items() if not to_canonical(uri).startswith(data)}
    kept = {version_hint_uri(location) for location in own}
    versions = {uri: modified for uri, modified in found.items() if uri.endswith(METADATA) and not _is_staged(own, uri)}
    old = [uri for uri, modified in found.items() if modified < before and uri not in versions and uri not in kept]
    if not old:
        return []
    named = NamedObjects(objects)
    # Read this after the objects were listed, so that files of a commit that landed meanwhile are found.
    _add_rows(warehouse, table, own, named)
    named.add_metadata(metadata)
    for uri in {*list_current_since(versions, before), *(uri for _, uri in metadata.metadata_log)}:
        with suppress(NotFound):
            named.add_metadata(parse_metadata(decode_json(objects.read(uri), uri)))
        named.add(uri)
    return sorted(uri for uri in old if to_canonical(uri) not in named.uris)


def _is_staged(locations: Sequence[str], uri: str) -> bool:
    """Return True if a metadata file belongs to a copy that is not registered yet."""
    return any(find_copy(location, uri) is not None for location in locations)


def _add_rows(warehouse: Warehouse, table: TableRow, locations: Sequence[str], named: NamedObjects) -> None:
    """Add what rows and notes name in these locations: files, and the snapshots that refs keep or have kept."""
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), table)
        for path, is_relative in list_named_paths(conn, table.table_id, locations):
            named.add(file_uri(folder, path, is_relative))
        # The table's own files on branches are named by their snapshots for as long as these are kept.
        for path in list_other_paths(conn, locations, table.table_id):
            named.add(to_uri(path))
        kept = read_ref_notes(conn, table.table_id).kept
        lists = [read_kept_list(conn, table.table_id, note.snapshot_id) for note in kept if note.is_off_main]
    for content in lists:
        named.add_list(content)
    for note in kept:
        if note.json != UNPUBLISHED:
            named.add_snapshot(parse_snapshot(json.loads(note.json)))


def list_current_since(versions: Mapping[str, datetime], since: datetime) -> Sequence[str]:
    """Return the metadata files that were the newest one at some time since."""
    # S3 reports whole seconds; among versions of one second, the version number decides.
    in_order = sorted(versions, key=lambda uri: (versions[uri], _parse_version(uri)))
    older = [uri for uri in in_order if versions[uri] < since]
    return [*older[-1:], *(uri for uri in in_order if versions[uri] >= since)]


def _parse_version(uri: str) -> int:
    found = NUMBER.match(uri.rpartition("/")[2])
    return int(found[1]) if found else 0
