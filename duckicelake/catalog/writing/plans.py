"""A request in rows, made under the lock: requirements, updates, files, and the notes that remember them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID, uuid4

from duckicelake.catalog.writing.bases import Ask, Base
from duckicelake.catalog.writing.files import FileWriter, Planned, add_snapshots
from duckicelake.catalog.writing.ids import Ids
from duckicelake.catalog.writing.places import check_free, check_location, get_place
from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.application import apply_updates
from duckicelake.iceberg.requests.requirements import check_requirements
from duckicelake.iceberg.snapshots import MAIN
from duckicelake.lake.notes import read_notes
from duckicelake.lake.read import read_iceberg_path, read_tags
from duckicelake.lake.read_table import read_columns
from duckicelake.lake.writing.lookups import find_client_snapshots, list_inlined_versions, read_comments
from duckicelake.lake.writing.rows import NewRow
from duckicelake.lake.writing.transaction import Commit
from duckicelake.translate.locations import table_location
from duckicelake.translate.to_ducklake.commits import (
    check_taken,
    list_added,
    list_client_ids,
    map_requirements,
    map_updates,
    number_snapshots,
)
from duckicelake.translate.to_ducklake.refs import change_refs, keep_main, name_main
from duckicelake.translate.to_ducklake.tables import LiveTable, TableStep, change_table, changed_note, create_table

FIRST_SEQUENCE_FORMAT = 2


@dataclass(frozen=True, slots=True)
class TablePlan:
    """What a request does to its table: a step for each lake snapshot, and notes that need none."""

    steps: Sequence[TableStep]
    notes: Sequence[NewRow] = ()


def plan(commit: Commit, ask: Ask, base: Base, ids: Ids, now_ms: int) -> TablePlan:
    """Return what a request does to its table; nothing when it changes nothing.

    Raises: CommitFailed: a requirement does not hold. BadRequest: the request contradicts itself, or DuckLake cannot hold it.
    NoSuchNamespace, AlreadyExists
    """
    client_ids = list_client_ids(ask.commit.requirements, ask.commit.updates)
    known = find_client_snapshots(commit.conn, base.table.table_id, client_ids) if base.table else {}
    ours = {snapshot.snapshot_id for snapshot in base.metadata.snapshots} if base.metadata else set[int]()
    check_requirements(base.metadata, map_requirements(ask.commit.requirements, lambda i: i if i in ours else known.get(i, i)))
    added = list_added(ask.commit.updates)
    fresh = {snapshot.snapshot_id: commit.head.snapshot_id + number for number, snapshot in enumerate(added, 1)}
    _check_fresh(fresh, known, ours)
    updates = map_updates(ask.commit.updates, lambda i: fresh[i] if i in fresh else i if i in ours else known.get(i, i))
    last = base.metadata.last_sequence_number if base.metadata else 0
    next_row_id = base.metadata.next_row_id if base.metadata else 0
    new = apply_updates(base.metadata, number_snapshots(updates, last, next_row_id), now_ms)
    main = [ours for snapshot_id, ours in fresh.items() if snapshot_id not in base.beside]
    check_taken(base.metadata, new, main, base.move.snapshot_id if base.move else None)
    if base.table is None or base.metadata is None:
        return _plan_creation(commit, ask, base, ids, new)
    return _plan_change(commit, base, ids, Planned(base.table.table_id, base.table, new, added))


def _check_fresh(fresh: Mapping[int, int], known: Mapping[int, int], ours: set[int]) -> None:
    taken = [snapshot_id for snapshot_id in fresh if snapshot_id in known or snapshot_id in ours]
    if taken:
        raise BadRequest(f"Cannot add snapshot {taken[0]}: the table has a snapshot of that id; choose another.")


def _plan_creation(commit: Commit, ask: Ask, base: Base, ids: Ids, new: TableMetadata) -> TablePlan:
    place = get_place(commit.conn, ask.ident)
    check_free(commit.conn, ask.ident, place)
    uuid = UUID(new.table_uuid) if new.table_uuid else uuid4()
    default = table_location(read_iceberg_path(commit.conn), uuid, place.schema_name, place.table_name)
    location = check_location(commit.conn, new.location) if new.location else default
    new = replace(new, table_uuid=str(uuid), location=location)
    if new.refs.keys() - {MAIN}:
        raise BadRequest("A table cannot be made with branches or tags; send another commit for them.")
    table_id = ids.take_catalog_id()
    first = create_table(table_id, place, new)
    planned = Planned(table_id, None, new, list_added(ask.commit.updates))
    if planned.added and new.format_version == FIRST_SEQUENCE_FORMAT:
        first.rows.append(changed_note(table_id, new, commit.head.snapshot_id))
    return TablePlan(add_snapshots(FileWriter(commit, ids, planned), first, base), name_main(table_id, None, new))


def _plan_change(commit: Commit, base: Base, ids: Ids, planned: Planned) -> TablePlan:
    old, new, table_id = base.metadata, planned.new, planned.table_id
    assert old is not None
    if new.location != old.location:
        raise BadRequest(f"The table stays at {old.location!r}: moving it would leave its files behind. Copy it into a new table.")
    conn = commit.conn
    tags = {tag.key: tag.value for tag in read_tags(conn, table_id) if tag.value is not None}
    live = LiveTable(
        table_id, read_columns(conn, table_id), read_comments(conn, table_id), tags, bool(list_inlined_versions(conn, table_id))
    )
    noted = read_notes(conn, table_id)
    note = noted.table
    sequence_base = note.sequence_base if note else 0
    first = TableStep()
    change_table(first, live, old, new, adds_data=any(change.added for change in base.changes))
    if note is not None and note.sequence_base and new.format_version > old.format_version and old.snapshots:
        raise BadRequest("A table whose snapshots are numbered from 1 cannot become version 3 yet; create it as version 3.")
    if planned.added and not old.snapshots and note is not None and note.is_native and new.format_version == FIRST_SEQUENCE_FORMAT:
        first.rows.append(changed_note(table_id, new, commit.head.snapshot_id))
        sequence_base = commit.head.snapshot_id
    writer = FileWriter(commit, ids, replace(planned, sequence_base=sequence_base, noted=noted.refs))
    is_step = bool(first.changes or planned.added or base.move)
    steps = add_snapshots(writer, first, base) if is_step else []
    moved = [] if base.move is None else keep_main(table_id, base.move, noted.refs)
    return TablePlan(steps, [*writer.notes, *moved, *change_refs(table_id, old, new, noted.refs, writer.bases)])
