"""Files without field ids that PyIceberg adds: every reader finds their columns by name, whatever becomes of the table's columns."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from duckdb import DuckDBPyConnection
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField

from tests.rest.writing.refs.maintenance import EVERYTHING
from tests.support.readers import Served

ABC = Schema(*(NestedField(number, name, LongType()) for number, name in enumerate("abc", 1)))

Values = dict[str, int | None]


class Story:
    """The table ns.t of the columns a, b and c, and what both sides say of it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.catalog: RestCatalog = served.pyiceberg().catalog
        self.catalog.create_namespace("ns")
        self.table: Table = self.catalog.create_table("ns.t", ABC)
        self.duck: DuckDBPyConnection = served.lake.duckdb()

    def add(self, *, branch: str = "main", **columns: Any) -> None:
        """Write a file of one row, its columns in this order, and add it."""
        self.table.refresh()
        path = f"{self.table.location()}/data/{len(self.table.snapshots())}-{''.join(columns)}.parquet"
        with self.table.io.new_output(path).create() as sink:
            pq.write_table(pa.table({name: [value] for name, value in columns.items()}), sink)
        self.table.add_files([path], branch=branch)

    def check(self, *rows: Values) -> None:
        """PyIceberg and DuckDB show these rows."""
        ice = self.table.refresh().scan().to_arrow().to_pylist()
        found = self.duck.execute("FROM lake.ns.t")
        names = [column[0] for column in found.description]
        duck = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
        for shown in (ice, duck):
            mine = [{name: row[name] for name in names} for row in shown]
            assert sorted(map(repr, mine)) == sorted(repr({name: row[name] for name in names}) for row in rows)


def test_columns_are_found_by_their_names(served: Served) -> None:
    """In any order, some left out; and then under new names, at other places, beside columns that came and went."""
    story = Story(served)
    story.add(c=3, a=1, b=2)
    story.add(b=12, c=13)
    story.check({"a": 1, "b": 2, "c": 3}, {"a": None, "b": 12, "c": 13})
    story.duck.execute("ALTER TABLE lake.ns.t RENAME COLUMN a TO z")
    with story.table.refresh().update_schema() as update:
        update.move_first("c").add_column("d", LongType())
    story.add(z=21, d=24, c=23, b=22)
    first: Values = {"z": 1, "b": 2, "c": 3, "d": None}
    story.check(first, {"z": None, "b": 12, "c": 13, "d": None}, {"z": 21, "b": 22, "c": 23, "d": 24})
    story.duck.execute("ALTER TABLE lake.ns.t DROP COLUMN b")
    story.check({"z": 1, "c": 3, "d": None}, {"z": None, "c": 13, "d": None}, {"z": 21, "c": 23, "d": 24})


def test_duckdb_s_files_may_spell_the_names_otherwise(served: Served) -> None:
    """Files of both sides are in one table, each with names of its own."""
    story = Story(served)
    path = served.lake.data_path.replace("/data/", "/outside/") + "capitals.parquet"
    story.duck.execute(f"COPY (SELECT 1::BIGINT AS A, 2::BIGINT AS \"B\") TO '{path}' (FORMAT parquet)")
    story.duck.execute(f"CALL ducklake_add_data_files('lake', 't', '{path}', schema => 'ns', allow_missing => true)")
    story.add(c=13, b=12, a=11)
    story.check({"a": 1, "b": 2, "c": None}, {"a": 11, "b": 12, "c": 13})
    story.duck.execute("ALTER TABLE lake.ns.t DROP COLUMN a")
    story.check({"b": 2, "c": None}, {"b": 12, "c": 13})


def test_files_of_a_branch_are_known_by_their_names_when_main_takes_them(served: Served) -> None:
    """DuckLake meets them then."""
    story = Story(served)
    story.table.append(pa.table({"a": [1], "b": [2], "c": [3]}))
    head = story.table.refresh().current_snapshot()
    assert head is not None
    story.table.manage_snapshots().create_branch(head.snapshot_id, "aside").commit()
    story.add(branch="aside", c=13, a=11)
    tip = story.table.refresh().snapshot_by_name("aside")
    assert tip is not None
    story.table.manage_snapshots().set_current_snapshot(tip.snapshot_id).commit()
    story.check({"a": 1, "b": 2, "c": 3}, {"a": 11, "b": None, "c": 13})


@pytest.mark.whole
def test_files_come_back_with_their_names_when_main_goes_back(served: Served) -> None:
    """Under new names of columns, after their rows were deleted and all of DuckLake's past is gone, and others come after them."""
    story = Story(served)
    story.add(c=3, a=1, b=2)
    story.add(b=12, a=11)
    target = story.table.refresh().current_snapshot()
    assert target is not None
    story.duck.execute("DELETE FROM lake.ns.t WHERE a = 1")
    story.duck.execute("ALTER TABLE lake.ns.t RENAME COLUMN a TO z")
    story.duck.execute("TRUNCATE lake.ns.t")
    story.check()
    story.table.refresh().manage_snapshots().set_current_snapshot(target.snapshot_id).commit()
    back: list[Values] = [{"z": 1, "b": 2, "c": 3}, {"z": 11, "b": 12, "c": None}]
    story.check(*back)
    for statement in EVERYTHING:
        story.duck.execute(statement)
        story.check(*back)
    story.add(c=23, z=21)
    story.check(*back, {"z": 21, "b": None, "c": 23})


@pytest.mark.parametrize(
    ("change", "columns", "told"),
    [
        pytest.param(
            "ALTER TABLE lake.ns.t RENAME COLUMN a TO z; ALTER TABLE lake.ns.t ADD COLUMN a BIGINT", {"a": 1}, "column 'a'", id="taken"
        ),
        pytest.param("ALTER TABLE lake.ns.t ADD COLUMN s STRUCT(x BIGINT)", {"a": 1, "s": {"x": 1}}, "nested columns", id="nested"),
    ],
)
def test_files_that_would_be_read_in_two_ways_are_refused(served: Served, change: str, columns: dict[str, Any], told: str) -> None:
    """A name that older files use for another column, and nested columns, which are not taken yet."""
    story = Story(served)
    story.add(a=1, b=2, c=3)
    for statement in change.split(";"):
        story.duck.execute(statement)
    before = story.table.refresh().metadata_location
    with pytest.raises(BadRequestError, match=told):
        story.add(**columns)
    assert story.table.refresh().metadata_location == before
