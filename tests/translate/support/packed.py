"""Statistics as Postgres packs them, from rows."""

import struct
from collections.abc import Iterable, Sequence

from duckicelake.lake.rows import ColumnStatsRow, PackedColumnStats


def pack(rows: Sequence[ColumnStatsRow]) -> PackedColumnStats:
    """What `read_packed_column_stats` returns of those rows."""
    return PackedColumnStats(
        data_file_id=numbers(row.data_file_id for row in rows),
        column_id=numbers(row.column_id for row in rows),
        column_size_bytes=numbers(row.column_size_bytes for row in rows),
        value_count=numbers(row.value_count for row in rows),
        null_count=numbers(row.null_count for row in rows),
        contains_nan=numbers(row.contains_nan for row in rows),
        min_length=numbers(length_of(row.min_value) for row in rows),
        max_length=numbers(length_of(row.max_value) for row in rows),
        min_value="".join(row.min_value or "" for row in rows),
        max_value="".join(row.max_value or "" for row in rows),
    )


def numbers(values: Iterable[int | None]) -> bytes:
    """Big-endian, -1 for null."""
    return b"".join(struct.pack(">q", -1 if value is None else value) for value in values)


def length_of(text: str | None) -> int | None:
    """Bytes of UTF-8."""
    return None if text is None else len(text.encode())
