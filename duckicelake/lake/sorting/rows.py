"""What a commit changes of how DuckDB sorts; see `lake.writing.rows`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EndedSorting:
    """The live `ducklake_sort_info` of a table that ends."""

    table_id: int


@dataclass(frozen=True, slots=True)
class RewordedSortKey:
    """A key of the `ducklake_sort_info` that comes after the live one of a table; direction and NULLs stay as they are.

    All keys of the live one are reworded together, by their index from 0.
    """

    table_id: int
    sort_id: int
    sort_key_index: int
    expression: str


SortingRow = EndedSorting | RewordedSortKey
