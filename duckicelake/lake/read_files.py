"""Queries for data files of a table and their column statistics; they are made for a million files.

Loads and commits call them in their own transactions, `pipeline.publish` on Spark's executors, on a read-only connection with autocommit.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, repeat
from operator import attrgetter
from typing import NamedTuple

import psycopg

from duckicelake.lake.bulk_rows import fetch_tuples, unpack_int64s
from duckicelake.lake.changes import TOKENS_SINCE
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, FileNote, FileSpan, PackedColumnStats
from duckicelake.values import tuple_maker

_DATA_FILES = """
       f.data_file_id, f.begin_snapshot, f.path, coalesce(f.path_is_relative, true) AS path_is_relative,
       f.record_count, f.file_size_bytes, f.row_id_start, f.partition_id, f.mapping_id, f.partial_max, f.encryption_key,
       CASE WHEN f.partition_id IS NOT NULL THEN
           ARRAY(SELECT p.partition_value FROM ducklake_file_partition_value p
                  WHERE p.data_file_id = f.data_file_id ORDER BY p.partition_key_index)
       END AS partition_values
  FROM ducklake_data_file f
 WHERE """
SELECT_MERGED_FILES = """
SELECT data_file_id, begin_snapshot, path, coalesce(path_is_relative, true) AS path_is_relative,
       record_count, file_size_bytes, row_id_start, partition_id, mapping_id, partial_max, encryption_key, partition_values
  FROM iceberg_merged_file
 WHERE data_file_id = ANY(%(data_file_ids)s)
"""
SELECT_DATA_FILES = "SELECT" + _DATA_FILES + "f.data_file_id = ANY(%(data_file_ids)s)"
SELECT_DATA_FILES_BETWEEN = "SELECT" + _DATA_FILES + "f.data_file_id BETWEEN %(first)s AND %(last)s"


def read_data_files(conn: psycopg.Connection, data_file_ids: Sequence[int]) -> list[DataFileRow]:
    """Return the details of some data files, in no order; for files that a merge replaced, the details of before."""
    if is_run(data_file_ids):
        rows = fetch_tuples(conn, DataFileRow, SELECT_DATA_FILES_BETWEEN, first=min(data_file_ids), last=max(data_file_ids))
    else:
        rows = fetch_tuples(conn, DataFileRow, SELECT_DATA_FILES, data_file_ids=list(data_file_ids))
    replaced = set(data_file_ids) - {row.data_file_id for row in rows} if len(rows) < len(data_file_ids) else ()
    return [*rows, *fetch_tuples(conn, DataFileRow, SELECT_MERGED_FILES, data_file_ids=sorted(replaced))] if replaced else rows


def is_run(data_file_ids: Sequence[int]) -> bool:
    """Return True if the ids are consecutive, as those of one snapshot usually are: a range is cheaper for Postgres than a list."""
    return len(data_file_ids) > 1 and max(data_file_ids) - min(data_file_ids) == len(set(data_file_ids)) - 1


SELECT_COLUMN_STATS = """
SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
  FROM ducklake_file_column_stats
 WHERE data_file_id = ANY(%(data_file_ids)s) AND table_id = %(table_id)s
 UNION ALL
SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
  FROM iceberg_merged_column_stats
 WHERE data_file_id = ANY(%(data_file_ids)s) AND table_id = %(table_id)s
"""


def read_column_stats(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[ColumnStatsRow]:
    """Return the column statistics of some data files, in no order."""
    return fetch_tuples(conn, ColumnStatsRow, SELECT_COLUMN_STATS, table_id=table_id, data_file_ids=list(data_file_ids))


_PACK = """
       -- One value per row; one aggregate per column takes Postgres 1.5 times as long.
       string_agg(int8send(data_file_id) || int8send(coalesce(column_id, -1)) || int8send(coalesce(column_size_bytes, -1))
                  || int8send(coalesce(value_count, -1)) || int8send(coalesce(null_count, -1))
                  || int8send(coalesce(contains_nan::integer, 2)::bigint << 32
                              | coalesce(CASE WHEN utf8 THEN octet_length(low) ELSE octet_length(convert_to(low, 'UTF8')) END + 1, 0) << 16
                              | coalesce(CASE WHEN utf8 THEN octet_length(high) ELSE octet_length(convert_to(high, 'UTF8')) END + 1, 0)),
                  ''::bytea) AS numbers,
       string_agg(low, '') AS min_value,
       string_agg(high, '') AS max_value
  FROM (SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, contains_nan,
               -- Only texts are longer, and a bound needs only the start of a long text.
               left(min_value, 64) AS low, left(max_value, 64) AS high,
               (SELECT current_setting('server_encoding') = 'UTF8') AS utf8
          FROM ducklake_file_column_stats
         WHERE table_id = %(table_id)s AND """
_PACK_END = """
        -- OFFSET 0 keeps Postgres from evaluating left() three times.
        OFFSET 0) s
