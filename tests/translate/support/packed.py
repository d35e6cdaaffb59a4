"""Statistics as Postgres packs them, from rows."""

import struct
from collections.abc import Sequence

from duckicelake.lake.rows import ColumnStatsRow, PackedColumnStats


def pack(rows: Sequence[ColumnStatsRow]) -> PackedColumnStats:
    """What `read_packed_column_stats` returns of those rows."""
    return PackedColumnStats(
        b"".join(map(pack_numbers, rows)),
        "".join(row.min_value or "" for row in rows),
        "".join(row.max_value or "" for row in rows),
    )


def pack_numbers(row: ColumnStatsRow) -> bytes:
    """Six numbers, big-endian."""
    counts = [-1 if count is None else count for count in (row.column_size_bytes, row.value_count, row.null_count)]
    nan = 2 if row.contains_nan is None else int(row.contains_nan)
    told = nan << 32 | place_of(row.min_value) << 16 | place_of(row.max_value)
    return struct.pack(">6q", row.data_file_id, row.column_id, *counts, told)


def place_of(text: str | None) -> int:
    """One more than its bytes of UTF-8, or 0."""
    return 0 if text is None else len(text.encode()) + 1
