"""The statements that change bounds of files that are there."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake.bounds.rows import BoundsRow, WidenedFloats

UPDATE_FILE_BOUNDS = """
WITH told AS (
    SELECT s.ctid AS place, s.min_value, s.max_value
      FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[]) AS n(table_id, column_id)
      -- no index finds statistics by their table
      JOIN ducklake_data_file d ON d.table_id = n.table_id
      JOIN ducklake_file_column_stats s ON s.data_file_id = d.data_file_id AND s.column_id = n.column_id
     -- numbers alone, and of them those that a float holds to its last bit: a cast of any other fails
     WHERE s.min_value ~ '^-?[0-9]{1,40}([.][0-9]{1,40})?(e[+-]?[0-9]{1,2})?$'
       AND s.max_value ~ '^-?[0-9]{1,40}([.][0-9]{1,40})?(e[+-]?[0-9]{1,2})?$'
),
numbers AS MATERIALIZED (
    SELECT t.place, t.min_value::double precision AS least, t.max_value::double precision AS greatest FROM told t
),
floats AS MATERIALIZED (
    SELECT * FROM numbers
     WHERE (least = 0 OR abs(least) BETWEEN 1.2e-38 AND 3.4028234e38) AND (greatest = 0 OR abs(greatest) BETWEEN 1.2e-38 AND 3.4028234e38)
)
UPDATE ducklake_file_column_stats s
   SET min_value = f.least::real::double precision::text, max_value = f.greatest::real::double precision::text
  FROM floats f
 WHERE s.ctid = f.place
"""

FORGET_TABLE_BOUNDS = """
DELETE FROM ducklake_table_column_stats WHERE table_id = ANY(%(table_id)s::bigint[])
"""

BOUNDS_STATEMENTS: Mapping[type[BoundsRow], Sequence[LiteralString]] = {
    WidenedFloats: (UPDATE_FILE_BOUNDS, FORGET_TABLE_BOUNDS),
}
