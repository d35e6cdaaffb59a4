"""The files of a table, read column by column, are those that are read row by row."""

import pytest

from duckicelake.errors import Damaged
from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.read import find_table
from duckicelake.lake.read_files import SELECT_SPANS, SINCE_BEGINNING, read_spans
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import FileSpan
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

FAR = 1 << 20
"""So many ids are read at once."""
FILL = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, end_snapshot, path, path_is_relative, record_count, file_size_bytes)
SELECT id, t.table_id, 1 + (id * 31) %% 5, CASE WHEN id %% 3 = 0 THEN 9 + id %% 2 END, 'f' || id, true, id %% 7, 1
  FROM (SELECT (n * 7919) %% 1000 + n %% 4 * %(far)s AS id FROM generate_series(1, 999) n) ids, ducklake_table t
 WHERE t.table_name = 't'
"""
NEVER = 7919 % 1000 + FAR
"""A file that never began."""


def test_columns_are_the_same_as_rows(opened: Lake, lake: FreshLake) -> None:
    """Of ids far from each other, in no order in Postgres, ended and not; what never began is left out, if nothing asks for it."""
    with lake.duckdb() as session:
        session.execute("CREATE TABLE t (i INTEGER); CREATE TABLE u (i INTEGER)")
    with lake.psycopg() as conn:
        conn.execute(FILL, {"far": FAR})
        conn.execute("UPDATE ducklake_data_file SET begin_snapshot = NULL, end_snapshot = NULL WHERE data_file_id = %s", [NEVER])
    with reading(opened) as conn:
        table = find_table(conn, "main", "t")
        assert table is not None
        rows = conn.execute(SELECT_SPANS, {"table_id": table.table_id, "since": SINCE_BEGINNING, "data_file_ids": []}).fetchall()
        found = read_spans(conn, table.table_id, SINCE_BEGINNING, [])
        assert found == rows
        assert len(found) == 998
        assert {type(span) for span in found} == {FileSpan}
        [asked] = [span for span in read_spans(conn, table.table_id, SINCE_BEGINNING, [NEVER]) if span not in found]
        assert asked == (NEVER, -1, None, NEVER % 7)


@pytest.mark.parametrize("column", whole_after(1, ["begin_snapshot", "record_count"]))
@pytest.mark.parametrize("number", whole_after(1, ["NULL", "-3"]))
def test_a_file_without_its_numbers_is_damage(opened: Lake, lake: FreshLake, column: str, number: str) -> None:
    """It is named, and those that are whole are not."""
    with lake.duckdb() as session:
        session.execute("CREATE TABLE t AS SELECT range AS i FROM range(100); INSERT INTO t SELECT range FROM range(100)")
        session.execute("DELETE FROM t WHERE i = 99")
    with lake.psycopg() as conn:
        [(last,)] = conn.execute("SELECT max(data_file_id) FROM ducklake_data_file WHERE end_snapshot IS NULL").fetchall()
        conn.execute(f"UPDATE ducklake_data_file SET {column} = {number}, end_snapshot = 99 WHERE data_file_id = {last}")  # pyright: ignore
    with reading(opened) as conn:
        table = find_table(conn, "main", "t")
        assert table is not None
        with pytest.raises(Damaged, match=f"data file {last} has no begin_snapshot or no record_count"):
            read_table(conn, table, LastRead())