"""

_SOME, _RUN = "data_file_id = ANY(%(data_file_ids)s)", "data_file_id BETWEEN %(first)s AND %(last)s"
_STATS, _MERGED_STATS = "ducklake_file_column_stats", "iceberg_merged_column_stats"
SELECT_PACKED_COLUMN_STATS = "SELECT" + _PACK + _SOME + _PACK_END
SELECT_PACKED_COLUMN_STATS_BETWEEN = "SELECT" + _PACK + _RUN + _PACK_END
SELECT_PACKED_MERGED_STATS = "SELECT" + _PACK.replace(_STATS, _MERGED_STATS) + _SOME + _PACK_END
SELECT_PACKED_MERGED_STATS_BETWEEN = "SELECT" + _PACK.replace(_STATS, _MERGED_STATS) + _RUN + _PACK_END


def read_packed_column_stats(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> PackedColumnStats:
    """Return the same rows as packed columns, for at least one file; use it when there are too many rows for an object each."""
    if is_run(data_file_ids):
        queries = SELECT_PACKED_COLUMN_STATS_BETWEEN, SELECT_PACKED_MERGED_STATS_BETWEEN
        parameters = {"first": min(data_file_ids), "last": max(data_file_ids)}
    else:
        queries = SELECT_PACKED_COLUMN_STATS, SELECT_PACKED_MERGED_STATS
        parameters = {"data_file_ids": list(data_file_ids)}
    packed = [conn.execute(query, {"table_id": table_id, **parameters}, binary=True).fetchone() for query in queries]
    rows = [row for row in packed if row is not None]
    return PackedColumnStats(b"".join(row[0] or b"" for row in rows), *("".join(row[i] or "" for row in rows) for i in (1, 2)))


SINCE_BEGINNING = -1
"""The value of `since` when nothing has been read before."""

SELECT_SPANS = """
SELECT data_file_id, begin_snapshot, end_snapshot, record_count
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s
   AND (begin_snapshot > %(since)s OR end_snapshot > %(since)s OR data_file_id = ANY(%(data_file_ids)s))
 ORDER BY begin_snapshot, data_file_id
"""


def read_spans(conn: psycopg.Connection, table_id: int, since: int, data_file_ids: Sequence[int]) -> list[FileSpan]:
    """Return the files that began or ended after a lake snapshot, and the given ones, ordered by begin snapshot."""
    if since == SINCE_BEGINNING:
        return _read_all_spans(conn, table_id, data_file_ids)
    return fetch_tuples(conn, FileSpan, SELECT_SPANS, table_id=table_id, since=since, data_file_ids=list(data_file_ids))


SELECT_PACKED_SPANS = """
SELECT string_agg(int8send(data_file_id), ''::bytea) AS data_file_id,
       string_agg(int8send(coalesce(begin_snapshot, -1)), ''::bytea) AS begin_snapshot,
       string_agg(int8send(coalesce(end_snapshot, -9223372036854775808)), ''::bytea) AS end_snapshot,
       string_agg(int8send(coalesce(record_count, -1)), ''::bytea) AS record_count
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND (begin_snapshot >= 0 OR end_snapshot >= 0 OR data_file_id = ANY(%(data_file_ids)s))
 -- Group, because a Postgres value is limited to 1 GiB.
 GROUP BY data_file_id >> 20
"""
NO_END = -(2**63)


def _read_all_spans(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[FileSpan]:
    """Return all files that the table has ever had, ordered by begin snapshot; packed, because there may be millions."""
    spans: list[FileSpan] = []
    for packed in conn.execute(SELECT_PACKED_SPANS, {"table_id": table_id, "data_file_ids": list(data_file_ids)}, binary=True):
        ids, begins, ends, counts = map(unpack_int64s, packed)
        known_ends = repeat(None, len(ends)) if set(ends) == {NO_END} else [None if end == NO_END else end for end in ends]
        spans += map(tuple_maker(FileSpan), zip(ids, begins, known_ends, counts, strict=True))
    # Two sorts by an integer are faster than one by a tuple.
    spans.sort(key=attrgetter("data_file_id"))
    spans.sort(key=attrgetter("begin_snapshot"))
    return spans


class MergedSpan(NamedTuple):
    """`iceberg_merged_file`: a file, and the merge at `end_snapshot` that wrote the files from `first_file_id` to below `next_file_id`."""

    data_file_id: int
    begin_snapshot: int
    end_snapshot: int
    record_count: int
    first_file_id: int
    next_file_id: int


SELECT_MERGED_SPANS = """
SELECT data_file_id, begin_snapshot, end_snapshot, record_count, first_file_id, next_file_id
  FROM iceberg_merged_file
 -- Damaged rows have NULLs here.
 WHERE table_id = %(table_id)s AND begin_snapshot IS NOT NULL AND record_count IS NOT NULL AND path IS NOT NULL
 ORDER BY end_snapshot DESC, begin_snapshot, data_file_id
