"""A table's snapshots are the lake snapshots that changed it, each with the operation that it was."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.snapshots import Operation, Snapshot

from duckicelake.pipeline.common.staging import BRANCH_PREFIX
from tests.differential.checks.manifests import list_snapshots
from tests.differential.checks.rows import Answer, check_rows
from tests.differential.generator.literals import Rows
from tests.differential.generator.model import Table
from tests.differential.replay import Change, Past
from tests.support.readers import PyIcebergReader, read_scan


def check_snapshot_ids(past: Past, table: Table, published: IcebergTable, recorded: set[int]) -> list[int]:
    """The table's snapshots are those that changed its rows or files, by the model and by DuckLake; returns them.

    A statement that found no rows makes none, and DuckLake alone knows whether a transaction that undid itself left any
    trace: `recorded` are the lake snapshots in which it says so. When all are expired, the last one stays for as long as
    the table is as it left it; what refs name stays, and what they named may.
    """
    beside, moved = past.list_beside(table.table_id), past.list_moved(table.table_id)
    snapshot_ids = [snapshot.snapshot_id for snapshot in list_snapshots(published) if snapshot.snapshot_id not in beside]
    recorded = recorded - beside - moved
    hidden = _find_hidden(past, table, recorded, snapshot_ids)
    recorded -= hidden
    changes = past.list_changes(table.table_id)
    kept = {change.lake_snapshot_id for change in changes} & past.lake_snapshot_ids
    certain = {change.lake_snapshot_id for change in changes if change.is_certain} & kept - hidden
    expired = set(snapshot_ids) - past.lake_snapshot_ids
    assert certain <= set(snapshot_ids) <= kept | expired, f"{table.ident} has snapshots {snapshot_ids}, expected {sorted(certain)}"
    assert set(snapshot_ids) - expired == recorded, f"{table.ident} has snapshots {snapshot_ids}, DuckLake says {sorted(recorded)}"
    if expired and not table.has_had_refs:
        later = {snapshot_id for snapshot_id in recorded if snapshot_id > max(expired)}
        assert not later, f"{table.ident} has snapshots {snapshot_ids} although {sorted(expired)} are expired"
        possible = {change.lake_snapshot_id for change in changes}
        last = max(change.lake_snapshot_id for change in changes if change.is_certain)
        assert len(expired) == 1, f"{table.ident} still has snapshots {sorted(expired)}"
        assert expired <= {each for each in possible if each >= last}, f"{table.ident} shows {expired}, but changed last in {last}"
    return snapshot_ids


def _find_hidden(past: Past, table: Table, recorded: set[int], shown: list[int]) -> set[int]:
    """The snapshots that clients removed: all but the one that was current then, and those that refs name."""
    older = {snapshot_id for snapshot_id in recorded if snapshot_id <= past.find_hidden(table.table_id)}
    return older - (set(shown) if table.has_had_refs else {max(older, default=0)})


def check_increments(past: Past, table: Table, reader: PyIcebergReader) -> None:
    """Between two snapshots, an incremental scan gives the rows that appends in between have added, as far as the model knows."""
    published = reader.catalog.load_table(table.ident)
    is_cut = past.has_expired or table.times_hidden > 0
    if table.has_had_refs and is_cut:
        return
    appends = list_appends(past, table, published)
    if past.list_moved(table.table_id):
        return
    beside = past.list_beside(table.table_id)
    snapshot_ids = [snapshot.snapshot_id for snapshot in list_snapshots(published) if snapshot.snapshot_id not in beside]
    starts: list[int | None] = [None] if snapshot_ids and not is_cut else []
    starts += dict.fromkeys(snapshot_ids[index] for index in (0, (len(snapshot_ids) - 1) // 2) if snapshot_ids[1:])
    blind = past.find_blind(table.table_id)
    for start in [start for start in starts if (start or 0) >= blind]:
        expected: Rows = Counter()
        for snapshot_id, added in appends.items():
            if start is None or snapshot_id > start:
                expected.update(added.plain_rows(table.columns))
        scan = published.incremental_append_scan(from_snapshot_id_exclusive=start)
        check_rows(expected, table.columns, Answer(reader, f"{table.ident} appended after {start}", read_scan(scan)))


def list_appends(past: Past, table: Table, published: IcebergTable) -> dict[int, Table]:
    """Return, by snapshot that says `append`, the rows that it added to those of the snapshot shown before it.

    Every INSERT must say so, whatever maintenance has made of its files since; what removed rows may not; and
    maintenance, which changes none, says `replace`.
    """
    appends: dict[int, Table] = {}
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in list_snapshots(published)}
    is_cut = past.has_expired or table.times_hidden > 0
    for changes in _list_shown_changes(past, table, snapshots.keys()):
        snapshot, first = snapshots[changes[-1].lake_snapshot_id], changes[0].lake_snapshot_id
        # Nothing says what a table without its first snapshots held before.
        if first <= past.find_blind(table.table_id) or (is_cut and snapshot.snapshot_id == min(snapshots)):
            continue
        operation, change = _operation_of(snapshot), replace(changes[-1], before=changes[0].before)
        where = f"{table.ident} at snapshot {snapshot.snapshot_id}: {operation.value}"
        if operation == Operation.APPEND:
            assert len(changes) > 1 or not change.is_maintenance, f"{where} of maintenance"
            appends[snapshot.snapshot_id] = change.added
            continue
        assert operation != Operation.REPLACE or not change.is_certain, f"{where} of changed rows"
        if len(changes) == 1:
            assert operation == Operation.REPLACE or not change.is_maintenance, f"{where} of maintenance"
            assert not change.is_insert, f"{where} of an INSERT"
    return appends


def _list_shown_changes(past: Past, table: Table, shown: Collection[int]) -> Iterator[list[Change]]:
    """Yield, for each snapshot shown, the changes since the one before: its own, after those that are expired or that clients removed.

    A lake snapshot that is left and not shown did nothing to the table.
    """
    gone, hidden = list[Change](), past.find_hidden(table.table_id)
    for change in past.list_changes(table.table_id):
        if change.lake_snapshot_id in shown:
            yield [*gone, change]
            gone = []
        elif change.lake_snapshot_id not in past.lake_snapshot_ids or change.lake_snapshot_id <= hidden:
            gone.append(change)


def _operation_of(snapshot: Snapshot) -> Operation:
    assert snapshot.summary is not None
    return snapshot.summary.operation


def check_refs(past: Past, table: Table, reader: PyIcebergReader) -> None:
    """Tags and branches are the model's, and show its rows, under the columns of the snapshot that they name; not those of `ingest`."""
    published = reader.catalog.load_table(table.ident)
    shown = {
        name: (ref.snapshot_ref_type.value == "branch", ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep)
        for name, ref in published.refs().items()
        if name != "main" and not name.startswith(BRANCH_PREFIX)
    }
    assert shown == {name: (ref.is_branch, *ref.retention) for name, ref in table.refs.items()}, f"{table.ident} has the refs {shown}"
    for name, ref in table.refs.items():
        snapshot_id = published.refs()[name].snapshot_id
        then = replace(past.table_at(table.table_id, snapshot_id), rows=ref.rows)
        answer = Answer(reader, f"{table.ident} at {name}, snapshot {snapshot_id}", reader.read(table.ident, snapshot_id))
        check_rows(then.plain_rows(), then.columns, answer)
