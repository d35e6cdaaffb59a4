"""Tables of other catalogs as rows: columns they had before, and the row ids that are free."""

import json
from collections.abc import Sequence

from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata, current_schema
from duckicelake.iceberg.partition import PartitionSpec, partition_types
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.snapshots import MAIN, format_snapshot
from duckicelake.iceberg.types import PrimitiveType, walk_fields
from duckicelake.lake.note_rows import FormerColumn, NewKeptSnapshot, NewRef
from duckicelake.lake.writing.rows import NewRow
from duckicelake.translate.shape.told_specs import format_tuple_value, parse_tuple_value
from duckicelake.translate.summaries import SNAPSHOT_ID_PROPERTY
from duckicelake.translate.to_ducklake.columns import to_column_type

FIRST_LINEAGE_FORMAT = 3
ROW_IDS_A_STAY = 2**32
UNKNOWN_TYPE = "varchar"


def list_lost_columns(table_id: int, metadata: TableMetadata) -> list[NewRow]:
    """Return the columns of older schemas that the current one has not: DuckDB never gives their ids to others then."""
    live = {item.field_id for _, item in walk_fields(current_schema(metadata).fields)}
    lost: dict[int, FormerColumn] = {}
    for schema in metadata.schemas:
        for _, item in walk_fields(schema.fields):
            if item.field_id not in live:
                lost[item.field_id] = FormerColumn(table_id, item.field_id, item.name, _find_type(item.type))
    last = metadata.last_column_id
    if last not in live and last not in lost and last > 0:
        lost[last] = FormerColumn(table_id, last, f"lost_{last}", UNKNOWN_TYPE)
    return [lost[field_id] for field_id in sorted(lost)]


def _find_type(type_: object) -> str:
    if not isinstance(type_, PrimitiveType):
        return UNKNOWN_TYPE
    try:
        return to_column_type(type_, "")
    except BadRequest:
        return UNKNOWN_TYPE


def check_partition(where: str, spec: PartitionSpec, schema: Schema, values: Sequence[object]) -> None:
    """Raise BadRequest when the values of a partition tuple are not of its spec's types."""
    for type_, value in zip(partition_types(spec, schema), values, strict=True):
        try:
            kept = None if value is None else parse_tuple_value(type_, format_tuple_value(type_, value))
            # NaN equals nothing, itself neither
            is_kept = kept == value or (kept != kept and value != value)
        except (ValueError, TypeError, AttributeError, ArithmeticError, BadRequest):
            is_kept = False
        if not is_kept:
            raise BadRequest(f"{where} has the partition value {str(value)[:100]!r}, which is no {type_}; rewrite it.")


def keep_past(table_id: int, metadata: TableMetadata, lake_snapshot_id: int) -> list[NewRow]:
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


def find_first_row_id(metadata: TableMetadata) -> int:
    """Return the first row id for files that have none.

    Files of a table that was in a lake before may carry row ids, which count from the start; a stay in a lake begins above all
    that an earlier one can have given out.
    """
    if metadata.format_version >= FIRST_LINEAGE_FORMAT:
        return metadata.next_row_id
    told = metadata.properties.get(SNAPSHOT_ID_PROPERTY, "")
    return (int(told) + 1) * ROW_IDS_A_STAY if told.isdecimal() and int(told) < ROW_IDS_A_STAY // 4 else 0


def find_lake_snapshot_id(metadata: TableMetadata, head: int, most: int) -> int:
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
