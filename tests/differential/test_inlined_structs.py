"""Structs that DuckDB inlines and cannot read back itself (see test_upstream): what is published is what was inserted."""

from random import Random

import pytest

from tests.differential.checks.rows import check_head
from tests.differential.generator.definitions import CreateTable
from tests.differential.generator.kinds import SCALARS, Column, Struct
from tests.differential.generator.model import Lake, Table
from tests.differential.generator.operations import Insert
from tests.differential.generator.schemas import draw_columns
from tests.differential.generator.values import draw_value
from tests.support.readers import Served
from tests.support.tiers import long_after

_TABLES = 8
_ROWS = 6


def draw_struct_columns(rng: Random) -> tuple[Column, ...]:
    """A key, and all the structs among many random columns, over types of every sort, lists and maps in them included."""
    while True:
        key, *others = draw_columns(rng, 10, SCALARS, inlined=False)
        structs = [column for column in others if isinstance(column.kind, Struct)]
        if structs:
            return key, *structs


@pytest.mark.parametrize("number", long_after(1, range(3)))
def test_inlined_structs_are_published_as_they_were_inserted(served: Served, number: int) -> None:
    """Every leaf type, with its edge values, through the text that DuckDB leaves in Postgres."""
    rng = Random(number)
    conn, lake = served.lake.duckdb(), Lake()
    conn.execute(f"SET TimeZone = '{rng.choice(('UTC', 'America/New_York', 'Asia/Kolkata'))}'")
    for index in range(_TABLES):
        create = CreateTable("main", f"t{index}", draw_struct_columns(rng))
        conn.execute(create.sql(lake))
        lake = create.apply(lake)
        insert = Insert(lake.next_table_id - 1, draw_rows(lake.tables[lake.next_table_id - 1], rng))
        conn.execute(insert.sql(lake))
        lake = insert.apply(lake)
    readers = (served.pyiceberg(), served.duckdb_iceberg())
    for table in lake.tables.values():
        for reader in readers:
            check_head(table, reader)


def draw_rows(table: Table, rng: Random) -> tuple[tuple[tuple[int, object], ...], ...]:
    """A few rows, with any value in their structs."""
    key, *structs = table.columns
    return tuple(
        ((key.column_id, number), *((column.column_id, draw_value(column.kind, rng)) for column in structs)) for number in range(_ROWS)
    )
