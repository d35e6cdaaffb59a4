"""What a commit changes of the bounds of files that are there; see `lake.writing.rows`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WidenedFloats:
    """The bounds of a `float32` column that becomes `float64`: DuckDB reads their texts as doubles from then on.

    A float's shortest text is that of another double, which may lie inside the values.
    """

    table_id: int
    column_id: int


BoundsRow = WidenedFloats
