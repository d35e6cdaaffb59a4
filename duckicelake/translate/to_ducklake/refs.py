"""Branches and tags of a commit as notes, with the snapshots that they keep."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata, find_snapshot, get_current_schema
from duckicelake.iceberg.partition import PartitionSpec, list_partition_types
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import MAIN, Snapshot, SnapshotRef, format_snapshot
from duckicelake.iceberg.types import PrimitiveType, walk_fields
from duckicelake.lake.note_rows import (
    UNPUBLISHED,
    EndedKeptSnapshot,
    EndedRef,
    FormerColumn,
    NewChange,
    NewHiddenSnapshot,
    NewKeptSnapshot,
    NewRef,
    RefNotes,
)
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.client_schemas import format_tuple_value, parse_tuple_value
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY
from duckicelake.translate.to_ducklake.columns import to_column_type

REFS, HIDE = "refs", "hide"


def change_refs(
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, beside: Collection[int] = ()
) -> list[NewRow]:
    """Return the notes of refs that a commit makes, changes or removes, and of snapshots that it removes.

    `base` is None for a new table, `beside` are the snapshots that the commit adds beside main.
    """
    rows = [
        *change_main_retention(table_id, base, new),
        *_change_names(table_id, base, new),
        *_keep_named(table_id, base, new, noted, beside),
        *_remove_snapshots(table_id, base, new, noted),
    ]
    if rows or beside:
        rows.append(NewChange(table_id, HIDE if any(isinstance(row, NewHiddenSnapshot) for row in rows) else REFS))
    return rows


def change_main_retention(table_id: int, base: TableMetadata | None, new: TableMetadata) -> list[NewRow]:
    """Return the note of what main retains, when that changes; it is where DuckLake's head is, also when a client takes it away."""
    before = None if base is None else base.refs.get(MAIN)
    after = new.refs.get(MAIN)
    old = (None, None, None) if before is None else _retention(before)
    if after is None:
        return [] if old == (None, None, None) else [EndedRef(table_id, MAIN)]
    return [] if _retention(after) == old else [NewRef(table_id, MAIN, None, after.type, *_retention(after))]


def _change_names(table_id: int, base: TableMetadata | None, new: TableMetadata) -> Iterator[NewRow]:
    before: Mapping[str, SnapshotRef] = {} if base is None else base.refs
    for name in sorted(before.keys() - new.refs.keys() - {MAIN}):
        yield EndedRef(table_id, name)
    for name, ref in new.refs.items():
        if name != MAIN and ref != before.get(name):
            yield NewRef(table_id, name, ref.snapshot_id, ref.type, *_retention(ref))


def _retention(ref: SnapshotRef) -> tuple[int | None, int | None, int | None]:
    return ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep


def _keep_named(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, beside: Iterable[int]) -> Iterator[NewRow]:
    """Keep what refs name from now on, and give up what they no longer do."""
    named = {ref.snapshot_id for name, ref in new.refs.items() if name != MAIN}
    known = {note.snapshot_id for note in noted.kept}
    for snapshot_id in sorted(named - known - set(beside)):
        snapshot = None if base is None else find_snapshot(base, snapshot_id)
        # what the commit itself gives to main is told when it is published
        yield (
            NewKeptSnapshot(table_id, snapshot_id, snapshot_id, UNPUBLISHED, None)
            if snapshot is None
            else build_kept_snapshot(table_id, snapshot)
        )
    moved = {move.snapshot_id for move in noted.moves} & {new.current_snapshot_id}
    for note in noted.kept:
        if not note.is_off_main and note.snapshot_id not in named | moved:
            yield EndedKeptSnapshot(table_id, note.snapshot_id)


def keep_main_target(table_id: int, target: Snapshot, noted: RefNotes) -> list[NewRow]:
    """Return what keeps the snapshot that main goes to, for as long as it is there."""
    known = {note.snapshot_id for note in noted.kept}
    return [NewChange(table_id, REFS), *([] if target.snapshot_id in known else [build_kept_snapshot(table_id, target)])]


def build_kept_snapshot(table_id: int, snapshot: Snapshot) -> NewKeptSnapshot:
    """Return the note that keeps a snapshot of main as it is published now."""
    return NewKeptSnapshot(
        table_id, snapshot.snapshot_id, snapshot.snapshot_id, json.dumps(format_snapshot(snapshot), separators=(",", ":")), None
    )


