"""The ids that clients choose for their snapshots, in the answers that need them. `rest` calls this in a thread, without a connection.

A client's snapshot gets the id of its lake snapshot. Iceberg's Java library looks its own id up in the metadata that answers its commit,
and in a load if the commit was answered with a 5xx.
Law: neither a metadata file nor a response that is cached lists a snapshot under a client's id.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from duckicelake.catalog.table_cache import PublishedTable
from duckicelake.catalog.tables import LoadedTable
from duckicelake.errors import CatalogError
from duckicelake.iceberg.avro.manifest_decoding import decode_manifest_list
from duckicelake.iceberg.manifest_list import ManifestFile, ManifestListHeader, encode_manifest_list
from duckicelake.iceberg.metadata import add_encoded_snapshots, find_snapshot
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.store.objects import Objects
from duckicelake.translate.client_snapshots import build_alias
from duckicelake.translate.locations import format_manifest_name, manifest_list_uri

ASKED_MS = 3_600_000
"""How long after its commit an author may look for its snapshot: twice as long as Iceberg's Java library does by default."""


def may_be_looked_for(loaded: LoadedTable, now_ms: int) -> bool:
    """Return True if the author of a table's newest change may have got no answer, and may look for its snapshot in a load."""
    published = loaded.published
    if published is None or not published.is_unanswered:
        return False
    found = (find_snapshot(published.metadata, note.lake_snapshot_id) for note in published.state.aliases)
    return any(snapshot is not None and now_ms - snapshot.timestamp_ms < ASKED_MS for snapshot in found)


def with_client_ids(objects: Objects, loaded: LoadedTable, wanted: Collection[int] | None = None) -> LoadedTable:
    """Return a table with aliases of the snapshots of its newest change, if a client made that; `wanted` selects some by their ids.

    The aliases are after all other snapshots. If the store fails, there are none: the change has landed, and clients go on without them.
    """
    aliases: Sequence[Snapshot] = ()
    if loaded.published is not None and (wanted is None or wanted):
        with suppress(CatalogError):
            aliases = _write_aliases(objects, loaded.published, wanted)
    if not aliases:
        return loaded
    digest = sha256(b"%b%b" % (loaded.digest, repr([alias.snapshot_id for alias in aliases]).encode())).digest()
    return replace(loaded, metadata=add_encoded_snapshots(loaded.metadata, aliases), digest=digest)


def _write_aliases(objects: Objects, published: PublishedTable, wanted: Collection[int] | None) -> list[Snapshot]:
    aliases: list[Snapshot] = []
    for note in published.state.aliases:
        snapshot = find_snapshot(published.metadata, note.lake_snapshot_id)
        is_wanted = wanted is None or note.client_snapshot_id in wanted
        if is_wanted and snapshot is not None and find_snapshot(published.metadata, note.client_snapshot_id) is None:
            aliases.append(_write_alias(objects, published, snapshot, note.client_snapshot_id))
    return aliases


def _write_alias(objects: Objects, published: PublishedTable, snapshot: Snapshot, client_snapshot_id: int) -> Snapshot:
    """Return the alias of a snapshot, with a manifest list of its own, because clients delete the list of a snapshot that they expire."""
    version = 2 if snapshot.first_row_id is None else 3
    header = ManifestListHeader(client_snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number, version, snapshot.first_row_id)
    content = encode_manifest_list(header, _read_manifests(objects, published, snapshot))
    uri = manifest_list_uri(published.metadata.location, client_snapshot_id, format_manifest_name(content))
    objects.put_new(uri, content)
    return build_alias(snapshot, client_snapshot_id, uri)


def _read_manifests(objects: Objects, published: PublishedTable, snapshot: Snapshot) -> Sequence[ManifestFile]:
    uri, manifests = published.newest_list
    return manifests if uri == snapshot.manifest_list else decode_manifest_list(objects.read(snapshot.manifest_list))
