"""Generated histories of one table of DuckLake 1.1 with two writers: PyIceberg over REST, and ducklakepy in the lake itself.

The oracle is the generator's own model of the rows; both readers agree with it after each step, and with each other at every snapshot.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pytest
from ducklakepy import DuckLakeCatalog
from ducklakepy.expressions import col
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int64Type, VarcharType
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import In
from pyiceberg.types import StringType

from tests.support.ducklake_1_1 import check_same
from tests.support.readers import Served

IDENT = ("sales", "europe", "orders")
STEPS = 12
TIERS = {0: (pytest.mark.whole,), 1: ()}
SEEDS = [pytest.param(seed, id=f"seed {seed}", marks=TIERS.get(seed, (pytest.mark.long,))) for seed in range(300)]


@dataclass(slots=True)
class History:
    """The table's rows by id, and its columns of text."""

    random: Random
    lake: DuckLakeCatalog
    catalog: Catalog
    rows: dict[int, dict[str, str | None]] = field(default_factory=dict[int, dict[str, str | None]])
    columns: list[str] = field(default_factory=lambda: ["a"])
    count: int = 0

    def step(self) -> None:
        """Do one thing, chosen at random."""
        writes = (self.append_here, self.append_there, self.delete_here, self.delete_there, self.update_there)
        rare = (self.add_here, self.add_there, self.drop_here, self.rename_there, self.flush_there, self.merge_there)
        chosen: Callable[[], None] = self.random.choice((*writes, *writes, *rare))
        chosen()

    def make_rows(self) -> pa.Table:
        """New rows; few are inlined by ducklakepy."""
        size = self.random.choice((1, 3, 15))
        new = {self.count + i: {name: self.random.choice(("x", "y", None)) for name in self.columns} for i in range(size)}
        self.count += size
        self.rows |= new
        texts = {name: pa.array([row[name] for row in new.values()], pa.string()) for name in self.columns}
        return pa.table({"id": pa.array(new, pa.int64()), **texts})

    def take_ids(self) -> list[int]:
        """Some ids of rows that are there."""
        ids = sorted(self.rows)
        return self.random.sample(ids, min(len(ids), self.random.choice((1, 4))))

    def append_here(self) -> None:
        """Append with PyIceberg."""
        self.catalog.load_table(IDENT).append(self.make_rows())

    def append_there(self) -> None:
        """Append with ducklakepy."""
        self.lake.load_table(IDENT).append(self.make_rows())

    def delete_here(self) -> None:
        """Delete with PyIceberg."""
        ids = self.take_ids()
        if ids:
            self.catalog.load_table(IDENT).delete(In("id", set(ids)))
            self.rows = {key: row for key, row in self.rows.items() if key not in ids}

    def delete_there(self) -> None:
        """Delete with ducklakepy."""
        ids = self.take_ids()
        if ids:
            self.lake.load_table(IDENT).delete(col("id").isin(ids))
            self.rows = {key: row for key, row in self.rows.items() if key not in ids}

    def update_there(self) -> None:
        """Update with ducklakepy."""
        ids, name = self.take_ids(), self.random.choice(self.columns)
        if ids:
            self.lake.load_table(IDENT).update(col("id").isin(ids), {name: "changed"})
            self.rows = {key: row | {name: "changed"} if key in ids else row for key, row in self.rows.items()}

    def add_here(self) -> None:
        """Add a column with PyIceberg, sometimes one of a name that DuckLake 1.0 reserves."""
        name = "row_id" if "row_id" not in self.columns else f"c{len(self.columns)}_{self.count}"
        if name not in self.columns:
            self.catalog.load_table(IDENT).update_schema().add_column(name, StringType()).commit()
            self._add(name)

    def add_there(self) -> None:
        """Add a column with ducklakepy."""
        name = f"d{len(self.columns)}_{self.count}"
        if name not in self.columns:
            self.lake.load_table(IDENT).update_schema().add_column(name, VarcharType()).commit()
            self._add(name)

    def _add(self, name: str) -> None:
        self.columns.append(name)
        self.rows = {key: row | {name: None} for key, row in self.rows.items()}

    def drop_here(self) -> None:
        """Drop a column with PyIceberg."""
        if len(self.columns) > 1:
            name = self.columns.pop(self.random.randrange(len(self.columns)))
            self.catalog.load_table(IDENT).update_schema().delete_column(name).commit()
            self.rows = {key: {other: text for other, text in row.items() if other != name} for key, row in self.rows.items()}

    def rename_there(self) -> None:
        """Rename a column with ducklakepy."""
        place = self.random.randrange(len(self.columns))
        old, new = self.columns[place], f"r{place}_{self.count}"
        if new not in self.columns:
            self.lake.load_table(IDENT).update_schema().rename_column(old, new).commit()
            self.columns[place] = new
            self.rows = {key: {new if name == old else name: text for name, text in row.items()} for key, row in self.rows.items()}

    def flush_there(self) -> None:
        """Write inlined rows to files."""
        self.lake.flush_inlined_data(IDENT)

    def merge_there(self) -> None:
        """Merge files, or rewrite those with deletes."""
        self.random.choice((self.lake.merge_adjacent_files, self.lake.rewrite_data_files))(IDENT)

    def check(self) -> None:
        """Compare both readers with the model."""
        expected = sorted(str({"id": key, **dict(sorted(row.items()))}) for key, row in self.rows.items())
        for table in (self.catalog.load_table(IDENT).scan().to_arrow(), self.lake.load_table(IDENT).to_arrow()):
            assert sorted(str({"id": row.pop("id"), **dict(sorted(row.items()))}) for row in table.to_pylist()) == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_two_writers_and_two_readers_agree(made: tuple[Served, DuckLakeCatalog], seed: int) -> None:
    """In a nested namespace; appends, deletes, updates, changes of columns, flushes and merges."""
    served, lake = made
    with served.pyiceberg().catalog as catalog:
        catalog.create_namespace(IDENT[:2])
        lake.create_table(IDENT, schema=Schema(Column("id", Int64Type()), Column("a", VarcharType())))
        history = History(Random(seed), lake, catalog)
        history.append_there()
        for _ in range(STEPS):
            history.step()
            history.check()
    assert check_same(served, lake, IDENT) > 1
