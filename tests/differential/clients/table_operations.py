"""What Iceberg clients do to whole tables and their past beside rows and columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.differential.generator.model import Lake


@dataclass(frozen=True, slots=True)
class MoveTable:
    """A table goes to another namespace; DuckDB has no word for it."""

    table_id: int
    namespace: str
    name: str

    def sql(self, lake: Lake) -> str:
        return f"/* {lake.tables[self.table_id].sql_name} becomes {self.name} in {self.namespace} */"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], namespace=self.namespace, name=self.name))


@dataclass(frozen=True, slots=True)
class PurgeTable:
    """A table is dropped, and what clients alone need of it goes; DuckDB still travels to it."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        return f"DROP TABLE {lake.tables[self.table_id].sql_name} /* and purge it */"

    def apply(self, lake: Lake) -> Lake:
        return lake.without_table(self.table_id)


@dataclass(frozen=True, slots=True)
class TakeBack:
    """A table is dropped and registered from its newest metadata file, under this name; `over` is a table whose place it takes."""

    table_id: int
    namespace: str
    name: str
    over: int | None = None

    def sql(self, lake: Lake) -> str:
        return f"/* {lake.tables[self.table_id].sql_name} dropped and registered as {self.name} in {self.namespace} */"

    def apply(self, lake: Lake) -> Lake:
        kept = lake if self.over is None else lake.without_table(self.over)
        return kept.with_table(replace(lake.tables[self.table_id], namespace=self.namespace, name=self.name))


@dataclass(frozen=True, slots=True)
class HideSnapshots:
    """All snapshots but the current one, and those that refs name, are removed for Iceberg clients; DuckDB still travels to them."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        return f"/* older snapshots of {lake.tables[self.table_id].sql_name} removed */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(replace(table, times_hidden=table.times_hidden + 1))


@dataclass(frozen=True, slots=True)
class TellStatistics:
    """A statistics file of the current snapshot, by this name; None takes all away that the table has."""

    table_id: int
    name: str | None

    def sql(self, lake: Lake) -> str:
        return f"/* statistics of {lake.tables[self.table_id].sql_name}: {self.name} */"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], statistics=self.name))


@dataclass(frozen=True, slots=True)
class TellIdentifier:
    """The columns that identify a row: NOT NULL ones; DuckDB knows nothing of it."""

    table_id: int
    column_ids: frozenset[int]

    def sql(self, lake: Lake) -> str:
        return f"/* rows of {lake.tables[self.table_id].sql_name} identified by columns {sorted(self.column_ids)} */"

    def apply(self, lake: Lake) -> Lake:
        return lake.with_table(replace(lake.tables[self.table_id], identifier=self.column_ids))


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """A column goes right behind another one; DuckDB has it where it was."""

    table_id: int
    column_id: int
    after_id: int

    def sql(self, lake: Lake) -> str:
        return f"/* column {self.column_id} of {lake.tables[self.table_id].sql_name} goes behind {self.after_id} */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(replace(table, times_moved=table.times_moved + 1).changed_from(table.snapshot_shape))


@dataclass(frozen=True, slots=True)
class ChangeNamespace:
    """Properties of a namespace are set, and another is removed."""

    name: str
    updates: tuple[tuple[str, str], ...]
    removed: str | None

    def sql(self, lake: Lake) -> str:
        return f"/* properties of namespace {self.name}: {dict(self.updates)}, without {self.removed} */"

    def apply(self, lake: Lake) -> Lake:
        properties = {**lake.namespace_properties.get(self.name, {}), **dict(self.updates)}
        kept: Mapping[str, str] = {key: text for key, text in properties.items() if key != self.removed}
        return replace(lake, namespace_properties={**lake.namespace_properties, self.name: kept})


@dataclass(frozen=True, slots=True)
class SetView:
    """A view of the rows that every lake has is made, or dropped (`is_there` False)."""

    namespace: str
    name: str
    is_there: bool

    def sql(self, lake: Lake) -> str:
        return f"/* view {self.name} in {self.namespace} {'made' if self.is_there else 'dropped'} */"

    def apply(self, lake: Lake) -> Lake:
        ident = (self.namespace, self.name)
        return replace(lake, views=lake.views | {ident} if self.is_there else lake.views - {ident})
