"""What Iceberg clients do with tags and branches, which DuckDB knows nothing of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.differential.clients.operations import Overwrite
from tests.differential.generator.model import Lake, Ref, Retention
from tests.differential.generator.operations import Delete, Insert


@dataclass(frozen=True, slots=True)
class MakeRef:
    """A tag or branch where main is, and what it retains; a tag knows an age of its own alone."""

    table_id: int
    name: str
    is_branch: bool
    retention: Retention = (None, None, None)

    def sql(self, lake: Lake) -> str:
        kind = "branch" if self.is_branch else "tag"
        return f"/* {kind} {self.name} of {lake.tables[self.table_id].sql_name}, retaining {self.retention} */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return _with_ref(lake, self.table_id, self.name, Ref(self.is_branch, table.rows, self.retention, table.snapshot_shape))


@dataclass(frozen=True, slots=True)
class DropRef:
    """A tag or branch goes."""

    table_id: int
    name: str

    def sql(self, lake: Lake) -> str:
        return f"/* {self.name} of {lake.tables[self.table_id].sql_name} goes */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        return lake.with_table(replace(table, refs={name: ref for name, ref in table.refs.items() if name != self.name}))


@dataclass(frozen=True, slots=True)
class WriteToBranch:
    """Rows of a branch are added, deleted, or both; main stays as it is."""

    name: str
    change: Insert | Delete | Overwrite

    @property
    def table_id(self) -> int:
        return self.change.table_id

    def sql(self, lake: Lake) -> str:
        return f"/* on branch {self.name} alone: {self.change.sql(lake).replace('*/', '* /')} */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        main, ref = table.rows, table.refs[self.name]
        changed = self.change.apply(lake.with_table(replace(table, rows=ref.rows)))
        written = changed.tables[self.table_id]
        if written.rows == ref.rows:
            # PyIceberg commits nothing then.
            return lake
        # Whatever the branch holds may become main's.
        changed = changed.with_table(replace(written, rows=main, older_shape=table.older_shape))
        # PyIceberg 0.12 does not tell again what the branch retains.
        return _with_ref(changed, self.table_id, self.name, Ref(ref.is_branch, written.rows, shape=table.shape))


@dataclass(frozen=True, slots=True)
class MoveMain:
    """Main goes to what a tag or branch names: back, or on to what was written beside it."""

    table_id: int
    name: str

    def sql(self, lake: Lake) -> str:
        return f"/* main of {lake.tables[self.table_id].sql_name} goes to {self.name} */"

    def apply(self, lake: Lake) -> Lake:
        table = lake.tables[self.table_id]
        ref = table.refs[self.name]
        return lake.with_table(replace(table, rows=ref.rows).changed_from(ref.shape))


def _with_ref(lake: Lake, table_id: int, name: str, ref: Ref) -> Lake:
    table = lake.tables[table_id]
    refs: Mapping[str, Ref] = {**table.refs, name: ref}
    return lake.with_table(replace(table, refs=refs, has_had_refs=True))
