"""Which versions of a table's columns are layouts: what DuckLake makes a new table of inlined rows for."""

from collections.abc import Iterable, Sequence

from duckicelake.lake.rows import ColumnRow, PartitionRow, SchemaVersionRow


def find_layouts(
    versions: Sequence[SchemaVersionRow], columns: Sequence[ColumnRow], partitions: Sequence[PartitionRow]
) -> list[SchemaVersionRow]:
    """Return all versions but those that change NOT NULL and defaults alone: rows go on being inlined where they were."""
    repartitioned = {row.begin_snapshot for row in partitions} | {row.end_snapshot for row in partitions}
    return [
        version
        for number, version in enumerate(versions)
        if not number or version.begin_snapshot in repartitioned or _has_moved(columns, version.begin_snapshot)
    ]


def _has_moved(columns: Sequence[ColumnRow], lake_snapshot_id: int) -> bool:
    """Tell whether columns came, went or changed their names or types; no column at all stands for another kind of change."""
    came = _outlines(row for row in columns if row.begin_snapshot == lake_snapshot_id)
    went = _outlines(row for row in columns if row.end_snapshot == lake_snapshot_id)
    return came != went or not came


def _outlines(columns: Iterable[ColumnRow]) -> set[tuple[int, int, str, str, int | None]]:
    return {(row.column_id, row.column_order, row.column_name, row.column_type, row.parent_column) for row in columns}
