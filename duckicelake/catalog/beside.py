"""Snapshots beside main, published: their manifest lists are noted, and written where the store has them not."""

import json

import psycopg

from duckicelake.catalog.memory import TableMemory
from duckicelake.iceberg.decoding.manifests import decode_manifest_list
from duckicelake.iceberg.manifest_list import ManifestListHeader, encode_manifest_list
from duckicelake.iceberg.snapshots import Snapshot, parse_snapshot
from duckicelake.lake.refs.read import read_kept_list
from duckicelake.lake.rows import SnapshotNote, TableState
from duckicelake.store.objects import Objects
from duckicelake.translate.locations import format_digest, manifest_list_uri
from duckicelake.translate.shape.told_snapshots import to_alias


def publish_beside(conn: psycopg.Connection, objects: Objects, state: TableState, memory: TableMemory, location: str) -> list[Snapshot]:
    """Write the manifest lists of snapshots beside main, and return those of the newest commit under their authors' ids."""
    known = memory.known_uris if memory.known_uris is not None else set[str]()
    told = {note.lake_snapshot_id: note for note in state.aliases}
    aliases: list[Snapshot] = []
    for kept in state.notes.refs.kept:
        if not kept.is_beside:
            continue
        snapshot = parse_snapshot(json.loads(kept.json))
        note = told.get(kept.snapshot_id)
        if snapshot.manifest_list in known and note is None:
            continue
        content = read_kept_list(conn, state.table.table_id, kept.snapshot_id)
        if not content:
            # a registered table brought the list along
            known.add(snapshot.manifest_list)
            continue
        _put(objects, known, snapshot.manifest_list, content)
        if note is not None:
            alias, copy = _to_alias(snapshot, note, content, location)
            _put(objects, known, alias.manifest_list, copy)
            aliases.append(alias)
    return aliases


def _put(objects: Objects, known: set[str], uri: str, content: bytes) -> None:
    if uri not in known:
        objects.put_new(uri, content)
        known.add(uri)


def _to_alias(snapshot: Snapshot, note: SnapshotNote, content: bytes, location: str) -> tuple[Snapshot, bytes]:
    """Return a snapshot under its author's id with a copy of its list: whoever drops one deletes its list."""
    version = 2 if snapshot.first_row_id is None else 3
    header = ManifestListHeader(
        note.client_snapshot_id, snapshot.parent_snapshot_id, snapshot.sequence_number, version, snapshot.first_row_id
    )
    copy = encode_manifest_list(header, decode_manifest_list(content))
    return to_alias(snapshot, note.client_snapshot_id, manifest_list_uri(location, note.client_snapshot_id, format_digest(copy))), copy