"""


def read_merged_spans(conn: psycopg.Connection, table_id: int) -> list[MergedSpan]:
    """Return the files that merges of a table replaced, newest merge first."""
    return fetch_tuples(conn, MergedSpan, SELECT_MERGED_SPANS, table_id=table_id)


class FilesBeforeMerges(NamedTuple):
    """The files of a table, including those that merges replaced, ordered by begin snapshot.

    A file that one of these merges wrote begins at the merge. `replaced` and `written` are the ids of both kinds.
    """

    spans: Sequence[FileSpan]
    replaced: frozenset[int]
    written: frozenset[int]


def undo_merges(spans: Sequence[FileSpan], merged: Iterable[MergedSpan]) -> FilesBeforeMerges:
    """Return the files as they were before each merge whose replaced files are all known; `merged` comes newest merge first.

    A merge keeps every row, so the replaced files are complete only if they have as many rows as the files that the merge
    wrote. If they are not, the files that the merge wrote represent the past, also for earlier merges.
    """
    files_by_id = {span.data_file_id: span for span in spans}
    replaced: set[int] = set()
    written: set[int] = set()
    for end, group in groupby(merged, key=attrgetter("end_snapshot")):
        files = list(group)
        new = [files_by_id[i] for i in range(files[0].first_file_id, files[0].next_file_id) if i in files_by_id]
        if sum(span.record_count for span in new) != sum(file.record_count for file in files):
            continue
        files_by_id |= {span.data_file_id: span._replace(begin_snapshot=end) for span in new}
        files_by_id |= {file.data_file_id: FileSpan(file.data_file_id, file.begin_snapshot, end, file.record_count) for file in files}
        replaced.update(file.data_file_id for file in files)
        written.update(span.data_file_id for span in new)
    if not replaced:
        return FilesBeforeMerges(spans, frozenset(), frozenset())
    ordered = sorted(files_by_id.values(), key=attrgetter("begin_snapshot", "data_file_id"))
    return FilesBeforeMerges(ordered, frozenset(replaced), frozenset(written))


SELECT_SNAPSHOT_NOTES = """
SELECT lake_snapshot_id, client_snapshot_id, schema_id, summary
  FROM iceberg_snapshot
 WHERE table_id = %(table_id)s AND lake_snapshot_id > %(since)s
 ORDER BY lake_snapshot_id
"""

SELECT_ALIASES = "".join(
    (
        """
WITH latest AS (
    -- The snapshots of the commit that changed the table last, if a client made it.
    SELECT commit_snapshot_id FROM iceberg_snapshot WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id DESC LIMIT 1
)
SELECT n.lake_snapshot_id, n.client_snapshot_id, n.schema_id, n.summary
  FROM latest l JOIN iceberg_snapshot n ON n.table_id = %(table_id)s AND n.commit_snapshot_id = l.commit_snapshot_id
 WHERE NOT EXISTS (""",
        TOKENS_SINCE.format(since="l.commit_snapshot_id", tokens="living_tokens"),
        """)
 ORDER BY n.lake_snapshot_id
""",
    )
)

SELECT_CHANGED_AT = "".join(
    (
        """
SELECT least('9999-01-01Z', greatest('1970-01-01Z', s.snapshot_time))
       -- The time of the last change of the table after a lake snapshot.
  FROM ducklake_snapshot s
 WHERE s.snapshot_id = (SELECT max(t.snapshot_id) FROM (""",
        TOKENS_SINCE.format(since="%(since)s::bigint", tokens="any_tokens"),
        """) t)
""",
    )
)

SELECT_FILE_NOTES = """
SELECT data_file_id, spec_id, partition, sort_order_id, split_offsets, sequence_number
  FROM iceberg_file
 WHERE data_file_id = ANY(%(data_file_ids)s)
"""


def read_file_notes(conn: psycopg.Connection, data_file_ids: Sequence[int]) -> dict[int, FileNote]:
    """Return the notes of data files that Iceberg clients added, by id; files that DuckDB wrote have none."""
    return {row.data_file_id: row for row in fetch_rows(conn, FileNote, SELECT_FILE_NOTES, data_file_ids=list(data_file_ids))}
