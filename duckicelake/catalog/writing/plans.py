"""A request in rows, made under the lock: requirements, updates, files, and the notes that remember them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from duckicelake.catalog.writing.bases import Ask, Base, find_ours, make_translator, require
from duckicelake.catalog.writing.files import FileWriter, Planned, add_snapshots
from duckicelake.catalog.writing.ids import Ids
from duckicelake.catalog.writing.names import find_column_names
from duckicelake.catalog.writing.places import (
    NO_TABLE,
    Grounds,
    check_free,
    check_new_location,
    check_new_uuid,
    check_paths,
    check_table_location,
    find_first_version,
    get_place,
)
from duckicelake.catalog.writing.ready.snapshots import renumber_specs
from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.application import apply_updates
from duckicelake.iceberg.requests.manifests import check_added_once, check_manifest
from duckicelake.iceberg.requests.nulls import build_rules, check_required
from duckicelake.iceberg.requests.shapes import find_spec_ids, name_added_specs
from duckicelake.iceberg.requests.updates import RemoveSnapshots, TableUpdate
from duckicelake.lake.read import read_iceberg_path
from duckicelake.lake.refs.rows import RefNotes
from duckicelake.lake.writing.lookups import LiveRows, to_live
from duckicelake.lake.writing.note_rows import LeftLocation
from duckicelake.lake.writing.rows import ChangedTableNote, NewRow
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.locations import table_location
from duckicelake.translate.partitions import has_buckets
from duckicelake.translate.shape.removed import check_unused, mark_removed, with_removed
from duckicelake.translate.shape.told_statistics import change_statistics
from duckicelake.translate.to_ducklake.commits import (
    check_parents,
    check_taken,
    list_added,
    map_updates,
    number_snapshots,
)
from duckicelake.translate.to_ducklake.refs import change_refs, keep_main
from duckicelake.translate.to_ducklake.tables import LiveTable, TableStep, change_table, changed_note, create_table
from duckicelake.values import replace

FIRST_SEQUENCE_FORMAT, LINEAGE_FORMAT = 2, 3


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a request does to its table: a step for each lake snapshot, and notes that need none; where the table is then."""

    location: str
    steps: Sequence[TableStep]
    notes: Sequence[NewRow] = ()


def plan(commit: Commit, ask: Ask, base: Base, ids: Ids, now_ms: int) -> TablePlan:
    """Return what a request does to its table; nothing when it changes nothing.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchNamespace, AlreadyExists
    """
    require(ask, base)
    to_lake_id = make_translator(base)
    live = None if base.published is None else to_live(base.published.state)
    shown = {spec.spec_id for spec in base.metadata.partition_specs} if base.metadata else set[int]()
    if base.metadata is not None and live is not None:
        base = replace(base, metadata=with_removed(base.metadata, live.notes))
    added = list_added(ask.commit.updates)
    fresh = {snapshot.snapshot_id: commit.head.snapshot_id + number for number, snapshot in enumerate(added, 1)}
    _check_fresh(fresh, base)
    _check_kept(fresh, ask)
    updates = map_updates(ask.commit.updates, lambda i: fresh[i] if i in fresh else to_lake_id(i))
    updates = updates if base.metadata is None else name_added_specs(updates, shown)
    check_parents(base.metadata, updates)
    last = base.metadata.last_sequence_number if base.metadata else 0
    next_row_id = base.metadata.next_row_id if base.metadata else 0
    new = apply_updates(base.metadata, number_snapshots(updates, last, next_row_id), now_ms)
    base = _with_own_specs(base, updates, shown, new)
    main = [ours for snapshot_id, ours in fresh.items() if snapshot_id not in base.beside]
    check_taken(base.metadata, new, main, base.move.snapshot_id if base.move else None, emptied=base.is_emptied)
    if base.is_emptied and not base.changes and base.metadata is not None:
        # there is nothing to end, so main stays where it is
        new = replace(new, current_snapshot_id=base.metadata.current_snapshot_id)
    for change in (*base.changes, *(ready.change for ready in base.beside.values())):
        if change.added and not change.is_trusted:
            rules = build_rules(new)
            for file in change.added:
                check_required(file, change.spec_ids[file.file_path], rules)
        check_added_once(change.fresh)
        for manifest in change.fresh:
            check_manifest(manifest, new)
    if base.table is None or base.metadata is None or live is None:
        return _plan_creation(commit, ask, base, ids, new)
    check_unused(base.metadata, new, base.used_specs)
    return _plan_change(commit, base, ids, Planned(base.table.table_id, base.table, new, added), live)


def _with_own_specs(base: Base, updates: Sequence[TableUpdate], shown: Collection[int], new: TableMetadata) -> Base:
    """Return the base with main's files under the table's ids of the specs that come with them; copies for branches have them already."""
    spec_ids = find_spec_ids(updates, shown, new)
    if not spec_ids or base.metadata is None:
        return base
    return replace(base, changes=[renumber_specs(change, spec_ids) for change in base.changes])


