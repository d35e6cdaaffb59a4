"""What Iceberg clients do to rows that DuckDB has no single statement for."""

from dataclasses import dataclass

from tests.differential.generator.model import Lake
from tests.differential.generator.operations import Cells, Delete, Insert
from tests.differential.generator.predicates import Predicate


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Rows are deleted and others added in one commit: two snapshots, the first of them left out when no row was meant."""

    table_id: int
    predicate: Predicate
    rows: tuple[Cells, ...]

    @property
    def parts(self) -> tuple[Delete, Insert]:
        """What it is made of."""
        return Delete(self.table_id, self.predicate), Insert(self.table_id, self.rows)

    def sql(self, lake: Lake) -> str:
        return "; ".join(part.sql(lake) for part in self.parts)

    def apply(self, lake: Lake) -> Lake:
        for part in self.parts:
            lake = part.apply(lake)
        return lake
