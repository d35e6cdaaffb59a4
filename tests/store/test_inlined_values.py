"""Inlined values of every type, written by DuckDB and read as they were."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from duckicelake.store.derived_files import convert_rows
from tests.store.lake_rows import read_inlined
from tests.store.values import LEAVES, NESTED_KINDS, Kind, by_bits, plain_values
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack


class Tables:
    """A lake in which each round of values gets a table of its own."""

    def __init__(self, lake: FreshLake) -> None:
        self.duckdb, self.psycopg, self.count = lake.duckdb(), lake.psycopg(), 0

    def insert(self, kinds: list[Kind], columns: list[list[object]]) -> str:
        """Insert columns of values through DuckDB, inlined, and say into which table."""
        self.count += 1
        name = f"t{self.count}"
        declared = ", ".join(f"c{place} {kind.sql}" for place, kind in enumerate(kinds))
        entered = [kind.enter_all(values) for kind, values in zip(kinds, columns, strict=True)]
        self.duckdb.execute(f"CREATE TABLE {name} ({declared})")
        self.duckdb.register("entered", pa.table(entered, names=[f"c{place}" for place in range(len(kinds))]))
        self.duckdb.execute(f"INSERT INTO {name} SELECT * FROM entered")
        return name

    def check(self, kinds: list[Kind], columns: list[list[object]]) -> None:
        """What DuckDB inlined is read back as it was."""
        declared, rows = read_inlined(self.psycopg, self.insert(kinds, columns))
        table = convert_rows(declared, rows)
        for place, (kind, values) in enumerate(zip(kinds, columns, strict=True)):
            assert plain_values(table.column(place).combine_chunks()) == by_bits(values), kind.sql


@pytest.fixture(scope="module")
def tables(stack: SharedStack) -> Iterator[Tables]:
    """The tables of a lake for this file."""
    with make_lake(stack) as lake:
        yield Tables(lake)


# Each example is a table in Postgres, so a failing one is shown as it was found.
REAL_LAKE = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=[Phase.explicit, Phase.generate])


def columns_of(kinds: list[Kind]) -> st.SearchStrategy[list[list[object]]]:
    """Up to eight rows, NULLs among the values: what one statement inlines."""
    row = st.tuples(*[st.none() | kind.values for kind in kinds])
    return st.lists(row, min_size=1, max_size=8).map(lambda rows: [list(column) for column in zip(*rows, strict=True)])


@pytest.mark.whole
@REAL_LAKE
@given(columns=columns_of(LEAVES))
def test_values_of_every_type_come_back(tables: Tables, columns: list[list[object]]) -> None:
    """One column of each type, with any values."""
    tables.check(LEAVES, columns)


@pytest.mark.whole
@REAL_LAKE
@given(data=st.data())
def test_nested_values_come_back(tables: Tables, data: st.DataObject) -> None:
    """Structs, lists and maps of anything, at any depth, with odd field names and NULL at each level."""
    kinds = data.draw(st.lists(NESTED_KINDS, min_size=6, max_size=6))
    tables.check(kinds, data.draw(columns_of(kinds)))