def _remove_snapshots(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes) -> Iterator[NewRow]:
    """Hide main's snapshots that a client removes; those beside main go for good."""
    before = () if base is None else base.snapshots
    if new.snapshots is before or new.snapshots[: len(before)] == before:
        return
    left = {snapshot.snapshot_id for snapshot in new.snapshots}
    gone: Sequence[int] = [snapshot.snapshot_id for snapshot in before if snapshot.snapshot_id not in left]
    beside = {note.snapshot_id for note in noted.kept if note.is_off_main}
    for snapshot_id in gone:
        yield NewHiddenSnapshot(table_id, snapshot_id)
        if snapshot_id in beside:
            yield EndedKeptSnapshot(table_id, snapshot_id)


FIRST_LINEAGE_FORMAT = 3
ROW_IDS_A_STAY = 2**32
UNKNOWN_TYPE = "varchar"


def list_former_columns(table_id: int, metadata: TableMetadata) -> list[NewRow]:
    """Return the columns of older schemas that the current one has not: DuckDB never gives their ids to others then."""
    live = {item.field_id for _, item in walk_fields(get_current_schema(metadata).fields)}
    lost: dict[int, FormerColumn] = {}
    for schema in metadata.schemas:
        for _, item in walk_fields(schema.fields):
            if item.field_id not in live:
                lost[item.field_id] = FormerColumn(table_id, item.field_id, item.name, _to_known_type(item.type))
    last = metadata.last_column_id
    if last not in live and last not in lost and last > 0:
        lost[last] = FormerColumn(table_id, last, f"lost_{last}", UNKNOWN_TYPE)
    return [lost[field_id] for field_id in sorted(lost)]


def _to_known_type(type_: object) -> str:
    if not isinstance(type_, PrimitiveType):
        return UNKNOWN_TYPE
    try:
        return to_column_type(type_, "")
    except BadRequest:
        return UNKNOWN_TYPE


def check_partition(where: str, spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> None:
    """Raise BadRequest when the values of a partition tuple are not of its spec's types."""
    for type_, value in zip(list_partition_types(spec, schema), values, strict=True):
        try:
            kept = None if value is None else parse_tuple_value(type_, format_tuple_value(type_, value))
            # NaN equals nothing, itself neither
            is_kept = kept == value or (kept != kept and value != value)
        except (ValueError, TypeError, AttributeError, ArithmeticError, BadRequest):
            is_kept = False
        if not is_kept:
            raise BadRequest(f"{where} has the partition value {str(value)[:100]!r}, which is no {type_}; rewrite it.")


def keep_earlier_snapshots(table_id: int, metadata: TableMetadata, lake_snapshot_id: int) -> list[NewRow]:
    """Return the notes of a table's snapshots, branches and tags as it had them; their manifest lists stay where they are."""
    kept = [
        NewKeptSnapshot(table_id, item.snapshot_id, lake_snapshot_id, json.dumps(format_snapshot(item), separators=(",", ":")), b"")
        for item in metadata.snapshots
    ]
    refs = [
        NewRef(table_id, name, ref.snapshot_id, ref.type, ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep)
        for name, ref in metadata.refs.items()
        if name != MAIN
    ]
    return [*kept, *refs]


def compute_first_row_id(metadata: TableMetadata) -> int:
    """Return the first row id for files that have none.

    Files of a table that was in a lake before may carry row ids, which count from the start; a stay in a lake begins above all
    that an earlier one can have given out.
    """
    if metadata.format_version >= FIRST_LINEAGE_FORMAT:
        return metadata.next_row_id
    told = metadata.properties.get(SNAPSHOT_ID_PROPERTY, "")
    return (int(told) + 1) * ROW_IDS_A_STAY if told.isdecimal() and int(told) < ROW_IDS_A_STAY // 4 else 0


def compute_lake_snapshot_id(metadata: TableMetadata, head: int, most: int) -> int:
    """Return the lake snapshot that a table may come at: above its snapshots' numbers, and above those ids the lake would reach.

    Raises: BadRequest: that is too far off
    """
    reach = head + most
    ids: Sequence[int] = [item.snapshot_id for item in metadata.snapshots if item.snapshot_id <= reach]
    found = max(head + 1, metadata.last_sequence_number, *(snapshot_id + 1 for snapshot_id in ids))
    if found > reach:
        raise BadRequest(
            f"The table's last sequence number {metadata.last_sequence_number} is too far above the lake's {head}; rewrite it."
        )
    return found
