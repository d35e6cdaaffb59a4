"""The refs of a commit as rows of `iceberg_ref`, and the snapshots that they retain."""

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
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, off_main: Collection[int] = ()
) -> list[NewRow]:
    """Return the rows for refs that a commit creates, changes or removes, and for snapshots that it removes.

    `base` is None for a new table, `off_main` are the snapshots that the commit adds off main.
    """
    rows = [
        *change_main_retention(table_id, base, new),
        *_change_names(table_id, base, new),
        *_keep_named(table_id, base, new, noted, off_main),
        *_remove_snapshots(table_id, base, new, noted),
    ]
    if rows or off_main:
        rows.append(NewChange(table_id, HIDE if any(isinstance(row, NewHiddenSnapshot) for row in rows) else REFS))
    return rows


def change_main_retention(table_id: int, base: TableMetadata | None, new: TableMetadata) -> list[NewRow]:
    """Return the row for main's retention if that changes. Main stays at DuckLake's head, even if a client removes it."""
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


def _keep_named(
    table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes, off_main: Iterable[int]
) -> Iterator[NewRow]:
    """Retain the snapshots that refs name now, and release those that no ref names any more."""
    named = {ref.snapshot_id for name, ref in new.refs.items() if name != MAIN}
    retained_ids = {note.snapshot_id for note in noted.kept}
    for snapshot_id in sorted(named - retained_ids - set(off_main)):
        snapshot = None if base is None else find_snapshot(base, snapshot_id)
        # A snapshot that the commit itself adds to main gets its JSON when it is published.
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
    """Return the rows that retain the snapshot to which main is moved."""
    retained_ids = {note.snapshot_id for note in noted.kept}
    return [NewChange(table_id, REFS), *([] if target.snapshot_id in retained_ids else [build_kept_snapshot(table_id, target)])]


def build_kept_snapshot(table_id: int, snapshot: Snapshot) -> NewKeptSnapshot:
    """Return the row that retains a snapshot of main in its published form."""
    return NewKeptSnapshot(
        table_id, snapshot.snapshot_id, snapshot.snapshot_id, json.dumps(format_snapshot(snapshot), separators=(",", ":")), None
    )


def _remove_snapshots(table_id: int, base: TableMetadata | None, new: TableMetadata, noted: RefNotes) -> Iterator[NewRow]:
    """Hide main's snapshots that a client removes, and delete those off main."""
    before = () if base is None else base.snapshots
    if new.snapshots is before or new.snapshots[: len(before)] == before:
        return
    remaining_ids = {snapshot.snapshot_id for snapshot in new.snapshots}
    removed_ids: Sequence[int] = [snapshot.snapshot_id for snapshot in before if snapshot.snapshot_id not in remaining_ids]
    off_main = {note.snapshot_id for note in noted.kept if note.is_off_main}
    for snapshot_id in removed_ids:
        yield NewHiddenSnapshot(table_id, snapshot_id)
        if snapshot_id in off_main:
            yield EndedKeptSnapshot(table_id, snapshot_id)


FIRST_LINEAGE_FORMAT = 3
ROW_IDS_A_STAY = 2**32
UNKNOWN_TYPE = "varchar"


def list_former_columns(table_id: int, metadata: TableMetadata) -> list[NewRow]:
    """Return the columns of older schemas that the current one lacks, so that DuckDB never reuses their ids."""
    live = {item.field_id for _, item in walk_fields(get_current_schema(metadata).fields)}
    former: dict[int, FormerColumn] = {}
    for schema in metadata.schemas:
        for _, item in walk_fields(schema.fields):
            if item.field_id not in live:
                former[item.field_id] = FormerColumn(table_id, item.field_id, item.name, _to_known_type(item.type))
    last = metadata.last_column_id
    if last not in live and last not in former and last > 0:
        former[last] = FormerColumn(table_id, last, f"lost_{last}", UNKNOWN_TYPE)
    return [former[field_id] for field_id in sorted(former)]


def _to_known_type(type_: object) -> str:
    if not isinstance(type_, PrimitiveType):
        return UNKNOWN_TYPE
    try:
        return to_column_type(type_, "")
    except BadRequest:
        return UNKNOWN_TYPE


def check_partition(where: str, spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> None:
    """Raise BadRequest if the values of a partition tuple do not have the types of its spec."""
    for type_, value in zip(list_partition_types(spec, schema), values, strict=True):
        try:
            parsed = None if value is None else parse_tuple_value(type_, format_tuple_value(type_, value))
            # NaN does not equal itself.
            is_equal = parsed == value or (parsed != parsed and value != value)
        except (ValueError, TypeError, AttributeError, ArithmeticError, BadRequest):
            is_equal = False
        if not is_equal:
            raise BadRequest(f"{where} has the partition value {str(value)[:100]!r}, which is no {type_}; rewrite it.")


def keep_earlier_snapshots(table_id: int, metadata: TableMetadata, lake_snapshot_id: int) -> list[NewRow]:
    """Return the rows for a table's snapshots, branches and tags as they were; their manifest lists stay at their paths."""
    snapshots = [
        NewKeptSnapshot(table_id, item.snapshot_id, lake_snapshot_id, json.dumps(format_snapshot(item), separators=(",", ":")), b"")
        for item in metadata.snapshots
    ]
    refs = [
        NewRef(table_id, name, ref.snapshot_id, ref.type, ref.max_ref_age_ms, ref.max_snapshot_age_ms, ref.min_snapshots_to_keep)
        for name, ref in metadata.refs.items()
        if name != MAIN
    ]
    return [*snapshots, *refs]


def compute_first_row_id(metadata: TableMetadata) -> int:
    """Return the first row id for files without row ids.

    Files of a table that was exported from a lake may carry row ids, so each registration starts above all ids that an earlier one
    can have assigned.
    """
    if metadata.format_version >= FIRST_LINEAGE_FORMAT:
        return metadata.next_row_id
    snapshot_id = metadata.properties.get(SNAPSHOT_ID_PROPERTY, "")
    return (int(snapshot_id) + 1) * ROW_IDS_A_STAY if snapshot_id.isdecimal() and int(snapshot_id) < ROW_IDS_A_STAY // 4 else 0


def compute_lake_snapshot_id(metadata: TableMetadata, head: int, most: int) -> int:
    """Return the lake snapshot for the registration of a table: above its sequence numbers, and above its snapshot ids in reach.

    Raises: BadRequest: that is more than `most` above the lake's head
    """
    reach = head + most
    ids: Sequence[int] = [item.snapshot_id for item in metadata.snapshots if item.snapshot_id <= reach]
    lake_snapshot_id = max(head + 1, metadata.last_sequence_number, *(snapshot_id + 1 for snapshot_id in ids))
    if lake_snapshot_id > reach:
        raise BadRequest(
            f"The table's last sequence number {metadata.last_sequence_number} is too far above the lake's {head}; rewrite it."
        )
    return lake_snapshot_id
