"""What Iceberg clients say of a table beside its rows and columns, and what the catalog must refuse."""

from dataclasses import dataclass, replace

from tests.differential.generator.model import Lake, PartitionKey, SortKey

REFUSALS = (
    *(
        "stale",
        "grown from another",
        "changed default",
        "reserved name",
        "unknown spec",
        "no manifest list",
        "elsewhere",
        "current removed",
        "added twice",
    ),
    *("namespace in use", "namespace there", "made again", "registered twice"),
)


@dataclass(frozen=True, slots=True)
class TellPartitioning:
    """Another default spec; DuckDB takes the table for unpartitioned from then on."""

    table_id: int
    keys: tuple[PartitionKey, ...]

    def sql(self, lake: Lake) -> str:
        keys = ", ".join(f"{key.transform} of column {key.column_id}" for key in self.keys)
        return f"/* {lake.tables[self.table_id].sql_name} partitioned by {keys or 'nothing'} */"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], partitioning=(), told_partitioning=self.keys))


@dataclass(frozen=True, slots=True)
class TellSorting:
    """Another default sort order; DuckDB sorts the table by nothing from then on."""

    table_id: int
    keys: tuple[SortKey, ...]

    def sql(self, lake: Lake) -> str:
        return f"/* {lake.tables[self.table_id].sql_name} sorted by columns {[key.column_id for key in self.keys]} */"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], sorting=(), told_sorting=self.keys))


@dataclass(frozen=True, slots=True)
class ChangeProperties:
    """Properties are set, and another is removed."""

    table_id: int
    updates: tuple[tuple[str, str], ...]
    removed: str | None

    def sql(self, lake: Lake) -> str:
        return f"/* properties of {lake.tables[self.table_id].sql_name}: {dict(self.updates)}, without {self.removed} */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        properties = {**table.properties, **dict(self.updates)}
        return lake.with_table(replace(table, properties={name: text for name, text in properties.items() if name != self.removed}))


@dataclass(frozen=True, slots=True)
class Refused:
    """A commit that the catalog must refuse, for one of the `REFUSALS`; it changes nothing."""

    table_id: int
    reason: str

    def sql(self, lake: Lake) -> str:
        return f"/* refused, {self.reason}: {lake.tables[self.table_id].sql_name} */"

    def apply(self, lake: Lake) -> Lake:
        return lake
