"""Objects in tables' locations that nothing names: commits that were refused, repeated or broken off left them.

What names an object: a row of DuckLake, a note of ours, or a metadata file that somebody may still read from: the newest, one
in its log, or one that was the newest within the time that is given to commits in flight.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from duckicelake.catalog.tables import Ident, publish_table
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NotFound
from duckicelake.iceberg.decoding.manifests import decode_manifest, decode_manifest_list
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.metadata import TableMetadata, parse_metadata
from duckicelake.iceberg.snapshots import Snapshot, parse_snapshot
from duckicelake.lake.connect import reading
from duckicelake.lake.read import read_data_path
from duckicelake.lake.refs.read import read_kept_list, read_ref_notes
from duckicelake.lake.refs.rows import UNTOLD
from duckicelake.lake.rows import TableRow
from duckicelake.lake.writing.locations import list_earlier_locations, list_named_paths, list_other_paths
from duckicelake.lake.writing.revival import list_noted_tables
from duckicelake.store.objects import Objects
from duckicelake.translate.locations import file_uri, find_copy, table_folder, to_canonical, to_folder_uri, to_uri, version_hint_uri

METADATA = ".metadata.json"
NUMBER = re.compile(r"v?(\d+)[-.]", re.ASCII)


@dataclass(slots=True)
class Named:
    """What is named so far, in one spelling of each URI; a manifest list or manifest is read once."""

    objects: Objects
    uris: set[str] = field(default_factory=set[str])

    def add(self, uri: str) -> bool:
        """Take a name; False when it was there."""
        name = to_canonical(uri)
        is_new = name not in self.uris
        self.uris.add(name)
        return is_new

    def add_metadata(self, metadata: TableMetadata) -> None:
        """Take everything that a metadata file names, and what that names."""
        for item in (*metadata.statistics, *metadata.partition_statistics):
            self.add(item.statistics_path)
        for snapshot in metadata.snapshots:
            self.add_snapshot(snapshot)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Take a snapshot's manifest list, and what that names."""
        if self.add(snapshot.manifest_list):
            with suppress(NotFound):
                self.add_list(self.objects.read(snapshot.manifest_list))

    def add_list(self, content: bytes) -> None:
        """Take the manifests of a list, and their files."""
        for manifest in decode_manifest_list(content):
            if self.add(manifest.manifest_path):
                with suppress(NotFound):
                    _, entries = decode_manifest(self.objects.read(manifest.manifest_path), manifest.manifest_path)
                    for entry in entries:
                        self.add(entry.data_file.file_path)


def list_orphans(warehouse: Warehouse, ident: Ident, before: datetime) -> list[str]:
    """Return what nothing names in a live table's locations, of what was last written before that time.

    The table is published first, so that whatever its rows and notes imply is named. Locations that another table has had
    are passed over, and metadata files stay, but for those that a copy was staged by.
    Raises: what `load_table` raises. BadRequest: an object is there and is not what was written
    """
    table, published = publish_table(warehouse, ident)
    objects, metadata = warehouse.objects, published.metadata
    with reading(warehouse.lake) as conn:
        locations = dict.fromkeys([*list_earlier_locations(conn, table.table_id), metadata.location])
        own = [location for location in locations if len(list_noted_tables(conn, location)) == 1]
        data = to_folder_uri(read_data_path(conn))
    everything = {uri: modified for location in own for uri, modified in objects.list_modified(location)}
    found = {uri: modified for uri, modified in everything.items() if not to_canonical(uri).startswith(data)}
    kept = {version_hint_uri(location) for location in own}
    versions = {uri: modified for uri, modified in found.items() if uri.endswith(METADATA) and not _is_staged(own, uri)}
    old = [uri for uri, modified in found.items() if modified < before and uri not in versions and uri not in kept]
    if not old:
        return []
    named = Named(objects)
    # read after the objects were listed: what a commit has named since is among these
    _add_rows(warehouse, table, own, named)
    named.add_metadata(metadata)
    for uri in {*list_current_since(versions, before), *(uri for _, uri in metadata.metadata_log)}:
        with suppress(NotFound):
            named.add_metadata(parse_metadata(decode_json(objects.read(uri), uri)))
        named.add(uri)
    return sorted(uri for uri in old if to_canonical(uri) not in named.uris)


def _is_staged(locations: Sequence[str], uri: str) -> bool:
    """Tell whether a metadata file is one that a copy was written by before it became known."""
    return any(find_copy(location, uri) is not None for location in locations)


def _add_rows(warehouse: Warehouse, table: TableRow, locations: Sequence[str], named: Named) -> None:
    """Take what rows and notes name in these locations: files, and the snapshots that refs keep or have kept."""
    with reading(warehouse.lake) as conn:
        folder = table_folder(read_data_path(conn), table)
        for path, is_relative in list_named_paths(conn, table.table_id, locations):
            named.add(file_uri(folder, path, is_relative))
        # its own files beside main are named by the snapshots that have them, as long as these are kept
        for path in list_other_paths(conn, locations, table.table_id):
            named.add(to_uri(path))
        kept = read_ref_notes(conn, table.table_id).kept
        lists = [read_kept_list(conn, table.table_id, note.snapshot_id) for note in kept if note.is_beside]
    for content in lists:
        named.add_list(content)
    for note in kept:
        if note.json != UNTOLD:
            named.add_snapshot(parse_snapshot(json.loads(note.json)))


def list_current_since(versions: Mapping[str, datetime], since: datetime) -> Sequence[str]:
    """Return the metadata files that were the newest one at some time since."""
    # S3 tells whole seconds: of several versions in one, the number says which came last
    in_order = sorted(versions, key=lambda uri: (versions[uri], _find_number(uri)))
    older = [uri for uri in in_order if versions[uri] < since]
    return [*older[-1:], *(uri for uri in in_order if versions[uri] >= since)]


def _find_number(uri: str) -> int:
    found = NUMBER.match(uri.rpartition("/")[2])
    return int(found[1]) if found else 0