def _check_fresh(fresh: Mapping[int, int], base: Base) -> None:
    ours = find_ours(base, fresh.keys())
    taken = [snapshot_id for snapshot_id in fresh if snapshot_id in base.known or snapshot_id in ours]
    if taken:
        raise BadRequest(f"Cannot add snapshot {taken[0]}: the table has a snapshot of that id; choose another.")


def _check_kept(fresh: Mapping[int, int], ask: Ask) -> None:
    for update in ask.commit.updates:
        if isinstance(update, RemoveSnapshots) and not fresh.keys().isdisjoint(update.snapshot_ids):
            lost = next(snapshot_id for snapshot_id in update.snapshot_ids if snapshot_id in fresh)
            raise BadRequest(f"Cannot add snapshot {lost} and remove it in one commit; leave out one of the two.")


def _plan_creation(commit: Commit, ask: Ask, base: Base, ids: Ids, new: TableMetadata) -> TablePlan:
    place = get_place(commit.conn, ask.ident)
    check_free(commit.conn, ask.ident, place)
    uuid = UUID(new.table_uuid) if new.table_uuid else uuid4()
    check_new_uuid(commit.conn, uuid)
    default = table_location(read_iceberg_path(commit.conn), uuid, place.schema_name, place.table_name)
    location = check_new_location(commit.conn, new.location, default, base.grounds.roots) if new.location else default
    new = replace(new, table_uuid=str(uuid), location=location)
    check_paths(commit.conn, NO_TABLE, Grounds((location,), base.grounds.roots), new.properties, {})
    table_id = ids.take_catalog_id()
    first = create_table(table_id, place, new, find_first_version(commit.conn, location))
    first.rows += change_statistics(table_id, None, new, base.grounds.holds)
    planned = Planned(table_id, None, new, list_added(ask.commit.updates))
    if planned.added and new.format_version == FIRST_SEQUENCE_FORMAT:
        first.rows.append(changed_note(table_id, new, commit.head.snapshot_id))
        planned = replace(planned, sequence_base=commit.head.snapshot_id)
    writer = FileWriter(commit, ids, planned, base.grounds, find_column_names(None, base.footers))
    steps = add_snapshots(writer, first, base)
    return TablePlan(location, steps, [*writer.notes, *change_refs(table_id, None, new, RefNotes(), writer.bases)])


def _plan_change(commit: Commit, base: Base, ids: Ids, planned: Planned, found: LiveRows) -> TablePlan:
    old, new, table_id, notes = base.metadata, planned.new, planned.table_id, found.notes
    assert old is not None
    conn = commit.conn
    if new.location != old.location:
        new = replace(new, location=check_table_location(conn, new.location, base.grounds.roots, table_id))
        planned = replace(planned, new=new)
    check_paths(conn, table_id, base.grounds, new.properties, old.properties)
    told_order_id = notes.shapes[-1].order_id if notes.shapes else 0
    sort_id = ids.take_catalog_id() if found.sort_keys and new.current_schema_id != old.current_schema_id else 0
    brings_files = any(change.added or change.returned for change in base.changes)
    ends_buckets = brings_files and base.published is not None and has_buckets(base.published.state.partitions)
    live = LiveTable(table_id, found.columns, found.comments, found.tags, told_order_id, found.sort_keys, sort_id, ends_buckets)
    note = notes.table
    sequence_base = note.sequence_base if note else 0
    first = TableStep()
    if new.location != old.location:
        first.rows.append(LeftLocation(table_id, old.location))
    change_table(first, live, old, new, adds_data=any(change.added for change in base.changes))
    if note is not None and note.sequence_base and old.format_version < LINEAGE_FORMAT <= new.format_version:
        _renumber(first, changed_note(table_id, new, numbered_until=commit.head.snapshot_id))
    if planned.added and not old.snapshots and note is not None and note.is_native and new.format_version == FIRST_SEQUENCE_FORMAT:
        _renumber(first, changed_note(table_id, new, commit.head.snapshot_id))
        sequence_base = commit.head.snapshot_id
    marks = mark_removed(table_id, notes, old, new, {spec_id for change in base.changes for spec_id in change.spec_ids.values()})
    marks += change_statistics(table_id, old, new, base.grounds.holds)
    if marks:
        first.rows += marks
        first.tell("altered_table", table_id)
    names = find_column_names(base.published.state if base.published else None, base.footers)
    writer = FileWriter(commit, ids, replace(planned, sequence_base=sequence_base, noted=notes.refs), base.grounds, names)
    is_step = bool(first.changes or base.changes)
    steps = add_snapshots(writer, first, base) if is_step else []
    moved = [] if base.move is None else keep_main(table_id, base.move, notes.refs)
    return TablePlan(new.location, steps, [*writer.notes, *moved, *change_refs(table_id, old, new, notes.refs, writer.bases)])


def _renumber(step: TableStep, note: ChangedTableNote) -> None:
    """Let a step change the table's note once: of two changes in one statement Postgres takes either."""
    kept: list[NewRow] = [row for row in step.rows if not isinstance(row, ChangedTableNote)]
    step.rows = [*kept, note]
