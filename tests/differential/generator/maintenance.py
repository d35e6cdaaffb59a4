"""What DuckDB can do to a lake's files and old snapshots without changing any row."""

from dataclasses import dataclass

from tests.differential.generator.kinds import Scalar
from tests.differential.generator.literals import format_literal
from tests.differential.generator.model import Lake


@dataclass(frozen=True, slots=True)
class FlushInlined:
    """Inlined rows and deletes of the whole lake become files."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_flush_inlined_data('lake')"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class MergeAdjacent:
    """Small files of the whole lake become bigger ones; the sources vanish from history."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_merge_adjacent_files('lake')"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class RewriteFiles:
    """Files of one table with any delete are written anew without the deleted rows."""

    table_id: int

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        names = f"{_text(table.name)}, schema => {_text(table.namespace)}"
        return f"CALL ducklake_rewrite_data_files('lake', {names}, delete_threshold => 0)"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class ExpireSnapshots:
    """All lake snapshots but the newest are forgotten."""

    def sql(self, lake: Lake) -> str:
        return "CALL ducklake_expire_snapshots('lake', older_than => now()::TIMESTAMPTZ + INTERVAL 1 DAY)"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """CHECKPOINT: flush, expire, merge, rewrite, clean up."""

    def sql(self, lake: Lake) -> str:
        return "CHECKPOINT"

    def apply(self, lake: Lake) -> Lake:
        return lake


@dataclass(frozen=True, slots=True)
class SetDeletionVectors:
    """Deletes of one table are written as deletion vectors from now on, or as Parquet again."""

    table_id: int
    wanted: bool

    def sql(self, lake: Lake) -> str:
        table = lake.tables[self.table_id]
        names = f"schema => {_text(table.namespace)}, table_name => {_text(table.name)}"
        return f"CALL lake.set_option('write_deletion_vectors', {str(self.wanted).lower()}, {names})"

    def apply(self, lake: Lake) -> Lake:
        return lake


def _text(value: str) -> str:
    return format_literal(Scalar("varchar"), value)
