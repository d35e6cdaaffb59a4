"""Data files that merges of DuckLake replaced and DuckLake has not deleted yet: what older snapshots of a table are published from.

`read_table` calls this in the load's transaction when it reads a table from the beginning: a merge rewrites the past, so what a load
goes on from never lies before one.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import psycopg

from duckicelake.lake.bulk.quick import fetch_tuples
from duckicelake.lake.rows import FileSpan


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
 -- a row that DuckLake does not write has nulls here
 WHERE table_id = %(table_id)s AND begin_snapshot IS NOT NULL AND record_count IS NOT NULL AND path IS NOT NULL
 ORDER BY end_snapshot DESC, begin_snapshot, data_file_id
"""


def read_merged_spans(conn: psycopg.Connection, table_id: int) -> list[MergedSpan]:
    """Return what is noted of the files that merges of a table replaced, newest merge first."""
    return fetch_tuples(conn, MergedSpan, SELECT_MERGED_SPANS, table_id=table_id)


class FilesBeforeMerges(NamedTuple):
    """The files of a table with those that merges replaced, in order of appearance.

    A file that one of these merges wrote begins at the merge. `replaced` and `written` are the ids of both kinds.
    """

    spans: Sequence[FileSpan]
    replaced: frozenset[int]
    written: frozenset[int]


def undo_merges(spans: Sequence[FileSpan], merged: Iterable[MergedSpan]) -> FilesBeforeMerges:
    """Return the files as they were before each merge of which every file is still known; `merged` comes newest merge first.

    A merge keeps each row. So the files that it replaced stand for those it wrote only if both hold equally many rows: if one
    is missing, the files that the merge wrote stand for the past, and for the files of merges before it.
    """
    known = {span.data_file_id: span for span in spans}
    replaced: set[int] = set()
    written: set[int] = set()
    for end, group in groupby(merged, key=attrgetter("end_snapshot")):
        files = list(group)
        new = [known[i] for i in range(files[0].first_file_id, files[0].next_file_id) if i in known]
        if sum(span.record_count for span in new) != sum(file.record_count for file in files):
            continue
        known |= {span.data_file_id: span._replace(begin_snapshot=end) for span in new}
        known |= {file.data_file_id: FileSpan(file.data_file_id, file.begin_snapshot, end, file.record_count) for file in files}
        replaced.update(file.data_file_id for file in files)
        written.update(span.data_file_id for span in new)
    if not replaced:
        return FilesBeforeMerges(spans, frozenset(), frozenset())
    ordered = sorted(known.values(), key=attrgetter("begin_snapshot", "data_file_id"))
    return FilesBeforeMerges(ordered, frozenset(replaced), frozenset(written))
