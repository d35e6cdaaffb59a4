"""The statements that change how DuckDB sorts."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake.sorting.rows import EndedSorting, RewordedSortKey, SortingRow

UPDATE_SORTINGS = """
UPDATE ducklake_sort_info SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

INSERT_SORT_KEYS = """
INSERT INTO ducklake_sort_expression (sort_id, table_id, sort_key_index, expression, dialect, sort_direction, null_order)
SELECT n.sort_id, n.table_id, n.sort_key_index, n.expression, e.dialect, e.sort_direction, e.null_order
  FROM unnest(%(table_id)s::bigint[], %(sort_id)s::bigint[], %(sort_key_index)s::bigint[], %(expression)s::text[])
       AS n(table_id, sort_id, sort_key_index, expression)
  JOIN ducklake_sort_info i ON i.table_id = n.table_id AND i.end_snapshot IS NULL
  JOIN ducklake_sort_expression e ON e.sort_id = i.sort_id AND e.table_id = i.table_id AND e.sort_key_index = n.sort_key_index
"""

INSERT_SORTINGS = """
INSERT INTO ducklake_sort_info (sort_id, table_id, begin_snapshot)
SELECT DISTINCT n.sort_id, n.table_id, %(snapshot_id)s::bigint
  FROM unnest(%(table_id)s::bigint[], %(sort_id)s::bigint[]) AS n(table_id, sort_id)
"""

SORTING_STATEMENTS: Mapping[type[SortingRow], Sequence[LiteralString]] = {
    EndedSorting: (UPDATE_SORTINGS,),
    RewordedSortKey: (INSERT_SORT_KEYS, UPDATE_SORTINGS, INSERT_SORTINGS),
}
