"""The files of a table and when they are read: those that changed row by row, all there ever were column by column."""

from collections.abc import Sequence
from itertools import repeat
from operator import attrgetter

import psycopg

from duckicelake.lake.bulk.quick import fetch_tuples, unpack_int64s
from duckicelake.lake.rows import FileSpan
from duckicelake.values import tuple_maker

SINCE_BEGINNING = -1
"""What `since` is when nothing has been read before."""

SELECT_SPANS = """
SELECT data_file_id, begin_snapshot, end_snapshot, record_count
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s
   AND (begin_snapshot > %(since)s OR end_snapshot > %(since)s OR data_file_id = ANY(%(data_file_ids)s))
 ORDER BY begin_snapshot, data_file_id
"""


def read_spans(conn: psycopg.Connection, table_id: int, since: int, data_file_ids: Sequence[int]) -> list[FileSpan]:
    """Return the files that began or ended after a lake snapshot, and the given ones, in order of appearance."""
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
 -- a value may not have more than 1 GiB
 GROUP BY data_file_id >> 20
"""
NO_END = -(2**63)


def _read_all_spans(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[FileSpan]:
    """Return all files there ever were, in order of appearance: there may be millions, so that they come column by column."""
    spans: list[FileSpan] = []
    for packed in conn.execute(SELECT_PACKED_SPANS, {"table_id": table_id, "data_file_ids": list(data_file_ids)}, binary=True):
        ids, begins, ends, counts = map(unpack_int64s, packed)
        known_ends = repeat(None, len(ends)) if set(ends) == {NO_END} else [None if end == NO_END else end for end in ends]
        spans += map(tuple_maker(FileSpan), zip(ids, begins, known_ends, counts, strict=True))
    # twice by a number is sooner done than once by two
    spans.sort(key=attrgetter("data_file_id"))
    spans.sort(key=attrgetter("begin_snapshot"))
    return spans
