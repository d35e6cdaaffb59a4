"""Which snapshot a plan is of, and the manifests that it is made from."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from duckicelake.catalog.scanning.reading import Source, split_contents
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest_list import ManifestFile
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.scanning.deletes import DeleteIndex
from duckicelake.iceberg.scanning.requests import ScanRequest
from duckicelake.iceberg.snapshots import Snapshot
from duckicelake.translate.shape.told_snapshots import ALIAS_PROPERTY

FindClientId = Callable[[int], int | None]
"""What gives DuckLake's id of a snapshot that a client named otherwise."""
OWN_LIST = re.compile(r"snap-(\d+)-[0-9a-f]{32}\.avro")
APPEND = "append"
NO_SNAPSHOT = -1


@dataclass(frozen=True, slots=True)
class Material:
    """What a scan is planned from.

    `list_name` tells it from any other. `appended`: of the manifests, the files alone count that these snapshots added; None: all
    that are there.
    """

    list_name: str
    manifests: Sequence[ManifestFile]
    deletes: DeleteIndex
    appended: frozenset[int] | None = None


NOTHING = Material("", (), DeleteIndex(()))


def pick_snapshot(metadata: TableMetadata, request: ScanRequest, find: FindClientId) -> Snapshot | None:
    """Return the snapshot that a request names, or main's newest; None for a table without any.

    Raises: BadRequest: the table has no such snapshot
    """
    wanted = request.end_snapshot_id if request.snapshot_id is None else request.snapshot_id
    return find_snapshot(metadata, metadata.current_snapshot_id) if wanted is None else get_snapshot(metadata, wanted, find)


def get_snapshot(metadata: TableMetadata, snapshot_id: int, find: FindClientId) -> Snapshot:
    """Return a snapshot by DuckLake's id or by the one that its author gave it, under DuckLake's id.

    Raises: BadRequest: the table has no such snapshot
    """
    found = find_snapshot(metadata, snapshot_id)
    own_id = found.summary.get(ALIAS_PROPERTY) if found is not None else None
    if own_id is not None:
        found = find_snapshot(metadata, int(own_id)) or found
    elif found is None:
        found = find_snapshot(metadata, find(snapshot_id))
    if found is None:
        raise BadRequest(f"Cannot find snapshot with ID {snapshot_id}")
    return found


def gather(source: Source, snapshot: Snapshot) -> Material:
    """Return what a scan of a snapshot is planned from. Raises: NotFound, Unsupported: something cannot be read."""
    if not snapshot.manifest_list:
        raise Unsupported(f"Snapshot {snapshot.snapshot_id} has no manifest list; let the client plan scans itself.")
    return _gather_list(source, snapshot.manifest_list)


def _gather_list(source: Source, uri: str) -> Material:
    manifests, deletes = split_contents(source.read_list(uri))
    return Material(uri.rpartition("/")[2], manifests, source.read_deletes(uri, deletes))


def gather_named(source: Source, metadata: TableMetadata, snapshot_id: int, list_name: str) -> Material:
    """Return what a plan was made from before: the list of that name, though the snapshot may have another one by now.

    Raises: NotFound: there is none, or it is no list of this snapshot of this table
    """
    snapshot = find_snapshot(metadata, snapshot_id)
    if snapshot is not None and snapshot.manifest_list.rpartition("/")[2] == list_name:
        return gather(source, snapshot)
    match = OWN_LIST.fullmatch(list_name)
    if match is None or int(match[1]) != snapshot_id:
        raise NotFound(f"Snapshot {snapshot_id} has another manifest list by now.")
    return _gather_list(source, f"{metadata.location}/metadata/{list_name}")


def gather_appended(source: Source, metadata: TableMetadata, start_snapshot_id: int, end: Snapshot) -> Material:
    """Return what was appended after one snapshot up to another: what other operations did in between does not count.

    Raises: BadRequest: the first is no ancestor of the second
    """
    appends = [item for item in list_between(metadata, start_snapshot_id, end) if item.summary.get("operation") == APPEND]
    manifests: list[ManifestFile] = []
    for snapshot in appends:
        listed = gather(source, snapshot).manifests
        manifests += [item for item in listed if item.added_snapshot_id == snapshot.snapshot_id]
    told = "\n".join(snapshot.manifest_list for snapshot in appends)
    name = f"appended-{sha256(told.encode()).hexdigest()[:32]}"
    return Material(name, manifests, NOTHING.deletes, frozenset(item.snapshot_id for item in appends))


def list_between(metadata: TableMetadata, start_snapshot_id: int, end: Snapshot) -> list[Snapshot]:
    """Return the snapshots after one, up to another, oldest first. Raises: BadRequest: the first is no ancestor of the second"""
    by_id = {item.snapshot_id: item for item in metadata.snapshots}
    found: list[Snapshot] = []
    at: Snapshot | None = end
    while at is not None and at.snapshot_id != start_snapshot_id:
        found.append(at)
        if at.parent_snapshot_id == start_snapshot_id:
            return found[::-1]
        at = by_id.get(at.parent_snapshot_id) if at.parent_snapshot_id is not None and len(found) <= len(by_id) else None
    if at is None:
        raise BadRequest(f"Starting snapshot (exclusive) {start_snapshot_id} is not a parent ancestor of end snapshot {end.snapshot_id}")
    return found[::-1]
