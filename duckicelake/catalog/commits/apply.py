"""A commit's request applied to the metadata of its table, which says what the commit has to look up and to write.

`commits.lock` calls `apply_request` under the lake's lock, before it looks rows up. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from duckicelake.catalog.commits.prepare import Prepared, SnapshotFiles
from duckicelake.catalog.commits.requests import CommittedIds, TableCommit, build_id_translator, check_still_required, list_own_ids
from duckicelake.catalog.incoming.file_changes import renumber_specs
from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.manifest_checks import build_required_columns, check_added_once, check_manifest, check_required_columns
from duckicelake.iceberg.requests.table_changes import apply_updates
from duckicelake.iceberg.requests.table_draft import map_spec_ids, resolve_added_specs
from duckicelake.iceberg.requests.updates import RemoveSnapshots
from duckicelake.lake.writing.lookups import LiveTableRows, to_live_rows
from duckicelake.translate.client_schemas import check_unused, with_removed
from duckicelake.translate.to_ducklake.commits import check_parents, check_supported, map_updates, number_snapshots


@dataclass(frozen=True, slots=True)
class AppliedRequest:
    """A request applied to the metadata of its table. `old` also has the schemas and specs that were removed from view.

    `files` have the table's own ids of partition specs. `live` are the rows of a table that is there.
    """

    prepared: Prepared
    old: TableMetadata | None
    new: TableMetadata
    files: SnapshotFiles
    live: LiveTableRows | None

    @property
    def had_main(self) -> bool:
        """True if the table has a current snapshot before the commit."""
        return self.old is not None and self.old.current_snapshot_id is not None


def apply_request(prepared: Prepared, committed_ids: CommittedIds, snapshot_id: int, now_ms: int) -> AppliedRequest:
    """Return the table's metadata after the request; `snapshot_id` is the newest lake snapshot.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or its files do not fit the table
    """
    base = prepared.base
    check_still_required(prepared.request, base.metadata, committed_ids)
    live = None if base.published is None else to_live_rows(base.published.state)
    applied = _apply(prepared, committed_ids, live, (snapshot_id, now_ms))
    _check_files(applied)
    if base.row is not None and applied.old is not None:
        check_unused(applied.old, applied.new, prepared.used_specs)
    return applied


def _apply(prepared: Prepared, committed_ids: CommittedIds, live: LiveTableRows | None, at: tuple[int, int]) -> AppliedRequest:
    """Return the table's metadata after the request, with the ids of lake snapshots for those that it adds."""
    request, files, known = prepared.request, prepared.files, prepared.base.metadata
    snapshot_id, now_ms = at
    shown = {spec.spec_id for spec in known.partition_specs} if known else set[int]()
    old = known if known is None or live is None else with_removed(known, live.notes)
    to_lake_id = build_id_translator(known, committed_ids)
    fresh = {snapshot.snapshot_id: snapshot_id + number for number, snapshot in enumerate(request.list_added(), 1)}
    _check_new_ids(fresh, prepared, committed_ids)
    _check_not_removed(fresh, request)
    updates = map_updates(request.updates, lambda i: fresh[i] if i in fresh else to_lake_id(i))
    updates = updates if old is None else resolve_added_specs(updates, shown)
    check_parents(old, updates)
    last = old.last_sequence_number if old else 0
    next_row_id = old.next_row_id if old else 0
    new = apply_updates(old, number_snapshots(updates, last, next_row_id), now_ms)
    spec_ids = map_spec_ids(updates, shown, new)
    if spec_ids and old is not None:
        # Copies for branches have the table's ids already.
        files = replace(files, changes=[renumber_specs(change, spec_ids) for change in files.changes])
    main = [ours for added_id, ours in fresh.items() if added_id not in files.branch_snapshots]
    check_supported(old, new, main, files.move.snapshot_id if files.move else None, emptied=files.is_emptied)
    if files.is_emptied and not files.changes and old is not None:
        # there is nothing to end, so main stays where it is
        new = replace(new, current_snapshot_id=old.current_snapshot_id)
    return AppliedRequest(prepared, old, new, files, live)


def _check_files(applied: AppliedRequest) -> None:
    """Raise BadRequest for files and manifests that do not fit the table, or come twice."""
    new, files = applied.new, applied.files
    for change in (*files.changes, *(prepared.change for prepared in files.branch_snapshots.values())):
        if change.added and not change.is_trusted:
            rules = build_required_columns(new)
            for file in change.added:
                check_required_columns(file, change.spec_ids[file.file_path], rules)
        check_added_once(change.fresh)
        for manifest in change.fresh:
            check_manifest(manifest, new)


def _check_new_ids(fresh: Mapping[int, int], prepared: Prepared, committed_ids: CommittedIds) -> None:
    ours = list_own_ids(prepared.base.metadata, fresh.keys())
    taken = [snapshot_id for snapshot_id in fresh if snapshot_id in committed_ids or snapshot_id in ours]
    if taken:
        raise BadRequest(f"Cannot add snapshot {taken[0]}: the table has a snapshot of that id; choose another.")


def _check_not_removed(fresh: Mapping[int, int], request: TableCommit) -> None:
    for update in request.updates:
        if isinstance(update, RemoveSnapshots) and not fresh.keys().isdisjoint(update.snapshot_ids):
            lost = next(snapshot_id for snapshot_id in update.snapshot_ids if snapshot_id in fresh)
            raise BadRequest(f"Cannot add snapshot {lost} and remove it in one commit; leave out one of the two.")
