"""Snapshots as Iceberg clients told them: their summaries, and the ids their authors know them by."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from duckicelake.iceberg.metadata import TableMetadata, find_snapshot
from duckicelake.iceberg.snapshots import Snapshot, Snapshots
from duckicelake.lake.rows import SnapshotNote
from duckicelake.values import replace

ALIAS_PROPERTY = "ducklake.alias-of"
WAP_ID = "wap.id"
OPERATION = "operation"
COUNTS = ("added-", "removed-", "total-", "deleted-data-files", "deleted-records")


def with_told_summary(
    derived: Mapping[str, str], note: SnapshotNote | None, manifests: Mapping[str, str], *, is_combined: bool = False
) -> Mapping[str, str]:
    """Return a snapshot's summary: the client's own properties and operation, the counts of the rows, and DuckLake's snapshot id.

    A client does not know what its commit became: equality deletes are positions now, delete files went with their data
    file, and maintenance may have put its rows into files with others. Incremental readers trust the operation, so the
    client's stays only while the rows agree; everything else of the client stays, because writers read their progress there.
    `manifests` are counts of the published manifests: they stand for the client's own counts, where it gives any. `is_combined`:
    the snapshot also has changes of snapshots that are gone.
    """
    if note is None:
        return derived
    told: dict[str, str] = json.loads(note.summary)
    kept = {key: manifests.get(key, text) for key, text in told.items() if not key.startswith(COUNTS)}
    if not _agrees(told.get(OPERATION), derived[OPERATION], is_combined=is_combined):
        return {**kept, **derived}
    return kept | {key: text for key, text in derived.items() if key != OPERATION}


def _agrees(told: str | None, derived: str, *, is_combined: bool) -> bool:
    """Return False if the client's operation claims less than the rows show.

    A client's rewrite replaces files like an overwrite does; only changes of other snapshots turn it into one.
    """
    match told:
        case "append":
            return derived not in ("overwrite", "delete")
        case "delete":
            return derived not in ("overwrite", "append")
        case "replace":
            return not is_combined
        case None:
            return False
        case _:
            return True


def to_alias(snapshot: Snapshot, client_snapshot_id: int, manifest_list: str) -> Snapshot:
    """Return a snapshot under the id its author gave it, with a manifest list of its own.

    It has no `wap.id`: whoever publishes what is staged under one looks for a single snapshot.
    """
    summary = {key: text for key, text in snapshot.summary.items() if key != WAP_ID} | {ALIAS_PROPERTY: str(snapshot.snapshot_id)}
    return replace(snapshot, snapshot_id=client_snapshot_id, manifest_list=manifest_list, summary=summary)


def with_listed_parents(aliases: Iterable[Snapshot], moves: Mapping[int, int]) -> tuple[Snapshot, ...]:
    """Return aliases whose parents are the targets of the `moves` of main, because a move itself is in no list of snapshots."""
    parents = ((alias, alias.parent_snapshot_id) for alias in aliases)
    return tuple(
        alias if parent is None or parent not in moves else replace(alias, parent_snapshot_id=moves[parent]) for alias, parent in parents
    )


def with_aliases(metadata: TableMetadata, aliases: Sequence[Snapshot]) -> TableMetadata:
    """Return the metadata with snapshots under their authors' ids as well, before all others; no ref names them."""
    if not aliases:
        return metadata
    fresh = tuple(alias for alias in aliases if find_snapshot(metadata, alias.snapshot_id) is None)
    own = metadata.snapshots
    return replace(metadata, snapshots=(own if isinstance(own, Snapshots) else Snapshots(own)).behind(fresh)) if fresh else metadata


def undo_aliases(metadata: TableMetadata) -> TableMetadata:
    """Return published metadata as it was before `with_aliases`; what this takes does not grow with the history."""
    if isinstance(metadata.snapshots, Snapshots) and metadata.snapshots.own is not None:
        return replace(metadata, snapshots=metadata.snapshots.own)
    aliases = sum(1 for _ in takewhile(lambda snapshot: ALIAS_PROPERTY in snapshot.summary, metadata.snapshots))
    return replace(metadata, snapshots=metadata.snapshots[aliases:]) if aliases else metadata


def without_aliases(metadata: TableMetadata) -> TableMetadata:
    """Return anybody's metadata with every snapshot under DuckLake's id alone."""
    kept = tuple(snapshot for snapshot in metadata.snapshots if ALIAS_PROPERTY not in snapshot.summary)
    return replace(metadata, snapshots=kept) if len(kept) < len(metadata.snapshots) else metadata
